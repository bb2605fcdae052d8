//! Backend instances, buffers and the host's registry.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{self, NonNull};

use super::api::Api;
use super::context::Tensor;
use super::sys;

/// Copies a C string that ggml returned.
///
/// # Safety
/// `text` is NULL or NUL-terminated and alive during the call.
pub(crate) unsafe fn to_string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not NULL; the caller guarantees the rest.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

type ExtraBufts =
    unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;

/// Non-owning handle of a buffer type; buffer types are static in ggml.
#[derive(Clone, Copy, Debug)]
pub struct BufferType {
    api: &'static Api,
    raw: NonNull<sys::ggml_backend_buffer_type>,
}

// SAFETY: buffer types are static and immutable after registration (ggml-backend.h).
unsafe impl Send for BufferType {}
// SAFETY: as for Send.
unsafe impl Sync for BufferType {}

impl BufferType {
    pub(crate) fn from_raw(api: &'static Api, raw: NonNull<sys::ggml_backend_buffer_type>) -> Self {
        Self { api, raw }
    }

    pub(crate) fn as_raw(&self) -> sys::ggml_backend_buffer_type_t {
        self.raw.as_ptr()
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.api
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: the buffer type is static.
        let name = unsafe { (self.api.ggml_backend_buft_name)(self.as_raw()) };
        // SAFETY: ggml returns a NUL-terminated name that lives as long as the type.
        unsafe { to_string(name) }
    }
}

/// Owning handle of a buffer.
#[derive(Debug)]
pub struct Buffer {
    api: &'static Api,
    raw: NonNull<sys::ggml_backend_buffer>,
}

// SAFETY: a buffer may be used and freed from any thread, one at a time (ggml-backend.h: all calls are synchronous).
unsafe impl Send for Buffer {}
// SAFETY: shared references only read the base address and the size.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `raw` is owned and freed once.
        unsafe { (self.api.ggml_backend_buffer_free)(self.raw.as_ptr()) };
    }
}

impl Buffer {
    /// Takes ownership of a buffer.
    ///
    /// # Safety
    /// `raw` is a live buffer that nobody else frees.
    pub(crate) unsafe fn from_raw(
        api: &'static Api,
        raw: NonNull<sys::ggml_backend_buffer>,
    ) -> Self {
        Self { api, raw }
    }

    pub(crate) fn as_raw(&self) -> sys::ggml_backend_buffer_t {
        self.raw.as_ptr()
    }

    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: the buffer is alive.
        unsafe { (self.api.ggml_backend_buffer_get_base)(self.as_raw()) }.cast()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        // SAFETY: the buffer is alive.
        unsafe { (self.api.ggml_backend_buffer_get_size)(self.as_raw()) }
    }

    /// Fills the buffer with one byte.
    pub fn clear(&mut self, value: u8) {
        // SAFETY: the buffer is alive and uniquely borrowed.
        unsafe { (self.api.ggml_backend_buffer_clear)(self.as_raw(), value) };
    }
}

/// Owning handle of a backend instance (a stream of work on a device).
#[derive(Debug)]
pub struct Backend {
    api: &'static Api,
    raw: NonNull<sys::ggml_backend>,
}

// SAFETY: a backend instance may move between threads; it is used by one at a time (ggml-backend.h).
unsafe impl Send for Backend {}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: `raw` is owned and freed once.
        unsafe { (self.api.ggml_backend_free)(self.raw.as_ptr()) };
    }
}

pub(crate) type SetNThreads = unsafe extern "C" fn(sys::ggml_backend_t, i32);
pub(crate) type SetAbortCallback =
    unsafe extern "C" fn(sys::ggml_backend_t, sys::ggml_abort_callback, *mut c_void);

impl Backend {
    /// Takes ownership of a backend instance.
    ///
    /// # Safety
    /// `raw` is a live instance that nobody else frees.
    pub(crate) unsafe fn from_raw(api: &'static Api, raw: NonNull<sys::ggml_backend>) -> Self {
        Self { api, raw }
    }

    pub(crate) fn as_raw(&self) -> sys::ggml_backend_t {
        self.raw.as_ptr()
    }

    /// Returns the function that the instance's registry exports under `name`.
    fn proc_address(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the instance is alive.
        let device = unsafe { (self.api.ggml_backend_get_device)(self.as_raw()) };
        if device.is_null() {
            return None;
        }
        // SAFETY: a live instance's device is alive.
        let reg = unsafe { (self.api.ggml_backend_dev_backend_reg)(device) };
        if reg.is_null() {
            return None;
        }
        // SAFETY: the registry is static; the name is NUL-terminated.
        NonNull::new(unsafe { (self.api.ggml_backend_reg_get_proc_address)(reg, name.as_ptr()) })
    }

    /// Sets the number of threads, where the backend has that notion.
    pub fn set_n_threads(&mut self, n_threads: u32) {
        if let Some(symbol) = self.proc_address(c"ggml_backend_set_n_threads") {
            // SAFETY: ggml_backend_set_n_threads has this signature in every backend (ggml-backend.h).
            let set = unsafe { std::mem::transmute::<*mut c_void, SetNThreads>(symbol.as_ptr()) };
            // SAFETY: the instance is alive and uniquely borrowed.
            unsafe { set(self.as_raw(), i32::try_from(n_threads).unwrap_or(i32::MAX)) };
        }
    }

    /// Sets or clears the raw abort callback, where the backend has that notion.
    ///
    /// # Safety
    /// `callback` may be called with `data` from any thread while a graph is computed, until it is replaced.
    pub(crate) unsafe fn set_abort_callback(
        &mut self,
        callback: sys::ggml_abort_callback,
        data: *mut c_void,
    ) {
        if let Some(symbol) = self.proc_address(c"ggml_backend_set_abort_callback") {
            // SAFETY: ggml_backend_set_abort_callback has this signature in every backend (ggml-backend.h).
            let set =
                unsafe { std::mem::transmute::<*mut c_void, SetAbortCallback>(symbol.as_ptr()) };
            // SAFETY: the instance is alive and uniquely borrowed; the caller answers for callback and data.
            unsafe { set(self.as_raw(), callback, data) };
        }
    }

    /// Runs `body` with an abort flag installed: when `flag` becomes true, computations of this instance end with
    /// [`Status::ABORTED`](super::types::Status::ABORTED) at the next node.
    pub fn with_abort_flag<R>(
        &mut self,
        flag: &std::sync::atomic::AtomicBool,
        body: impl FnOnce(&mut Self) -> R,
    ) -> R {
        unsafe extern "C" fn read_flag(data: *mut c_void) -> bool {
            // SAFETY: `data` is the flag that `with_abort_flag` installed and that outlives the installation.
            unsafe { &*data.cast::<std::sync::atomic::AtomicBool>() }
                .load(std::sync::atomic::Ordering::Relaxed)
        }
        struct Restore<'a>(&'a mut Backend);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                // SAFETY: clears the callback; nothing is called afterwards.
                unsafe { self.0.set_abort_callback(None, ptr::null_mut()) };
            }
        }

        let data = ptr::from_ref(flag).cast_mut().cast::<c_void>();
        // SAFETY: the flag outlives `restore`, which clears the callback even when `body` panics.
        unsafe { self.set_abort_callback(Some(read_flag), data) };
        let restore = Restore(self);
        body(restore.0)
    }
}

/// Non-owning handle of a device; devices are static in ggml.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    api: &'static Api,
    raw: NonNull<sys::ggml_backend_device>,
}

// SAFETY: devices are static, and their functions may be called from any thread (ggml-backend.h).
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn from_raw(api: &'static Api, raw: NonNull<sys::ggml_backend_device>) -> Self {
        Self { api, raw }
    }

    pub(crate) fn as_raw(&self) -> sys::ggml_backend_dev_t {
        self.raw.as_ptr()
    }

    /// Returns the host's CPU device, if it has loaded one.
    #[must_use]
    pub fn cpu(api: &'static Api) -> Option<Self> {
        // SAFETY: reads the host's registry.
        let raw = unsafe { (api.ggml_backend_dev_by_type)(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
        NonNull::new(raw).map(|raw| Self { api, raw })
    }

    /// Lists the devices that the host has registered.
    #[must_use]
    pub fn all(api: &'static Api) -> Vec<Self> {
        let mut devices = Vec::new();
        // SAFETY: reads the host's registry.
        let n_regs = unsafe { (api.ggml_backend_reg_count)() };
        for reg in 0..n_regs {
            // SAFETY: the index is below the count.
            let reg = unsafe { (api.ggml_backend_reg_get)(reg) };
            // SAFETY: registries are static.
            let n_devices = unsafe { (api.ggml_backend_reg_dev_count)(reg) };
            for device in 0..n_devices {
                // SAFETY: the index is below the count.
                let raw = unsafe { (api.ggml_backend_reg_dev_get)(reg, device) };
                devices.extend(NonNull::new(raw).map(|raw| Self { api, raw }));
            }
        }
        devices
    }

    /// Returns the name, such as `CPU`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: the device is static.
        let name = unsafe { (self.api.ggml_backend_dev_name)(self.as_raw()) };
        // SAFETY: ggml returns a NUL-terminated name that lives as long as the device.
        unsafe { to_string(name) }
    }

    /// Returns the description.
    #[must_use]
    pub fn description(&self) -> String {
        // SAFETY: the device is static.
        let text = unsafe { (self.api.ggml_backend_dev_description)(self.as_raw()) };
        // SAFETY: as for the name.
        unsafe { to_string(text) }
    }

    /// Returns the device's default buffer type.
    #[must_use]
    pub fn buffer_type(&self) -> Option<BufferType> {
        // SAFETY: the device is static.
        let raw = unsafe { (self.api.ggml_backend_dev_buffer_type)(self.as_raw()) };
        NonNull::new(raw).map(|raw| BufferType::from_raw(self.api, raw))
    }

    /// Lists further buffer types of the device, such as those in which the CPU keeps weights repacked.
    #[must_use]
    pub fn extra_buffer_types(&self) -> Vec<BufferType> {
        // SAFETY: the device is static.
        let reg = unsafe { (self.api.ggml_backend_dev_backend_reg)(self.as_raw()) };
        let name = c"ggml_backend_dev_get_extra_bufts".as_ptr();
        // SAFETY: a device belongs to a registry, which is static; the name is NUL-terminated.
        let symbol = unsafe { (self.api.ggml_backend_reg_get_proc_address)(reg, name) };
        if symbol.is_null() {
            return Vec::new();
        }
        // SAFETY: the function of that name has this signature in every backend (ggml-backend.h).
        let list = unsafe { std::mem::transmute::<*mut c_void, ExtraBufts>(symbol) };
        // SAFETY: the device is static.
        let mut next = unsafe { list(self.as_raw()) };
        let mut types = Vec::new();
        while !next.is_null() {
            // SAFETY: the list is static and ends with NULL, which is not reached yet.
            let raw = unsafe { *next };
            let Some(raw) = NonNull::new(raw) else { break };
            types.push(BufferType::from_raw(self.api, raw));
            next = next.wrapping_add(1);
        }
        types
    }

    /// Tells whether the device computes an operation on its operands, where they lie.
    #[must_use]
    pub fn supports_op(&self, op: &Tensor) -> bool {
        // SAFETY: the device is static, and the tensor keeps its context alive.
        unsafe { (self.api.ggml_backend_dev_supports_op)(self.as_raw(), op.raw.as_ptr()) }
    }

    /// Makes a backend instance on the device.
    #[must_use]
    pub fn init(&self, params: &str) -> Option<Backend> {
        let params = CString::new(params).ok()?;
        // SAFETY: the device is static; parameters are NUL-terminated and copied.
        let raw = unsafe { (self.api.ggml_backend_dev_init)(self.as_raw(), params.as_ptr()) };
        // SAFETY: a new instance, owned by us.
        NonNull::new(raw).map(|raw| unsafe { Backend::from_raw(self.api, raw) })
    }
}
