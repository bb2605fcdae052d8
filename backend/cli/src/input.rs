//! Files that are read whole: prompts, tasks, traces. None may be longer than [`MAX_MIB`], so that every read ends.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::Error;

/// Longest file, in MiB.
const MAX_MIB: u64 = 256;

/// What editors of Windows put in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Name of standard input, where it may be read in place of a file.
const STDIN: &str = "-";

/// Returns the file that a flag names, where it is not standard input.
pub(crate) fn file(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| path.as_os_str() != STDIN)
}

/// Reads a file of text, without a byte order mark; "-" is standard input where `or_stdin`.
///
/// # Errors
/// [`Error::File`], [`Error::TooLong`].
pub(crate) fn read(path: &Path, or_stdin: bool) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::File {
        path: path.to_owned(),
        what: "cannot be read",
        source,
    };
    let bytes = if or_stdin && path.as_os_str() == STDIN {
        at_most(io::stdin().lock(), MAX_MIB << 20)
    } else {
        File::open(path).and_then(|file| at_most(file, MAX_MIB << 20))
    };
    let mut bytes = bytes.map_err(unreadable)?.ok_or_else(|| Error::TooLong {
        path: path.to_owned(),
        max_mib: MAX_MIB,
    })?;
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// Reads to the end; `None` where there are more bytes.
fn at_most(from: impl Read, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(max_bytes + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max_bytes).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_not_read_to_its_end() {
        assert_eq!(at_most(&b"four"[..], 4).unwrap().unwrap(), b"four");
        assert_eq!(at_most(&b"four!"[..], 4).unwrap(), None);
        assert_eq!(at_most(io::repeat(0), 1000).unwrap(), None);
        let error = read(Path::new("/dev/zero"), false).unwrap_err();
        assert_eq!(error.to_string(), "/dev/zero: longer than 256 MiB");
        assert!(read(Path::new("/"), false).is_err());
    }
}
