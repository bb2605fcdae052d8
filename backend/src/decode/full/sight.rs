//! What the rows of a stream see, by position.

use std::collections::BTreeMap;

use super::super::canvas::Canvas;
use super::super::plan::{Slot, Stream};
use super::places::Places;

/// Slots that a stream attends to, at most one per position.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight(BTreeMap<u32, Slot>);

impl Sight {
    /// Everything committed that has K/V.
    pub(super) fn of(canvas: &Canvas, places: &Places) -> Self {
        let committed = (0..canvas.limit()).filter(|&pos| !canvas.is_masked(pos));
        let placed = committed.filter_map(|pos| Some((pos, places.slot(pos)?)));
        Self(placed.collect())
    }

    /// Adds a position that is not seen yet.
    pub(super) fn add(&mut self, pos: u32, slot: Slot) {
        let before = self.0.insert(pos, slot);
        debug_assert_eq!(before, None, "position {pos} is seen twice");
    }

    /// Sees a position at `slot`, whether or not it was seen elsewhere.
    pub(super) fn replace(&mut self, pos: u32, slot: Slot) {
        self.0.insert(pos, slot);
    }

    /// Returns the attend rule.
    pub(super) fn stream(&self) -> Stream {
        let (mut store, mut scratch) = (Vec::new(), Vec::new());
        for &slot in self.0.values() {
            match slot {
                Slot::Store(slot) => store.push(slot),
                Slot::Scratch(slot) => scratch.push(slot),
            }
        }
        Stream {
            store: ranges(store),
            scratch: ranges(scratch),
        }
    }
}

/// Returns slots as sorted ranges that do not touch.
fn ranges(mut slots: Vec<u32>) -> Vec<std::ops::Range<u32>> {
    slots.sort_unstable();
    let mut ranges: Vec<std::ops::Range<u32>> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(last) if last.end == slot => last.end = slot + 1,
            _ => ranges.push(slot..slot + 1),
        }
    }
    ranges
}
