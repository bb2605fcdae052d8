//! Failures of the C interface, and the line that `last_error` shows.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};

use thiserror::Error;

use super::super::InitError;
use crate::decode::{DecodeError, ParamError};
use crate::engine::EngineError;
use crate::model::LoadErrorKind;

/// `enum ggml_diffusion_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// No failure.
    Ok = 0,
    /// A parameter is wrong.
    Invalid = -1,
    /// The model file is valid but cannot be decoded here.
    Unsupported = -2,
    /// I/O, out of memory or a failed computation.
    Failed = -3,
    /// A callback asked to stop.
    Cancelled = -4,
}

impl Status {
    /// The number that C sees.
    pub const fn code(self) -> c_int {
        self as c_int
    }
}

/// Why a call failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// A pointer that must not be NULL.
    #[error("`{name}` is NULL")]
    Null {
        /// Name of the parameter.
        name: &'static str,
    },
    /// A struct whose size field cannot be right.
    #[error("`{name}`: size field is {size} bytes, expected sizeof the struct")]
    StructSize {
        /// Name of the struct.
        name: &'static str,
        /// Size found.
        size: usize,
    },
    /// A number out of range.
    #[error("`{name}` is {value}, expected {expected}")]
    Number {
        /// Name of the parameter.
        name: &'static str,
        /// Value given.
        value: i64,
        /// What would do.
        expected: &'static str,
    },
    /// A type that the K/V store does not come in.
    #[error("`{name}` is `{ty}`, expected `f32` or `f16`")]
    KvType {
        /// Name of the parameter.
        name: &'static str,
        /// ggml's name of the type, or its number.
        ty: String,
    },
    /// A string that is not UTF-8.
    #[error("`{name}` is not UTF-8")]
    Utf8 {
        /// Name of the parameter.
        name: &'static str,
    },
    /// A session inside whose call another was made, as a callback may.
    #[error("session is inside another call")]
    Busy,
    /// A session that panicked before.
    #[error("session failed earlier and must be freed")]
    Poisoned,
    /// A panic of ours.
    #[error("internal error in `{entry}`, see the log")]
    Panic {
        /// Function of the interface.
        entry: &'static str,
    },
    /// No device in this process.
    #[error(transparent)]
    Init(#[from] InitError),
    /// An option.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Anything the engine says.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Failure {
    /// Status that a caller gets.
    pub const fn status(&self) -> Status {
        match self {
            Self::Null { .. }
            | Self::StructSize { .. }
            | Self::Number { .. }
            | Self::KvType { .. }
            | Self::Utf8 { .. }
            | Self::Busy
            | Self::Param(_) => Status::Invalid,
            Self::Poisoned | Self::Panic { .. } | Self::Init(_) => Status::Failed,
            Self::Engine(error) => engine_status(error),
        }
    }
}

const fn engine_status(error: &EngineError) -> Status {
    match error {
        EngineError::Load(error) => match error.kind() {
            LoadErrorKind::Io => Status::Failed,
            LoadErrorKind::Unsupported => Status::Unsupported,
            LoadErrorKind::Malformed | LoadErrorKind::NotDiffusion | LoadErrorKind::Invalid => {
                Status::Invalid
            }
        },
        EngineError::SessionParam { .. }
        | EngineError::CostFile { .. }
        | EngineError::Param(_)
        | EngineError::Sampling(_)
        | EngineError::Plan(_)
        | EngineError::Decode(DecodeError::PromptToken { .. } | DecodeError::PromptLength { .. }) => {
            Status::Invalid
        }
        EngineError::Cancelled => Status::Cancelled,
        _ => Status::Failed,
    }
}

/// Longest line that `last_error` shows, in bytes: a path and what is wrong with it.
const MAX_LINE_LEN: usize = 6 * 1024;

/// The last failure of a thread.
struct Last {
    /// NUL-terminated. Never reallocated, so that pointers stay good until the thread ends, whatever it calls.
    line: Box<[u8; MAX_LINE_LEN + 1]>,
    status: Status,
}

thread_local! {
    static LAST: RefCell<Last> =
        RefCell::new(Last { line: Box::new([0; MAX_LINE_LEN + 1]), status: Status::Ok });
}

/// Keeps a failure for `last_error` and returns its status.
pub(super) fn remember(failure: &Failure) -> Status {
    let status = failure.status();
    let line: String = failure
        .to_string()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let len = line.floor_char_boundary(MAX_LINE_LEN);
    LAST.with_borrow_mut(|last| {
        last.line[..len].copy_from_slice(&line.as_bytes()[..len]);
        last.line[len] = 0;
        last.status = status;
    });
    status
}

/// The last failure of this thread, "" when there was none: one line, NUL-terminated.
pub(super) fn last_error() -> *const c_char {
    LAST.with_borrow(|last| last.line.as_ptr().cast())
}

/// Status of the last failure of this thread.
pub(super) fn last_status() -> Status {
    LAST.with_borrow(|last| last.status)
}
