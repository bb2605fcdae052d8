//! Read-only maps of model files: the only place that maps memory.
//!
//! A map shows the file as it is on disk *now*. Whoever gives us the path must leave the file alone while the model is
//! loaded: if another process truncates it, reading the lost pages kills the process (`SIGBUS`), and if another process
//! rewrites it, the weights change under the computation. Replacing the file by `rename` is safe, as the map keeps the
//! old inode. This is the contract of every program that maps weights, llama.cpp included.

use std::fs::{File, Metadata};
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llada_npu_ffi::StableBytes;
use memmap2::{Mmap, UncheckedAdvice};

/// Owning map of one whole file, page-aligned, read-only.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    metadata: Metadata,
    /// `None` for an empty file: maps of length zero do not exist.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps the regular file at `path`.
    ///
    /// # Errors
    /// Whatever `open`, `stat` and `mmap` report; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        // Asked before opening: opening a FIFO would wait for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let map = if metadata.len() == 0 {
            None
        } else {
            // SAFETY: the user of the model path guarantees that the file is neither truncated nor written while it is
            // mapped (module docs); the map is read-only, so we cannot break that ourselves.
            Some(unsafe { Mmap::map(&file) }?)
        };
        Ok(Arc::new(Self {
            path: path.to_owned(),
            metadata,
            map,
        }))
    }

    /// Maps a copy of `bytes`, as if a file held them.
    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Arc<Self> {
        let map = (!bytes.is_empty()).then(|| {
            let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
            map.copy_from_slice(bytes);
            map.make_read_only().unwrap()
        });
        Arc::new(Self {
            path: "bytes.gguf".into(),
            metadata: std::fs::metadata(".").unwrap(),
            map,
        })
    }

    /// Path the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the system said of the file when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Takes pages out of this process's memory that are not needed for now; they are read from the file again when they
    /// are. `range` is one of bytes, widened to whole pages; nothing happens where it is not inside the file.
    pub fn drop_pages(&self, range: Range<usize>) {
        if let Some(map) = &self.map
            && range.end <= map.len()
            && range.start < range.end
            && self.metadata.is_file()
        {
            let (start, len) = (range.start, range.end - range.start);
            // SAFETY: the map is of a file and read-only, so that a page shows the same bytes when it comes back
            // (madvise(2)), as long as the file does not change (module docs).
            let _refused =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, len) };
        }
    }

    /// Whole file.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// Part of the file that keeps the map alive; `None` when `range` is not inside the file.
    pub fn view(self: &Arc<Self>, range: Range<usize>) -> Option<MappedView> {
        self.bytes().get(range.clone())?;
        // INVARIANT: `range` is inside the file, checked on the line above; a map never changes its length.
        Some(MappedView {
            file: Arc::clone(self),
            range,
        })
    }
}

// SAFETY: a map stays at one address until it is dropped with the file, and an empty file has a static empty slice.
unsafe impl StableBytes for MappedFile {
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }
}

/// Owning view of a part of a [`MappedFile`]; cloning it shares the map.
///
/// # Invariants
/// `range` lies inside the file.
#[derive(Clone, Debug)]
pub struct MappedView {
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl MappedView {
    /// File that is looked into.
    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// Where the view lies in its file, in bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for MappedView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_outlive_the_handle_and_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = MappedFile::open(&path).unwrap();
        let view = file.view(2..5).unwrap();
        assert!(file.view(5..11).is_none());
        let reversed = Range { start: 6, end: 5 };
        assert!(file.view(reversed).is_none());
        drop(file);
        assert_eq!(&*view, b"234");
        assert_eq!(view.range(), 2..5);
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(MappedFile::open(file.path()).unwrap().bytes(), b"");
    }

    #[test]
    fn a_directory_and_a_missing_file_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            MappedFile::open(dir.path()).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(
            MappedFile::open(&dir.path().join("none"))
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }
}
