//! Shims of the backend table, and the two functions that hosts ask for by name.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

use super::context::Context;
use super::view::GraphView;
use super::{BackendImpl, Status};
use crate::ggml::api::Api;
use crate::ggml::sys;

/// A function of the host that is asked whether to stop.
#[derive(Clone, Copy, Debug)]
pub struct AbortCallback {
    pub(super) function: unsafe extern "C" fn(*mut c_void) -> bool,
    pub(super) data: *mut c_void,
}

// SAFETY: whoever set the callback allows it to be called from the thread that computes, whichever that is
// (ggml-backend.h: ggml_backend_set_abort_callback_t).
unsafe impl Send for AbortCallback {}

impl AbortCallback {
    /// Asks the host.
    #[must_use]
    pub fn requested(&self) -> bool {
        // SAFETY: the host keeps function and data alive until it sets another callback or frees the backend.
        unsafe { (self.function)(self.data) }
    }
}

struct State<B> {
    name: &'static CStr,
    /// A host uses an instance from one thread at a time; one that does not waits here.
    instance: Mutex<B>,
}

type BackendContext<B> = Context<State<B>>;

/// Makes the C object of an instance.
pub(super) fn new_backend<B: BackendImpl>(
    api: &'static Api,
    device: sys::ggml_backend_dev_t,
    backend: B,
) -> sys::ggml_backend_t {
    let guid = std::ptr::from_ref(backend.guid()).cast_mut();
    let state = State {
        name: backend.name(),
        instance: Mutex::new(backend),
    };
    Box::into_raw(Box::new(sys::ggml_backend {
        guid,
        iface: backend_i::<B>(),
        device,
        context: BackendContext::into_context(api, state),
    }))
}

fn backend_i<B: BackendImpl>() -> sys::ggml_backend_i {
    sys::ggml_backend_i {
        get_name: Some(get_name::<B>),
        free: Some(free::<B>),
        set_tensor_async: None, // nothing is asynchronous: the defaults copy at once
        get_tensor_async: None, // as above
        set_tensor_2d_async: None, // as above
        get_tensor_2d_async: None, // as above
        cpy_tensor_async: None, // as above
        synchronize: None,      // nothing is pending after a call
        graph_plan_create: None, // ggml does not use plans
        graph_plan_free: None,  // as above
        graph_plan_update: None, // as above
        graph_plan_compute: None, // as above
        graph_compute: Some(graph_compute::<B>),
        event_record: None,   // no events
        event_wait: None,     // no events
        graph_optimize: None, // nodes run in the order given
    }
}

/// Borrows the state of an instance.
///
/// # Safety
/// `backend` was made by [`new_backend`] with implementation `B` and is alive.
unsafe fn context<'a, B: BackendImpl>(backend: sys::ggml_backend_t) -> &'a BackendContext<B> {
    // SAFETY: the caller guarantees a live instance.
    let context = unsafe { (*backend).context };
    // SAFETY: `new_backend` put a context of this type there; the free slot frees it with the instance.
    unsafe { BackendContext::<B>::borrow_context(context) }
}

unsafe extern "C" fn get_name<B: BackendImpl>(backend: sys::ggml_backend_t) -> *const c_char {
    // SAFETY: the host calls a table with its own live object, here and in every shim below.
    let context = unsafe { context::<B>(backend) };
    context.describe("backend.get_name", c"llada-npu".as_ptr(), |state| {
        state.name.as_ptr()
    })
}

unsafe extern "C" fn free<B: BackendImpl>(backend: sys::ggml_backend_t) {
    // SAFETY: `new_backend` boxed the object; the host frees it once.
    let object = unsafe { Box::from_raw(backend) };
    // SAFETY: `new_backend` put a context of this type there.
    unsafe { BackendContext::<B>::free_context("backend.free", object.context) };
}

unsafe extern "C" fn graph_compute<B: BackendImpl>(
    backend: sys::ggml_backend_t,
    cgraph: *mut sys::ggml_cgraph,
) -> sys::ggml_status {
    // SAFETY: see get_name.
    let context = unsafe { context::<B>(backend) };
    context.enter("backend.graph_compute", Status::FAILED.0, |state| {
        // SAFETY: the host passes a live graph and leaves its tensors to us during the call.
        let mut graph = unsafe { GraphView::new(context.api, cgraph) };
        let mut instance = state
            .instance
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        to_status::<B>(instance.graph_compute(&mut graph))
    })
}

fn to_status<B: BackendImpl>(result: Result<(), B::Error>) -> sys::ggml_status {
    match result {
        Ok(()) => sys::GGML_STATUS_SUCCESS,
        Err(error) => {
            let reason = error.to_string();
            let status: Status = error.into();
            if status != Status::ABORTED {
                B::tell_failure(&reason);
            }
            status.0
        }
    }
}

/// `ggml_backend_set_n_threads`.
pub(super) unsafe extern "C" fn set_n_threads<B: BackendImpl>(
    backend: sys::ggml_backend_t,
    n_threads: i32,
) {
    // SAFETY: the host calls a function of our registry with an instance of our device.
    let context = unsafe { context::<B>(backend) };
    context.enter("ggml_backend_set_n_threads", (), |state| {
        let mut instance = state
            .instance
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        instance.set_n_threads(u32::try_from(n_threads).unwrap_or(1).max(1));
    });
}

/// `ggml_backend_set_abort_callback`.
pub(super) unsafe extern "C" fn set_abort_callback<B: BackendImpl>(
    backend: sys::ggml_backend_t,
    callback: sys::ggml_abort_callback,
    data: *mut c_void,
) {
    // SAFETY: the host calls a function of our registry with an instance of our device.
    let context = unsafe { context::<B>(backend) };
    context.enter("ggml_backend_set_abort_callback", (), |state| {
        let mut instance = state
            .instance
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        instance.set_abort_callback(callback.map(|function| AbortCallback { function, data }));
    });
}
