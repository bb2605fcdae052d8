//! Loading a ggml of the user's choice, for programs that are not linked with one.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::api::{Api, ApiError};
use super::sys;
use crate::guard::guard;

/// Why a ggml could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The path cannot be handed to C.
    #[error("{}: path holds a NUL byte", .0.display())]
    Path(PathBuf),
    /// The loader of the system refuses a library.
    #[error("{}: {reason}", path.display())]
    Library {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// The library has not ggml's functions.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The library cannot load backends.
    #[error("{}: no function `ggml_backend_load_all_from_path`", .0.display())]
    NoLoader(PathBuf),
}

type LoadAll = unsafe extern "C" fn(*const c_char);

type LogSet = unsafe extern "C" fn(sys::ggml_log_callback, *mut c_void);

/// Who gets ggml's warnings and errors.
static ON_MESSAGE: OnceLock<fn(&str)> = OnceLock::new();

unsafe extern "C" fn log_line(
    level: sys::ggml_log_level,
    text: *const c_char,
    _user_data: *mut c_void,
) {
    let Some(on_message) = ON_MESSAGE.get() else {
        return;
    };
    if level == sys::GGML_LOG_LEVEL_WARN || level == sys::GGML_LOG_LEVEL_ERROR {
        // SAFETY: ggml hands over a NUL-terminated string that lives during the call.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        guard("log_line", (), || on_message(&text));
    }
}

/// Loads `libggml.so` of a directory into the process, and the backends that lie beside it; they stay for good. Warnings
/// and errors that ggml logs go to `on_message`, which must not log through ggml itself; all else is dropped.
///
/// # Errors
/// [`LoadError`]. A process that has a ggml already keeps using that one.
pub fn load(dir: &Path, on_message: fn(&str)) -> Result<&'static Api, LoadError> {
    let path = dir.join("libggml.so");
    let c_string = |path: &Path| {
        CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_nul| LoadError::Path(path.to_owned()))
    };
    let (c_path, c_dir) = (c_string(&path)?, c_string(dir)?);
    // SAFETY: a NUL-terminated path; that the library's initialisers run is what the caller asks for.
    let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        // SAFETY: dlerror takes nothing; its text is NUL-terminated and lives until the next call of this thread.
        let text = unsafe { libc::dlerror() };
        let reason = if text.is_null() {
            String::new()
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        return Err(LoadError::Library { path, reason });
    }
    let name = c"ggml_backend_load_all_from_path".as_ptr();
    // SAFETY: the handle is open and is never closed; the name is NUL-terminated.
    let symbol = unsafe { libc::dlsym(handle, name) };
    if symbol.is_null() {
        return Err(LoadError::NoLoader(path));
    }
    let api = Api::get()?;
    let name = c"ggml_log_set".as_ptr();
    // SAFETY: as above.
    let log_set = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) };
    if !log_set.is_null() && ON_MESSAGE.set(on_message).is_ok() {
        // SAFETY: the function has ggml's documented name and signature (ggml.h).
        let log_set = unsafe { std::mem::transmute::<*mut c_void, LogSet>(log_set) };
        // SAFETY: the callback is a function that any thread may call; it takes no user data.
        unsafe { log_set(Some(log_line), std::ptr::null_mut()) };
    }
    // SAFETY: the function has ggml's documented name and signature (ggml-backend.h).
    let load_all = unsafe { std::mem::transmute::<*mut c_void, LoadAll>(symbol) };
    // SAFETY: the path is NUL-terminated and only read.
    unsafe { load_all(c_dir.as_ptr()) };
    Ok(api)
}
