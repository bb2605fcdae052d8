//! Files for results: which flags may name them, and how they are written.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
        let in_place = || {
            self.open()
                .and_then(|mut file| file.write_all(content.as_bytes()))
        };
        let result = match &self.existing {
            None => replace(self.path, 0o666, content),
            Some(file) => match file.metadata() {
                Ok(metadata) if metadata.is_file() => fs::canonicalize(self.path)
                    .and_then(|path| replace(&path, metadata.mode() & 0o7777, content))
                    .or_else(|error| match error.kind() {
                        // The file may be written, and its directory not.
                        io::ErrorKind::PermissionDenied => in_place(),
                        _ => Err(error),
                    }),
                _ => in_place(),
            },
        };
        result.map_err(|source| Error::unwritable(self.path, source))
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

/// Puts a new file in the place of a path, which is no link.
fn replace(path: &Path, mode: u32, content: &str) -> io::Result<()> {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".llada-npu-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    file.write_all(content.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
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
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        NewFile::create(&link).unwrap().write("new").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
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
