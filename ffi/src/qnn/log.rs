//! Messages of the library: to the `log` facade, and the last error of a call to whoever made it.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::library::Library;
use super::{Error, sys};
use crate::guard::guard;

const ERROR: u32 = 1;
const WARN: u32 = 2;
const INFO: u32 = 3;
const DEBUG: u32 = 5;

/// Longest message that is kept, in bytes with the closing NUL.
const MESSAGE_MAX: usize = 1024;

/// Parts of messages that releases log at error level though nothing is wrong.
const NOISE: &[&str] = &["unexpected GraphHtpSettings option"];

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Forgets the last error of this thread.
pub(super) fn clear_last_error() {
    // The destructor of another thread-local may come here when ours is gone.
    let _gone = LAST_ERROR.try_with(|last| last.borrow_mut().clear());
}

/// Takes the last error that the library logged from this thread.
pub(super) fn take_last_error() -> String {
    LAST_ERROR
        .try_with(|last| std::mem::take(&mut *last.borrow_mut()))
        .unwrap_or_default()
}

unsafe extern "C" {
    /// The C library's, with its `va_list` as the pointer that the ABI passes.
    fn vsnprintf(
        text: *mut c_char,
        size: usize,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
}

/// What the library calls, from any of its threads.
unsafe extern "C" fn callback(
    format: *const c_char,
    level: u32,
    _time: u64,
    arguments: *mut c_void,
) {
    guard("QNN log", (), || {
        if format.is_null() {
            return;
        }
        let mut text = [0_u8; MESSAGE_MAX];
        // SAFETY: the buffer is as long as said; the format and the arguments are the caller's and belong together,
        // as the contract of the callback says. `va_list` parameters are pointers on x86-64 and aarch64.
        let length = unsafe { vsnprintf(text.as_mut_ptr().cast(), text.len(), format, arguments) };
        if length < 0 {
            return;
        }
        if let Ok(text) = CStr::from_bytes_until_nul(&text) {
            report(level, text.to_string_lossy().trim());
        }
    });
}

/// Errors of the library are not errors of the program: what a call fails with is returned, so that all messages are
/// for those who debug.
fn report(level: u32, text: &str) {
    let noise = NOISE.iter().any(|part| text.contains(part));
    if level == ERROR && !noise {
        let _gone = LAST_ERROR.try_with(|last| text.clone_into(&mut last.borrow_mut()));
    }
    let to = if level <= WARN && !noise {
        ::log::Level::Debug
    } else {
        ::log::Level::Trace
    };
    ::log::log!(target: "qnn", to, "QNN: {text}");
}

/// What to ask the library for, so that it does not format what nobody reads. Errors are always wanted.
fn level() -> u32 {
    match ::log::max_level() {
        ::log::LevelFilter::Trace => DEBUG,
        ::log::LevelFilter::Debug => INFO,
        _ => ERROR,
    }
}

/// Owning handle of a logger of the library, at the level of `log::max_level()` at its creation: trace asks for all,
/// debug for information, everything else for errors. Errors and warnings arrive in `log` as debug, all else as trace, with
/// the target `qnn`; the last error logged during a call that failed is part of its [`Failure`](super::Failure).
#[derive(Debug, Clone)]
pub struct Logger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    library: Library,
    handle: sys::Handle,
}

// SAFETY: the handle is only passed to create and free functions, which the library's set-up lock serialises.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing is reached through a shared reference but the handle's value.
unsafe impl Sync for Inner {}

impl Logger {
    /// Makes a logger.
    ///
    /// # Errors
    /// [`Error::Call`]. On a machine without NPU, the aarch64 library of HTP refuses here with code 4000.
    pub fn new(library: &Library) -> Result<Self, Error> {
        let mut handle = ptr::null_mut();
        let create = library.table().log_create;
        let _setup = library.setup();
        library.call("logCreate", || {
            // SAFETY: the signature is QNN's, the callback may be called from any thread, the handle is written.
            unsafe { create(callback, level(), &raw mut handle) }
        })?;
        let handle = super::library::not_null("logCreate", handle)?;
        Ok(Self(Arc::new(Inner {
            library: library.clone(),
            handle,
        })))
    }

    /// The library that it belongs to.
    pub fn library(&self) -> &Library {
        &self.0.library
    }

    pub(super) fn handle(&self) -> sys::Handle {
        self.0.handle
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let free = self.library.table().log_free;
        let Some(_setup) = self.library.setup_on_drop("logFree") else {
            return;
        };
        self.library.call_on_drop("logFree", || {
            // SAFETY: the handle is one of logCreate's that nothing made from it outlives, and it is freed once.
            unsafe { free(self.handle) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_kept_and_noise_is_not() {
        clear_last_error();
        report(ERROR, "unexpected GraphHtpSettings option 66");
        assert_eq!(take_last_error(), "");
        report(ERROR, "cannot prepare");
        report(WARN, "slow");
        assert_eq!(take_last_error(), "cannot prepare");
        assert_eq!(take_last_error(), "");
    }
}
