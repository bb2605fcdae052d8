//! Who may have written a file.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Bits of a mode that let the group, or everybody, write.
const OTHERS_WRITE: u32 = 0o022;

/// The system's user.
const ROOT: u32 = 0;

/// Tells whether nobody but the user of this process and the system can have written an open file: it belongs to one of them, and no
/// others may write to it. False where the system does not tell.
#[must_use]
pub fn is_ours(file: &File) -> bool {
    // SAFETY: a question without arguments.
    let user = unsafe { libc::geteuid() };
    file.metadata().is_ok_and(|metadata| {
        [user, ROOT].contains(&metadata.uid()) && metadata.mode() & OTHERS_WRITE == 0
    })
}
