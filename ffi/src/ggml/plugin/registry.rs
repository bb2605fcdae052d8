//! The registry: one per process, never freed.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::backend::{set_abort_callback, set_n_threads};
use super::buffer::new_buffer;
use super::context::Context;
use super::device::{DeviceContext, State as DeviceState, device_i};
use super::host::Host;
use super::layout::{Layout, V2, V3};
use super::{BufferTypeImpl, DeviceImpl, RegImpl};
use crate::ggml::api::Api;
use crate::ggml::backend::{Buffer, BufferType, Device, SetAbortCallback, SetNThreads};
use crate::ggml::sys;

/// What `ggml_backend_init` returns: a registry, or NULL for "not in this host".
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegPtr(*mut c_void);

// SAFETY: registries are static and immutable once they are made.
unsafe impl Send for RegPtr {}
// SAFETY: as for Send.
unsafe impl Sync for RegPtr {}

impl RegPtr {
    /// The refusal.
    pub const NULL: Self = Self(ptr::null_mut());
}

/// Address of a function that a host asks for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcAddress(*mut c_void);

impl ProcAddress {
    /// Takes the address of a function that returns a static table.
    #[must_use]
    #[expect(
        clippy::fn_to_numeric_cast_any,
        reason = "C hands functions out as void pointers"
    )]
    pub fn of_table<T>(function: extern "C" fn() -> *const T) -> Self {
        Self(function as *mut c_void)
    }
}

/// Non-owning handle of the registry that was made of `R`; the registry is static.
pub struct Installed<R: RegImpl> {
    api: &'static Api,
    reg: NonNull<sys::ggml_backend_reg>,
    dev: NonNull<sys::ggml_backend_device>,
    /// Never empty; hosts use the first.
    bufts: Vec<NonNull<sys::ggml_backend_buffer_type>>,
    implementation: &'static R,
    marker: PhantomData<R>,
}

// SAFETY: the objects are static and immutable once they are made.
unsafe impl<R: RegImpl> Send for Installed<R> {}
// SAFETY: as for Send.
unsafe impl<R: RegImpl> Sync for Installed<R> {}

impl<R: RegImpl> std::fmt::Debug for Installed<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Installed")
            .field("reg", &self.reg)
            .finish_non_exhaustive()
    }
}

struct RegState<R: RegImpl> {
    implementation: &'static R,
    dev: sys::ggml_backend_dev_t,
}

// SAFETY: the device is static and immutable once its registry is complete.
unsafe impl<R: RegImpl> Send for RegState<R> {}
// SAFETY: as for Send.
unsafe impl<R: RegImpl> Sync for RegState<R> {}

type RegContext<R> = Context<RegState<R>>;
type BuftOf<R> = <<R as RegImpl>::Device as DeviceImpl>::BufferType;
type BufferOf<R> = <BuftOf<R> as BufferTypeImpl>::Buffer;

impl<R: RegImpl> Installed<R> {
    /// Makes the registry, in the layout of `host`. The memory is never freed: hosts keep pointers until they exit.
    #[must_use]
    pub fn new(host: &Host, implementation: R) -> Self {
        if host.api_version() >= 3 {
            Self::with_layout::<V3>(host, implementation)
        } else {
            Self::with_layout::<V2>(host, implementation)
        }
    }

    fn with_layout<L: Layout>(host: &Host, implementation: R) -> Self {
        let api = host.api();
        let implementation: &'static R = Box::leak(Box::new(implementation));
        let device = implementation.device();
        // The three objects refer to each other: contexts are filled in at the end.
        let reg = Box::into_raw(Box::new(sys::ggml_backend_reg {
            api_version: host.api_version(),
            iface: reg_i::<R>(),
            context: ptr::null_mut(),
        }));
        let dev = Box::into_raw(Box::new(sys::ggml_backend_device {
            iface: device_i::<R::Device>(),
            reg,
            context: ptr::null_mut(),
        }));
        let bufts: Vec<_> = std::iter::once(device.buffer_type())
            .chain(device.more_buffer_types())
            .map(|buft| L::leak::<BuftOf<R>>(dev, Context::into_context(api, buft)))
            .collect();
        let state = DeviceState {
            device,
            bufts: bufts.clone(),
        };
        let dev_context = DeviceContext::into_context(api, state);
        // SAFETY: the box is ours and nobody else knows it yet.
        unsafe { (*dev).context = dev_context };
        let reg_context = RegContext::into_context(
            api,
            RegState {
                implementation,
                dev,
            },
        );
        // SAFETY: as above.
        unsafe { (*reg).context = reg_context };
        Self {
            api,
            reg: NonNull::new(reg).expect("a box is not NULL"),
            dev: NonNull::new(dev).expect("a box is not NULL"),
            bufts: bufts
                .into_iter()
                .map(|buft| NonNull::new(buft).expect("a box is not NULL"))
                .collect(),
            implementation,
            marker: PhantomData,
        }
    }

    /// Returns what `ggml_backend_init` returns.
    #[must_use]
    pub fn as_ptr(&self) -> RegPtr {
        RegPtr(self.reg.as_ptr().cast())
    }

    /// Returns the implementation.
    #[must_use]
    pub fn implementation(&self) -> &'static R {
        self.implementation
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::from_raw(self.api, self.dev)
    }

    /// Returns the buffer type.
    #[must_use]
    pub fn buffer_type(&self) -> BufferType {
        BufferType::from_raw(self.api, self.bufts[0])
    }

    /// Returns the further buffer types, in the device's order.
    pub fn more_buffer_types(&self) -> impl Iterator<Item = BufferType> {
        self.bufts[1..]
            .iter()
            .map(|buft| BufferType::from_raw(self.api, *buft))
    }

    /// Tells the host's registry about ours. A plug-in is registered by the host's loader; this is for programs that
    /// link the backend. ggml ignores a second registration.
    pub fn register(&self) {
        // SAFETY: the registry is static and complete.
        unsafe { (self.api.ggml_backend_register)(self.reg.as_ptr()) };
    }

    /// Makes a buffer of our type out of memory that exists already.
    ///
    /// # Panics
    /// Never: ggml makes the buffer or ends the process for lack of memory.
    #[must_use]
    pub fn adopt(&self, buffer: BufferOf<R>) -> Buffer {
        use super::BufferImpl;

        let size_bytes = buffer.region().size_bytes();
        let raw = new_buffer(self.api, self.bufts[0].as_ptr(), buffer, size_bytes);
        let raw = NonNull::new(raw).expect("ggml_backend_buffer_init allocates or throws");
        // SAFETY: a new buffer that nobody else knows.
        unsafe { Buffer::from_raw(self.api, raw) }
    }
}

fn reg_i<R: RegImpl>() -> sys::ggml_backend_reg_i {
    sys::ggml_backend_reg_i {
        get_name: Some(get_name::<R>),
        get_device_count: Some(get_device_count),
        get_device: Some(get_device::<R>),
        get_proc_address: Some(get_proc_address::<R>),
    }
}

/// Borrows the state of the registry.
///
/// # Safety
/// `reg` is a registry with implementation `R`.
unsafe fn context<'a, R: RegImpl>(reg: sys::ggml_backend_reg_t) -> &'a RegContext<R> {
    // SAFETY: the caller guarantees our registry, which is static.
    let context = unsafe { (*reg).context };
    // SAFETY: `with_layout` put a context of this type there; it is never freed.
    unsafe { RegContext::<R>::borrow_context(context) }
}

unsafe extern "C" fn get_name<R: RegImpl>(reg: sys::ggml_backend_reg_t) -> *const c_char {
    // SAFETY: the host calls a table with its own object (ggml-backend-impl.h), here and in every shim below.
    let context = unsafe { context::<R>(reg) };
    context.describe("reg.get_name", c"llada-npu".as_ptr(), |s| {
        s.implementation.name().as_ptr()
    })
}

unsafe extern "C" fn get_device_count(_reg: sys::ggml_backend_reg_t) -> usize {
    1
}

unsafe extern "C" fn get_device<R: RegImpl>(
    reg: sys::ggml_backend_reg_t,
    index: usize,
) -> sys::ggml_backend_dev_t {
    // SAFETY: see get_name.
    let context = unsafe { context::<R>(reg) };
    context.describe("reg.get_device", ptr::null_mut(), |s| {
        if index == 0 { s.dev } else { ptr::null_mut() }
    })
}

unsafe extern "C" fn get_proc_address<R: RegImpl>(
    reg: sys::ggml_backend_reg_t,
    name: *const c_char,
) -> *mut c_void {
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: see get_name.
    let context = unsafe { context::<R>(reg) };
    // SAFETY: the host passes a NUL-terminated name (ggml-backend.h).
    let name = unsafe { CStr::from_ptr(name) };
    context.enter("reg.get_proc_address", ptr::null_mut(), |s| {
        proc_address(s.implementation, name)
    })
}

#[expect(
    clippy::fn_to_numeric_cast_any,
    reason = "C hands functions out as void pointers"
)]
fn proc_address<R: RegImpl>(implementation: &R, name: &CStr) -> *mut c_void {
    type Backend<R> = <<R as RegImpl>::Device as DeviceImpl>::Backend;

    if name == c"ggml_backend_set_n_threads" {
        let function: SetNThreads = set_n_threads::<Backend<R>>;
        return function as *mut c_void;
    }
    if name == c"ggml_backend_set_abort_callback" {
        let function: SetAbortCallback = set_abort_callback::<Backend<R>>;
        return function as *mut c_void;
    }
    implementation
        .proc_address(name)
        .map_or(ptr::null_mut(), |address| address.0)
}
