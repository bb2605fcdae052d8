//! Bridge from the `log` facade to ggml's logger, so that our messages go where the host's go.

use std::ffi::CString;
use std::ptr;

use super::api;
use super::sys;

struct Bridge;

impl log::Log for Bridge {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        forward(record);
    }

    fn flush(&self) {}
}

/// Sends all messages of the `log` facade up to `level` to ggml's logger, unless the process has set a logger of its
/// own.
pub fn install(level: log::LevelFilter) {
    if log::set_logger(&Bridge).is_ok() {
        log::set_max_level(level);
    }
}

fn forward(record: &log::Record<'_>) {
    let level = match record.level() {
        log::Level::Error => sys::GGML_LOG_LEVEL_ERROR,
        log::Level::Warn => sys::GGML_LOG_LEVEL_WARN,
        log::Level::Info => sys::GGML_LOG_LEVEL_INFO,
        log::Level::Debug | log::Level::Trace => sys::GGML_LOG_LEVEL_DEBUG,
    };
    let text = format!("llada-npu: {}\n", record.args());
    let Ok(text) = CString::new(text.replace('\0', "\u{fffd}")) else {
        return;
    };
    let Some(log_get) = api::log_get() else {
        to_stderr(&text);
        return;
    };
    let mut callback: sys::ggml_log_callback = None;
    let mut user_data = ptr::null_mut();
    // SAFETY: both out-parameters are valid (ggml.h: ggml_log_get).
    unsafe { log_get(&raw mut callback, &raw mut user_data) };
    if let Some(callback) = callback {
        // SAFETY: the host set this callback with this data; the text is NUL-terminated and lives through the call.
        unsafe { callback(level, text.as_ptr(), user_data) };
    }
}

/// A host without a logger still learns why it was refused.
fn to_stderr(text: &CString) {
    use std::io::Write as _;

    // Nothing is left to tell of a failure here.
    let _written = std::io::stderr().write_all(text.as_bytes());
}
