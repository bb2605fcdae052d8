//! Locks that a panic leaves usable.
//!
//! A panic in a thread of ours is caught where the thread began, or at the C boundary, and reported there as a failure. That another
//! thread held a lock then is no reason to panic, too.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a thread panicked while it held it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
