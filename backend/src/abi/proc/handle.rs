//! What the opaque handles point to.

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::failure::Failure;
use crate::decode::Params;
use crate::engine::{Model, Session};

/// `struct ggml_diffusion_model`, never defined for C: a `ModelState` in a box.
#[repr(C)]
#[derive(Debug)]
pub struct ModelHandle {
    opaque: PhantomData<ModelState>,
}

/// `struct ggml_diffusion_session`, never defined for C: a `SessionCell` in a box.
#[repr(C)]
#[derive(Debug)]
pub struct SessionHandle {
    opaque: PhantomData<SessionCell>,
}

/// Behind a model handle.
#[derive(Debug)]
pub(super) struct ModelState {
    pub(super) model: Arc<Model>,
    pub(super) architecture: CString,
}

/// Behind a session handle.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) session: Session,
    pub(super) params: Params,
}

/// No call is inside.
const FREE: u8 = 0;
/// A call is inside.
const BUSY: u8 = 1;
/// A call panicked.
const FAILED: u8 = 2;

/// A session state that one call at a time uses: a callback may try to come back into the call that it was called by.
#[derive(Debug)]
pub(super) struct SessionCell {
    used: AtomicU8,
    state: UnsafeCell<SessionState>,
}

impl SessionCell {
    pub(super) const fn new(state: SessionState) -> Self {
        Self {
            used: AtomicU8::new(FREE),
            state: UnsafeCell::new(state),
        }
    }

    fn enter(&self) -> Result<(), Failure> {
        let entered = self
            .used
            .compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed);
        match entered {
            Ok(_) => Ok(()),
            Err(BUSY) => Err(Failure::Busy),
            Err(_) => Err(Failure::Poisoned),
        }
    }
}

/// The state of a session during one call.
///
/// # Invariants
/// The cell is `BUSY`, by this guard.
#[derive(Debug)]
pub(super) struct SessionGuard<'a> {
    cell: &'a SessionCell,
}

impl Deref for SessionGuard<'_> {
    type Target = SessionState;

    fn deref(&self) -> &SessionState {
        // SAFETY: nobody else has the state while the cell is busy by this guard.
        unsafe { &*self.cell.state.get() }
    }
}

impl DerefMut for SessionGuard<'_> {
    fn deref_mut(&mut self) -> &mut SessionState {
        // SAFETY: as above, and this guard is borrowed mutably.
        unsafe { &mut *self.cell.state.get() }
    }
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        let after = if std::thread::panicking() {
            FAILED
        } else {
            FREE
        };
        self.cell.used.store(after, Ordering::Release);
    }
}

macro_rules! handle {
    ($handle:ident, $state:ident) => {
        impl $handle {
            /// Gives a state away to C.
            pub(super) fn into_handle(state: Box<$state>) -> *mut Self {
                Box::into_raw(state).cast()
            }

            /// Takes a state back from C; `None` for NULL.
            ///
            /// # Safety
            /// `handle` is NULL or came from `into_handle`, and is not used afterwards.
            pub(super) unsafe fn from_handle(handle: *mut Self) -> Option<Box<$state>> {
                if handle.is_null() {
                    return None;
                }
                // SAFETY: the box that `into_handle` gave away, taken back once.
                Some(unsafe { Box::from_raw(handle.cast()) })
            }
        }
    };
}

handle!(ModelHandle, ModelState);
handle!(SessionHandle, SessionCell);

impl ModelHandle {
    /// Borrows the state behind a handle; threads share models.
    ///
    /// # Errors
    /// [`Failure::Null`].
    ///
    /// # Safety
    /// `handle` is NULL or came from `into_handle`, and is not freed during `'a`.
    pub(super) unsafe fn borrow_handle<'a>(handle: *mut Self) -> Result<&'a ModelState, Failure> {
        // SAFETY: the caller guarantees a live box; nobody borrows it mutably.
        unsafe { handle.cast::<ModelState>().as_ref() }.ok_or(Failure::Null { name: "model" })
    }
}

impl SessionHandle {
    /// Takes the state behind a handle for one call.
    ///
    /// # Errors
    /// [`Failure::Null`]; [`Failure::Busy`] inside another call; [`Failure::Poisoned`] after a panic.
    ///
    /// # Safety
    /// `handle` is NULL or came from `into_handle`, and is not freed during `'a` but by [`free`](Self::free).
    pub(super) unsafe fn enter<'a>(handle: *mut Self) -> Result<SessionGuard<'a>, Failure> {
        // SAFETY: the caller guarantees a live box; of the cell, threads and calls share references only.
        let cell = unsafe { handle.cast::<SessionCell>().as_ref() };
        let cell = cell.ok_or(Failure::Null { name: "session" })?;
        cell.enter()?;
        // INVARIANT: just entered.
        Ok(SessionGuard { cell })
    }

    /// Frees a session; NULL is none.
    ///
    /// # Errors
    /// [`Failure::Busy`] inside another call: the session stays.
    ///
    /// # Safety
    /// `handle` is NULL or came from `into_handle`, and is not used after it was freed.
    pub(super) unsafe fn free(handle: *mut Self) -> Result<(), Failure> {
        // SAFETY: as the caller guarantees.
        match unsafe { Self::enter(handle) } {
            Ok(guard) => drop(guard),
            Err(Failure::Busy) => return Err(Failure::Busy),
            Err(_) => {}
        }
        // SAFETY: as the caller guarantees; no call is inside.
        drop(unsafe { Self::from_handle(handle) });
        Ok(())
    }
}
