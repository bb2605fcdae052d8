//! Where inputs and outputs of graphs lie: in memory that is shared with the NPU and registered with their contexts, or in plain
//! memory, from and to which the library copies.
//!
//! Graphs run one after the other, so that those whose tensors have the same size and place in the order of arguments use the
//! same buffer. A buffer is registered once with every context that is there, when the context comes, and given back before it
//! goes; one that is registered with none is freed. Where the library registers nothing (Qualcomm's emulation does not), all are plain; that is found out once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use llada_npu_ffi::qnn::{
    Context, Error, ErrorCode, MemHandle, SharedAllocator, SharedBuffer, TensorType,
};

use crate::sync::lock;

/// What a tensor of an execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Input,
    Output,
}

/// A buffer's use: side, number of the argument, bytes.
type Use = (Side, usize, usize);

/// Where a tensor's data lie in executions.
#[derive(Debug)]
pub(super) enum Place {
    Shared(MemHandle),
    Plain(Use),
}

impl Place {
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Lends the bytes; `plain` are those of a tensor that is not shared.
    pub(super) fn with<R>(&self, plain: &mut [u8], body: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Self::Shared(handle) => handle.buffer().with(body),
            Self::Plain(_) => body(plain),
        }
    }
}

/// Owning: plain memory of tensors, kept from execution to execution.
#[derive(Debug, Default)]
pub(super) struct Plain(HashMap<Use, Vec<u8>>);

impl Plain {
    /// Takes the memory of places; none for those that are shared.
    pub(super) fn take(&mut self, places: &[Place]) -> Vec<Vec<u8>> {
        let take = |place: &Place| match place {
            Place::Shared(_) => Vec::new(),
            Place::Plain(plain) => {
                let kept = self.0.remove(plain);
                kept.unwrap_or_else(|| vec![0; plain.2])
            }
        };
        places.iter().map(take).collect()
    }

    /// Gives it back.
    pub(super) fn put_back(&mut self, places: &[Place], memory: Vec<Vec<u8>>) {
        for (place, bytes) in places.iter().zip(memory) {
            if let Place::Plain(plain) = place {
                self.0.insert(*plain, bytes);
            }
        }
    }
}

#[derive(Debug, Default)]
enum Sharing {
    #[default]
    Untried,
    Works(SharedAllocator),
    Refused,
}

#[derive(Debug, Default)]
struct State {
    sharing: Sharing,
    buffers: HashMap<Use, Arc<SharedBuffer>>,
}

/// Owning: the buffers that are shared.
#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    n_registrations: Arc<AtomicU64>,
}

impl Pool {
    /// Returns what counts registrations. Who keeps it keeps no context.
    pub(super) fn n_registrations(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.n_registrations)
    }

    /// Finds a place for a tensor of a context's graph.
    pub(super) fn place(
        &self,
        context: &Context,
        side: Side,
        argument: usize,
        ty: &TensorType<'_>,
    ) -> Place {
        let which = (side, argument, ty.size_bytes());
        let shared = self.buffer(which).and_then(|buffer| {
            let registered = MemHandle::register(context, &buffer, ty);
            registered.map_err(|error| self.refuse(&error)).ok()
        });
        match shared {
            Some(handle) => {
                self.n_registrations.fetch_add(1, Ordering::Relaxed);
                Place::Shared(handle)
            }
            None => Place::Plain(which),
        }
    }

    /// Gives buffers back that are registered with no context any more.
    pub(super) fn tidy(&self) {
        let mut state = self.lock();
        let unused = state
            .buffers
            .extract_if(|_, buffer| Arc::strong_count(buffer) == 1);
        let unused: Vec<_> = unused.collect();
        // Drivers are not called under the lock, which two threads take.
        drop(state);
        drop(unused);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns where memory comes from, and looks for it when that is asked first.
    fn allocator(&self) -> Option<SharedAllocator> {
        match &self.lock().sharing {
            Sharing::Works(allocator) => return Some(allocator.clone()),
            Sharing::Refused => return None,
            Sharing::Untried => {}
        }
        let found = SharedAllocator::find();
        let mut state = self.lock();
        if let Sharing::Untried = state.sharing {
            state.sharing = Sharing::Works(found.clone());
        }
        matches!(state.sharing, Sharing::Works(_)).then_some(found)
    }

    fn buffer(&self, which: Use) -> Option<Arc<SharedBuffer>> {
        let allocator = self.allocator()?;
        let kept = self.lock().buffers.get(&which).cloned();
        if kept.is_some() {
            return kept;
        }
        match allocator.allocate(which.2) {
            Ok(buffer) => {
                let buffer = Arc::new(buffer);
                // The other thread may have been faster.
                let mut state = self.lock();
                let kept = state.buffers.entry(which);
                Some(Arc::clone(kept.or_insert_with(|| Arc::clone(&buffer))))
            }
            Err(error) => {
                log::info!(
                    "QNN: no more shared memory ({}): {error}; other inputs and outputs are copied",
                    allocator.name()
                );
                self.lock().sharing = Sharing::Refused;
                None
            }
        }
    }

    /// Shares no more from now on; what is shared stays so.
    fn refuse(&self, error: &Error) {
        let mut state = self.lock();
        if matches!(state.sharing, Sharing::Refused) {
            return;
        }
        state.sharing = Sharing::Refused;
        let is_usual = error.code() == Some(ErrorCode::NOT_SUPPORTED)
            || matches!(error, Error::Missing { .. });
        let level = if is_usual {
            log::Level::Debug
        } else {
            log::Level::Info
        };
        log::log!(
            level,
            "QNN: shared memory is not registered, inputs and outputs are copied: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_kept_as_long_as_somebody_has_them() {
        let pool = Pool::default();
        let which = |size_bytes| (Side::Input, 0, size_bytes);
        let (first, other) = (pool.buffer(which(64)), pool.buffer(which(128)));
        let (first, other) = (first.unwrap(), other.unwrap());
        assert!(Arc::ptr_eq(&first, &pool.buffer(which(64)).unwrap()));
        drop(other);
        pool.tidy();
        let kept: Vec<Use> = pool.lock().buffers.keys().copied().collect();
        assert_eq!(kept, [which(64)]);
        assert!(Arc::ptr_eq(&first, &pool.buffer(which(64)).unwrap()));
        drop(first);
        pool.tidy();
        assert!(pool.lock().buffers.is_empty());
    }
}
