//! The two layouts of the buffer-type table.
//!
//! API 3 inserted `alloc_buffer_n` and `get_alloc_size_n`; everything else that we fill is the same in API 2. The
//! generated types are those of API 3.

use std::ffi::c_void;

use super::BufferTypeImpl;
use super::buffer::{self, BuftSlots};
use crate::ggml::sys;

/// The buffer-type table of API 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::ggml) struct BufferTypeIV2 {
    pub(in crate::ggml) get_name: Option<buffer::GetName>,
    pub(in crate::ggml) alloc_buffer: Option<buffer::AllocBuffer>,
    pub(in crate::ggml) get_alignment: Option<buffer::GetSize>,
    pub(in crate::ggml) get_max_size: Option<buffer::GetSize>,
    pub(in crate::ggml) get_alloc_size: Option<buffer::GetAllocSize>,
    pub(in crate::ggml) is_host: Option<buffer::IsHost>,
}

/// The buffer type of API 2.
#[repr(C)]
pub(in crate::ggml) struct BufferTypeV2 {
    pub(in crate::ggml) iface: BufferTypeIV2,
    pub(in crate::ggml) device: sys::ggml_backend_dev_t,
    pub(in crate::ggml) context: *mut c_void,
}

const POINTER: usize = size_of::<*const c_void>();
const _: () = assert!(size_of::<BufferTypeIV2>() == 6 * POINTER);
const _: () = assert!(size_of::<BufferTypeV2>() == 8 * POINTER);
const _: () = assert!(std::mem::offset_of!(BufferTypeV2, device) == 6 * POINTER);
const _: () = assert!(size_of::<sys::ggml_backend_buffer_type_i>() == 8 * POINTER);
const _: () = assert!(size_of::<sys::ggml_backend_buffer_type>() == 10 * POINTER);
const _: () = assert!(size_of::<sys::ggml_backend_buffer_i>() == 11 * POINTER);
const _: () = assert!(size_of::<sys::ggml_backend_i>() == 16 * POINTER);
const _: () = assert!(size_of::<sys::ggml_backend_device_i>() == 15 * POINTER);
const _: () = assert!(size_of::<sys::ggml_backend_reg_i>() == 4 * POINTER);

/// How buffer types look in one API version.
pub(super) trait Layout: 'static {
    /// Leaks a buffer type: it is as static as its registry.
    fn leak<T: BufferTypeImpl>(
        device: sys::ggml_backend_dev_t,
        context: *mut c_void,
    ) -> sys::ggml_backend_buffer_type_t;

    /// Reads the context of a buffer type.
    ///
    /// # Safety
    /// `buft` came from [`leak`](Self::leak) of the same layout.
    unsafe fn context(buft: sys::ggml_backend_buffer_type_t) -> *mut c_void;
}

/// API 2.
pub(super) struct V2;
/// API 3.
pub(super) struct V3;

impl Layout for V2 {
    fn leak<T: BufferTypeImpl>(
        device: sys::ggml_backend_dev_t,
        context: *mut c_void,
    ) -> sys::ggml_backend_buffer_type_t {
        let slots = BuftSlots::new::<Self, T>();
        let raw = Box::new(BufferTypeV2 {
            iface: BufferTypeIV2 {
                get_name: Some(slots.get_name),
                alloc_buffer: Some(slots.alloc_buffer),
                get_alignment: Some(slots.get_alignment),
                get_max_size: Some(slots.get_max_size),
                get_alloc_size: None, // ggml_nbytes: a buffer of ours never needs more
                is_host: Some(slots.is_host),
            },
            device,
            context,
        });
        Box::into_raw(raw).cast()
    }

    unsafe fn context(buft: sys::ggml_backend_buffer_type_t) -> *mut c_void {
        // SAFETY: the caller guarantees a live buffer type of this layout.
        unsafe { (*buft.cast::<BufferTypeV2>()).context }
    }
}

impl Layout for V3 {
    fn leak<T: BufferTypeImpl>(
        device: sys::ggml_backend_dev_t,
        context: *mut c_void,
    ) -> sys::ggml_backend_buffer_type_t {
        let slots = BuftSlots::new::<Self, T>();
        let raw = Box::new(sys::ggml_backend_buffer_type {
            iface: sys::ggml_backend_buffer_type_i {
                get_name: Some(slots.get_name),
                alloc_buffer: Some(slots.alloc_buffer),
                alloc_buffer_n: None, // the linear default fits plain memory
                get_alignment: Some(slots.get_alignment),
                get_max_size: Some(slots.get_max_size),
                get_alloc_size: None, // ggml_nbytes: a buffer of ours never needs more
                get_alloc_size_n: None, // sum of the above
                is_host: Some(slots.is_host),
            },
            device,
            context,
        });
        Box::into_raw(raw)
    }

    unsafe fn context(buft: sys::ggml_backend_buffer_type_t) -> *mut c_void {
        // SAFETY: the caller guarantees a live buffer type of this layout.
        unsafe { (*buft).context }
    }
}
