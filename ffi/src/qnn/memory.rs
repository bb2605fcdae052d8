//! Buffers that the host and the NPU share, so that nothing is copied.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::context::Context;
use super::tensor::TensorType;
use super::{Error, sys};

/// Owning handle of a shared buffer's registration with a context; it keeps the context and borrows the file. Whoever maps the file
/// sees what executions write. The x86-64 emulation has none: registering fails with
/// [`NOT_SUPPORTED`](super::ErrorCode::NOT_SUPPORTED), and plain memory has to do.
pub struct MemHandle<'fd> {
    context: Context,
    handle: sys::Handle,
    size_bytes: usize,
    _fd: PhantomData<BorrowedFd<'fd>>,
}

impl fmt::Debug for MemHandle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemHandle")
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

// SAFETY: a token that any thread may pass; it is freed once.
unsafe impl Send for MemHandle<'_> {}
// SAFETY: nothing happens through a shared reference.
unsafe impl Sync for MemHandle<'_> {}

impl<'fd> MemHandle<'fd> {
    /// Registers a buffer, given as a file of shared memory (`rpcmem_to_fd`) that is at least as long as the tensor, for a tensor's data.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Spec`], [`Error::Size`] for a file that says it is shorter, [`Error::Call`].
    pub fn register(
        context: &Context,
        fd: BorrowedFd<'fd>,
        ty: &TensorType<'_>,
    ) -> Result<Self, Error> {
        let call = "memRegister";
        let library = context.library();
        let register = library.table().mem_register;
        let register = register.ok_or(Error::Missing { call })?;
        ty.check("shared buffer")?;
        check_length(fd, ty.size_bytes())?;
        let descriptor = sys::MemDescriptor {
            shape: sys::MemShape {
                n: super::tensor::length(ty.dims.len()),
                dims: ty.dims.as_ptr(),
                config: ptr::null(),
            },
            data_type: ty.data_type.to_raw(),
            kind: sys::MEM_ION,
            fd: fd.as_raw_fd(),
            unused: [0; 3],
        };
        let mut handle = ptr::null_mut();
        let _work = library.work();
        library.call(call, || {
            // SAFETY: a live context; one descriptor that lives through the call; one handle is written.
            unsafe { register(context.handle(), &raw const descriptor, 1, &raw mut handle) }
        })?;
        Ok(Self {
            context: context.clone(),
            handle: super::library::not_null(call, handle)?,
            size_bytes: ty.size_bytes(),
            _fd: PhantomData,
        })
    }

    /// Bytes of the tensor that it was registered for.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Lends it for an output, exclusively.
    pub fn as_output(&mut self) -> SharedOutput<'_> {
        SharedOutput(self)
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

/// Non-owning: a shared buffer that an execution writes to; nothing else uses its handle meanwhile.
///
/// ```
/// use llada_npu_ffi::qnn::{DataMut, MemHandle};
///
/// fn once(shared: &mut MemHandle<'_>) {
///     let _one = [shared.as_output()].map(DataMut::Shared);
/// }
/// ```
///
/// One buffer cannot be two outputs:
///
/// ```compile_fail
/// use llada_npu_ffi::qnn::{DataMut, MemHandle};
///
/// fn twice(shared: &mut MemHandle<'_>) {
///     let _two = [shared.as_output(), shared.as_output()].map(DataMut::Shared);
/// }
/// ```
#[derive(Debug)]
pub struct SharedOutput<'a>(&'a MemHandle<'a>);

impl<'a> SharedOutput<'a> {
    pub(super) fn memory(&self) -> &'a MemHandle<'a> {
        self.0
    }
}

/// A file that has a length has to be long enough; shared memory of some kernels has none (0).
fn check_length(fd: BorrowedFd<'_>, needed: usize) -> Result<(), Error> {
    // SAFETY: an all-zero `stat` is a value of its type.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and a structure to write.
    let status = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    let found = usize::try_from(stat.st_size).unwrap_or(0);
    if status == 0 && found > 0 && found < needed {
        return Err(Error::Size {
            tensor: "shared buffer".to_owned(),
            needed,
            found,
        });
    }
    Ok(())
}

impl Drop for MemHandle<'_> {
    fn drop(&mut self) {
        let library = self.context.library();
        let Some(de_register) = library.table().mem_de_register else {
            return;
        };
        let Some(_work) = library.work_on_drop("memDeRegister") else {
            return;
        };
        library.call_on_drop("memDeRegister", || {
            // SAFETY: one handle of memRegister's, freed once, before its context.
            unsafe { de_register(&raw const self.handle, 1) }
        });
    }
}
