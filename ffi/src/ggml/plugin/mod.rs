//! Building a ggml backend out of safe traits.
//!
//! A backend implements [`RegImpl`], [`DeviceImpl`], [`BufferTypeImpl`], [`BufferImpl`] and [`BackendImpl`];
//! [`Installed::new`] makes the C registry out of them. Each slot of ggml's vtables is a shim that guards against
//! panics, borrows its context, calls one safe function and maps the result. After a panic the context is marked as
//! failed and refuses more work; the host lives on.
//!
//! | module | what |
//! |---|---|
//! | [`host`] | which ggml this is: tested versions, and the proof of its layouts |
//! | [`view`] | tensors and graphs of the host, borrowed for one call |
//! | [`delegate`] | running nodes on the host's CPU backend |
//! | `layout` | the two layouts of the buffer-type table |
//! | `uses` | how often the tensors of a graph are read |
//! | `registry`, `device`, `buffer`, `backend` | the shims |
//! | `context` | what a `void * context` points to |

mod backend;
mod buffer;
mod canary;
mod context;
pub mod delegate;
mod device;
pub mod host;
pub(super) mod layout;
mod registry;
pub(super) mod uses;
pub mod view;

use std::ffi::CStr;

use super::types::Status;
use crate::region::Region;
pub use backend::AbortCallback;
pub use registry::{Installed, ProcAddress, RegPtr};
use view::{GraphView, Node};

/// A backend registry with one device.
pub trait RegImpl: Send + Sync + 'static {
    /// The device.
    type Device: DeviceImpl;

    /// Returns the name.
    fn name(&self) -> &'static CStr;

    /// Returns the device.
    fn device(&self) -> &Self::Device;

    /// Returns the address of a function of ours that a host may ask for by name. `ggml_backend_set_n_threads` and
    /// `ggml_backend_set_abort_callback` are answered before this is asked.
    fn proc_address(&self, name: &CStr) -> Option<ProcAddress>;
}

/// Memory of a device, as told to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that can be allocated now.
    pub free_bytes: usize,
    /// Bytes in all.
    pub total_bytes: usize,
}

/// An integrated device: computes in the host's memory, but only on buffers of its own type.
pub trait DeviceImpl: Send + Sync + 'static {
    /// Buffer types.
    type BufferType: BufferTypeImpl;
    /// Instances.
    type Backend: BackendImpl;

    /// Returns the name by which users select the device.
    fn name(&self) -> &'static CStr;

    /// Returns one line for people.
    fn description(&self) -> &CStr;

    /// Returns the memory that the host may plan with; never zero.
    fn memory(&self) -> DeviceMemory;

    /// Returns the buffer type that hosts use.
    fn buffer_type(&self) -> &Self::BufferType;

    /// Returns further buffer types, which hosts do not ask for.
    fn more_buffer_types(&self) -> &[Self::BufferType] {
        &[]
    }

    /// Makes an instance; `None`, with the reason logged, where that is impossible.
    fn init_backend(&self, params: Option<&CStr>) -> Option<Self::Backend>;

    /// Tells whether the device computes `op`, from op, types and shapes alone. The operands lie in buffers of ours, in
    /// plain host memory, or nowhere yet.
    fn supports_op(&self, op: Node<'_>) -> bool;
}

/// The type of buffers.
pub trait BufferTypeImpl: Send + Sync + 'static {
    /// Buffers.
    type Buffer: BufferImpl;

    /// Returns the name.
    fn name(&self) -> &'static CStr;

    /// Allocates; `None`, with the reason logged, where that is impossible.
    fn alloc_buffer(&self, size_bytes: usize) -> Option<Self::Buffer>;

    /// Returns the alignment of tensors in bytes, a power of two.
    fn alignment_bytes(&self) -> usize;

    /// Returns the size of the largest buffer.
    fn max_size_bytes(&self) -> usize;
}

/// Names an [`Arrangement`] on the tensors that lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u8);

/// How many marks there are.
const N_MARKS: usize = 8;

/// What a marked tensor's `extra` points to.
static MARKS: [u8; N_MARKS] = [0; N_MARKS];

impl Mark {
    /// Returns mark `i`.
    ///
    /// # Panics
    /// When `i` is not below 8.
    #[must_use]
    pub const fn new(i: u8) -> Self {
        assert!((i as usize) < N_MARKS, "there are 8 marks");
        Self(i)
    }

    fn address(self) -> *const u8 {
        &raw const MARKS[usize::from(self.0)]
    }

    fn of_address(extra: usize) -> Option<Self> {
        let i = extra.checked_sub(MARKS.as_ptr() as usize)?;
        u8::try_from(i)
            .ok()
            .filter(|&i| usize::from(i) < N_MARKS)
            .map(Self)
    }
}

/// A layout of tensors that is not ggml's: contiguous tensors of two dimensions, in as many bytes.
pub trait Arrangement {
    /// Returns the mark of tensors in this layout.
    fn mark(&self) -> Mark;

    /// Writes `data` at byte `offset_bytes` of the plain layout of a tensor with rows of `row_size_bytes`, whose memory is
    /// `tensor`. False where such a tensor cannot lie in this layout.
    fn write(
        &self,
        tensor: &mut [u8],
        row_size_bytes: usize,
        offset_bytes: usize,
        data: &[u8],
    ) -> bool;

    /// Reads bytes of the plain layout; else as [`write`](Self::write).
    fn read(
        &self,
        tensor: &[u8],
        row_size_bytes: usize,
        offset_bytes: usize,
        data: &mut [u8],
    ) -> bool;
}

/// A buffer whose tensors lie in ggml's plain layout whenever the host looks, or in an [`Arrangement`].
///
/// Between two looks an implementation may keep the bytes elsewhere: every access of the host passes through
/// [`reading`](Self::reading) or [`writing`](Self::writing).
pub trait BufferImpl: Send + Sync + 'static {
    /// Returns the memory; always the same.
    fn region(&self) -> &Region;

    /// Returns the layout of tensors; `None` for ggml's. Always the same.
    fn arrangement(&self) -> Option<&dyn Arrangement> {
        None
    }

    /// Runs `copy`, which reads `size_bytes` bytes at `address` of the region: they are then what the host wrote last, and
    /// stay so until `copy` returns.
    fn reading<R>(&self, address: usize, size_bytes: usize, copy: impl FnOnce() -> R) -> R;

    /// Runs `copy`, which writes `size_bytes` bytes at `address` of the region, some of them or all. What was known about
    /// their contents no longer holds.
    fn writing<R>(&self, address: usize, size_bytes: usize, copy: impl FnOnce() -> R) -> R;
}

/// An instance of the device.
pub trait BackendImpl: Send + 'static {
    /// Why a graph was not computed.
    type Error: std::error::Error + Into<Status>;

    /// Returns the name.
    fn name(&self) -> &'static CStr;

    /// Returns the identity of this kind of backend.
    fn guid(&self) -> &'static [u8; 16];

    /// Sets the number of threads, at least 1.
    fn set_n_threads(&mut self, n_threads: u32);

    /// Sets or clears the function that is asked between nodes whether to stop.
    fn set_abort_callback(&mut self, callback: Option<AbortCallback>);

    /// Computes the nodes of a graph in order.
    ///
    /// # Errors
    /// The first failure; results are then undefined.
    fn graph_compute(&mut self, graph: &mut GraphView<'_>) -> Result<(), Self::Error>;

    /// Takes the line that says why a graph was not computed, on the thread that asked for it: the host gets a status alone.
    fn tell_failure(reason: &str) {
        log::error!("graph_compute: {reason}");
    }
}
