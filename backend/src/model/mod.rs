//! Model files: from a path to named weights whose every byte is proven to be there.
//!
//! Three steps, three places: [`mapped_file`] maps, [`gguf`] parses, [`ModelFile`] checks that the file holds a model
//! that the engine can run: its architecture ([`Hparams`]), its special tokens ([`TokenInfo`]) and its tensors
//! ([`Weights`]). Nothing here knows ggml or a device, and nothing is copied.
//!
//! ```
//! use ggml_llada_npu::model::{LoadErrorKind, ModelFile};
//! let error = ModelFile::open("/no/such.gguf".as_ref()).unwrap_err();
//! assert_eq!(error.kind(), LoadErrorKind::Io);
//! ```

mod arch;
mod dream;
mod error;
pub mod gguf;
mod llada;
pub mod mapped_file;
mod shards;
mod weights;

use std::path::Path;

pub use arch::{ArchError, Hparams, RopeKind, Schedule, TokenInfo};
pub use error::{LoadCause, LoadError, LoadErrorKind};
pub use shards::{MAX_N_SHARDS, SplitError};
pub use weights::{Layer, Linear, Qkv, Weight, WeightError, WeightId, Weights};

use arch::ArchMetadata;
use shards::Shards;

/// A model that the engine can run, mapped and checked.
#[derive(Debug)]
pub struct ModelFile {
    hparams: Hparams,
    tokens: TokenInfo,
    weights: Weights,
}

impl ModelFile {
    /// Maps and checks the model at `path`: a GGUF file, or any file of a split model.
    ///
    /// # Errors
    /// [`LoadError`] names the file and the key, tensor or byte range at fault.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::of_shards(path, &Shards::open(path)?)
    }

    fn of_shards(path: &Path, shards: &Shards) -> Result<Self, LoadError> {
        let headers = shards.headers()?;
        let error = |cause: LoadCause| LoadError::new(path, cause);
        let metadata = ArchMetadata::new(&headers.metadata).map_err(|cause| error(cause.into()))?;
        let hparams = metadata.hparams().map_err(|cause| error(cause.into()))?;
        let n_vocab = metadata.n_vocab().map_err(|cause| error(cause.into()))?;
        let weights = Weights::new(headers.tensors, &hparams, n_vocab)
            .map_err(|cause| error(cause.into()))?;
        let n_vocab = u32::try_from(weights.n_vocab()).unwrap_or(u32::MAX);
        let tokens = metadata
            .tokens(n_vocab)
            .map_err(|cause| error(cause.into()))?;
        Ok(Self {
            hparams,
            tokens,
            weights,
        })
    }

    /// Shape of the model.
    pub const fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// Special tokens.
    pub const fn tokens(&self) -> &TokenInfo {
        &self.tokens
    }

    /// Tensors.
    pub const fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Looks for NaN, infinities and invalid scales in every weight; `progress` gets the share done, and ends the
    /// search by returning `false`.
    ///
    /// # Errors
    /// [`LoadError`] names the first tensor found.
    pub fn check_data(&self, progress: &mut dyn FnMut(f32) -> bool) -> Result<(), LoadError> {
        let n_bytes = self.weights.size_bytes().max(1);
        let mut done = 0_u64;
        for weight in self.weights.all() {
            let checked = weight.check_data();
            checked.map_err(|error| LoadError::new(weight.data().file().path(), error))?;
            done += weight.data().len() as u64;
            #[expect(clippy::cast_precision_loss, reason = "a share for a progress bar")]
            if !progress(done as f32 / n_bytes as f32) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
