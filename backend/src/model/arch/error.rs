//! What can be wrong with the metadata.

use thiserror::Error;

use super::SUPPORTED;
use crate::model::error::LoadErrorKind;

/// What can be wrong with the metadata.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ArchError {
    /// A required key is absent.
    #[error("key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has a value of another type.
    #[error("key `{key}`: value of type {actual}, expected {expected}")]
    KeyType {
        /// The key.
        key: String,
        /// Type found.
        actual: &'static str,
        /// Type that would do.
        expected: &'static str,
    },
    /// An integer out of range.
    #[error("key `{key}` is {actual}, expected {min} to {max}")]
    KeyRange {
        /// The key.
        key: String,
        /// Value found.
        actual: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// A float out of range.
    #[error("key `{key}` is {actual}, expected a positive finite number")]
    KeyFloat {
        /// The key.
        key: String,
        /// Value found.
        actual: f64,
    },
    /// A per-layer array with different values.
    #[error("key `{key}`: different values per layer are not supported")]
    PerLayer {
        /// The key.
        key: String,
    },
    /// A number that another one does not divide.
    #[error("{what} {value} is not a multiple of {divisor_name} {divisor}")]
    NotDivisible {
        /// Name of the number.
        what: &'static str,
        /// The number.
        value: u64,
        /// Name of the divisor.
        divisor_name: &'static str,
        /// The divisor.
        divisor: u64,
    },
    /// Head dimensions that the engine does not compute.
    #[error("key `{key}` is {actual}, only the key length {expected} is supported")]
    HeadDim {
        /// The key.
        key: String,
        /// Value found.
        actual: u64,
        /// Value needed.
        expected: u64,
    },
    /// An odd key length.
    #[error("heads of {n_embd_head} elements, expected an even number")]
    OddHead {
        /// Elements per head.
        n_embd_head: u64,
    },
    /// A scaling of rotary embedding that the engine does not compute.
    #[error("key `{key}` is `{value}`: scaling of rotary embedding is not supported")]
    RopeScaling {
        /// The key.
        key: String,
        /// Value found.
        value: String,
    },
    /// A token id outside the vocabulary.
    #[error("key `{key}` is {actual}, expected less than the {n_vocab} tokens of the vocabulary")]
    TokenId {
        /// The key.
        key: String,
        /// Value found.
        actual: u64,
        /// Number of tokens.
        n_vocab: u32,
    },
    /// An architecture that does not generate by diffusion.
    #[error(
        "architecture `{name}` is not a diffusion architecture; supported: {}",
        supported()
    )]
    NotDiffusion {
        /// Name found.
        name: String,
    },
    /// A diffusion architecture without support here.
    #[error(
        "diffusion architecture `{name}` is not supported by the decoding mode; supported: {}",
        supported()
    )]
    Unsupported {
        /// Name found.
        name: String,
    },
}

fn supported() -> String {
    SUPPORTED.map(|spec| spec.name).join(", ")
}

impl ArchError {
    /// What a caller may do about it.
    pub const fn kind(&self) -> LoadErrorKind {
        match self {
            Self::NotDiffusion { .. } => LoadErrorKind::NotDiffusion,
            Self::Unsupported { .. }
            | Self::PerLayer { .. }
            | Self::HeadDim { .. }
            | Self::RopeScaling { .. } => LoadErrorKind::Unsupported,
            _ => LoadErrorKind::Invalid,
        }
    }
}
