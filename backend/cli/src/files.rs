//! Files for results: which flags may name them, and how they are written.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::Error;

/// A flag and the file that it names, if it is given.
pub(crate) type Named<'a> = (&'static str, Option<&'a Path>);

/// Links in a row that the system follows.
const MAX_N_LINKS: u32 = 40;

/// What makes two names those of one file.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// A regular file: device and inode.
    File(u64, u64),
    /// A file that is not there: where it would be.
    New(PathBuf),
}

impl Identity {
    /// Returns the identity; `None` for pipes and devices, and for what cannot be a file.
    fn of(path: &Path) -> Option<Self> {
        match path.metadata() {
            Ok(metadata) => Self::of_file(&metadata),
            Err(_absent) => {
                let mut path = path.to_owned();
                for _ in 0..MAX_N_LINKS {
                    let Ok(target) = path.read_link() else {
                        break;
                    };
                    path = path.parent().unwrap_or(Path::new("")).join(target);
                }
                let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
                let directory = fs::canonicalize(directory.unwrap_or(Path::new("."))).ok()?;
                Some(Self::New(directory.join(path.file_name()?)))
            }
        }
    }

    fn of_file(metadata: &Metadata) -> Option<Self> {
        metadata
            .is_file()
            .then(|| Self::File(metadata.dev(), metadata.ino()))
    }

    fn of_stdout() -> Option<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned().ok()?;
        Self::of_file(&File::from(stdout).metadata().ok()?)
    }
}

/// Makes sure that no file is written for two flags, or for one and standard output, and that none is read that is written.
///
/// # Errors
/// [`Error::SameFile`].
pub(crate) fn check_distinct(outputs: &[Named<'_>], inputs: &[Named<'_>]) -> Result<(), Error> {
    let mut known = vec![("standard output", Identity::of_stdout())];
    let identity = |&(flag, path): &Named<'_>| (flag, path.and_then(Identity::of));
    known.extend(inputs.iter().map(identity));
    for output @ &(flag, path) in outputs {
        let (_, Some(found)) = identity(output) else {
            continue;
        };
        let same = known
            .iter()
            .find(|(_, other)| other.as_ref() == Some(&found));
        if let Some(&(second, _)) = same {
            return Err(Error::SameFile {
                first: flag,
                second,
                path: path.unwrap_or(Path::new("")).to_owned(),
            });
        }
        known.push((flag, Some(found)));
    }
    Ok(())
}

/// A file for results that is known to be writable before anything is computed.
///
/// Until it is written nothing of it changes: a file that is there keeps its content, one that is not does not appear. It is
/// written whole, under another name, and takes its place then; an end in the middle leaves the old one.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    path: &'a Path,
    /// What was there before; `None` where there was nothing.
    existing: Option<File>,
}

impl<'a> NewFile<'a> {
    /// Makes sure that the file can be written.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn create(path: &'a Path) -> Result<Self, Error> {
        let unwritable = |source| Error::unwritable(path, source);
        let existing = match File::create_new(path) {
            Ok(_empty) => {
                fs::remove_file(path).map_err(unwritable)?;
                None
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Without `truncate`. `create` for a link to nothing.
                let mut options = File::options();
                options.write(true).create(true).truncate(false);
                Some(options.open(path).map_err(unwritable)?)
            }
            Err(error) => return Err(unwritable(error)),
        };
        Ok(Self { path, existing })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn write(self, content: &str) -> Result<(), Error> {
        self.put(content.as_bytes())
            .map_err(|source| Error::unwritable(self.path, source))
    }

    fn put(&self, content: &[u8]) -> io::Result<()> {
        let Some(file) = &self.existing else {
            let mut new = temporary(self.path, None)?;
            new.write_all(content)?;
            new.persist(self.path)?;
            return Ok(());
        };
        let old = file.metadata()?;
        if !old.is_file() {
            return self.open()?.write_all(content);
        }
        // It may have been removed meanwhile.
        let path = fs::canonicalize(self.path).unwrap_or_else(|_absent| self.path.to_owned());
        let replaced = match temporary(&path, Some(&old)) {
            Ok(mut new) => {
                new.write_all(content)?;
                new.persist(&path).map_err(|error| error.error)
            }
            Err(error) => Err(error),
        };
        match replaced {
            Ok(_new) => Ok(()),
            // In place the old content would be lost and the new one not be written.
            Err(error) if is_full(&error) => Err(error),
            // The file may be written, and its directory not; nothing takes the place of a mount point.
            Err(_) if Identity::of(&path) == Identity::of_file(&old) => {
                self.open()?.write_all(content)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the file, empty.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn open(&self) -> io::Result<File> {
        let Some(file) = &self.existing else {
            return File::create(self.path);
        };
        // Pipes and devices have no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        file.try_clone()
    }
}

/// Makes the file that will take the place of a path, which is no link, and of the file that is there; what `old` allows to whom
/// it allows, too.
fn temporary(path: &Path, old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    let file = tempfile::Builder::new()
        .prefix(".llada-npu-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    if let Some(old) = old {
        let new = file.as_file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        // The mode that a file is made with goes through the umask.
        file.as_file().set_permissions(old.permissions())?;
    }
    Ok(file)
}

fn is_full(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Opens a file for results where one is asked for.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn new_file(path: Option<&Path>) -> Result<Option<NewFile<'_>>, Error> {
    path.map(NewFile::create).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_results_changes_when_it_is_written() {
        let dir = std::env::temp_dir().join(format!("llada-npu-output-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (new, old) = (dir.join("new"), dir.join("old"));
        fs::write(&old, "what was there before").unwrap();
        for path in [&new, &old] {
            drop(NewFile::create(path).unwrap());
        }
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).unwrap(), "what was there before");
        for path in [&new, &old] {
            NewFile::create(path).unwrap().write("results").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "results");
        }
        assert!(NewFile::create(&dir.join("none").join("new")).is_err());
        assert!(NewFile::create(&dir).is_err());
        NewFile::create(Path::new("/dev/null"))
            .unwrap()
            .write("results")
            .unwrap();
        let left = fs::read_dir(&dir).unwrap().count();
        assert_eq!(left, 2, "something else is left");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn links_and_modes_outlive_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        // Less than new files have, and more than a usual umask leaves.
        for mode in [0o600, 0o666] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            NewFile::create(&link).unwrap().write("new").unwrap();
            assert!(link.symlink_metadata().unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&file).unwrap(), "new");
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        // So long that there is a path for its file, and none for a longer name beside it; also for root.
        let mut long = dir.path().to_owned();
        while long.as_os_str().len() < 4000 {
            long.push("d".repeat(9));
        }
        long.push("d".repeat(4092 - long.as_os_str().len() - 1));
        fs::create_dir_all(&long).unwrap();
        let path = long.join("f");
        fs::write(&path, "what was there before").unwrap();
        let inode = path.metadata().unwrap().ino();
        assert!(temporary(&path, None).is_err());
        NewFile::create(&path).unwrap().write("results").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "results");
        assert_eq!(path.metadata().unwrap().ino(), inode);
    }

    #[test]
    fn a_file_that_was_removed_meanwhile_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, path) = (dir.path().join("inner"), dir.path().join("inner/file"));
        for without_directory in [false, true] {
            fs::create_dir_all(&inner).unwrap();
            fs::write(&path, "what was there before").unwrap();
            let file = NewFile::create(&path).unwrap();
            fs::remove_file(&path).unwrap();
            if without_directory {
                fs::remove_dir(&inner).unwrap();
                assert!(file.write("results").is_err());
            } else {
                file.write("results").unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), "results");
            }
        }
    }

    #[test]
    fn groups_outlive_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
        // Root alone may give a file to any group.
        if std::os::unix::fs::chown(&file, None, Some(12345)).is_ok() {
            NewFile::create(&file).unwrap().write("new").unwrap();
            let new = file.metadata().unwrap();
            assert_eq!((new.gid(), new.mode() & 0o7777), (12345, 0o664));
        }
    }

    #[test]
    fn one_file_by_two_names_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        fs::hard_link(path("file"), path("twin")).unwrap();
        fs::create_dir(path("dir")).unwrap();
        let same = |first: PathBuf, second: PathBuf| {
            let [first, second] = [&first, &second].map(|path| Some(path.as_path()));
            let outputs = check_distinct(&[("--a", first), ("--b", second)], &[]);
            let input = check_distinct(&[("--a", first)], &[("--b", second)]);
            assert_eq!(outputs.is_err(), input.is_err(), "{first:?} {second:?}");
            outputs.is_err()
        };
        assert!(same(path("file"), path("link")));
        assert!(same(path("file"), path("twin")));
        assert!(same(path("new"), path("dir/../new")));
        std::os::unix::fs::symlink("new", path("dangling")).unwrap();
        assert!(same(path("new"), path("dangling")));
        assert!(!same(path("new"), path("newer")));
        assert!(!same(path("file"), path("new")));
        assert!(!same("/dev/null".into(), "/dev/null".into()));
    }
}
