//! Where the K/V of each position lies.
//!
//! A committed position has its K/V in its own store slot or, after it was computed anew while another path read the old one,
//! in a scratch slot that stays taken; the next time it goes back. So what a step reads is never written in that step, and
//! a merge is a change of this table.

use super::super::plan::Slot;

/// K/V of a committed position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    slot: Slot,
    /// Step of the forward that computed it.
    step: u32,
}

/// K/V of all committed positions, and which scratch slots are taken.
///
/// # Invariants
/// No two positions share a slot; the scratch slots of all places are taken.
#[derive(Debug)]
pub(super) struct Places {
    of: Vec<Option<Place>>,
    taken: Vec<bool>,
}

impl Places {
    pub(super) fn new(n_canvas: u32) -> Self {
        Self {
            of: vec![None; n_canvas as usize],
            taken: Vec::new(),
        }
    }

    /// Slot of a position's K/V; `None` when it was not computed from the token that stands there.
    pub(super) fn slot(&self, pos: u32) -> Option<Slot> {
        self.of[pos as usize].map(|place| place.slot)
    }

    /// Step of the forward that computed a position's K/V.
    pub(super) fn step(&self, pos: u32) -> Option<u32> {
        self.of[pos as usize].map(|place| place.step)
    }

    /// Returns a slot for a position's next K/V that is not the present one.
    pub(super) fn other_slot(&mut self, pos: u32) -> Slot {
        match self.slot(pos) {
            Some(Slot::Store(_)) => Slot::Scratch(self.take()),
            Some(Slot::Scratch(_)) | None => Slot::Store(pos),
        }
    }

    /// The K/V of a position is now in `slot`, computed by the forward of `step`.
    pub(super) fn set(&mut self, pos: u32, slot: Slot, step: u32) {
        if self.slot(pos) != Some(slot) {
            self.clear(pos);
        }
        // INVARIANT: the slot is the position's own in the store, or was taken for it.
        self.of[pos as usize] = Some(Place { slot, step });
    }

    /// A position has no K/V any more.
    pub(super) fn clear(&mut self, pos: u32) {
        if let Some(place) = self.of[pos as usize].take() {
            self.free(place.slot);
        }
    }

    /// Takes the lowest scratch slot that is free.
    pub(super) fn take(&mut self) -> u32 {
        let slot = self.taken.iter().position(|taken| !taken);
        let slot = slot.unwrap_or_else(|| {
            self.taken.push(false);
            self.taken.len() - 1
        });
        self.taken[slot] = true;
        u32::try_from(slot).expect("as many slots as rows, whose number is a u32")
    }

    /// Gives a slot back.
    pub(super) fn free(&mut self, slot: Slot) {
        if let Slot::Scratch(slot) = slot {
            self.taken[slot as usize] = false;
        }
    }
}
