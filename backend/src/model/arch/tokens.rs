//! Special tokens.

use super::{ArchError, ArchMetadata, key_type};
use crate::model::gguf::Value;

/// Texts by which converters spell the mask token.
const MASK_TEXTS: [&str; 4] = ["<|mdm_mask|>", "<|mask|>", "<mask>", "[MASK]"];
/// Texts by which converters spell the end of a turn.
const EOT_TEXTS: [&str; 3] = ["<|eot_id|>", "<|im_end|>", "<|role_end|>"];
/// Texts by which converters spell the end of a sequence.
const EOS_TEXTS: [&str; 2] = ["<|endoftext|>", "</s>"];
const MAX_N_VOCAB: u64 = 1 << 24;

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

impl<'a> ArchMetadata<'a> {
    /// Number of tokens that the tokenizer has, else `vocab_size`; `None` when neither says it.
    pub(in crate::model) fn n_vocab(&self) -> Result<Option<u32>, ArchError> {
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
    pub(in crate::model) fn tokens(&self, n_vocab: u32) -> Result<TokenInfo, ArchError> {
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
