//! The files of one model: one GGUF file, or the `-00001-of-0000N.gguf` series of a split model.

#![deny(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::error::LoadError;
use super::gguf::{GgufError, Header, TensorInfo};
use super::mapped_file::MappedFile;

/// Most files of one model: the number has five digits.
pub const MAX_N_SHARDS: u64 = 99_999;

/// What can be wrong with a split model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitError {
    /// `split.count` says that there are more files, but the name does not say which.
    #[error(
        "key `split.count` is {count}, but the file name does not end in `-00001-of-{count:05}.gguf`"
    )]
    Name {
        /// Number of files.
        count: u64,
    },
    /// A number that is no sensible number of files.
    #[error("key `split.count` is {count}, expected 1 to {MAX_N_SHARDS}")]
    Count {
        /// Value found.
        count: u64,
    },
    /// A file of the series is not there.
    #[error("file {number} of {count} of the split model is missing")]
    Missing {
        /// Which one, from 1.
        number: u64,
        /// How many there should be.
        count: u64,
    },
    /// A file of another series, or renamed.
    #[error("key `{key}` is {actual}, expected {expected}")]
    Mismatch {
        /// The key.
        key: &'static str,
        /// Value found.
        actual: u64,
        /// Value that name and first file ask for.
        expected: u64,
    },
    /// Fewer or more tensors than the first file says.
    #[error(
        "{actual} tensors in all files of the split model, expected {expected} by key `split.tensors.count`"
    )]
    TensorCount {
        /// Tensors found.
        actual: u64,
        /// Tensors announced.
        expected: u64,
    },
}

/// Owning maps of all files of a model, in order.
#[derive(Debug)]
pub(super) struct Shards {
    files: Vec<Arc<MappedFile>>,
}

/// A tensor and the file it is in.
#[derive(Debug)]
pub(super) struct PlacedTensor {
    pub(super) file: Arc<MappedFile>,
    pub(super) info: TensorInfo,
}

/// Metadata of the first file and the tensors of all.
#[derive(Debug)]
pub(super) struct Headers<'a> {
    pub(super) metadata: Header<'a>,
    pub(super) tensors: Vec<PlacedTensor>,
}

/// Position in a series, from the file name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeriesName {
    stem: PathBuf,
    number: u64,
    count: u64,
}

impl SeriesName {
    /// Reads `STEM-NNNNN-of-NNNNN.gguf`.
    fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(count) || !digits(number) {
            return None;
        }
        let (number, count) = (number.parse().ok()?, count.parse().ok()?);
        (1..=count).contains(&number).then(|| Self {
            stem: path.with_file_name(stem),
            number,
            count,
        })
    }

    fn path(&self, number: u64) -> PathBuf {
        let mut name = self.stem.clone().into_os_string();
        name.push(format!("-{number:05}-of-{:05}.gguf", self.count));
        name.into()
    }
}

impl Shards {
    /// Maps the file at `path` and, when it is one of a series, all others.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let given = open(path)?;
        let header = parse(&given)?;
        let count = split_key(&header, "split.count").unwrap_or(1);
        if count == 1 {
            return Ok(Self { files: vec![given] });
        }
        if count == 0 || count > MAX_N_SHARDS {
            return Err(LoadError::new(path, SplitError::Count { count }));
        }
        let name = SeriesName::parse(path).filter(|name| name.count == count);
        let name = name.ok_or_else(|| LoadError::new(path, SplitError::Name { count }))?;
        let mut files = Vec::new();
        for number in 1..=count {
            if number == name.number {
                files.push(Arc::clone(&given));
                continue;
            }
            let path = name.path(number);
            if !path.exists() {
                return Err(LoadError::new(&path, SplitError::Missing { number, count }));
            }
            files.push(open(&path)?);
        }
        Ok(Self { files })
    }

    /// One file that is mapped already.
    #[cfg(test)]
    pub(super) fn of_file(file: Arc<MappedFile>) -> Self {
        Self { files: vec![file] }
    }

    /// Parses all files and checks them against each other.
    pub(super) fn headers(&self) -> Result<Headers<'_>, LoadError> {
        let count = self.files.len() as u64;
        let mut metadata = None;
        let mut tensors = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            let header = parse(file)?;
            if count > 1 {
                check_split_keys(&header, index as u64, count)
                    .map_err(|error| LoadError::new(file.path(), error))?;
            }
            let placed = |info: &TensorInfo| PlacedTensor {
                file: Arc::clone(file),
                info: info.clone(),
            };
            tensors.extend(header.tensors().iter().map(placed));
            metadata.get_or_insert(header);
        }
        let metadata = metadata.expect("a model has at least the file that was given");
        let headers = Headers { metadata, tensors };
        headers.check_tensor_count(self.files[0].path())?;
        headers.check_names()?;
        Ok(headers)
    }
}

impl Headers<'_> {
    fn check_tensor_count(&self, path: &Path) -> Result<(), LoadError> {
        let actual = self.tensors.len() as u64;
        match split_key(&self.metadata, "split.tensors.count") {
            Some(expected) if expected != actual => Err(LoadError::new(
                path,
                SplitError::TensorCount { actual, expected },
            )),
            _ => Ok(()),
        }
    }

    /// Within one file the parser has seen to it; here, between files.
    fn check_names(&self) -> Result<(), LoadError> {
        let mut seen = HashMap::new();
        for tensor in &self.tensors {
            if seen.insert(tensor.info.name(), ()).is_some() {
                let name = tensor.info.name().to_owned();
                return Err(LoadError::new(
                    tensor.file.path(),
                    GgufError::NameDuplicate { name },
                ));
            }
        }
        Ok(())
    }
}

fn check_split_keys(header: &Header<'_>, index: u64, count: u64) -> Result<(), SplitError> {
    for (key, expected) in [("split.count", count), ("split.no", index)] {
        let actual = split_key(header, key).unwrap_or(0);
        if actual != expected {
            return Err(SplitError::Mismatch {
                key,
                actual,
                expected,
            });
        }
    }
    Ok(())
}

fn split_key(header: &Header<'_>, key: &str) -> Option<u64> {
    header.value(key)?.as_u64()
}

fn open(path: &Path) -> Result<Arc<MappedFile>, LoadError> {
    MappedFile::open(path).map_err(|error: io::Error| LoadError::new(path, error))
}

fn parse(file: &MappedFile) -> Result<Header<'_>, LoadError> {
    Header::parse(file.bytes()).map_err(|error| LoadError::new(file.path(), error))
}

#[cfg(test)]
mod tests {
    use super::super::LoadErrorKind;
    use super::super::gguf::builder::Builder;
    use super::*;

    fn shard(number: u16, count: u16) -> Builder {
        Builder::new()
            .u16("split.no", number)
            .u16("split.count", count)
            .i32("split.tensors.count", i32::from(count))
            .f32_tensor(&format!("t{number}"), &[4])
    }

    fn series(dir: &Path, count: u16) -> Vec<PathBuf> {
        let paths: Vec<_> = (1..=count)
            .map(|n| dir.join(format!("m-{n:05}-of-{count:05}.gguf")))
            .collect();
        for (number, path) in (0..).zip(&paths) {
            shard(number, count).write(path);
        }
        paths
    }

    fn error(path: &Path) -> LoadError {
        Shards::open(path)
            .and_then(|shards| shards.headers().map(|_| ()))
            .expect_err("the series is wrong")
    }

    #[test]
    fn any_file_of_a_series_finds_the_others() {
        let dir = tempfile::tempdir().unwrap();
        for path in series(dir.path(), 3) {
            let shards = Shards::open(&path).unwrap();
            let headers = shards.headers().unwrap();
            let names: Vec<_> = headers
                .tensors
                .iter()
                .map(|tensor| tensor.info.name())
                .collect();
            assert_eq!(names, ["t0", "t1", "t2"]);
            assert_eq!(
                headers.metadata.value("split.no").unwrap().as_u64(),
                Some(0)
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = series(dir.path(), 3);
        std::fs::remove_file(&paths[1]).unwrap();
        let error = error(&paths[2]);
        assert_eq!(error.path(), paths[1]);
        assert!(
            error
                .to_string()
                .ends_with("file 2 of 3 of the split model is missing"),
            "{error}"
        );
        assert_eq!(error.kind(), LoadErrorKind::Malformed);
    }

    #[test]
    fn files_of_another_series_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = series(dir.path(), 2);
        shard(1, 3).write(&paths[1]);
        assert!(
            error(&paths[0])
                .to_string()
                .ends_with("key `split.count` is 3, expected 2")
        );
        shard(0, 2).write(&paths[1]);
        assert!(
            error(&paths[0])
                .to_string()
                .ends_with("key `split.no` is 0, expected 1")
        );
        Builder::new()
            .u16("split.no", 1)
            .u16("split.count", 2)
            .f32_tensor("t0", &[4])
            .write(&paths[1]);
        assert!(
            error(&paths[0])
                .to_string()
                .ends_with("tensor `t0`: given twice")
        );
        shard(1, 2).f32_tensor("more", &[1]).write(&paths[1]);
        assert!(
            error(&paths[0])
                .to_string()
                .contains("3 tensors in all files of the split model, expected 2")
        );
        shard(0, 2).write(&dir.path().join("renamed.gguf"));
        assert!(
            error(&dir.path().join("renamed.gguf"))
                .to_string()
                .contains("file name does not end in")
        );
        shard(0, 0).write(&paths[0]);
        assert!(
            error(&paths[0])
                .to_string()
                .contains("key `split.count` is 0")
        );
    }

    #[test]
    fn series_names_are_read() {
        let name = SeriesName::parse(Path::new("d/a-of-b-00002-of-00010.gguf")).unwrap();
        assert_eq!((name.number, name.count), (2, 10));
        assert_eq!(name.path(7), Path::new("d/a-of-b-00007-of-00010.gguf"));
        for bad in [
            "a.gguf",
            "a-2-of-3.gguf",
            "a-00004-of-00003.gguf",
            "a-00000-of-00003.gguf",
            "a-00001-of-00003",
        ] {
            assert_eq!(SeriesName::parse(Path::new(bad)), None, "{bad}");
        }
    }
}
