//! Backends, devices, and how fast they are asked to be.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::library::{Library, not_null};
use super::log::Logger;
use super::raw::RawGraph;
use super::soc::Soc;
use super::spec::GraphSpec;
use super::{Error, Provider, sys};

/// Owning handle of a backend, with a logger of its own.
#[derive(Debug, Clone)]
pub struct Backend(Arc<BackendInner>);

#[derive(Debug)]
struct BackendInner {
    logger: Logger,
    handle: sys::Handle,
}

// SAFETY: QNN's handles are tokens that any thread may pass; making and freeing owners is serialised by the library's set-up
// lock, and validating keeps no state in the backend (concurrent use was measured on releases 2.47 to 2.51).
unsafe impl Send for BackendInner {}
// SAFETY: as above.
unsafe impl Sync for BackendInner {}

impl Backend {
    /// Starts the backend of a library.
    ///
    /// # Errors
    /// [`Error::Call`]: without an NPU, on aarch64, [`BACKEND_CANNOT_INITIALIZE`](super::ErrorCode::BACKEND_CANNOT_INITIALIZE).
    pub fn new(library: &Library) -> Result<Self, Error> {
        let logger = Logger::new(library)?;
        let mut handle = ptr::null_mut();
        let create = library.table().backend_create;
        let _setup = library.setup();
        library.call("backendCreate", || {
            // SAFETY: a live logger, no options, and the handle is written.
            unsafe { create(logger.handle(), ptr::null(), &raw mut handle) }
        })?;
        let handle = not_null("backendCreate", handle)?;
        Ok(Self(Arc::new(BackendInner { logger, handle })))
    }

    /// Its library.
    pub fn library(&self) -> &Library {
        self.0.logger.library()
    }

    /// Asks the library whether it can compute every node of a graph. Yes is necessary, not sufficient: finalising may
    /// still fail, and results be wrong.
    ///
    /// # Errors
    /// [`Error::Spec`], and [`Error::Node`] for the first node that is refused.
    pub fn validate(&self, spec: &GraphSpec<'_>) -> Result<(), Error> {
        spec.check()?;
        self.validate_raw(&RawGraph::new(spec))
    }

    pub(super) fn validate_raw(&self, raw: &RawGraph<'_>) -> Result<(), Error> {
        let validate = self.library().table().backend_validate_op_config;
        for i in 0..raw.n_nodes() {
            let node = raw.node(i);
            let answer = self.library().call("backendValidateOpConfig", || {
                // SAFETY: a live backend; the node and all that it points to live through the call.
                unsafe { validate(self.0.handle, node.config()) }
            });
            answer.map_err(|failure| raw.refusal(i, failure))?;
        }
        Ok(())
    }

    /// Reads what the library says about the hardware; the emulation on x86-64 always says the same. `None` where it does not
    /// say, and for other libraries than HTP's: each would say it in a form of its own.
    pub fn platform(&self) -> Option<Platform> {
        if self.library().provider() != Provider::Htp {
            return None;
        }
        let table = self.library().table();
        let (get, free) = (
            table.device_get_platform_info?,
            table.device_free_platform_info?,
        );
        let logger = self.0.logger.handle();
        let mut info: *const sys::PlatformInfo = ptr::null();
        let _setup = self.library().setup();
        self.library()
            .call("deviceGetPlatformInfo", || {
                // SAFETY: a live logger; the pointer is written.
                unsafe { get(logger, &raw mut info) }
            })
            .ok()?;
        // SAFETY: NULL or a structure of the library's that lives until it is freed below.
        let platform = unsafe { info.as_ref() }.and_then(read_platform);
        self.library().call_on_drop("deviceFreePlatformInfo", || {
            // SAFETY: what deviceGetPlatformInfo handed out, freed once.
            unsafe { free(logger, info) }
        });
        platform
    }

    pub(super) fn handle(&self) -> sys::Handle {
        self.0.handle
    }
}

impl Drop for BackendInner {
    fn drop(&mut self) {
        let library = self.logger.library();
        let free = library.table().backend_free;
        let Some(_setup) = library.setup_on_drop("backendFree") else {
            return;
        };
        library.call_on_drop("backendFree", || {
            // SAFETY: the handle is backendCreate's; devices and contexts hold this, so that none is left.
            unsafe { free(self.handle) }
        });
    }
}

/// What a library says about the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    /// The chip.
    pub soc: Soc,
    /// Version of the tensor processor: 75 is "v75".
    pub arch: u32,
    /// Fast memory, in MiB.
    pub vtcm_mb: usize,
    /// Devices found.
    pub n_devices: u32,
}

fn read_platform(info: &sys::PlatformInfo) -> Option<Platform> {
    if info.version != 1 || info.n_devices == 0 {
        return None;
    }
    // SAFETY: NULL or the first of the devices that the library counted.
    let device = unsafe { info.devices.as_ref() }?;
    if device.version != 1 {
        return None;
    }
    // SAFETY: NULL or HTP's extension, which is the only one that HTP's library hands out; no other gets here (`platform`).
    let extension = unsafe { device.extension.as_ref() }?;
    Some(Platform {
        soc: Soc(extension.soc_model),
        arch: extension.arch,
        vtcm_mb: extension.vtcm_mb,
        n_devices: info.n_devices,
    })
}

/// Options of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The chip to emulate on x86-64; `None`: the library's choice (v68, 4 MiB of VTCM). On a phone the library looks itself and
    /// this is ignored.
    pub soc: Option<Soc>,
}

/// Owning handle of a device of a backend. A backend without devices (`Cpu`) has one that is none.
#[derive(Debug, Clone)]
pub struct Device(Arc<DeviceInner>);

#[derive(Debug)]
struct DeviceInner {
    backend: Backend,
    /// NULL: the backend has no devices.
    handle: sys::Handle,
}

// SAFETY: a token that any thread may pass; making and freeing are serialised by the library's set-up lock.
unsafe impl Send for DeviceInner {}
// SAFETY: as above.
unsafe impl Sync for DeviceInner {}

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Call`]: [`DEVICE_INVALID_CONFIG`](super::ErrorCode::DEVICE_INVALID_CONFIG) for an unknown chip, and on phones when the
    /// NPU's side of the library is not on `ADSP_LIBRARY_PATH` or of another release.
    pub fn new(backend: &Backend, options: DeviceOptions) -> Result<Self, Error> {
        let library = backend.library();
        let mut handle = ptr::null_mut();
        if library.provider() == Provider::Cpu {
            return Ok(Self(Arc::new(DeviceInner {
                backend: backend.clone(),
                handle,
            })));
        }
        let create = library.table().device_create;
        let create = create.ok_or(Error::Missing {
            call: "deviceCreate",
        })?;
        let soc = options
            .soc
            .filter(|_| cfg!(target_arch = "x86_64") && library.provider() == Provider::Htp);
        // Releases differ in where they read the chip: at offset 4 or 8. Zeroed around, both at once suit all.
        let custom = soc.map(|soc| sys::HtpConfig {
            option: sys::HTP_DEVICE_SOC,
            word_at_4: soc.0,
            words: [soc.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        });
        let config = custom.as_ref().map(|custom| sys::Config {
            option: sys::CONFIG_CUSTOM,
            custom: ptr::from_ref(custom).cast::<c_void>(),
        });
        let list = [
            config.as_ref().map_or(ptr::null(), ptr::from_ref),
            ptr::null(),
        ];
        let configs = if config.is_some() {
            list.as_ptr()
        } else {
            ptr::null()
        };
        let _setup = library.setup();
        library.call("deviceCreate", || {
            // SAFETY: a live logger; options are NULL or a NULL-terminated list, alive through the call; the handle is written.
            unsafe { create(backend.0.logger.handle(), configs, &raw mut handle) }
        })?;
        let handle = not_null("deviceCreate", handle)?;
        Ok(Self(Arc::new(DeviceInner {
            backend: backend.clone(),
            handle,
        })))
    }

    /// Its backend.
    pub fn backend(&self) -> &Backend {
        &self.0.backend
    }

    /// Its library.
    pub fn library(&self) -> &Library {
        self.0.backend.library()
    }

    pub(super) fn handle(&self) -> sys::Handle {
        self.0.handle
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        let library = self.backend.library();
        let Some(free) = library.table().device_free else {
            return;
        };
        let Some(_setup) = library.setup_on_drop("deviceFree") else {
            return;
        };
        library.call_on_drop("deviceFree", || {
            // SAFETY: the handle is deviceCreate's; contexts hold this, so that none is left.
            unsafe { free(self.handle) }
        });
    }
}
