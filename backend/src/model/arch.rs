//! Architecture, hyper-parameters and special tokens, read from the metadata and checked.

#![deny(unsafe_code)]

use thiserror::Error;

use super::dream::DREAM;
use super::error::LoadErrorKind;
use super::gguf::{Header, Value};
use super::llada::LLADA;

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

/// Texts by which converters spell the mask token.
const MASK_TEXTS: [&str; 4] = ["<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]"];
/// Texts by which converters spell the end of a turn.
const EOT_TEXTS: [&str; 3] = ["<|eot_id|>", "<|im_end|>", "<|role_end|>"];
/// Texts by which converters spell the end of a sequence.
const EOS_TEXTS: [&str; 2] = ["<|endoftext|>", "</s>"];

const MAX_N_LAYER: u64 = 1 << 12;
const MAX_N_EMBD: u64 = 1 << 20;
const MAX_N_FF: u64 = 1 << 22;
const MAX_N_HEAD: u64 = 1 << 12;
const MAX_N_CTX: u64 = 1 << 24;
const MAX_N_VOCAB: u64 = 1 << 24;
/// `rope.freq_base` of files that do not say it.
const DEFAULT_ROPE_FREQ_BASE: f32 = 10_000.0;

/// How rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbours: `(0, 1), (2, 3), …`.
    Norm,
    /// Halves: `(0, d/2), (1, d/2 + 1), …`.
    NeoX,
}

/// What the engine knows of an architecture beyond the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ArchSpec {
    pub(super) name: &'static str,
    pub(super) rope: RopeKind,
    /// When `diffusion.shift_logits` is absent.
    pub(super) shift_logits: bool,
    /// Mask token of the published models, when `tokenizer.ggml.mask_token_id` is absent.
    pub(super) mask_token: u32,
}

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

/// Shape of a model. All numbers are at least 1; `n_embd_head * n_head` need not be `n_embd`.
#[derive(Clone, Debug, PartialEq)]
pub struct Hparams {
    /// Name of the architecture.
    pub architecture: &'static str,
    /// Layers.
    pub n_layer: u32,
    /// Length of a row of the residual stream.
    pub n_embd: u32,
    /// Length of a row inside the feed-forward network.
    pub n_ff: u32,
    /// Heads of Q.
    pub n_head: u32,
    /// Heads of K and V; divides `n_head`.
    pub n_head_kv: u32,
    /// Elements of one head of Q, K and V; even.
    pub n_embd_head: u32,
    /// Positions the model was trained on.
    pub n_ctx_train: u32,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// Base of rotary embedding.
    pub rope_freq_base: f32,
    /// Pairing of rotary embedding, over the whole head.
    pub rope: RopeKind,
}

impl Hparams {
    /// Length of a row of K or V.
    pub const fn n_embd_kv(&self) -> u32 {
        self.n_embd_head * self.n_head_kv
    }

    /// Length of a row of Q.
    pub const fn n_embd_q(&self) -> u32 {
        self.n_embd_head * self.n_head
    }
}

/// Special tokens, and how logits and positions belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Tokens in the vocabulary; length of a row of logits.
    pub n_vocab: u32,
    /// Mask token: by key, else that of the published models, else by its text.
    pub mask: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn, when it is another token than `eos`.
    pub eot: Option<u32>,
    /// Whether position `i` is predicted by row `i - 1`.
    pub shift_logits: bool,
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
        let name = name.to_owned();
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

    /// Reads the shape of the model.
    pub(super) fn hparams(&self) -> Result<Hparams, ArchError> {
        let eps_key = "attention.layer_norm_rms_epsilon";
        let n_embd = self.required("embedding_length", MAX_N_EMBD)?;
        let n_head = self.required("attention.head_count", MAX_N_HEAD)?;
        let n_head_kv = self
            .count("attention.head_count_kv", MAX_N_HEAD)?
            .unwrap_or(n_head);
        divisible(
            "attention.head_count",
            n_head,
            "attention.head_count_kv",
            n_head_kv,
        )?;
        let n_embd_head = if let Some(length) = self.count("attention.key_length", MAX_N_EMBD)? {
            length
        } else {
            divisible("embedding_length", n_embd, "attention.head_count", n_head)?;
            n_embd / n_head
        };
        self.check_head(n_embd_head, n_head)?;
        self.check_rope_scaling()?;
        let rms_eps = self.float(eps_key)?.ok_or_else(|| ArchError::MissingKey {
            key: self.key(eps_key),
        })?;
        Ok(Hparams {
            architecture: self.spec.name,
            n_layer: self.required("block_count", MAX_N_LAYER)?,
            n_embd,
            n_ff: self.required("feed_forward_length", MAX_N_FF)?,
            n_head,
            n_head_kv,
            n_embd_head,
            n_ctx_train: self.required("context_length", MAX_N_CTX)?,
            rms_eps,
            rope_freq_base: self
                .float("rope.freq_base")?
                .unwrap_or(DEFAULT_ROPE_FREQ_BASE),
            rope: self.spec.rope,
        })
    }

    /// K, V and the rotated part must have the same length, in bounds together.
    fn check_head(&self, n_embd_head: u32, n_head: u32) -> Result<(), ArchError> {
        if !n_embd_head.is_multiple_of(2) {
            return Err(ArchError::OddHead {
                n_embd_head: n_embd_head.into(),
            });
        }
        let n_embd_q = u64::from(n_embd_head) * u64::from(n_head);
        if n_embd_q > MAX_N_EMBD {
            let key = self.key("attention.key_length");
            let max = MAX_N_EMBD / u64::from(n_head);
            return Err(ArchError::KeyRange {
                key,
                actual: n_embd_head.into(),
                min: 1,
                max,
            });
        }
        for suffix in ["attention.value_length", "rope.dimension_count"] {
            match self.count(suffix, MAX_N_EMBD)? {
                Some(actual) if actual != n_embd_head => {
                    let (actual, expected) = (actual.into(), n_embd_head.into());
                    return Err(ArchError::HeadDim {
                        key: self.key(suffix),
                        actual,
                        expected,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Only the absence of scaling is supported, in whatever way a file says it.
    fn check_rope_scaling(&self) -> Result<(), ArchError> {
        let key = self.key("rope.scaling.type");
        if let Some(value) = self.header.value(&key) {
            let value = value
                .as_str()
                .ok_or_else(|| key_type(&key, &value, "string"))?;
            if value == "none" {
                return Ok(());
            }
            return Err(ArchError::RopeScaling {
                key,
                value: value.escape_debug().to_string(),
            });
        }
        for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
            let key = self.key(suffix);
            let factor = self.header.value(&key).map(|value| (value, value.as_f64()));
            if let Some((value, factor)) = factor {
                let factor = factor.ok_or_else(|| key_type(&key, &value, "float"))?;
                if factor != 0.0 && factor != 1.0 {
                    return Err(ArchError::RopeScaling {
                        key,
                        value: factor.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Number of tokens that the tokenizer has, else `vocab_size`; `None` when neither says it.
    pub(super) fn n_vocab(&self) -> Result<Option<u32>, ArchError> {
        let key = "tokenizer.ggml.tokens";
        let Some(value) = self.header.value(key) else {
            return self.count("vocab_size", MAX_N_VOCAB);
        };
        let actual = value
            .as_array()
            .ok_or_else(|| key_type(key, &value, "array"))?
            .len();
        match u32::try_from(actual) {
            Ok(n_vocab) if n_vocab >= 1 && actual <= MAX_N_VOCAB => Ok(Some(n_vocab)),
            _ => Err(ArchError::KeyRange {
                key: key.to_owned(),
                actual,
                min: 1,
                max: MAX_N_VOCAB,
            }),
        }
    }

    /// Reads the special tokens of a vocabulary of `n_vocab` tokens.
    pub(super) fn tokens(&self, n_vocab: u32) -> Result<TokenInfo, ArchError> {
        let mask = self
            .token_id("mask_token_id", n_vocab)?
            .or_else(|| self.mask_without_key(n_vocab));
        let eos = self
            .token_id("eos_token_id", n_vocab)?
            .or_else(|| self.token_by_text(&EOS_TEXTS));
        let eot = self
            .token_id("eot_token_id", n_vocab)?
            .or_else(|| self.token_by_text(&EOT_TEXTS));
        let key = "diffusion.shift_logits";
        let shift_logits = match self.header.value(key) {
            None => self.spec.shift_logits,
            Some(value) => value
                .as_bool()
                .ok_or_else(|| key_type(key, &value, "bool"))?,
        };
        Ok(TokenInfo {
            n_vocab,
            mask,
            eos,
            eot: eot.filter(|_| eot != eos),
            shift_logits,
        })
    }

    /// Id under `tokenizer.ggml.<name>`; `None` when absent or given as "none".
    fn token_id(&self, name: &str, n_vocab: u32) -> Result<Option<u32>, ArchError> {
        let key = format!("tokenizer.ggml.{name}");
        let Some(value) = self.header.value(&key) else {
            return Ok(None);
        };
        if matches!(value, Value::Int(-1, _)) || value.as_u64() == Some(u32::MAX.into()) {
            return Ok(None);
        }
        let actual = value
            .as_u64()
            .ok_or_else(|| key_type(&key, &value, "token id"))?;
        match u32::try_from(actual) {
            Ok(id) if id < n_vocab => Ok(Some(id)),
            _ => Err(ArchError::TokenId {
                key,
                actual,
                n_vocab,
            }),
        }
    }

    /// Mask token of the published models, unless the file's own tokens contradict; else by its text.
    fn mask_without_key(&self, n_vocab: u32) -> Option<u32> {
        let known = self.spec.mask_token;
        if self.header.value("tokenizer.ggml.tokens").is_none() {
            return (known < n_vocab).then_some(known);
        }
        let text = self.token_texts().nth(known as usize).flatten();
        if text.is_some_and(|text| MASK_TEXTS.contains(&text)) {
            return Some(known);
        }
        self.token_by_text(&MASK_TEXTS)
    }

    /// First of `texts` that is a token.
    fn token_by_text(&self, texts: &[&str]) -> Option<u32> {
        texts.iter().find_map(|&wanted| {
            let id = self.token_texts().position(|text| text == Some(wanted))?;
            u32::try_from(id).ok()
        })
    }

    /// Tokens' texts in order of their ids; `None` for those that are not UTF-8.
    fn token_texts(&self) -> impl Iterator<Item = Option<&'a str>> {
        let tokens = self
            .header
            .value("tokenizer.ggml.tokens")
            .and_then(|value| value.as_array());
        tokens
            .into_iter()
            .flat_map(|tokens| tokens.iter())
            .map(|value| value.as_str())
    }
}

fn key_type(key: &str, value: &Value<'_>, expected: &'static str) -> ArchError {
    ArchError::KeyType {
        key: key.to_owned(),
        actual: value.value_type().name(),
        expected,
    }
}

fn divisible(
    what: &'static str,
    value: u32,
    divisor_name: &'static str,
    divisor: u32,
) -> Result<(), ArchError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ArchError::NotDivisible {
        what,
        value: value.into(),
        divisor_name,
        divisor: divisor.into(),
    })
}
