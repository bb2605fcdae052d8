//! Shims of the device table.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::backend::new_backend;
use super::context::Context;
use super::view::Node;
use super::{DeviceImpl, DeviceMemory};
use crate::ggml::sys;

/// State behind the device.
pub(super) struct State<D: DeviceImpl> {
    pub(super) device: &'static D,
    /// Never empty; hosts use the first.
    pub(super) bufts: Vec<sys::ggml_backend_buffer_type_t>,
}

// SAFETY: buffer types are static and immutable after its registry is complete.
unsafe impl<D: DeviceImpl> Send for State<D> {}
// SAFETY: as for Send.
unsafe impl<D: DeviceImpl> Sync for State<D> {}

pub(super) type DeviceContext<D> = Context<State<D>>;

pub(super) fn device_i<D: DeviceImpl>() -> sys::ggml_backend_device_i {
    sys::ggml_backend_device_i {
        get_name: Some(get_name::<D>),
        get_description: Some(get_description::<D>),
        get_memory: Some(get_memory::<D>),
        get_type: Some(get_type),
        get_props: Some(get_props::<D>),
        init_backend: Some(init_backend::<D>),
        get_buffer_type: Some(get_buffer_type::<D>),
        get_host_buffer_type: None, // plain host memory is as good as any
        buffer_from_host_ptr: None, // caps.buffer_from_host_ptr is false
        supports_op: Some(supports_op::<D>),
        supports_buft: Some(supports_buft::<D>),
        offload_op: None,        // weights are computed where they lie
        event_new: None,         // caps.events is false
        event_free: None,        // as above
        event_synchronize: None, // as above
    }
}

/// Borrows the state of the device.
///
/// # Safety
/// `dev` is the device of a registry with implementation `D`.
unsafe fn context<'a, D: DeviceImpl>(dev: sys::ggml_backend_dev_t) -> &'a DeviceContext<D> {
    // SAFETY: the caller guarantees our device, which is static.
    let context = unsafe { (*dev).context };
    // SAFETY: the registry put a context of this type there and never frees it.
    unsafe { DeviceContext::<D>::borrow_context(context) }
}

unsafe extern "C" fn get_name<D: DeviceImpl>(dev: sys::ggml_backend_dev_t) -> *const c_char {
    // SAFETY: the host calls a table with its own object (ggml-backend-impl.h), here and in every shim below.
    let context = unsafe { context::<D>(dev) };
    context.describe("device.get_name", c"llada-npu".as_ptr(), |s| {
        s.device.name().as_ptr()
    })
}

unsafe extern "C" fn get_description<D: DeviceImpl>(dev: sys::ggml_backend_dev_t) -> *const c_char {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    context.describe("device.get_description", c"".as_ptr(), |s| {
        s.device.description().as_ptr()
    })
}

unsafe extern "C" fn get_memory<D: DeviceImpl>(
    dev: sys::ggml_backend_dev_t,
    free: *mut usize,
    total: *mut usize,
) {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    let memory = context.describe("device.get_memory", None, |s| Some(s.device.memory()));
    if let Some(memory) = memory {
        // SAFETY: the host passes valid out-parameters (ggml-backend.h: ggml_backend_dev_memory).
        unsafe { free.write(memory.free_bytes) };
        // SAFETY: as above.
        unsafe { total.write(memory.total_bytes) };
    }
}

unsafe extern "C" fn get_type(_dev: sys::ggml_backend_dev_t) -> sys::ggml_backend_dev_type {
    sys::GGML_BACKEND_DEVICE_TYPE_IGPU
}

unsafe extern "C" fn get_props<D: DeviceImpl>(
    dev: sys::ggml_backend_dev_t,
    props: *mut sys::ggml_backend_dev_props,
) {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    let known = context.describe("device.get_props", None, |s| Some(props_of(s.device)));
    if let Some(known) = known {
        // SAFETY: the host passes a zeroed struct (ggml-backend.cpp) whose front is this one; fields that it appended
        // stay zero.
        unsafe { props.write(known) };
    }
}

fn props_of<D: DeviceImpl>(device: &D) -> sys::ggml_backend_dev_props {
    let DeviceMemory {
        free_bytes,
        total_bytes,
    } = device.memory();
    sys::ggml_backend_dev_props {
        name: device.name().as_ptr(),
        description: device.description().as_ptr(),
        memory_free: free_bytes,
        memory_total: total_bytes,
        type_: sys::GGML_BACKEND_DEVICE_TYPE_IGPU,
        device_id: ptr::null(), // no bus address
        caps: sys::ggml_backend_dev_caps {
            async_: false,
            host_buffer: false,
            buffer_from_host_ptr: false,
            events: false,
            mmap_support: true,
        },
    }
}

unsafe extern "C" fn init_backend<D: DeviceImpl>(
    dev: sys::ggml_backend_dev_t,
    params: *const c_char,
) -> sys::ggml_backend_t {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    context.enter("device.init_backend", ptr::null_mut(), |s| {
        // SAFETY: the host passes NULL or a NUL-terminated string (ggml-backend.h).
        let params = (!params.is_null()).then(|| unsafe { CStr::from_ptr(params) });
        s.device
            .init_backend(params)
            .map_or(ptr::null_mut(), |b| new_backend(context.api, dev, b))
    })
}

unsafe extern "C" fn get_buffer_type<D: DeviceImpl>(
    dev: sys::ggml_backend_dev_t,
) -> sys::ggml_backend_buffer_type_t {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    context.describe("device.get_buffer_type", ptr::null_mut(), |s| s.bufts[0])
}

unsafe extern "C" fn supports_op<D: DeviceImpl>(
    dev: sys::ggml_backend_dev_t,
    op: *const sys::ggml_tensor,
) -> bool {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    context.enter("device.supports_op", false, |s| {
        // SAFETY: the host passes a live tensor with live operands.
        let node = unsafe { Node::new(context.api, op) };
        node.operands_reachable(&s.bufts) && s.device.supports_op(node)
    })
}

unsafe extern "C" fn supports_buft<D: DeviceImpl>(
    dev: sys::ggml_backend_dev_t,
    buft: sys::ggml_backend_buffer_type_t,
) -> bool {
    // SAFETY: see get_name.
    let context = unsafe { context::<D>(dev) };
    context.enter("device.supports_buft", false, |s| {
        // SAFETY: the host passes a live buffer type.
        s.bufts.contains(&buft) || unsafe { (context.api.ggml_backend_buft_is_host)(buft) }
    })
}
