//! One slice written by several threads, each its own parts.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Non-owning: a slice whose parts are lent to several threads at once.
#[derive(Debug)]
pub(super) struct Disjoint<'a, T> {
    start: NonNull<T>,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing it gives exclusive access to disjoint parts alone (`Disjoint::part`), which is sending `&mut T`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        let len = slice.len();
        let start = NonNull::new(slice.as_mut_ptr()).expect("slices have an address");
        Self {
            start,
            len,
            slice: PhantomData,
        }
    }

    /// Lends `len` elements from `start` on.
    ///
    /// # Panics
    ///
    /// When they are not all inside the slice.
    ///
    /// # Safety
    ///
    /// - No other part that is alive at the same time, on this or another thread, overlaps this one.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that parts are disjoint"
    )]
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(
            start <= self.len && len <= self.len - start,
            "part {start}+{len} of {}",
            self.len
        );
        // SAFETY: `start` is at most the length of the slice, checked above.
        let first = unsafe { self.start.add(start) };
        // SAFETY: the part lies inside a slice borrowed exclusively for `'a`; the caller promises that nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_where_they_should_be() {
        let mut data = [0; 6];
        let parts = Disjoint::new(&mut data);
        // SAFETY: 0..2 and 2..6 do not overlap.
        let (a, b) = (unsafe { parts.part(0, 2) }, unsafe { parts.part(2, 4) });
        a.fill(1);
        b.fill(2);
        assert_eq!(data, [1, 1, 2, 2, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "part 5+2 of 6")]
    fn a_part_past_the_end_panics() {
        let mut data = [0; 6];
        // SAFETY: the only part.
        unsafe { Disjoint::new(&mut data).part(5, 2) };
    }
}
