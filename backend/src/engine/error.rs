//! Why the engine cannot do what it was asked.

use llada_npu_ffi::ggml::Status;
use llada_npu_ffi::ggml::memory::MemoryError;
use thiserror::Error;

use super::sample::SampleError;
use crate::decode::plan::Token;
use crate::decode::{DecodeError, ParamError};
use crate::model::LoadError;

/// A plan that cannot be executed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A plan without rows.
    #[error("plan has no rows")]
    NoRows,
    /// More rows than a tensor's dimension can hold here.
    #[error("plan has {n_rows} rows, at most {max}")]
    TooManyRows {
        /// Rows of the plan.
        n_rows: usize,
        /// The limit.
        max: usize,
    },
    /// A token outside the vocabulary.
    #[error("row {row}: token {token} is outside the vocabulary of {n_vocab} tokens")]
    Token {
        /// Index of the row.
        row: usize,
        /// Its token.
        token: Token,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// A position that rotary embedding cannot take.
    #[error("row {row}: position {pos} exceeds {max}")]
    Position {
        /// Index of the row.
        row: usize,
        /// Its position.
        pos: u32,
        /// The limit.
        max: u32,
    },
    /// A stream that the plan does not have.
    #[error("row {row}: stream {stream} of {n_streams}")]
    Stream {
        /// Index of the row.
        row: usize,
        /// Its stream.
        stream: u16,
        /// Streams of the plan.
        n_streams: usize,
    },
    /// A stream that a row has and that sees nothing: attention over nothing has no value.
    #[error("stream {stream} sees no slot")]
    EmptyStream {
        /// Index of the stream.
        stream: usize,
    },
    /// A slot number past the limit.
    #[error("slot {slot} exceeds {max}")]
    Slot {
        /// The slot's number.
        slot: u32,
        /// The limit.
        max: u32,
    },
    /// Two rows that write the same slot.
    #[error("row {row} writes a slot that another row writes")]
    SlotTwice {
        /// Index of the later row.
        row: usize,
    },
    /// A prediction by a row that the plan does not have.
    #[error("prediction {index}: row {row} of {n_rows}")]
    Predict {
        /// Index of the prediction.
        index: usize,
        /// The row it names.
        row: u32,
        /// Rows of the plan.
        n_rows: usize,
    },
}

/// Any failure of the engine; messages are one line and name the thing at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model file.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A parameter of the session.
    #[error("session parameter `{name}` is {value}, expected {expected}")]
    SessionParam {
        /// Name of the parameter.
        name: &'static str,
        /// Value given.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A parameter of the decoding mode.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The file of a cost table.
    #[error("cost table `{}`: {source}", path.display())]
    CostFile {
        /// Where it is.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The device made no instance.
    #[error("device `{device}`: {}", or(.reason, "cannot be initialised"))]
    Device {
        /// Name of the device.
        device: String,
        /// What the device says, "" where it says nothing.
        reason: String,
    },
    /// Memory for `what`.
    #[error("{what}: {source}")]
    Memory {
        /// What the memory was for.
        what: &'static str,
        /// What ggml says.
        source: MemoryError,
    },
    /// A plan that cannot be executed.
    #[error("row plan: {0}")]
    Plan(#[from] PlanError),
    /// The computation of a forward.
    #[error("forward of {n_rows} rows failed: {}", or(.reason, .status))]
    Compute {
        /// Rows of the forward.
        n_rows: usize,
        /// What ggml says.
        status: Status,
        /// What the device says, "" where it says nothing.
        reason: String,
    },
    /// A parameter of the sampler.
    #[error(transparent)]
    Sampling(#[from] SampleError),
    /// Logits that cannot be sampled.
    #[error("step {step}: {source}")]
    Sample {
        /// Step of the generation.
        step: u32,
        /// What is wrong with them.
        source: SampleError,
    },
    /// The decoder refused a call or a prediction.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Returns the reason, or what is said where there is none.
fn or(reason: &str, otherwise: impl std::fmt::Display) -> String {
    if reason.is_empty() {
        otherwise.to_string()
    } else {
        reason.to_owned()
    }
}

impl EngineError {
    /// Says what memory was for.
    pub(super) fn memory(what: &'static str) -> impl FnOnce(MemoryError) -> Self {
        move |source| Self::Memory { what, source }
    }
}
