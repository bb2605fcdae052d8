//! Shims of the buffer-type and buffer tables.

use std::ffi::{c_char, c_void};
use std::ptr;

use super::context::Context;
use super::layout::Layout;
use super::{Arrangement, BufferImpl, BufferTypeImpl};
use crate::ggml::api::Api;
use crate::ggml::sys;
use crate::region::Region;

pub(super) type GetName = unsafe extern "C" fn(sys::ggml_backend_buffer_type_t) -> *const c_char;
pub(super) type AllocBuffer =
    unsafe extern "C" fn(sys::ggml_backend_buffer_type_t, usize) -> sys::ggml_backend_buffer_t;
pub(super) type GetSize = unsafe extern "C" fn(sys::ggml_backend_buffer_type_t) -> usize;
pub(super) type GetAllocSize =
    unsafe extern "C" fn(sys::ggml_backend_buffer_type_t, *const sys::ggml_tensor) -> usize;
pub(super) type IsHost = unsafe extern "C" fn(sys::ggml_backend_buffer_type_t) -> bool;

/// `ggml_backend_buffer_init` of the pinned headers.
pub(super) type PinnedBufferInit = unsafe extern "C" fn(
    sys::ggml_backend_buffer_type_t,
    sys::ggml_backend_buffer_i,
    *mut c_void,
    usize,
) -> sys::ggml_backend_buffer_t;

/// What both layouts of the table have in common.
pub(super) struct BuftSlots {
    pub(super) get_name: GetName,
    pub(super) alloc_buffer: AllocBuffer,
    pub(super) get_alignment: GetSize,
    pub(super) get_max_size: GetSize,
    pub(super) is_host: IsHost,
}

impl BuftSlots {
    pub(super) fn new<L: Layout, T: BufferTypeImpl>() -> Self {
        Self {
            get_name: buft_get_name::<L, T>,
            alloc_buffer: buft_alloc_buffer::<L, T>,
            get_alignment: buft_get_alignment::<L, T>,
            get_max_size: buft_get_max_size::<L, T>,
            is_host: buft_is_host,
        }
    }
}

type BuftContext<T> = Context<&'static T>;

/// Borrows the state of a buffer type.
///
/// # Safety
/// `buft` is a buffer type that the registry made with layout `L` and implementation `T`.
unsafe fn buft_context<'a, L: Layout, T: BufferTypeImpl>(
    buft: sys::ggml_backend_buffer_type_t,
) -> &'a BuftContext<T> {
    // SAFETY: the caller guarantees the layout.
    let context = unsafe { L::context(buft) };
    // SAFETY: the registry put a context of this type there and never frees it.
    unsafe { BuftContext::<T>::borrow_context(context) }
}

unsafe extern "C" fn buft_get_name<L: Layout, T: BufferTypeImpl>(
    buft: sys::ggml_backend_buffer_type_t,
) -> *const c_char {
    // SAFETY: the host calls a table with its own object (ggml-backend-impl.h), here and in every shim below.
    let context = unsafe { buft_context::<L, T>(buft) };
    context.describe("buffer_type.get_name", c"llada-npu".as_ptr(), |t| {
        t.name().as_ptr()
    })
}

unsafe extern "C" fn buft_alloc_buffer<L: Layout, T: BufferTypeImpl>(
    buft: sys::ggml_backend_buffer_type_t,
    size: usize,
) -> sys::ggml_backend_buffer_t {
    // SAFETY: see buft_get_name.
    let context = unsafe { buft_context::<L, T>(buft) };
    context.enter("buffer_type.alloc_buffer", ptr::null_mut(), |t| {
        t.alloc_buffer(size).map_or(ptr::null_mut(), |buffer| {
            new_buffer(context.api, buft, buffer, size)
        })
    })
}

unsafe extern "C" fn buft_get_alignment<L: Layout, T: BufferTypeImpl>(
    buft: sys::ggml_backend_buffer_type_t,
) -> usize {
    // SAFETY: see buft_get_name.
    let context = unsafe { buft_context::<L, T>(buft) };
    context.describe("buffer_type.get_alignment", 64, |t| t.alignment_bytes())
}

unsafe extern "C" fn buft_get_max_size<L: Layout, T: BufferTypeImpl>(
    buft: sys::ggml_backend_buffer_type_t,
) -> usize {
    // SAFETY: see buft_get_name.
    let context = unsafe { buft_context::<L, T>(buft) };
    context.describe("buffer_type.get_max_size", 0, |t| t.max_size_bytes())
}

/// Not host memory: a host reads and writes our tensors through the table alone.
unsafe extern "C" fn buft_is_host(_buft: sys::ggml_backend_buffer_type_t) -> bool {
    false
}

/// Makes a buffer of `buft` around `buffer`, whose first `size_bytes` bytes the host may use.
pub(super) fn new_buffer<B: BufferImpl>(
    api: &'static Api,
    buft: sys::ggml_backend_buffer_type_t,
    buffer: B,
    size_bytes: usize,
) -> sys::ggml_backend_buffer_t {
    /// The table and zeros behind it: a host that appended optional slots finds them empty.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Padded {
        iface: sys::ggml_backend_buffer_i,
        later_slots: [usize; 8],
    }
    type BufferInit = unsafe extern "C" fn(
        sys::ggml_backend_buffer_type_t,
        Padded,
        *mut c_void,
        usize,
    ) -> sys::ggml_backend_buffer_t;

    let padded = Padded {
        iface: buffer_i::<B>(),
        later_slots: [0; 8],
    };
    let context = Context::into_context(api, buffer);
    // SAFETY: a struct of this size is passed in memory, front first, on every ABI that we build for (System V x86-64,
    // AAPCS64), so that a callee that expects a shorter one reads its front.
    let init = unsafe {
        std::mem::transmute::<PinnedBufferInit, BufferInit>(api.ggml_backend_buffer_init)
    };
    // SAFETY: `buft` is alive; the table matches the context; ggml copies both.
    unsafe { init(buft, padded, context, size_bytes) }
}

fn buffer_i<B: BufferImpl>() -> sys::ggml_backend_buffer_i {
    sys::ggml_backend_buffer_i {
        free_buffer: Some(free_buffer::<B>),
        get_base: Some(get_base::<B>),
        init_tensor: Some(init_tensor::<B>),
        memset_tensor: Some(memset_tensor::<B>),
        set_tensor: Some(set_tensor::<B>),
        get_tensor: Some(get_tensor::<B>),
        set_tensor_2d: Some(set_tensor_2d::<B>),
        get_tensor_2d: Some(get_tensor_2d::<B>),
        cpy_tensor: Some(cpy_tensor::<B>),
        clear: Some(clear::<B>),
        reset: None, // no state per tensor
    }
}

/// Borrows the state of a buffer.
///
/// # Safety
/// `buffer` was made by [`new_buffer`] with implementation `B` and is alive.
unsafe fn context<'a, B: BufferImpl>(buffer: sys::ggml_backend_buffer_t) -> &'a Context<B> {
    // SAFETY: the caller guarantees a live buffer.
    let context = unsafe { (*buffer).context };
    // SAFETY: `new_buffer` put a context of this type there; the free slot frees it with the buffer.
    unsafe { Context::<B>::borrow_context(context) }
}

unsafe extern "C" fn free_buffer<B: BufferImpl>(buffer: sys::ggml_backend_buffer_t) {
    // SAFETY: the host frees a live buffer of ours once, then its own part (ggml-backend.cpp).
    let context = unsafe { (*buffer).context };
    // SAFETY: `new_buffer` put a context of this type there.
    unsafe { Context::<B>::free_context("buffer.free_buffer", context) };
}

unsafe extern "C" fn get_base<B: BufferImpl>(buffer: sys::ggml_backend_buffer_t) -> *mut c_void {
    // SAFETY: the host calls a table with its own live object, here and in every shim below.
    let context = unsafe { context::<B>(buffer) };
    context.describe("buffer.get_base", ptr::null_mut(), |b| {
        b.region().base().as_ptr().cast()
    })
}

unsafe extern "C" fn init_tensor<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    tensor: *mut sys::ggml_tensor,
) -> sys::ggml_status {
    // SAFETY: see get_base.
    let context = unsafe { context::<B>(buffer) };
    context.enter("buffer.init_tensor", sys::GGML_STATUS_FAILED, |b| {
        if let Some(arrangement) = b.arrangement() {
            let mark = arrangement.mark().address();
            // SAFETY: the host passes a live tensor of the buffer, whose `extra` is the buffer's.
            unsafe { (*tensor).extra = mark.cast_mut().cast() };
        }
        sys::GGML_STATUS_SUCCESS
    })
}

unsafe extern "C" fn memset_tensor<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    tensor: *mut sys::ggml_tensor,
    value: u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: see get_base.
    let context = unsafe { context::<B>(buffer) };
    // SAFETY: the host passes a live tensor of the buffer.
    let tensor = unsafe { &*tensor };
    transfer(context, "buffer.memset_tensor", |b| {
        if let Some(arrangement) = b.arrangement() {
            // SAFETY: a live tensor, which the host promises that nobody uses now.
            return unsafe { write_arranged(b, arrangement, tensor, offset, &vec![value; size]) };
        }
        let to = writable(b.region(), tensor, offset, size)?;
        b.writing(to as usize, size, || {
            // SAFETY: the range lies in the region; the host promises that nobody uses it now.
            unsafe { to.write_bytes(value, size) };
        });
        Ok(())
    });
}

unsafe extern "C" fn set_tensor<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    tensor: *mut sys::ggml_tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: as documented at set_tensor_2d, for one copy.
    unsafe { set_tensor_2d::<B>(buffer, tensor, data, offset, size, 1, 0, 0) };
}

unsafe extern "C" fn get_tensor<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    tensor: *const sys::ggml_tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: as documented at get_tensor_2d, for one copy.
    unsafe { get_tensor_2d::<B>(buffer, tensor, data, offset, size, 1, 0, 0) };
}

unsafe extern "C" fn set_tensor_2d<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    tensor: *mut sys::ggml_tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
    n_copies: usize,
    stride_tensor: usize,
    stride_data: usize,
) {
    // SAFETY: see get_base.
    let context = unsafe { context::<B>(buffer) };
    // SAFETY: the host passes a live tensor of the buffer.
    let tensor = unsafe { &*tensor };
    transfer(context, "buffer.set_tensor", |b| {
        for i in 0..n_copies {
            if let Some(arrangement) = b.arrangement() {
                let from = data.cast::<u8>().wrapping_add(i * stride_data);
                // SAFETY: the host promises `size` readable bytes.
                let from = unsafe { std::slice::from_raw_parts(from, size) };
                let offset = row_offset(offset, i, stride_tensor);
                // SAFETY: a live tensor, which the host promises that nobody uses now.
                unsafe { write_arranged(b, arrangement, tensor, offset, from) }?;
                continue;
            }
            let to = writable(
                b.region(),
                tensor,
                row_offset(offset, i, stride_tensor),
                size,
            )?;
            let from = data.cast::<u8>().wrapping_add(i * stride_data);
            b.writing(to as usize, size, || {
                // SAFETY: `to` lies in the region; the host promises `size` readable bytes and that nobody uses `to` now.
                unsafe { ptr::copy(from, to, size) };
            });
        }
        Ok(())
    });
}

unsafe extern "C" fn get_tensor_2d<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    tensor: *const sys::ggml_tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
    n_copies: usize,
    stride_tensor: usize,
    stride_data: usize,
) {
    // SAFETY: see get_base.
    let context = unsafe { context::<B>(buffer) };
    // SAFETY: the host passes a live tensor of the buffer.
    let tensor = unsafe { &*tensor };
    transfer(context, "buffer.get_tensor", |b| {
        for i in 0..n_copies {
            if let Some(arrangement) = b.arrangement() {
                let to = data.cast::<u8>().wrapping_add(i * stride_data);
                let mut bytes = vec![0; size];
                let offset = row_offset(offset, i, stride_tensor);
                // SAFETY: a live tensor, which the host promises that nobody writes now.
                unsafe { read_arranged(b, arrangement, tensor, offset, &mut bytes) }?;
                // SAFETY: the host promises `size` writable bytes.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, size) };
                continue;
            }
            let from = readable(
                b.region(),
                tensor,
                row_offset(offset, i, stride_tensor),
                size,
            )?;
            let to = data.cast::<u8>().wrapping_add(i * stride_data);
            b.reading(from as usize, size, || {
                // SAFETY: `from` lies in the region; the host promises `size` writable bytes and that nobody writes `from`
                // now.
                unsafe { ptr::copy(from, to, size) };
            });
        }
        Ok(())
    });
}

unsafe extern "C" fn cpy_tensor<B: BufferImpl>(
    buffer: sys::ggml_backend_buffer_t,
    src: *const sys::ggml_tensor,
    dst: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: see get_base.
    let context = unsafe { context::<B>(buffer) };
    context.enter("buffer.cpy_tensor", false, |b| {
        // SAFETY: the host passes live tensors of the same layout, `dst` in this buffer (ggml-backend-impl.h).
        unsafe { copy_tensor(context.api, b, buffer, src, dst) }
    })
}

unsafe extern "C" fn clear<B: BufferImpl>(buffer: sys::ggml_backend_buffer_t, value: u8) {
    // SAFETY: see get_base.
    let context = unsafe { context::<B>(buffer) };
    transfer(context, "buffer.clear", |b| {
        let region = b.region();
        if !region.is_writable() {
            return Err(TransferError::ReadOnly);
        }
        let (base, size) = (region.base().as_ptr(), region.size_bytes());
        b.writing(base as usize, size, || {
            // Pages that were never touched stay uncommitted.
            if value != 0 || !region.discard() {
                // SAFETY: the range is the whole region; the host promises that nobody uses it now.
                unsafe { base.write_bytes(value, size) };
            }
        });
        Ok(())
    });
}

/// Why bytes of a buffer were not moved.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error(
        "{size_bytes} bytes at byte {offset_bytes} of a tensor are outside its buffer of {buffer_bytes} bytes"
    )]
    Outside {
        size_bytes: usize,
        offset_bytes: usize,
        buffer_bytes: usize,
    },
    #[error("buffer is read-only")]
    ReadOnly,
    #[error("tensor [{ne0}, {ne1}] cannot lie in the layout of its buffer")]
    Arrangement { ne0: i64, ne1: i64 },
}

/// Writes bytes of a tensor in a layout of its own.
///
/// # Safety
/// `tensor` is a live tensor of `buffer`, and nobody else uses its data during the call.
unsafe fn write_arranged<B: BufferImpl>(
    buffer: &B,
    arrangement: &dyn Arrangement,
    tensor: &sys::ggml_tensor,
    offset_bytes: usize,
    data: &[u8],
) -> Result<(), TransferError> {
    let size_bytes = arranged_size(tensor, offset_bytes, data.len())?;
    let memory = writable(buffer.region(), tensor, 0, size_bytes)?;
    // SAFETY: the bytes lie in the region, which starts zeroed; the caller promises to be alone with them.
    let memory = unsafe { std::slice::from_raw_parts_mut(memory, size_bytes) };
    arrangement
        .write(memory, tensor.nb[1], offset_bytes, data)
        .then_some(())
        .ok_or(not_arranged(tensor))
}

/// Reads bytes of a tensor in a layout of its own.
///
/// # Safety
/// `tensor` is a live tensor of `buffer`, and nobody writes its data during the call.
unsafe fn read_arranged<B: BufferImpl>(
    buffer: &B,
    arrangement: &dyn Arrangement,
    tensor: &sys::ggml_tensor,
    offset_bytes: usize,
    data: &mut [u8],
) -> Result<(), TransferError> {
    let size_bytes = arranged_size(tensor, offset_bytes, data.len())?;
    let memory = readable(buffer.region(), tensor, 0, size_bytes)?;
    // SAFETY: the bytes lie in the region, which starts zeroed; the caller promises that nobody writes them.
    let memory = unsafe { std::slice::from_raw_parts(memory, size_bytes) };
    arrangement
        .read(memory, tensor.nb[1], offset_bytes, data)
        .then_some(())
        .ok_or(not_arranged(tensor))
}

const fn not_arranged(tensor: &sys::ggml_tensor) -> TransferError {
    let [ne0, ne1, ..] = tensor.ne;
    TransferError::Arrangement { ne0, ne1 }
}

/// Returns the bytes of a tensor in a layout of its own: one of two dimensions, not a view, that holds the range.
fn arranged_size(
    tensor: &sys::ggml_tensor,
    offset_bytes: usize,
    size_bytes: usize,
) -> Result<usize, TransferError> {
    let [_, ne1, ne2, ne3] = tensor.ne;
    let plain = tensor.view_src.is_null() && ne2 == 1 && ne3 == 1;
    let total = usize::try_from(ne1)
        .ok()
        .and_then(|n| n.checked_mul(tensor.nb[1]));
    let total = total.filter(|_| plain).ok_or(not_arranged(tensor))?;
    match offset_bytes.checked_add(size_bytes) {
        Some(end) if end <= total => Ok(total),
        _ => Err(TransferError::Outside {
            size_bytes,
            offset_bytes,
            buffer_bytes: total,
        }),
    }
}

/// Returns where copy `i` starts; what overflows is outside every buffer.
fn row_offset(offset: usize, i: usize, stride: usize) -> usize {
    i.saturating_mul(stride).saturating_add(offset)
}

/// Runs a slot that returns nothing: a failure is logged and marks the buffer.
fn transfer<B: BufferImpl>(
    context: &Context<B>,
    entry: &'static str,
    body: impl FnOnce(&B) -> Result<(), TransferError>,
) {
    if let Err(error) = context.enter(entry, Ok(()), body) {
        log::error!("{entry}: {error}");
        context.mark_failed();
    }
}

fn readable(
    region: &Region,
    tensor: &sys::ggml_tensor,
    offset_bytes: usize,
    size_bytes: usize,
) -> Result<*mut u8, TransferError> {
    (tensor.data as usize)
        .checked_add(offset_bytes)
        .and_then(|start| region.locate(start, size_bytes))
        .map(ptr::NonNull::as_ptr)
        .ok_or(TransferError::Outside {
            size_bytes,
            offset_bytes,
            buffer_bytes: region.size_bytes(),
        })
}

fn writable(
    region: &Region,
    tensor: &sys::ggml_tensor,
    offset_bytes: usize,
    size_bytes: usize,
) -> Result<*mut u8, TransferError> {
    if region.is_writable() {
        readable(region, tensor, offset_bytes, size_bytes)
    } else {
        Err(TransferError::ReadOnly)
    }
}

/// Copies a tensor whose bytes can be read in place: of plain host memory, or of another buffer of ours. False where
/// the host has to copy through memory of its own.
///
/// # Safety
/// `src` and `dst` are live tensors of the same layout, `dst` lies in `buffer`, which is that of `target`; nobody writes
/// `src` or uses `dst` during the call.
unsafe fn copy_tensor<B: BufferImpl>(
    api: &Api,
    target: &B,
    buffer: sys::ggml_backend_buffer_t,
    src: *const sys::ggml_tensor,
    dst: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: live tensors, by the caller.
    let source = unsafe { &*src };
    if source.buffer.is_null() || source.data.is_null() || target.arrangement().is_some() {
        return false;
    }
    // SAFETY: a tensor's buffer is alive as long as the tensor is used.
    let from_type = unsafe { (api.ggml_backend_buffer_get_type)(source.buffer) };
    // SAFETY: `buffer` is alive.
    let our_type = unsafe { (api.ggml_backend_buffer_get_type)(buffer) };
    // SAFETY: buffer types are static.
    if from_type != our_type && !unsafe { (api.ggml_backend_buft_is_host)(from_type) } {
        return false;
    }
    // SAFETY: a live tensor.
    let size = unsafe { (api.ggml_nbytes)(src) };
    // SAFETY: live tensors, by the caller.
    let Ok(to) = writable(target.region(), unsafe { &*dst }, 0, size) else {
        return false;
    };
    let from = source.data.cast::<u8>();
    // SAFETY: `to` has room for `size` bytes; `src` has as many, in memory that the host may read.
    let copy = || unsafe { ptr::copy(from, to, size) };
    if from_type != our_type {
        target.writing(to as usize, size, copy);
        return true;
    }
    // SAFETY: a live buffer of our type is one of ours.
    let source_context = unsafe { context::<B>(source.buffer) };
    source_context.enter("buffer.cpy_tensor", false, |from_buffer| {
        from_buffer.reading(from as usize, size, || {
            target.writing(to as usize, size, copy)
        });
        true
    })
}
