//! The ggml and libllama that this program is linked with: start-up, log, devices, plug-ins.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use llama_cpp_sys_2 as sys;

/// Lines that libllama or ggml logged as errors, the first and the last.
static ERRORS: Mutex<Option<(String, String)>> = Mutex::new(None);

fn errors() -> MutexGuard<'static, Option<(String, String)>> {
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the last line that libllama or ggml logged as an error, and forgets all.
pub(crate) fn take_last_error() -> Option<String> {
    errors().take().map(|(_, last)| last)
}

/// Returns the first line that they logged as an error since somebody took one, and forgets all.
fn take_first_error() -> Option<String> {
    errors().take().map(|(first, _)| first)
}

/// Starts libllama and sends its log to the `log` facade; the second call does nothing.
pub(crate) fn init() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        // SAFETY: the callback is a function that any thread may call; it takes no user data.
        unsafe { sys::llama_log_set(Some(log_line), ptr::null_mut()) };
        // SAFETY: called once, before any other call that needs it.
        unsafe { sys::llama_backend_init() };
    });
}

/// Hands a line of libllama's log to the `log` facade. Errors are kept for the message that names the file.
unsafe extern "C" fn log_line(
    level: sys::ggml_log_level,
    text: *const c_char,
    _user_data: *mut c_void,
) {
    // SAFETY: ggml hands over a NUL-terminated string that lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = text.trim_end();
    // Progress dots and other continuations have no line of their own.
    if line.is_empty() || level == sys::GGML_LOG_LEVEL_CONT {
        return;
    }
    match level {
        sys::GGML_LOG_LEVEL_ERROR => {
            log::debug!(target: "llama", "{line}");
            let first = errors().take().map(|(first, _)| first);
            let first = first.unwrap_or_else(|| line.to_owned());
            *errors() = Some((first, line.to_owned()));
        }
        sys::GGML_LOG_LEVEL_WARN => log::warn!(target: "llama", "{line}"),
        sys::GGML_LOG_LEVEL_INFO => log::debug!(target: "llama", "{line}"),
        _ => log::trace!(target: "llama", "{line}"),
    }
}

/// A device of the host's registry.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Device {
    /// Name, as `--device` takes it in llama.cpp's tools.
    pub(crate) name: String,
    /// Description.
    pub(crate) description: String,
    /// Registry that offers it.
    pub(crate) backend: String,
    /// ggml's word for what it is.
    pub(crate) kind: &'static str,
}

/// Returns the devices of the registry, in its order.
pub(crate) fn devices() -> Vec<Device> {
    init();
    // SAFETY: the registry exists since `init`.
    let n_devices = unsafe { sys::ggml_backend_dev_count() };
    (0..n_devices).map(device).collect()
}

fn device(index: usize) -> Device {
    // SAFETY: `index` is below the number of devices, which never falls.
    let device = unsafe { sys::ggml_backend_dev_get(index) };
    // SAFETY: devices are static.
    let name = unsafe { sys::ggml_backend_dev_name(device) };
    // SAFETY: as above.
    let description = unsafe { sys::ggml_backend_dev_description(device) };
    // SAFETY: as above.
    let reg = unsafe { sys::ggml_backend_dev_backend_reg(device) };
    // SAFETY: a device belongs to a registry, which is static.
    let backend = unsafe { sys::ggml_backend_reg_name(reg) };
    // SAFETY: as above.
    let kind = match unsafe { sys::ggml_backend_dev_type(device) } {
        sys::GGML_BACKEND_DEVICE_TYPE_CPU => "CPU",
        sys::GGML_BACKEND_DEVICE_TYPE_GPU => "GPU",
        sys::GGML_BACKEND_DEVICE_TYPE_IGPU => "IGPU",
        sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => "ACCEL",
        _ => "unknown",
    };
    Device {
        name: text(name),
        description: text(description),
        backend: text(backend),
        kind,
    }
}

/// Why a plug-in does not load.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    /// There is no such file.
    #[error("no such file")]
    NoFile,
    /// The path cannot be handed to C.
    #[error("path holds a NUL byte")]
    Nul,
    /// ggml or the plug-in says no, and logs why.
    #[error("{}", .log_line.as_deref().unwrap_or("no reason given"))]
    Refused {
        /// The first line it logged: what follows is about the file.
        log_line: Option<String>,
    },
}

/// Loads a backend plug-in into this process, as llama.cpp's tools do with `GGML_BACKEND_PATH`.
///
/// # Errors
/// [`PluginError`].
pub(crate) fn load_plugin(path: &Path) -> Result<(), PluginError> {
    init();
    if !path.is_file() {
        return Err(PluginError::NoFile);
    }
    let path =
        CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_nul| PluginError::Nul)?;
    take_last_error();
    // SAFETY: a NUL-terminated path; that the object's initialisers run is what the user asked for by placing it there.
    let reg = unsafe { sys::ggml_backend_load(path.as_ptr()) };
    if reg.is_null() {
        return Err(PluginError::Refused {
            log_line: take_first_error(),
        });
    }
    Ok(())
}

/// Returns the commit that ggml was built from, as it says.
pub(crate) fn ggml_commit() -> String {
    // SAFETY: no preconditions.
    text(unsafe { sys::ggml_commit() })
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the functions above return static NUL-terminated strings.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
