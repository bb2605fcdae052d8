//! Why a model cannot be loaded.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::arch::ArchError;
use super::gguf::GgufError;
use super::shards::SplitError;
use super::weights::WeightError;

/// What a caller may do about a [`LoadError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// The file could not be opened, read or mapped.
    Io,
    /// The file is not a GGUF file, or is damaged.
    Malformed,
    /// A sound file of a model that does not generate by diffusion.
    NotDiffusion,
    /// A sound file of a diffusion model, with something that this engine does not compute.
    Unsupported,
    /// A sound GGUF file that contradicts itself or lacks something.
    Invalid,
}

/// A model that cannot be loaded; the message is one line and starts with the file's path.
#[derive(Debug, Error)]
#[error("{}: {cause}", path.display())]
pub struct LoadError {
    path: PathBuf,
    #[source]
    cause: LoadCause,
}

/// What went wrong, by the step that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadCause {
    /// Opening or mapping.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Parsing.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Finding the other files of a split model.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Hyper-parameters and token ids.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// Tensors.
    #[error(transparent)]
    Weight(#[from] WeightError),
}

impl LoadError {
    pub(super) fn new(path: &Path, cause: impl Into<LoadCause>) -> Self {
        Self {
            path: path.to_owned(),
            cause: cause.into(),
        }
    }

    /// File that is at fault.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What went wrong.
    pub const fn cause(&self) -> &LoadCause {
        &self.cause
    }

    /// What a caller may do about it.
    pub const fn kind(&self) -> LoadErrorKind {
        match &self.cause {
            LoadCause::Io(_) => LoadErrorKind::Io,
            LoadCause::Gguf(_) | LoadCause::Split(_) => LoadErrorKind::Malformed,
            LoadCause::Arch(error) => error.kind(),
            LoadCause::Weight(error) => error.kind(),
        }
    }
}
