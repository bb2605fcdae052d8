//! Tensors with data: static sets (weights, K/V) and graphs that can run.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::api::Api;
use super::backend::{Backend, Buffer, BufferType};
use super::context::{Context, Graph, Inner, Tensor};
use super::sys;
use super::types::Status;

/// Why memory could not be had or touched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The buffer type could not allocate.
    #[error("cannot allocate tensors on `{buft}`")]
    Alloc {
        /// Name of the buffer type.
        buft: String,
    },
    /// A tensor does not lie inside the buffer it was placed in.
    #[error(
        "tensor of {size_bytes} bytes at offset {offset_bytes} exceeds a buffer of {buffer_bytes} bytes"
    )]
    OutOfBuffer {
        /// Size of the tensor.
        size_bytes: usize,
        /// Where it was to lie.
        offset_bytes: usize,
        /// Size of the buffer.
        buffer_bytes: usize,
    },
    /// ggml refused to place a tensor.
    #[error("ggml cannot place a tensor: {0}")]
    Place(#[source] Status),
    /// A tensor belongs to another owner, or was given memory before.
    #[error("tensor does not belong to this set")]
    Foreign,
    /// A transfer of the wrong length.
    #[error(
        "transfer of {size_bytes} bytes at offset {offset_bytes} exceeds a tensor of {tensor_bytes} bytes"
    )]
    OutOfTensor {
        /// Bytes to move.
        size_bytes: usize,
        /// First byte.
        offset_bytes: usize,
        /// Size of the tensor.
        tensor_bytes: usize,
    },
}

/// A plain number.
///
/// # Safety
/// The type has no padding, and every pattern of its bytes is a value.
pub unsafe trait Element: Copy {}

macro_rules! elements {
    ($($number:ty),*) => { $(
        // SAFETY: integers and floats of the machine have no padding and no invalid pattern.
        unsafe impl Element for $number {}
    )* };
}

elements!(u8, u16, i32, i64, f32);

/// Owning set of tensors of one context and the one buffer that holds their data.
#[derive(Debug)]
pub struct TensorSet {
    ctx: Context,
    buffer: Buffer,
}

impl TensorSet {
    /// Allocates all tensors of `ctx` in one new buffer of `buft`. The data is not initialised.
    ///
    /// # Errors
    /// [`MemoryError::Alloc`] when the buffer type has no room, or the context no tensor without data.
    pub fn alloc(ctx: Context, buft: &BufferType) -> Result<Self, MemoryError> {
        let api = ctx.api();
        // SAFETY: context and buffer type are alive.
        let raw = unsafe {
            (api.ggml_backend_alloc_ctx_tensors_from_buft)(ctx.inner().raw.as_ptr(), buft.as_raw())
        };
        let raw = NonNull::new(raw).ok_or_else(|| MemoryError::Alloc { buft: buft.name() })?;
        // SAFETY: ggml handed a new buffer to us.
        let buffer = unsafe { Buffer::from_raw(api, raw) };
        Ok(Self { ctx, buffer })
    }

    /// Places tensors of `ctx` at byte offsets of an existing buffer, such as a mapped file. Tensors that are not
    /// listed get no data.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBuffer`] when a tensor does not fit, [`MemoryError::Foreign`] when one is not of `ctx` or
    /// placed twice, [`MemoryError::Place`] when ggml refuses.
    pub fn place(
        ctx: Context,
        buffer: Buffer,
        placements: &[(Tensor, usize)],
    ) -> Result<Self, MemoryError> {
        let buffer_bytes = buffer.size_bytes();
        for (tensor, offset_bytes) in placements {
            if !Arc::ptr_eq(&tensor.ctx, ctx.inner()) || tensor.has_data() || tensor.is_view() {
                return Err(MemoryError::Foreign);
            }
            let size_bytes = tensor.n_bytes();
            if offset_bytes
                .checked_add(size_bytes)
                .is_none_or(|end| end > buffer_bytes)
            {
                return Err(MemoryError::OutOfBuffer {
                    size_bytes,
                    offset_bytes: *offset_bytes,
                    buffer_bytes,
                });
            }
            let addr = buffer.base().wrapping_add(*offset_bytes);
            // SAFETY: the tensor is alive and has no data yet; `addr` and the tensor's end lie inside the buffer.
            let status = unsafe {
                (ctx.api().ggml_backend_tensor_alloc)(
                    buffer.as_raw(),
                    tensor.raw.as_ptr(),
                    addr.cast::<c_void>(),
                )
            };
            Status::check(status).map_err(MemoryError::Place)?;
        }
        Ok(Self { ctx, buffer })
    }

    /// Returns the context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// Returns the size of the buffer in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.buffer.size_bytes()
    }

    /// Fills the whole buffer with one byte.
    pub fn clear(&mut self, value: u8) {
        self.buffer.clear(value);
    }

    /// Writes `data` at byte `offset_bytes` of a tensor.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] or [`MemoryError::OutOfTensor`].
    pub fn write(
        &mut self,
        tensor: &Tensor,
        offset_bytes: usize,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        write(self.ctx.inner(), tensor, offset_bytes, data)
    }

    /// Reads bytes from `offset_bytes` of a tensor.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] or [`MemoryError::OutOfTensor`].
    pub fn read(
        &self,
        tensor: &Tensor,
        offset_bytes: usize,
        data: &mut [u8],
    ) -> Result<(), MemoryError> {
        read(self.ctx.inner(), tensor, offset_bytes, data)
    }
}

/// Owning allocator of graph memory and the one graph that is allocated in it.
///
/// # Invariants
/// `graph` is allocated in `galloc`; a new graph replaces it before anything else can run. The caller keeps the sets
/// of the static tensors that the graph refers to alive while it runs: [`run`](Self::run) takes them as arguments.
#[derive(Debug)]
pub struct GraphRunner {
    api: &'static Api,
    galloc: NonNull<sys::ggml_gallocr>,
    buft_name: String,
    graph: Option<Graph>,
}

// SAFETY: a graph allocator has no thread affinity; all use needs `&mut self` or is a read of a number.
unsafe impl Send for GraphRunner {}

impl Drop for GraphRunner {
    fn drop(&mut self) {
        self.graph = None;
        // SAFETY: `galloc` came from ggml_gallocr_new and is freed once.
        unsafe { (self.api.ggml_gallocr_free)(self.galloc.as_ptr()) };
    }
}

impl GraphRunner {
    /// Makes an empty runner whose graphs lie in buffers of `buft`.
    ///
    /// # Errors
    /// [`MemoryError::Alloc`] when ggml cannot make an allocator.
    pub fn new(buft: &BufferType) -> Result<Self, MemoryError> {
        let api = buft.api();
        // SAFETY: the buffer type is alive.
        let galloc = NonNull::new(unsafe { (api.ggml_gallocr_new)(buft.as_raw()) })
            .ok_or_else(|| MemoryError::Alloc { buft: buft.name() })?;
        Ok(Self {
            api,
            galloc,
            buft_name: buft.name(),
            graph: None,
        })
    }

    /// Replaces the graph and allocates memory for it; the data of the previous graph is gone.
    ///
    /// # Errors
    /// [`MemoryError::Alloc`] when there is no room; the runner is then empty.
    pub fn set_graph(&mut self, graph: Graph) -> Result<(), MemoryError> {
        self.graph = None;
        // SAFETY: allocator and graph are alive.
        let ok = unsafe {
            (self.api.ggml_gallocr_alloc_graph)(self.galloc.as_ptr(), graph.raw.as_ptr())
        };
        if !ok {
            return Err(MemoryError::Alloc {
                buft: self.buft_name.clone(),
            });
        }
        self.graph = Some(graph);
        Ok(())
    }

    /// Returns the bytes of graph memory.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        // SAFETY: the allocator is alive and has buffer 0.
        unsafe { (self.api.ggml_gallocr_get_buffer_size)(self.galloc.as_ptr(), 0) }
    }

    /// Writes an input of the graph.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] or [`MemoryError::OutOfTensor`].
    pub fn write(
        &mut self,
        tensor: &Tensor,
        offset_bytes: usize,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        let graph = self.graph.as_ref().ok_or(MemoryError::Foreign)?;
        write(&graph.ctx, tensor, offset_bytes, data)
    }

    /// Reads an output of the graph.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] or [`MemoryError::OutOfTensor`].
    pub fn read(
        &self,
        tensor: &Tensor,
        offset_bytes: usize,
        data: &mut [u8],
    ) -> Result<(), MemoryError> {
        let graph = self.graph.as_ref().ok_or(MemoryError::Foreign)?;
        read(&graph.ctx, tensor, offset_bytes, data)
    }

    /// Writes numbers to an input of the graph, from its first element on.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] or [`MemoryError::OutOfTensor`].
    pub fn write_slice<T: Element>(
        &mut self,
        tensor: &Tensor,
        data: &[T],
    ) -> Result<(), MemoryError> {
        // SAFETY: an `Element` has no padding, so all of its bytes are initialised; the length is that of the slice.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) };
        self.write(tensor, 0, bytes)
    }

    /// Reads numbers from an output of the graph, from its first element on.
    ///
    /// # Errors
    /// [`MemoryError::Foreign`] or [`MemoryError::OutOfTensor`].
    pub fn read_slice<T: Element>(
        &self,
        tensor: &Tensor,
        data: &mut [T],
    ) -> Result<(), MemoryError> {
        let size_bytes = size_of_val(data);
        // SAFETY: every pattern of bytes is an `Element`; the slice is uniquely borrowed and of this length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_bytes) };
        self.read(tensor, 0, bytes)
    }

    /// Computes the graph on `backend` and waits for the result. `weights` and `store` are the sets whose tensors the graph
    /// reads and writes: borrowing them here keeps their memory alive, and the store unshared, while it runs.
    ///
    /// # Errors
    /// The status that the backend returned; [`Status::FAILED`] without a graph.
    pub fn run(
        &mut self,
        backend: &mut Backend,
        weights: &[&TensorSet],
        store: &mut TensorSet,
    ) -> Result<(), Status> {
        self.run_beside(backend, weights, &[store])
    }

    /// As [`run`](Self::run), with a store, of any number of sets, that is shared.
    ///
    /// Another graph may run over the same store at the same time if neither *uses* an element that the other writes. Elements
    /// that a mask hides are loaded all the same; what is loaded while the other graph writes them is an old or a new number,
    /// whole, and counts nothing.
    ///
    /// # Errors
    /// The status that the backend returned; [`Status::FAILED`] without a graph.
    pub fn run_beside(
        &mut self,
        backend: &mut Backend,
        _weights: &[&TensorSet],
        _store: &[&TensorSet],
    ) -> Result<(), Status> {
        let graph = self.graph.as_ref().ok_or(Status::FAILED)?;
        // SAFETY: backend and graph are alive, the graph's memory is allocated (invariant) and its static tensors are
        // borrowed.
        let status =
            unsafe { (self.api.ggml_backend_graph_compute)(backend.as_raw(), graph.raw.as_ptr()) };
        Status::check(status)
    }
}

fn check_range(
    owner: &Arc<Inner>,
    tensor: &Tensor,
    offset_bytes: usize,
    size_bytes: usize,
) -> Result<(), MemoryError> {
    if !Arc::ptr_eq(owner, &tensor.ctx) || !tensor.has_data() {
        return Err(MemoryError::Foreign);
    }
    let tensor_bytes = tensor.n_bytes();
    if offset_bytes
        .checked_add(size_bytes)
        .is_none_or(|end| end > tensor_bytes)
    {
        return Err(MemoryError::OutOfTensor {
            size_bytes,
            offset_bytes,
            tensor_bytes,
        });
    }
    Ok(())
}

fn write(
    owner: &Arc<Inner>,
    tensor: &Tensor,
    offset_bytes: usize,
    data: &[u8],
) -> Result<(), MemoryError> {
    check_range(owner, tensor, offset_bytes, data.len())?;
    // SAFETY: the tensor has memory owned by the caller's set, and the range was checked against it.
    unsafe {
        (owner.api.ggml_backend_tensor_set)(
            tensor.raw.as_ptr(),
            data.as_ptr().cast(),
            offset_bytes,
            data.len(),
        )
    };
    Ok(())
}

fn read(
    owner: &Arc<Inner>,
    tensor: &Tensor,
    offset_bytes: usize,
    data: &mut [u8],
) -> Result<(), MemoryError> {
    check_range(owner, tensor, offset_bytes, data.len())?;
    // SAFETY: the tensor has memory owned by the caller's set, and the range was checked against it.
    unsafe {
        (owner.api.ggml_backend_tensor_get)(
            tensor.raw.as_ptr(),
            data.as_mut_ptr().cast(),
            offset_bytes,
            data.len(),
        )
    };
    Ok(())
}
