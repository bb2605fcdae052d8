//! Registrations of shared memory with contexts, so that inputs and outputs of executions are not copied.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, MutexGuard};

use super::context::Context;
use super::shared::SharedBuffer;
use super::tensor::TensorType;
use super::{Error, sys};

/// Owning handle of a buffer's registration with a context; it keeps both. It is made and given back one at a time, as contexts are, while
/// graphs may run. The x86-64 emulation registers nothing: it answers
/// [`NOT_SUPPORTED`](super::ErrorCode::NOT_SUPPORTED), and plain memory has to do.
pub struct MemHandle {
    context: Context,
    buffer: Arc<SharedBuffer>,
    handle: sys::Handle,
    size_bytes: usize,
}

impl fmt::Debug for MemHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemHandle")
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

// SAFETY: a token that any thread may pass; it is freed once.
unsafe impl Send for MemHandle {}
// SAFETY: nothing happens through a shared reference; executions hold the buffer's lock.
unsafe impl Sync for MemHandle {}

impl MemHandle {
    /// Registers a buffer that is at least as long as the tensor, for a tensor's data at its start.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Spec`], [`Error::Size`], [`Error::Call`].
    pub fn register(
        context: &Context,
        buffer: &Arc<SharedBuffer>,
        ty: &TensorType<'_>,
    ) -> Result<Self, Error> {
        let call = "memRegister";
        let library = context.library();
        let register = library.table().mem_register;
        let register = register.ok_or(Error::Missing { call })?;
        ty.check("shared buffer")?;
        if buffer.size_bytes() < ty.size_bytes() {
            return Err(Error::Size {
                tensor: "shared buffer".to_owned(),
                needed: ty.size_bytes(),
                found: buffer.size_bytes(),
            });
        }
        let descriptor = sys::MemDescriptor {
            shape: sys::MemShape {
                n: super::tensor::length(ty.dims.len()),
                dims: ty.dims.as_ptr(),
                config: ptr::null(),
            },
            data_type: ty.data_type.to_raw(),
            kind: sys::MEM_ION,
            fd: buffer.fd(),
            unused: [0; 3],
        };
        let mut handle = ptr::null_mut();
        let _setup = library.setup();
        library.call(call, || {
            // SAFETY: a live context; one descriptor that lives through the call, of a file that is long enough and stays open as
            // long as the registration; one handle is written.
            unsafe { register(context.handle(), &raw const descriptor, 1, &raw mut handle) }
        })?;
        let handle = super::library::not_null(call, handle).inspect_err(|_| {
            // Registered, by its word, and nothing to give back.
            let _kept_for_good = ManuallyDrop::new(Arc::clone(buffer));
        })?;
        Ok(Self {
            context: context.clone(),
            buffer: Arc::clone(buffer),
            handle,
            size_bytes: ty.size_bytes(),
        })
    }

    /// Bytes of the tensor that it was registered for.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<SharedBuffer> {
        &self.buffer
    }

    /// Keeps others from the bytes while a graph runs.
    pub(super) fn hold(&self) -> Result<MutexGuard<'_, ()>, Error> {
        self.buffer.hold().ok_or(Error::Answer {
            call: "graphExecute",
            what: "a shared buffer is used twice at a time",
        })
    }

    /// Gives the registration back, once; tells whether the library took it.
    fn give_back(&self) -> bool {
        let library = self.context.library();
        let Some(de_register) = library.table().mem_de_register else {
            return false;
        };
        let Some(_setup) = library.setup_on_drop("memDeRegister") else {
            return false;
        };
        library.call_on_drop("memDeRegister", || {
            // SAFETY: one handle of memRegister's, freed once, before its context; an execution that uses it borrows it.
            unsafe { de_register(&raw const self.handle, 1) }
        })
    }

    /// The handle, for a graph of the context that it was registered with.
    pub(super) fn handle(&self, context: &Context) -> Result<sys::Handle, Error> {
        if !self.context.is(context) {
            return Err(Error::Answer {
                call: "memRegister",
                what: "the buffer is of another context",
            });
        }
        Ok(self.handle)
    }
}

impl Drop for MemHandle {
    fn drop(&mut self) {
        if !self.give_back() {
            // The library may have the memory still: it stays, as the registration does.
            let _kept_for_good = ManuallyDrop::new(Arc::clone(&self.buffer));
        }
    }
}
