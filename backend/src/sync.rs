//! Locks that a panic leaves usable.
//!
//! In the plug-in a panic is caught where its thread began, or at the C boundary, and reported there as a failure. That one thread
//! panicked with a lock is no reason for another to panic, too.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a thread panicked while it held it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
