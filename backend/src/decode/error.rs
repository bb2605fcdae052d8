//! What can be wrong with parameters, and with calls of the decoder.

use super::event::Stage;
use super::plan::Token;

/// A parameter that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamError {
    /// No option has this key.
    #[error("unknown option `{key}`")]
    UnknownKey {
        /// The key as given.
        key: String,
    },
    /// The value is outside the option's domain.
    #[error("option `{key}`: `{value}` is not {expected}")]
    Value {
        /// The option.
        key: &'static str,
        /// The value as given.
        value: String,
        /// What the option takes.
        expected: &'static str,
    },
    /// The option was given and the mode makes no use of it.
    #[error("option `{key}` has no meaning in mode `{mode}`")]
    NoMeaningInMode {
        /// The option.
        key: &'static str,
        /// The mode's name.
        mode: &'static str,
    },
    /// The option was given and the algorithm makes no use of it.
    #[error("option `{key}` has no meaning with algorithm `{algorithm}`")]
    NoMeaningWithAlgorithm {
        /// The option.
        key: &'static str,
        /// The algorithm's name.
        algorithm: &'static str,
    },
    /// Two options that choose different things were both given.
    #[error("options `{first}` and `{second}` exclude each other: they choose different schedules")]
    Conflict {
        /// One option.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Nothing is to be generated.
    #[error("0 tokens to generate: at least 1 is needed")]
    NothingToGenerate,
    /// The canvas does not fit.
    #[error(
        "prompt of {n_prompt} tokens and {n_gen} tokens to generate exceed the context of {n_ctx} tokens"
    )]
    Context {
        /// Prompt length in tokens.
        n_prompt: u32,
        /// Tokens to generate.
        n_gen: u32,
        /// Largest canvas in tokens.
        n_ctx: u32,
    },
    /// Neither the model nor the user says which token is the mask.
    #[error("the model names no mask token: give option `mask-id`")]
    NoMask,
    /// The mask is not in the vocabulary.
    #[error("mask token {mask} is outside the vocabulary of {n_vocab} tokens")]
    MaskRange {
        /// The token.
        mask: Token,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
}

impl ParamError {
    pub(super) fn value(key: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Value {
            key,
            value: value.to_owned(),
            expected,
        }
    }
}

/// A call that the decoder refuses; it stays in its state.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The call is not legal in this state.
    #[error("{call} is not legal in state `{state}`")]
    State {
        /// The method.
        call: &'static str,
        /// Name of the state.
        state: &'static str,
    },
    /// The prompt has another length than the parameters were resolved for.
    #[error("prompt of {found} tokens, parameters were resolved for {expected}")]
    PromptLength {
        /// Length that was resolved, in tokens.
        expected: u32,
        /// Length given, in tokens.
        found: usize,
    },
    /// A text to revise, and parameters without revision.
    #[error("the parameters have no revision")]
    NoRevision,
    /// A text to revise is longer than what is to be generated.
    #[error("text of {found} tokens, at most {most} are to be generated")]
    TextLength {
        /// Tokens to generate.
        most: u32,
        /// Length given, in tokens.
        found: usize,
    },
    /// A prompt token is not in the vocabulary.
    #[error("prompt token {token} at position {pos} is outside the vocabulary of {n_vocab} tokens")]
    PromptToken {
        /// Position in the prompt.
        pos: usize,
        /// The token.
        token: Token,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// The number of predictions is not the plan's.
    #[error("{found} predictions for a plan that wants {expected}")]
    PredictionCount {
        /// Length of the plan's `predict`.
        expected: usize,
        /// Number given.
        found: usize,
    },
    /// A prediction is not the one the plan wants at its place.
    #[error("prediction {index} is of position {found}, the plan wants position {expected}")]
    PredictionPosition {
        /// Index into the plan's `predict`.
        index: usize,
        /// Position wanted.
        expected: u32,
        /// Position given.
        found: u32,
    },
    /// A predicted token is the mask or not in the vocabulary.
    #[error(
        "prediction of position {pos} is token {token}, which is the mask or outside the vocabulary"
    )]
    PredictionToken {
        /// Position.
        pos: u32,
        /// The token.
        token: Token,
    },
    /// A position cannot change in this way.
    #[error("position {pos} is {stage:?}: {change} is not legal")]
    Transition {
        /// Position.
        pos: u32,
        /// Its stage.
        stage: Stage,
        /// Name of the change.
        change: &'static str,
    },
    /// A confidence or score is not a number.
    #[error(
        "prediction of position {pos} has confidence {confidence} and score {score}: not numbers"
    )]
    NotANumber {
        /// Position.
        pos: u32,
        /// Its confidence.
        confidence: f32,
        /// Its score.
        score: f32,
    },
}
