//! What is to be done, and what has been.

use std::ops::Range;

use super::workload::{ObjectId, SegmentId};

/// What a map makes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// An object of the workload.
    Object(ObjectId),
    /// The memory that short-lived objects share.
    Arena,
    /// The memory that streamed objects are copied into.
    Staging,
}

/// One map: bytes of a place at addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whose bytes.
    pub place: Place,
    /// The first byte of the place that is mapped.
    pub offset_bytes: u64,
    /// Addresses, whole pages; the last page may reach beyond the place.
    pub range: Range<u64>,
}

impl Piece {
    /// Returns the length of the map.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// One thing to do before or after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Make bytes visible.
    Map(Piece),
    /// Make them invisible.
    Unmap(Piece),
    /// Copy an object into the staging memory, which is mapped.
    Copy {
        /// Whose bytes.
        object: ObjectId,
        /// The slot: 0 at the start of the staging memory, 1 at its end.
        slot: usize,
        /// Addresses, as many as the object has bytes, rounded up to whole pages.
        range: Range<u64>,
    },
}

/// A segment, and what must be moved for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Counts all turns of a planner, from 0.
    pub ticket: u64,
    /// What runs.
    pub segment: SegmentId,
    /// The turn whose run must be over before the first transfer starts, besides the transfers of all turns before; `None`
    /// where they can start at once.
    pub after: Option<u64>,
    /// What to do before the run, in this order.
    pub before: Vec<Transfer>,
    /// What to do after the run, before anything of the next turn, in this order.
    pub release: Vec<Transfer>,
}

impl Turn {
    fn sum(&self, of: impl Fn(&Transfer) -> u64) -> u64 {
        self.before.iter().chain(&self.release).map(of).sum()
    }

    /// Returns the bytes that are mapped for this turn.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.sum(|transfer| match transfer {
            Transfer::Map(piece) => piece.size_bytes(),
            Transfer::Unmap(_) | Transfer::Copy { .. } => 0,
        })
    }

    /// Returns the bytes that are unmapped in this turn.
    #[must_use]
    pub fn unmapped_bytes(&self) -> u64 {
        self.sum(|transfer| match transfer {
            Transfer::Unmap(piece) => piece.size_bytes(),
            Transfer::Map(_) | Transfer::Copy { .. } => 0,
        })
    }

    /// Returns the bytes that are copied for this turn.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.sum(|transfer| match transfer {
            Transfer::Copy { range, .. } => range.end - range.start,
            Transfer::Map(_) | Transfer::Unmap(_) => 0,
        })
    }
}

/// Sums over all turns so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes mapped now.
    pub mapped_bytes: u64,
    /// Most bytes mapped at the same time.
    pub peak_bytes: u64,
    /// Maps made.
    pub n_maps: u64,
    /// Maps returned.
    pub n_unmaps: u64,
    /// Objects that lost their maps while the session went on.
    pub n_evictions: u64,
    /// Times that everything was unmapped because free addresses did not lie together.
    pub n_compactions: u64,
    /// Bytes of all maps made.
    pub total_mapped_bytes: u64,
    /// Objects copied.
    pub n_copies: u64,
    /// Bytes of all copies.
    pub total_copied_bytes: u64,
}

impl Counters {
    /// Counts a transfer.
    pub fn add(&mut self, transfer: &Transfer) {
        match transfer {
            Transfer::Map(piece) => {
                self.n_maps += 1;
                self.mapped_bytes += piece.size_bytes();
                self.total_mapped_bytes += piece.size_bytes();
                self.peak_bytes = self.peak_bytes.max(self.mapped_bytes);
            }
            Transfer::Unmap(piece) => {
                self.n_unmaps += 1;
                self.mapped_bytes -= piece.size_bytes();
            }
            Transfer::Copy { range, .. } => {
                self.n_copies += 1;
                self.total_copied_bytes += range.end - range.start;
            }
        }
    }

    /// Adds the sums of other turns, of another address space; the peak is the higher one.
    pub fn join(&mut self, other: &Self) {
        self.mapped_bytes += other.mapped_bytes;
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.n_maps += other.n_maps;
        self.n_unmaps += other.n_unmaps;
        self.n_evictions += other.n_evictions;
        self.n_compactions += other.n_compactions;
        self.total_mapped_bytes += other.total_mapped_bytes;
        self.n_copies += other.n_copies;
        self.total_copied_bytes += other.total_copied_bytes;
    }

    /// Returns the bytes that were moved: mapped or copied.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.total_mapped_bytes + self.total_copied_bytes
    }
}
