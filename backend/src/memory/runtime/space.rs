//! Free and taken addresses.

use std::ops::Range;

/// Half-open ranges of an address space that are free; all others are taken.
///
/// # Invariants
/// Free ranges are not empty, ascend, and do not touch each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    size_bytes: u64,
    free: Vec<Range<u64>>,
}

impl AddressSpace {
    /// Makes a space from 0 to `size_bytes`, all free.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        // INVARIANT: at most one range.
        let all = Some(0..size_bytes).filter(|range| !range.is_empty());
        let free = all.into_iter().collect();
        Self { size_bytes, free }
    }

    /// Returns the number of free addresses.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the length of the longest free range.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.free
            .iter()
            .map(|range| range.end - range.start)
            .max()
            .unwrap_or(0)
    }

    /// Takes `size_bytes` addresses from the shortest free range that has as many; `None` where none has.
    pub fn take(&mut self, size_bytes: u64) -> Option<Range<u64>> {
        let len = |range: &Range<u64>| range.end - range.start;
        let fitting = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, range)| len(range) >= size_bytes);
        let (i, _) = fitting.min_by_key(|(_, range)| len(range))?;
        let start = self.free[i].start;
        self.free[i].start += size_bytes;
        if self.free[i].is_empty() {
            self.free.remove(i);
        }
        // INVARIANT: a range lost its start, and went when it was empty.
        Some(start..start + size_bytes)
    }

    /// Gives addresses back.
    ///
    /// # Panics
    /// When some are free already, or not of this space: the caller's books are wrong.
    pub fn give_back(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let i = self.free.partition_point(|free| free.end < range.start);
        let overlaps = |free: &Range<u64>| free.start < range.end && range.start < free.end;
        let near = &self.free[i..self.free.len().min(i + 2)];
        assert!(
            range.end <= self.size_bytes && !near.iter().any(overlaps),
            "{range:?} was not taken"
        );
        // INVARIANT: ranges that touch become one; at most one ends at the start, and one starts at the end.
        let mut merged = range;
        if let Some(free) = self.free.get(i)
            && free.end == merged.start
        {
            merged.start = free.start;
            self.free.remove(i);
        }
        if let Some(free) = self.free.get(i)
            && free.start == merged.end
        {
            merged.end = free.end;
            self.free.remove(i);
        }
        self.free.insert(i, merged);
    }
}
