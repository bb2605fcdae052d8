//! Where the slots of a plan lie among the rows of a K/V tensor.
//!
//! They lie so that what a forward attends to is one contiguous window:
//!
//! ```text
//!     … Scratch(1) Scratch(0) │ Store(0) Store(1) …          │ places of rows that nobody sees
//!     └──── n_scratch ────────┘└──────── n_store ───────────┘└──────── n_unseen ───────
//! ```

use std::ops::Range;

use crate::decode::plan::{RowPlan, Slot, Stream};

/// Regions grow by whole steps of this many slots, so that growth is rare.
pub(super) const GROWTH: u32 = 64;

/// Number of slots of each region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) n_scratch: u32,
    pub(super) n_store: u32,
    /// Rows without a slot write here, each to a place of its own.
    pub(super) n_unseen: u32,
}

impl Capacity {
    /// What a plan needs.
    pub(super) fn of(plan: &RowPlan) -> Self {
        let mut need = Self::default();
        let end = |ranges: &[Range<u32>]| ranges.iter().map(|range| range.end).max().unwrap_or(0);
        for Stream { store, scratch } in &plan.streams {
            need.n_store = need.n_store.max(end(store));
            need.n_scratch = need.n_scratch.max(end(scratch));
        }
        for row in &plan.rows {
            match row.kv {
                Some(Slot::Store(slot)) => need.n_store = need.n_store.max(slot + 1),
                Some(Slot::Scratch(slot)) => need.n_scratch = need.n_scratch.max(slot + 1),
                None => need.n_unseen += 1,
            }
        }
        need
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            n_scratch: self.n_scratch.max(other.n_scratch),
            n_store: self.n_store.max(other.n_store),
            n_unseen: self.n_unseen.max(other.n_unseen),
        }
    }

    pub(super) fn rounded(self) -> Self {
        let round = |n: u32| n.next_multiple_of(GROWTH);
        Self {
            n_scratch: round(self.n_scratch),
            n_store: round(self.n_store),
            n_unseen: round(self.n_unseen),
        }
    }

    pub(super) fn n_slots(self) -> u32 {
        self.n_scratch + self.n_store + self.n_unseen
    }

    /// Row index of a slot.
    pub(super) fn index(self, slot: Slot) -> u32 {
        match slot {
            Slot::Scratch(slot) => self.n_scratch - 1 - slot,
            Slot::Store(slot) => self.n_scratch + slot,
        }
    }

    /// Row index of the `i`-th place that nobody sees.
    pub(super) fn unseen_index(self, i: u32) -> u32 {
        self.n_scratch + self.n_store + i
    }

    /// Row indices that a stream sees, as ranges.
    pub(super) fn ranges<'a>(
        self,
        stream: &'a Stream,
    ) -> impl Iterator<Item = Range<u32>> + use<'a> {
        let n_scratch = self.n_scratch;
        let scratch = stream
            .scratch
            .iter()
            .map(move |range| n_scratch - range.end..n_scratch - range.start);
        let store = stream
            .store
            .iter()
            .map(move |range| n_scratch + range.start..n_scratch + range.end);
        scratch.chain(store).filter(|range| !range.is_empty())
    }

    /// Smallest range of row indices that holds everything the streams see.
    pub(super) fn window(self, streams: &[Stream]) -> Range<u32> {
        let ranges = || streams.iter().flat_map(|stream| self.ranges(stream));
        let start = ranges().map(|range| range.start).min().unwrap_or(0);
        start..ranges().map(|range| range.end).max().unwrap_or(start)
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::single_range_in_vec_init,
        reason = "streams are lists of ranges"
    )]

    use super::*;
    use crate::decode::plan::{ForwardKind, Row};

    fn capacity() -> Capacity {
        Capacity {
            n_scratch: 8,
            n_store: 16,
            n_unseen: 4,
        }
    }

    fn stream(store: &[Range<u32>], scratch: &[Range<u32>]) -> Stream {
        Stream {
            store: store.to_vec(),
            scratch: scratch.to_vec(),
        }
    }

    #[test]
    fn every_slot_has_a_place_of_its_own() {
        let c = capacity();
        let mut places: Vec<u32> = (0..8).map(|slot| c.index(Slot::Scratch(slot))).collect();
        places.extend((0..16).map(|slot| c.index(Slot::Store(slot))));
        places.extend((0..4).map(|i| c.unseen_index(i)));
        places.sort_unstable();
        assert_eq!(places, (0..c.n_slots()).collect::<Vec<_>>());
    }

    #[test]
    fn a_prefix_and_the_scratch_of_a_step_are_one_window() {
        let c = capacity();
        let seen = stream(&[0..5], &[0..3]);
        assert_eq!(c.window(std::slice::from_ref(&seen)), 5..13);
        let places: Vec<u32> = c.ranges(&seen).flatten().collect();
        let mut expected: Vec<u32> = (0..3).map(|slot| c.index(Slot::Scratch(slot))).collect();
        expected.extend((0..5).map(|slot| c.index(Slot::Store(slot))));
        expected.sort_unstable();
        assert_eq!(places, expected);
    }

    #[test]
    fn the_window_holds_all_streams_and_nothing_of_empty_ranges() {
        let streams = [stream(&[2..4, 9..9], &[]), stream(&[6..7], &[1..2])];
        assert_eq!(capacity().window(&streams), 6..15);
        assert_eq!(capacity().window(&[]), 0..0);
    }

    #[test]
    fn a_plan_needs_what_it_writes_and_what_it_sees() {
        let row = |kv| Row {
            token: 0,
            pos: 0,
            stream: 0,
            kv,
        };
        let plan = RowPlan {
            kind: ForwardKind::Step,
            step: 0,
            rows: vec![
                row(Some(Slot::Store(6))),
                row(None),
                row(Some(Slot::Scratch(1))),
                row(None),
            ],
            streams: vec![stream(&[0..3], &[4..5])],
            predict: vec![],
            split: None,
        };
        assert_eq!(
            Capacity::of(&plan),
            Capacity {
                n_scratch: 5,
                n_store: 7,
                n_unseen: 2
            }
        );
    }
}
