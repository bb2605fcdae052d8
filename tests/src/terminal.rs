//! A pseudo-terminal, to see what a program shows to people.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

/// Returns the two ends of a new pseudo-terminal: ours, and the program's.
///
/// # Errors
/// What the system says.
pub fn open() -> io::Result<(File, File)> {
    // SAFETY: no preconditions.
    let fd = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let ours = unsafe { File::from_raw_fd(fd) };
    // SAFETY: a descriptor of a pseudo-terminal.
    if unsafe { libc::grantpt(ours.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::unlockpt(ours.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut name = [0; 128];
    // SAFETY: `name` has that many bytes.
    if unsafe { libc::ptsname_r(ours.as_raw_fd(), name.as_mut_ptr(), name.len()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: ptsname_r wrote a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let path = std::ffi::OsStr::from_bytes(name.to_bytes());
    let theirs = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)?;
    Ok((ours, theirs))
}

/// Sets the size of a pseudo-terminal in columns and lines.
///
/// # Errors
/// What the system says.
pub fn resize(ours: &File, width: u16, height: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: a descriptor of a pseudo-terminal, and a request that reads one `winsize`.
    match unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns what a program wrote to a pseudo-terminal until its end closed.
#[must_use]
pub fn read_to_end(mut ours: File) -> String {
    let mut bytes = Vec::new();
    // Linux reports the closed other end as EIO.
    let _end = io::Read::read_to_end(&mut ours, &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
