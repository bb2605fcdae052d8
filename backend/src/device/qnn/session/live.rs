//! Contexts in use. Who holds a part holds its context; what nobody holds any more is freed on the library's thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::lock;

/// The contexts of a session.
#[derive(Debug, Default)]
pub(super) struct Contexts(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Bytes of the binaries, 0 where they are not known, of contexts that are held.
    held: BTreeMap<u64, u64>,
    /// Contexts that nobody holds, to be freed.
    unused: Vec<u64>,
}

/// Owning: a share of a context of the library.
#[derive(Clone, Debug)]
pub(super) struct Held(Arc<Share>);

#[derive(Debug)]
struct Share {
    context: u64,
    lists: Arc<Mutex<Lists>>,
}

impl Contexts {
    /// Holds a new context.
    pub(super) fn hold(&self, context: u64) -> Held {
        lock(&self.0).held.insert(context, 0);
        let lists = Arc::clone(&self.0);
        Held(Arc::new(Share { context, lists }))
    }

    /// Returns the contexts that have to be freed, once.
    pub(super) fn take_unused(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.0).unused)
    }

    /// Returns the number of contexts in use, and the bytes of their binaries.
    pub(super) fn count(&self) -> (u64, u64) {
        let lists = lock(&self.0);
        (lists.held.len() as u64, lists.held.values().sum())
    }
}

impl Held {
    /// Returns the number of the context.
    pub(super) fn context(&self) -> u64 {
        self.0.context
    }

    /// Says how large the binary is.
    pub(super) fn set_size(&self, size_bytes: u64) {
        lock(&self.0.lists).held.insert(self.0.context, size_bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut lists = lock(&self.lists);
        lists.held.remove(&self.context);
        lists.unused.push(self.context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_gives_a_context_back_once() {
        let contexts = Contexts::default();
        let (first, other) = (contexts.hold(3), contexts.hold(4));
        first.set_size(100);
        let second = first.clone();
        drop(first);
        assert_eq!(contexts.count(), (2, 100));
        assert_eq!(contexts.take_unused(), [0; 0]);
        drop(second);
        assert_eq!(contexts.count(), (1, 0));
        assert_eq!(contexts.take_unused(), [3]);
        assert_eq!(contexts.take_unused(), [0; 0]);
        assert_eq!(other.context(), 4);
    }
}
