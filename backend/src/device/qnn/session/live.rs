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
use crate::sync::lock;

/// The contexts of a session.
#[derive(Debug, Default)]
pub(super) struct Contexts(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Contexts that are held, and the bytes of their binaries, 0 where they are not known.
    held: BTreeMap<u64, (Weak<Share>, u64)>,
    /// Contexts that are there and that nobody holds, to be freed.
    unused: Vec<Unused>,
}

/// A context that is there and that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unused {
    pub(super) context: u64,
    /// See [`Residence::mapped_bytes`].
    pub(super) mapped_bytes: Option<u64>,
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
    /// The bytes that it was counted with when it was made from its binary, until it is counted as freed.
    pub(super) mapped_bytes: Option<u64>,
    pub(super) n_users: usize,
    /// One of the users never lets it go.
    pub(super) is_pinned: bool,
}

impl Contexts {
    /// Holds a context that was made now; `is_pinned`: for a user who never lets it go.
    pub(super) fn hold(&self, context: u64, is_pinned: bool) -> Held {
        let share = Arc::new(Share {
            context,
            lists: Arc::clone(&self.0),
            residence: Mutex::new(Residence {
                binary: None,
                is_there: true,
                mapped_bytes: None,
                n_users: usize::from(is_pinned),
                is_pinned,
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
    pub(super) fn take_unused(&self) -> Vec<Unused> {
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
        let (is_there, mapped_bytes) = {
            let residence = lock(&self.residence);
            (residence.is_there, residence.mapped_bytes)
        };
        let mut lists = lock(&self.lists);
        lists.held.remove(&self.context);
        if is_there {
            lists.unused.push(Unused {
                context: self.context,
                mapped_bytes,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_gives_a_context_back_once() {
        let contexts = Contexts::default();
        let (first, other) = (contexts.hold(3, false), contexts.hold(4, true));
        assert_eq!(
            (first.residence().n_users, other.residence().n_users),
            (0, 1)
        );
        first.set_size(100);
        first.residence().mapped_bytes = Some(100);
        let second = contexts.get(3).unwrap();
        drop(first);
        assert_eq!((contexts.count(), second.size_bytes()), ((2, 100), 100));
        assert_eq!(contexts.take_unused(), []);
        drop(second);
        assert_eq!(contexts.count(), (1, 0));
        assert!(contexts.get(3).is_none());
        let unused = Unused {
            context: 3,
            mapped_bytes: Some(100),
        };
        assert_eq!(contexts.take_unused(), [unused]);
        assert_eq!(contexts.take_unused(), []);
        assert_eq!(other.context(), 4);
        // What is not there need not be freed.
        other.residence().is_there = false;
        drop(other);
        assert_eq!((contexts.take_unused(), contexts.count()), (vec![], (0, 0)));
    }
}
