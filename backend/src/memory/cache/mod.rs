//! The repack cache: tiles of weights in files, so that the next load packs nothing and processes share the pages.
//!
//! One file per weight, named by its key (module `entry` has the format). A file is written under a temporary name and renamed
//! when it is whole, never changed afterwards, and mapped read-only; deleting it, even while it is in use, costs a repack
//! and nothing else. When files would exceed the limit, those used longest ago go first. Whatever fails costs one
//! warning; tiles are then kept in memory.

mod entry;
mod room;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use memmap2::Mmap;

use super::key::Key;
use super::parallel::{Panicked, Parallel};
use super::shape::TileShape;
use super::tiles::Tiles;
use entry::{EntryError, HEADER_BYTES, checksum, chunk_checksum};
use room::{Found, make_room};

pub(super) use entry::FORMAT;

/// How names of whole files end.
const SUFFIX: &str = "tiles";

/// What names of files that are being written contain.
const TEMPORARY: &str = ".tmp.";

/// After which time a file that is not whole has lost its writer.
const ABANDONED: Duration = Duration::from_secs(600);

/// How much a file system's clock may lag behind ours.
const CLOCK_TICK: Duration = Duration::from_secs(1);

/// Why a weight was not kept.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a weight of {needed_bytes} bytes does not fit the limit of {max_bytes} bytes")]
    NoRoom { needed_bytes: u64, max_bytes: u64 },
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
    dir: PathBuf,
    max_bytes: u64,
    /// Files used since then are in use by us.
    started: SystemTime,
    n_temporary: AtomicU64,
    /// Set when writing has failed: it is not tried again.
    is_read_only: AtomicBool,
    /// Held while room is made.
    room: Mutex<()>,
}

/// What a directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Weights.
    pub n_files: usize,
    /// Their bytes.
    pub size_bytes: u64,
}

impl RepackCache {
    /// Makes the cache in `dir`, which is made when it is needed.
    #[must_use]
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self {
            dir,
            max_bytes,
            started: SystemTime::now() - CLOCK_TICK,
            n_temporary: AtomicU64::new(0),
            is_read_only: AtomicBool::new(false),
            room: Mutex::new(()),
        }
    }

    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the most bytes of its files.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Counts what is there.
    ///
    /// # Errors
    /// What reading the directory reports; one that is missing is empty.
    pub fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        for file in self.files()? {
            contents.n_files += 1;
            contents.size_bytes += file.size_bytes;
        }
        Ok(contents)
    }

    /// Maps the tiles of a weight; `None` where they are not there, or not whole.
    pub(super) fn load(
        &self,
        key: Key,
        shape: &TileShape,
        parallel: &mut dyn Parallel,
    ) -> Option<Tiles> {
        let path = self.path(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::debug!("{}: {error}", path.display());
                }
                return None;
            }
        };
        match open(&file, key, shape, parallel) {
            Ok(tiles) => {
                // The time of use decides what is deleted first; a directory that cannot be written is not trimmed.
                let _read_only = file.set_modified(SystemTime::now());
                Some(tiles)
            }
            Err(error) => {
                log::warn!("{} {error}; it is made anew", path.display());
                let _gone = fs::remove_file(&path);
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
                        self.dir.display()
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
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        self.make_room((HEADER_BYTES + shape.size_bytes()) as u64)?;
        let temporary = self.temporary(key)?;
        let sums: Vec<AtomicU64> = (0..shape.n_chunks()).map(|_| AtomicU64::new(0)).collect();
        let failure = Mutex::new(None);
        parallel.for_each_item(shape.n_chunks(), &|chunk| {
            let bytes = shape.chunk_bytes(chunk);
            let mut tiles = vec![0; bytes.len()];
            fill(chunk, &mut tiles);
            sums[chunk].store(chunk_checksum(&tiles), Ordering::Relaxed);
            let at = (HEADER_BYTES + bytes.start) as u64;
            if let Err(error) = temporary.file.write_all_at(&tiles, at) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        })?;
        let failure = failure.into_inner();
        if let Some(error) = failure.unwrap_or_else(PoisonError::into_inner) {
            return Err(error.into());
        }
        let sums: Vec<u64> = sums.into_iter().map(AtomicU64::into_inner).collect();
        let header = entry::header(key, shape, checksum(&sums));
        temporary.file.write_all_at(&header, 0)?;
        let map = map(&temporary.file)?;
        temporary.rename(&self.path(key))?;
        Ok(Tiles::in_file(shape, map, HEADER_BYTES))
    }

    fn path(&self, key: Key) -> PathBuf {
        self.dir.join(format!("{}.{SUFFIX}", key.hex()))
    }

    fn temporary(&self, key: Key) -> io::Result<Temporary> {
        let (process, n) = (
            std::process::id(),
            self.n_temporary.fetch_add(1, Ordering::Relaxed),
        );
        let name = format!("{}{TEMPORARY}{process}.{n}", key.hex());
        let path = self.dir.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Temporary { path, file })
    }

    /// Deletes files so that one of `needed_bytes` fits, and those whose writer was killed.
    fn make_room(&self, needed_bytes: u64) -> Result<(), StoreError> {
        let _one_at_a_time = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_abandoned()?;
        let (files, max_bytes) = (self.files()?, self.max_bytes);
        let victims =
            make_room(&files, needed_bytes, max_bytes, self.started).ok_or(StoreError::NoRoom {
                needed_bytes,
                max_bytes,
            })?;
        for file in victims {
            log::debug!("{} makes room", file.path.display());
            match fs::remove_file(&file.path) {
                // Another process makes room as well.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn remove_abandoned(&self) -> io::Result<()> {
        let now = SystemTime::now();
        self.each(|name, path, metadata| {
            let is_old = metadata
                .modified()
                .is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > ABANDONED));
            if name.contains(TEMPORARY) && is_old {
                let _gone = fs::remove_file(path);
            }
        })
    }

    fn files(&self) -> io::Result<Vec<Found<PathBuf>>> {
        let mut files = Vec::new();
        self.each(|name, path, metadata| {
            if name.rsplit('.').next() == Some(SUFFIX) {
                files.push(Found {
                    path: path.to_owned(),
                    size_bytes: metadata.len(),
                    used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                });
            }
        })?;
        Ok(files)
    }

    /// Visits the files of the directory that are there throughout.
    fn each(&self, mut visit: impl FnMut(&str, &Path, &fs::Metadata)) -> io::Result<()> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            // Gone meanwhile is as good as not found.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_file() {
                visit(
                    &entry.file_name().to_string_lossy(),
                    &entry.path(),
                    &metadata,
                );
            }
        }
        Ok(())
    }
}

/// Owning: a file that is being written; deleted unless it is renamed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn rename(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Gone already where it was renamed.
        let _renamed = fs::remove_file(&self.path);
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
    unsafe { Mmap::map(file) }
}
