//! Architecture, hyper-parameters and special tokens, read from the metadata and checked.
//!
//! `error`: what can be wrong; `hparams`: the shape of a model; `tokens`: its special tokens. What the engine knows of
//! an architecture beyond the file is an [`ArchSpec`], one file per architecture.

#![deny(unsafe_code)]

mod error;
mod hparams;
mod tokens;

use super::dream::DREAM;
use super::gguf::{Header, Value};
use super::llada::LLADA;

pub use error::ArchError;
pub use hparams::{Hparams, RopeKind, Schedule};
pub use tokens::TokenInfo;

/// Architectures the engine runs.
static SUPPORTED: [&ArchSpec; 2] = [&LLADA, &DREAM];

/// Autoregressive architectures whose files may carry diffusion keys: the supported ones under their twins' names, and
/// what users try most.
const KNOWN_AUTOREGRESSIVE: [&str; 12] = [
    "llama",
    "llama4",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "mistral3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt-oss",
    "deepseek2",
];

/// Diffusion architectures known by name that the engine does not run.
const KNOWN_DIFFUSION: [&str; 10] = [
    "llada-moe",
    "llada2",
    "llada2-moe",
    "rnd1",
    "diffusion-gemma",
    "diffuse",
    "sdar",
    "sdar-moe",
    "dream-moe",
    "wedlm",
];

/// What the engine knows of an architecture beyond the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ArchSpec {
    pub(super) name: &'static str,
    pub(super) rope: RopeKind,
    pub(super) schedule: Schedule,
    /// When `diffusion.shift_logits` is absent.
    pub(super) shift_logits: bool,
    /// Mask token of the published models, when `tokenizer.ggml.mask_token_id` is absent.
    pub(super) mask_token: u32,
}

/// Metadata of one file with the architecture that its keys are prefixed by.
#[derive(Debug)]
pub(super) struct ArchMetadata<'a> {
    header: &'a Header<'a>,
    spec: &'static ArchSpec,
}

impl<'a> ArchMetadata<'a> {
    /// Reads the architecture; refuses all but the supported ones.
    pub(super) fn new(header: &'a Header<'a>) -> Result<Self, ArchError> {
        let key = "general.architecture";
        let value = header.value(key).ok_or_else(|| ArchError::MissingKey {
            key: key.to_owned(),
        })?;
        let name = value
            .as_str()
            .ok_or_else(|| key_type(key, &value, "string"))?;
        if let Some(&spec) = SUPPORTED.iter().find(|spec| spec.name == name) {
            return Ok(Self { header, spec });
        }
        let has_diffusion_keys = || header.keys().any(|key| key.starts_with("diffusion."));
        let is_diffusion = KNOWN_DIFFUSION.contains(&name)
            || !KNOWN_AUTOREGRESSIVE.contains(&name) && has_diffusion_keys();
        let name = name.escape_debug().to_string();
        if is_diffusion {
            return Err(ArchError::Unsupported { name });
        }
        Err(ArchError::NotDiffusion { name })
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.spec.name)
    }

    /// Integer in `1..=max`, or `None` when absent; an array counts when all its elements are equal.
    fn count(&self, suffix: &str, max: u64) -> Result<Option<u32>, ArchError> {
        let key = self.key(suffix);
        let Some(mut value) = self.header.value(&key) else {
            return Ok(None);
        };
        if let Some(array) = value.as_array() {
            let mut elements = array.iter();
            value = elements
                .next()
                .ok_or_else(|| key_type(&key, &value, "integer"))?;
            if elements.any(|element| element != value) {
                return Err(ArchError::PerLayer { key });
            }
        }
        let actual = value
            .as_u64()
            .ok_or_else(|| key_type(&key, &value, "integer"))?;
        match u32::try_from(actual) {
            Ok(count) if count >= 1 && actual <= max => Ok(Some(count)),
            _ => Err(ArchError::KeyRange {
                key,
                actual,
                min: 1,
                max,
            }),
        }
    }

    fn required(&self, suffix: &str, max: u64) -> Result<u32, ArchError> {
        self.count(suffix, max)?
            .ok_or_else(|| ArchError::MissingKey {
                key: self.key(suffix),
            })
    }

    /// Positive finite float, or `None` when absent.
    fn float(&self, suffix: &str) -> Result<Option<f32>, ArchError> {
        let key = self.key(suffix);
        let Some(value) = self.header.value(&key) else {
            return Ok(None);
        };
        let actual = value
            .as_f64()
            .ok_or_else(|| key_type(&key, &value, "float"))?;
        #[expect(clippy::cast_possible_truncation, reason = "the models compute in f32")]
        let narrow = actual as f32;
        if narrow.is_finite() && narrow > 0.0 {
            Ok(Some(narrow))
        } else {
            Err(ArchError::KeyFloat { key, actual })
        }
    }
}

fn key_type(key: &str, value: &Value<'_>, expected: &'static str) -> ArchError {
    ArchError::KeyType {
        key: key.to_owned(),
        actual: value.value_type().name(),
        expected,
    }
}
