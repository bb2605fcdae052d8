//! Contexts that somebody holds, whether or not they are there.
//!
//! ```text
//!            made (checked, written) ──┐               ┌── the first user wants it: made from its binary
//!                                      ▼               ▼
//!                                    there ◀──────── not there
//!                                      │               ▲
//!        nobody holds it: freed ◀──────┴───────────────┘ its last user does not want it any more: freed
//! ```
//!
//! Who holds a part holds its context; what nobody holds any more is freed on the library's thread. A user is an instance's memory
//! runtime while it has the context mapped, or an instance without a budget, which never lets it go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::super::cache::ContextKey;
use super::lock;

/// The contexts of a session.
#[derive(Debug, Default)]
pub(super) struct Contexts(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Contexts that are held, and the bytes of their binaries, 0 where they are not known.
    held: BTreeMap<u64, (Weak<Share>, u64)>,
    /// Contexts that are there and that nobody holds, to be freed.
    unused: Vec<u64>,
}

/// Bytes of a context binary: a mapped file, or memory.
pub(super) type BinaryBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What a context can be made from again.
#[derive(Clone)]
pub(super) struct Binary {
    pub(super) key: ContextKey,
    pub(super) bytes: BinaryBytes,
}

impl std::fmt::Debug for Binary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Binary").field(&self.key).finish()
    }
}

/// Owning: a share of a context of the library.
#[derive(Clone, Debug)]
pub(super) struct Held(Arc<Share>);

#[derive(Debug)]
struct Share {
    context: u64,
    lists: Arc<Mutex<Lists>>,
    residence: Mutex<Residence>,
}

/// Whether a context is there, and for whom.
#[derive(Debug)]
pub(super) struct Residence {
    pub(super) binary: Option<Binary>,
    pub(super) is_there: bool,
    pub(super) n_users: usize,
    /// One of the users never lets it go.
    pub(super) is_pinned: bool,
}

impl Contexts {
    /// Holds a context that was made now.
    pub(super) fn hold(&self, context: u64) -> Held {
        let share = Arc::new(Share {
            context,
            lists: Arc::clone(&self.0),
            residence: Mutex::new(Residence {
                binary: None,
                is_there: true,
                n_users: 0,
                is_pinned: false,
            }),
        });
        let entry = (Arc::downgrade(&share), 0);
        lock(&self.0).held.insert(context, entry);
        Held(share)
    }

    /// Returns a share of a context, if somebody holds it.
    pub(super) fn get(&self, context: u64) -> Option<Held> {
        let share = lock(&self.0)
            .held
            .get(&context)
            .map(|(share, _)| share.clone())?;
        // Outside of the lock: this may become the last share.
        share.upgrade().map(Held)
    }

    /// Returns the contexts that have to be freed, once.
    pub(super) fn take_unused(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.0).unused)
    }

    /// Returns the number of contexts in use, and the bytes of their binaries.
    pub(super) fn count(&self) -> (u64, u64) {
        let lists = lock(&self.0);
        let sizes = lists.held.values().map(|(_, size_bytes)| size_bytes);
        (lists.held.len() as u64, sizes.sum())
    }
}

impl Held {
    /// Returns the number of the context.
    pub(super) fn context(&self) -> u64 {
        self.0.context
    }

    /// Says how large the binary is.
    pub(super) fn set_size(&self, size_bytes: u64) {
        if let Some(entry) = lock(&self.0.lists).held.get_mut(&self.0.context) {
            entry.1 = size_bytes;
        }
    }

    /// Returns how large the binary is; 0 where that is not known.
    pub(super) fn size_bytes(&self) -> u64 {
        let lists = lock(&self.0.lists);
        lists.held.get(&self.0.context).map_or(0, |entry| entry.1)
    }

    /// Looks at, or changes, whether it is there: exclusively, also while it is made or freed.
    pub(super) fn residence(&self) -> MutexGuard<'_, Residence> {
        lock(&self.0.residence)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let is_there = lock(&self.residence).is_there;
        let mut lists = lock(&self.lists);
        lists.held.remove(&self.context);
        if is_there {
            lists.unused.push(self.context);
        }
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
        let second = contexts.get(3).unwrap();
        drop(first);
        assert_eq!((contexts.count(), second.size_bytes()), ((2, 100), 100));
        assert_eq!(contexts.take_unused(), [0; 0]);
        drop(second);
        assert_eq!(contexts.count(), (1, 0));
        assert!(contexts.get(3).is_none());
        assert_eq!(contexts.take_unused(), [3]);
        assert_eq!(contexts.take_unused(), [0; 0]);
        assert_eq!(other.context(), 4);
        // What is not there need not be freed.
        other.residence().is_there = false;
        drop(other);
        assert_eq!((contexts.take_unused(), contexts.count()), (vec![], (0, 0)));
    }
}
