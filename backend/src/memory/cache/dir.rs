//! A directory of files that can be made again: whole files by name, a limit, and the oldest going first.
//!
//! A file is written under a temporary name and renamed when it is whole, never changed afterwards. Several directories
//! can share one limit.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use llada_npu_ffi::is_ours;
use memmap2::Mmap;

use super::room::{Found, make_room};
use crate::sync::lock;

/// What names of files that are being written contain.
const TEMPORARY: &str = ".tmp.";

/// After which time a file that is not whole has lost its writer.
const ABANDONED: Duration = Duration::from_secs(600);

/// How much a file system's clock may lag behind ours.
const CLOCK_TICK: Duration = Duration::from_secs(1);

/// Why there is no room for a file.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    /// The directory cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is larger than what may be deleted for it.
    #[error("a file of {needed_bytes} bytes does not fit the limit of {max_bytes} bytes")]
    NoRoom {
        /// Bytes of the file.
        needed_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
}

/// What a directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Whole files.
    pub n_files: usize,
    /// Their bytes.
    pub size_bytes: u64,
}

/// A directory whose whole files end in `.suffix`.
#[derive(Debug)]
pub struct CacheDir {
    dir: PathBuf,
    suffix: &'static str,
    /// Directories under the same limit, and how their files end.
    others: Vec<(PathBuf, &'static str)>,
    max_bytes: u64,
    /// Files used since then are in use by us.
    started: SystemTime,
    n_temporary: AtomicU64,
    /// Held while room is made.
    room: Mutex<()>,
}

impl CacheDir {
    /// Names a directory, which is made when it is needed.
    #[must_use]
    pub fn new(dir: PathBuf, suffix: &'static str, max_bytes: u64) -> Self {
        Self {
            dir,
            suffix,
            others: Vec::new(),
            max_bytes,
            started: SystemTime::now() - CLOCK_TICK,
            n_temporary: AtomicU64::new(0),
            room: Mutex::new(()),
        }
    }

    /// Counts the files of another directory towards the limit, too; they also make room.
    #[must_use]
    pub fn beside(mut self, dir: PathBuf, suffix: &'static str) -> Self {
        self.others.push((dir, suffix));
        self
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the most bytes of all files.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Returns where the file of a name is, if it is there.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.{}", self.suffix))
    }

    /// Opens a file; `None` where it is not there, cannot be read, or others than the user and the system may have written it:
    /// what is in it is believed.
    pub fn open(&self, name: &str) -> Option<File> {
        let path = self.file(name);
        match File::open(&path) {
            Ok(file) if is_ours(&file) => Some(file),
            Ok(_) => {
                log::debug!("{}: left alone, others may write to it", path.display());
                None
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::debug!("{}: {error}", path.display());
                }
                None
            }
        }
    }

    /// Maps a file and takes notice that it was used; `None` where [`Self::open`] opens none, or it cannot be mapped.
    pub fn map(&self, name: &str) -> Option<Mmap> {
        let file = self.open(name)?;
        match super::map(&file) {
            Ok(map) => {
                self.used(&file);
                Some(map)
            }
            Err(error) => {
                log::debug!("{}: {error}", self.file(name).display());
                None
            }
        }
    }

    /// Takes notice that an open file was used: those used longest ago are deleted first.
    pub fn used(&self, file: &File) {
        // A directory that cannot be written is not trimmed either.
        let _read_only = file.set_modified(SystemTime::now());
    }

    /// Deletes a file that is damaged.
    pub fn discard(&self, name: &str) {
        let _gone = fs::remove_file(self.file(name));
    }

    /// Starts a file of `size_bytes`, after making room for it.
    ///
    /// # Errors
    /// [`RoomError`].
    pub fn create(&self, name: &str, size_bytes: u64) -> Result<Temporary, RoomError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        self.make_room(size_bytes)?;
        let (process, n) = (
            std::process::id(),
            self.n_temporary.fetch_add(1, Ordering::Relaxed),
        );
        let path = self.dir.join(format!("{name}{TEMPORARY}{process}.{n}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Temporary {
            path,
            to: self.file(name),
            file,
        })
    }

    /// Counts what is there.
    ///
    /// # Errors
    /// What reading the directory reports; one that is missing is empty.
    pub fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        for file in files(&self.dir, self.suffix)? {
            contents.n_files += 1;
            contents.size_bytes += file.size_bytes;
        }
        Ok(contents)
    }

    /// Deletes files so that one of `needed_bytes` fits, and those whose writer was killed.
    fn make_room(&self, needed_bytes: u64) -> Result<(), RoomError> {
        let _one_at_a_time = lock(&self.room);
        remove_abandoned(&self.dir)?;
        let mut all = files(&self.dir, self.suffix)?;
        for (dir, suffix) in &self.others {
            all.extend(files(dir, suffix)?);
        }
        let max_bytes = self.max_bytes;
        let victims =
            make_room(&all, needed_bytes, max_bytes, self.started).ok_or(RoomError::NoRoom {
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
}

fn remove_abandoned(dir: &Path) -> io::Result<()> {
    let now = SystemTime::now();
    each(dir, |name, path, metadata| {
        let is_old = metadata
            .modified()
            .is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > ABANDONED));
        if name.contains(TEMPORARY) && is_old {
            let _gone = fs::remove_file(path);
        }
    })
}

fn files(dir: &Path, suffix: &str) -> io::Result<Vec<Found<PathBuf>>> {
    let mut files = Vec::new();
    each(dir, |name, path, metadata| {
        if name.rsplit('.').next() == Some(suffix) {
            files.push(Found {
                path: path.to_owned(),
                size_bytes: metadata.len(),
                used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
    })?;
    Ok(files)
}

/// Visits the files of a directory that are there throughout.
fn each(dir: &Path, mut visit: impl FnMut(&str, &Path, &fs::Metadata)) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
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

/// Owning: a file that is being written; deleted unless it is renamed.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    to: PathBuf,
    file: File,
}

impl Temporary {
    /// Returns the file, to write to.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, now that it is whole.
    ///
    /// # Errors
    /// What renaming reports.
    pub fn finish(self) -> io::Result<()> {
        fs::rename(&self.path, &self.to)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Gone already where it was renamed.
        let _renamed = fs::remove_file(&self.path);
    }
}
