//! Whether pages can be read.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// Lets the pages from `start` on be read, or not: whoever touches them then is killed by a signal.
///
/// # Errors
/// What `mprotect` reports; the pages are as they were, or some of them are changed.
///
/// # Safety
/// - The pages are whole pages of one mapping that the caller owns and that nobody writes to.
/// - While they cannot be read, nobody does who must not be killed for it.
pub unsafe fn set_readable(
    start: NonNull<u8>,
    size_bytes: usize,
    is_readable: bool,
) -> io::Result<()> {
    let protection = if is_readable {
        libc::PROT_READ
    } else {
        libc::PROT_NONE
    };
    // SAFETY: pages of a mapping of the caller's, by its promise; what they hold does not change.
    let status = unsafe { libc::mprotect(start.as_ptr().cast::<c_void>(), size_bytes, protection) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
