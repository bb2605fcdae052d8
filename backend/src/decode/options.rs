//! The options of the decoding mode: their table, their types and their values' syntax.

use super::error::ParamError;
use super::plan::Token;

/// One option, `--diffusion-<key> VALUE` on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionInfo {
    /// Key, for example `threshold`.
    pub key: &'static str,
    /// How usage texts name the value, for example `F`.
    pub value_name: &'static str,
    /// Default as text; empty when it depends on the model or the mode.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
}

const fn option(
    key: &'static str,
    value_name: &'static str,
    default: &'static str,
    help: &'static str,
) -> OptionInfo {
    OptionInfo {
        key,
        value_name,
        default,
        help,
    }
}

/// Every option, in the order of usage texts.
pub static OPTIONS: &[OptionInfo] = &[
    option(
        "mode",
        "NAME",
        "cached",
        "reference: the model's official schedule, whole sequence every step; cached: prefix K/V and commits by threshold",
    ),
    option(
        "steps",
        "N",
        "",
        "reference: forwards in all; one per generated token when not given",
    ),
    option(
        "eps",
        "F",
        "",
        "reference: end of the timestep schedule, 0 < F < 1, and its choice (Dream's default schedule, with 0.001)",
    ),
    option(
        "block-length",
        "N",
        "",
        "tokens per block, and in reference the choice of the block schedule (LLaDA's default schedule)",
    ),
    option(
        "algorithm",
        "NAME",
        "",
        "reference: which positions commit first: origin (0), entropy (1), margin (2), random (3), confidence (4); also \
         maskgit_plus, topk_margin, low_confidence; origin for the timestep schedule, else confidence",
    ),
    option(
        "alg-temp",
        "F",
        "0",
        "reference: draws the positions from softmax(score / F) instead of taking the best; 0 = off",
    ),
    option(
        "cfg-scale",
        "F",
        "0",
        "reference: classifier-free guidance, un + (F + 1) (cond - un); 0 = off",
    ),
    option(
        "add-gumbel-noise",
        "BOOL",
        "",
        "draw tokens by Gumbel noise in f64 (LLaDA's way, its default) or by one categorical draw (Dream's)",
    ),
    option(
        "threshold",
        "F",
        "0.9",
        "cached: positions of the block at least this confident commit; inf = one per step",
    ),
    option(
        "suffix",
        "WHAT",
        "all",
        "cached: masks right of the block that a step sees: none, the next N, all, or cached (K/V of the block's first step)",
    ),
    option(
        "refresh-blocks",
        "N",
        "1",
        "cached: recompute the K/V of everything committed every N blocks; 0 = never",
    ),
    option(
        "refresh-steps",
        "N",
        "0",
        "cached: recompute the K/V of everything committed every N forwards; 0 = by blocks alone",
    ),
    option(
        "confidence",
        "NAME",
        "with-mask",
        "softmax of the confidence: with-mask (over the whole vocabulary) or without-mask",
    ),
    option(
        "shift-logits",
        "BOOL|auto",
        "auto",
        "row i-1 predicts position i (Dream); auto = as the model says",
    ),
    option(
        "mask-id",
        "N|auto",
        "auto",
        "id of the mask token; auto = as the model says",
    ),
    option(
        "logits-eos-inf",
        "BOOL",
        "false",
        "never choose EOS (its logit is -inf before sampling)",
    ),
    option(
        "confidence-eos-eot-inf",
        "BOOL",
        "false",
        "commit EOS and EoT last (their logits are -inf in the confidence; at a temperature above 0 EoT's alone)",
    ),
];

/// How positions are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The model's official schedule, full-sequence forward every step, no cache.
    Reference,
    /// Prefix K/V; every position of the block above the threshold commits.
    Cached,
}

impl Mode {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Cached => "cached",
        }
    }
}

/// Which masked positions commit first in [`Mode::Reference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Each position by itself, with the schedule's probability.
    Origin,
    /// Least entropy of the sampled distribution first.
    Entropy,
    /// Largest difference of the two best probabilities first.
    Margin,
    /// Uniformly random order.
    Random,
    /// Largest probability of the chosen token first.
    Confidence,
}

impl Algorithm {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Entropy => "entropy",
            Self::Margin => "margin",
            Self::Random => "random",
            Self::Confidence => "confidence",
        }
    }
}

/// What a step of [`Mode::Cached`] sees of the masked tail, right of the current block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suffix {
    /// Nothing.
    None,
    /// The next masks, computed as rows of every step.
    Next(u32),
    /// All masks to the end, computed as rows of every step.
    All,
    /// All masks to the end, computed as rows of the block's first step and kept in scratch.
    Cached,
}

pub(super) fn mode(key: &'static str, value: &str) -> Result<Mode, ParamError> {
    match value {
        "reference" => Ok(Mode::Reference),
        "cached" => Ok(Mode::Cached),
        _ => Err(ParamError::value(
            key,
            value,
            "one of the modes there are: reference, cached",
        )),
    }
}

pub(super) fn algorithm(key: &'static str, value: &str) -> Result<Algorithm, ParamError> {
    match value {
        "0" | "origin" => Ok(Algorithm::Origin),
        "1" | "entropy" => Ok(Algorithm::Entropy),
        "2" | "margin" | "topk_margin" => Ok(Algorithm::Margin),
        "3" | "random" => Ok(Algorithm::Random),
        "4" | "confidence" | "maskgit_plus" | "low_confidence" => Ok(Algorithm::Confidence),
        _ => Err(ParamError::value(
            key,
            value,
            "0 to 4 or one of origin, entropy, margin, random, confidence, maskgit_plus, topk_margin, low_confidence",
        )),
    }
}

pub(super) fn suffix(key: &'static str, value: &str) -> Result<Suffix, ParamError> {
    match value {
        "none" => Ok(Suffix::None),
        "all" => Ok(Suffix::All),
        "cached" => Ok(Suffix::Cached),
        _ => match digits(value) {
            Some(0) => Ok(Suffix::None),
            Some(n) => Ok(Suffix::Next(n)),
            None => Err(ParamError::value(
                key,
                value,
                "none, all, cached or a number of tokens",
            )),
        },
    }
}

pub(super) fn confidence(key: &'static str, value: &str) -> Result<bool, ParamError> {
    match value {
        "with-mask" => Ok(true),
        "without-mask" => Ok(false),
        _ => Err(ParamError::value(key, value, "with-mask or without-mask")),
    }
}

pub(super) fn boolean(key: &'static str, value: &str) -> Result<bool, ParamError> {
    truth(value).ok_or_else(|| ParamError::value(key, value, "true or false"))
}

pub(super) fn auto_boolean(key: &'static str, value: &str) -> Result<Option<bool>, ParamError> {
    match (value, truth(value)) {
        ("auto", _) => Ok(None),
        (_, Some(truth)) => Ok(Some(truth)),
        _ => Err(ParamError::value(key, value, "auto, true or false")),
    }
}

pub(super) fn auto_token(key: &'static str, value: &str) -> Result<Option<Token>, ParamError> {
    if value == "auto" {
        return Ok(None);
    }
    digits(value)
        .and_then(|n| Token::try_from(n).ok())
        .map(Some)
        .ok_or_else(|| ParamError::value(key, value, "auto or a token id"))
}

/// Parses a count of at least `least`.
pub(super) fn count(key: &'static str, value: &str, least: u32) -> Result<u32, ParamError> {
    digits(value).filter(|&n| n >= least).ok_or_else(|| {
        let expected = if least == 0 {
            "a whole number, 0 or more"
        } else {
            "a whole number, 1 or more"
        };
        ParamError::value(key, value, expected)
    })
}

/// Parses a number of steps. Steps that commit nothing are counted and not run, but counting takes time too.
pub(super) fn steps(key: &'static str, value: &str) -> Result<u32, ParamError> {
    digits(value)
        .filter(|n| (1..=1_000_000).contains(n))
        .ok_or_else(|| ParamError::value(key, value, "a whole number, 1 to 1000000"))
}

/// Parses a finite number that `allowed` accepts; `expected` says which.
pub(super) fn number(
    key: &'static str,
    value: &str,
    allowed: impl Fn(f32) -> bool,
    expected: &'static str,
) -> Result<f32, ParamError> {
    decimal(value)
        .filter(|&number| allowed(number))
        .ok_or_else(|| ParamError::value(key, value, expected))
}

/// Parses a threshold: a number of 0 or more, or `inf`.
pub(super) fn threshold(key: &'static str, value: &str) -> Result<f32, ParamError> {
    if value == "inf" {
        return Ok(f32::INFINITY);
    }
    number(key, value, |n| n >= 0.0, "a number of 0 or more, or inf")
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "true" | "1" | "on" => Some(true),
        "false" | "0" | "off" => Some(false),
        _ => None,
    }
}

fn digits(value: &str) -> Option<u32> {
    // `parse` alone would take "+1".
    let plain = value.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| value.parse().ok()).flatten()
}

fn decimal(value: &str) -> Option<f32> {
    // `parse` alone would take "nan", "infinity" and "+1"; "-0" is not a way to say 0.
    let first = value.bytes().next()?;
    let plain = first.is_ascii_digit() || first == b'.';
    plain
        .then(|| value.parse::<f32>().ok())
        .flatten()
        .filter(|number| number.is_finite())
}
