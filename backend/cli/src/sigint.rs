//! SIGINT: the handler, and what it does where nothing has to be finished.

use std::ffi::c_int;
use std::io;

/// Exit code of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Has SIGINT end the process at once, with [`EXIT_CODE`] instead of by the signal.
///
/// # Errors
/// What the system says.
pub(crate) fn end_at_once() -> io::Result<()> {
    handle(end)
}

/// Installs a handler that does async-signal-safe things only; where SIGINT was ignored when the program started, as for a
/// job in the background, it stays ignored.
///
/// # Errors
/// What the system says.
pub(crate) fn handle(handler: extern "C" fn(c_int)) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid: empty mask, no flags, default handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action nothing changes; the old one is written to `action`.
    if unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut action) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if action.sa_sigaction == libc::SIG_IGN {
        return Ok(());
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    #[expect(
        clippy::fn_to_numeric_cast_any,
        reason = "libc holds handlers as integers"
    )]
    let handler = handler as libc::sighandler_t;
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is initialised, its handler is as the caller promises; the old action is not wanted.
    match unsafe { libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the process without running anything else.
pub(crate) extern "C" fn end(_signal: c_int) {
    // SAFETY: _exit is async-signal-safe and has no preconditions.
    unsafe { libc::_exit(c_int::from(EXIT_CODE)) };
}
