//! Ctrl-C: the first one asks the generation to stop, a second one ends the process.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sigint;

static ASKED: AtomicBool = AtomicBool::new(false);
static ALTERNATE_SCREEN: AtomicBool = AtomicBool::new(false);

/// Flag of the session, by which the engine ends a forward under way.
static SESSION: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Escape sequences that show the cursor again and leave the terminal's alternate screen.
pub(crate) const LEAVE_ALTERNATE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";

/// Returns whether Ctrl-C was pressed since [`install`].
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Sets this flag too when Ctrl-C is pressed, and now if it was pressed already. The first flag given stays.
pub(crate) fn also_set(flag: Arc<AtomicBool>) {
    let flag = SESSION.get_or_init(|| flag);
    if asked() {
        flag.store(true, Ordering::Relaxed);
    }
}

/// Says whether the terminal's alternate screen is in use, so that a second Ctrl-C can leave it.
pub(crate) fn set_alternate_screen(in_use: bool) {
    ALTERNATE_SCREEN.store(in_use, Ordering::Relaxed);
}

/// Installs the handler of SIGINT.
///
/// # Errors
/// What the system says.
pub(crate) fn install() -> io::Result<()> {
    sigint::handle(on_interrupt)
}

extern "C" fn on_interrupt(signal: c_int) {
    if !ASKED.swap(true, Ordering::Relaxed) {
        // Reading an initialised OnceLock is an atomic load.
        if let Some(flag) = SESSION.get() {
            flag.store(true, Ordering::Relaxed);
        }
        return;
    }
    if ALTERNATE_SCREEN.load(Ordering::Relaxed) {
        let leave = LEAVE_ALTERNATE_SCREEN;
        // SAFETY: `leave` is a static string of that length; write is async-signal-safe.
        unsafe { libc::write(libc::STDERR_FILENO, leave.as_ptr().cast(), leave.len()) };
    }
    sigint::end(signal);
}
