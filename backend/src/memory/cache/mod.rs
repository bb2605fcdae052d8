//! The repack cache: tiles of weights in files, so that the next load packs nothing and processes share the pages.
//!
//! One file per weight, named by its key (module `entry` has the format). A file is written under a temporary name and renamed
//! when it is whole, never changed afterwards, and mapped read-only; deleting it, even while it is in use, costs a repack
//! and nothing else. When files would exceed the limit, those used longest ago go first. Whatever fails costs one
//! warning; tiles are then kept in memory.

pub mod dir;
mod entry;
mod room;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use memmap2::Mmap;

use super::key::Key;
use super::parallel::{Panicked, Parallel};
use super::shape::TileShape;
use super::tiles::Tiles;
use crate::sync::lock;
pub use dir::{CacheDir, Contents};
use dir::{RoomError, Temporary};
use entry::{EntryError, HEADER_BYTES, checksum, chunk_checksum};

pub(super) use entry::FORMAT;

/// How names of files of tiles end.
pub(super) const SUFFIX: &str = "tiles";

/// Bytes of a large page. The system keeps a file in pages as large as the write or read that brings each in, and maps those
/// of this size whole: one row then reads weights with fewer misses of the translation cache. So files are first written
/// as zeros, a large page at a time; chunks of tiles would leave small ones.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Why a weight was not kept.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Room(#[from] RoomError),
    #[error("a thread panicked while packing")]
    Panicked,
}

impl From<Panicked> for StoreError {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

/// A directory of repacked weights.
#[derive(Debug)]
pub struct RepackCache {
    dir: CacheDir,
    /// Set when writing has failed: it is not tried again.
    is_read_only: AtomicBool,
}

impl RepackCache {
    /// Makes the cache in `dir`, which is made when it is needed.
    #[must_use]
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self::in_dir(CacheDir::new(dir, SUFFIX, max_bytes))
    }

    pub(super) fn in_dir(dir: CacheDir) -> Self {
        Self {
            dir,
            is_read_only: AtomicBool::new(false),
        }
    }

    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the most bytes of its files.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.dir.max_bytes()
    }

    /// Counts what is there.
    ///
    /// # Errors
    /// What reading the directory reports; one that is missing is empty.
    pub fn contents(&self) -> io::Result<Contents> {
        self.dir.contents()
    }

    /// Maps the tiles of a weight; `None` where they are not there, or not whole.
    pub(super) fn load(
        &self,
        key: Key,
        shape: &TileShape,
        parallel: &mut dyn Parallel,
    ) -> Option<Tiles> {
        let file = self.dir.open(&key.hex())?;
        match open(&file, key, shape, parallel) {
            Ok(tiles) => {
                self.dir.used(&file);
                Some(tiles)
            }
            Err(error) => {
                let path = self.dir.file(&key.hex());
                log::warn!("{} {error}; it is made anew", path.display());
                self.dir.discard(&key.hex());
                None
            }
        }
    }

    /// Packs a weight into a file and maps it; `fill` writes a chunk of tiles. `None` where that is impossible.
    pub(super) fn store(
        &self,
        key: Key,
        shape: &TileShape,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
        parallel: &mut dyn Parallel,
    ) -> Option<Tiles> {
        if self.is_read_only.load(Ordering::Relaxed) {
            return None;
        }
        match self.write(key, shape, fill, parallel) {
            Ok(tiles) => Some(tiles),
            Err(error) => {
                if !self.is_read_only.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "repack cache {}: {error}; weights are repacked in memory from now on",
                        self.dir().display()
                    );
                }
                None
            }
        }
    }

    fn write(
        &self,
        key: Key,
        shape: &TileShape,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
        parallel: &mut dyn Parallel,
    ) -> Result<Tiles, StoreError> {
        let size_bytes = HEADER_BYTES + shape.size_bytes();
        let temporary: Temporary = self.dir.create(&key.hex(), size_bytes as u64)?;
        let sums: Vec<AtomicU64> = (0..shape.n_chunks()).map(|_| AtomicU64::new(0)).collect();
        let failure = Mutex::new(None);
        let write_at = |bytes: &[u8], at: u64| {
            if let Err(error) = temporary.file().write_all_at(bytes, at) {
                *lock(&failure) = Some(error);
            }
        };
        let zeros = vec![0; LARGE_PAGE_BYTES];
        parallel.for_each_item(size_bytes / LARGE_PAGE_BYTES, &|page| {
            write_at(&zeros, (page * LARGE_PAGE_BYTES) as u64);
        })?;
        parallel.for_each_item(shape.n_chunks(), &|chunk| {
            let bytes = shape.chunk_bytes(chunk);
            let mut tiles = vec![0; bytes.len()];
            fill(chunk, &mut tiles);
            sums[chunk].store(chunk_checksum(&tiles), Ordering::Relaxed);
            write_at(&tiles, (HEADER_BYTES + bytes.start) as u64);
        })?;
        let failure = failure.into_inner();
        if let Some(error) = failure.unwrap_or_else(PoisonError::into_inner) {
            return Err(error.into());
        }
        let sums: Vec<u64> = sums.into_iter().map(AtomicU64::into_inner).collect();
        let header = entry::header(key, shape, checksum(&sums));
        temporary.file().write_all_at(&header, 0)?;
        let map = map(temporary.file())?;
        temporary.finish()?;
        Ok(Tiles::in_file(shape, map, HEADER_BYTES))
    }

    #[cfg(test)]
    fn path(&self, key: Key) -> PathBuf {
        self.dir.file(&key.hex())
    }
}

/// Maps a file of the cache and checks all of it.
fn open(
    file: &File,
    key: Key,
    shape: &TileShape,
    parallel: &mut dyn Parallel,
) -> Result<Tiles, OpenError> {
    let map = map(file)?;
    let expected = entry::parse(&map, key, shape)?;
    let tiles = Tiles::in_file(shape, map, HEADER_BYTES);
    let sums: Vec<AtomicU64> = (0..shape.n_chunks()).map(|_| AtomicU64::new(0)).collect();
    parallel.for_each_item(shape.n_chunks(), &|chunk| {
        let bytes = &tiles.bytes()[shape.chunk_bytes(chunk)];
        sums[chunk].store(chunk_checksum(bytes), Ordering::Relaxed);
    })?;
    let sums: Vec<u64> = sums.into_iter().map(AtomicU64::into_inner).collect();
    if checksum(&sums) != expected {
        return Err(EntryError::Tiles.into());
    }
    Ok(tiles)
}

/// Why a file was not used.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("cannot be mapped: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error("was not checked: a thread panicked")]
    Panicked,
}

impl From<Panicked> for OpenError {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

#[expect(unsafe_code, reason = "the contents of a file can change")]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: files of the cache are written once, before they get their name, and replaced by renaming; nobody else has
    // business in the directory, which only its user can write.
    let map = unsafe { Mmap::map(file) }?;
    // What is not in memory yet is read in large pages, where the system has such.
    #[cfg(target_os = "linux")]
    let _refused = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}
