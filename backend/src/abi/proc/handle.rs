//! What the opaque handles point to.

use std::ffi::CString;
use std::marker::PhantomData;
use std::sync::Arc;

use super::failure::Failure;
use crate::decode::Params;
use crate::engine::{Model, Session};

/// `struct ggml_diffusion_model`, never defined for C: a `ModelState` in a box.
#[repr(C)]
#[derive(Debug)]
pub struct ModelHandle {
    opaque: PhantomData<ModelState>,
}

/// `struct ggml_diffusion_session`, never defined for C: a `SessionState` in a box.
#[repr(C)]
#[derive(Debug)]
pub struct SessionHandle {
    opaque: PhantomData<SessionState>,
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
    /// Set while a call is inside: a call that finds it set follows one that panicked.
    pub(super) busy: bool,
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
handle!(SessionHandle, SessionState);

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
    /// Borrows the state behind a handle; a session is used by one thread at a time.
    ///
    /// # Errors
    /// [`Failure::Null`].
    ///
    /// # Safety
    /// `handle` is NULL or came from `into_handle`, is not freed during `'a`, and nobody else uses it then.
    pub(super) unsafe fn borrow_handle<'a>(
        handle: *mut Self,
    ) -> Result<&'a mut SessionState, Failure> {
        // SAFETY: the caller guarantees a live box that it alone uses.
        unsafe { handle.cast::<SessionState>().as_mut() }.ok_or(Failure::Null { name: "session" })
    }
}
