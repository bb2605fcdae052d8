//! Who wants to know when the bytes of a weight change: devices that hold them in a form of their own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// Tells whether a range of memory is still what it was when it was first watched.
#[derive(Debug)]
pub struct Watch {
    size_bytes: usize,
    has_changed: AtomicBool,
}

impl Watch {
    /// Tells whether the bytes were written, or their buffer has gone.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Acquire)
    }
}

/// The watched ranges, by address; they do not overlap, as tensors do not.
#[derive(Debug, Default)]
pub(super) struct Watches {
    ranges: Mutex<BTreeMap<usize, Arc<Watch>>>,
    n_ranges: AtomicUsize,
}

impl Watches {
    /// Watches a range.
    pub(super) fn watch(&self, address: usize, size_bytes: usize) -> Arc<Watch> {
        let mut ranges = lock(&self.ranges);
        if let Some(watch) = ranges.get(&address)
            && watch.size_bytes == size_bytes
        {
            return Arc::clone(watch);
        }
        let watch = Arc::new(Watch {
            size_bytes,
            has_changed: AtomicBool::new(false),
        });
        if let Some(other) = ranges.insert(address, Arc::clone(&watch)) {
            // Another tensor is there now.
            other.has_changed.store(true, Ordering::Release);
        }
        self.n_ranges.store(ranges.len(), Ordering::Relaxed);
        watch
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n_ranges.load(Ordering::Relaxed) == 0
    }

    /// Takes notice that a range is about to change.
    pub(super) fn changed(&self, address: usize, size_bytes: usize) {
        if self.is_empty() {
            return;
        }
        let mut ranges = lock(&self.ranges);
        let end = address.saturating_add(size_bytes);
        let touched: Vec<usize> = ranges
            .range(..end)
            .rev()
            .take_while(|(start, watch)| address < **start + watch.size_bytes)
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            if let Some(watch) = ranges.remove(&start) {
                watch.has_changed.store(true, Ordering::Release);
            }
        }
        self.n_ranges.store(ranges.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_to_those_they_touch() {
        let watches = Watches::default();
        let [a, b, c] = [(100, 10), (110, 10), (200, 5)].map(|(at, size)| watches.watch(at, size));
        assert!(Arc::ptr_eq(&a, &watches.watch(100, 10)));
        watches.changed(120, 80);
        assert!(![&a, &b, &c].iter().any(|watch| watch.has_changed()));
        watches.changed(109, 2);
        assert!(a.has_changed() && b.has_changed() && !c.has_changed());
        let again = watches.watch(100, 10);
        assert!(!again.has_changed());
        let other = watches.watch(100, 12);
        assert!(again.has_changed() && !other.has_changed());
        watches.changed(0, usize::MAX);
        assert!(c.has_changed() && other.has_changed() && watches.is_empty());
    }
}
