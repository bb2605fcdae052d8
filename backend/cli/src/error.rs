//! Why the program ends without success, and with which exit code.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ggml_llada_npu::abi::InitError;
use ggml_llada_npu::decode::ParamError;
use ggml_llada_npu::device::DeviceError;
use ggml_llada_npu::engine::EngineError;
use ggml_llada_npu::knobs::KnobError;
use ggml_llada_npu::model::LoadError;
use ggml_llada_npu::simulate::SimulateError;
use ggml_llada_npu::simulate::trace::TraceError;

use crate::argv::UnknownFlag;
use crate::jsonl::LineError;
use crate::sigint;
use crate::vocab::VocabError;

/// Why the program ends without success.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// clap refuses the command line.
    #[error("{message}")]
    CommandLine {
        /// clap's message without its "error: ".
        message: String,
    },
    /// A flag of llama.cpp's that there is not.
    #[error(transparent)]
    UnknownFlag(#[from] UnknownFlag),
    /// Two flags exclude each other, or one is missing.
    #[error("{0}")]
    Flags(&'static str),
    /// `--backend` names something else.
    #[error(
        "--backend {name}: no such backend here; there is {}",
        crate::args::BACKEND
    )]
    Backend {
        /// The name given.
        name: String,
    },
    /// The value of a flag is outside its domain.
    #[error("{flag}: `{value}` is not {expected}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// The value given.
        value: String,
        /// What it takes.
        expected: String,
    },
    /// A flag changes nothing beside another.
    #[error("{flag} has no meaning with {with}")]
    NoMeaning {
        /// The flag.
        flag: &'static str,
        /// The other.
        with: &'static str,
    },
    /// Two flags name one file, and one of them writes it.
    #[error("{first} and {second} name the same file: {}", path.display())]
    SameFile {
        /// The flag that writes it.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// The file, as the first names it.
        path: PathBuf,
    },
    /// `--sweep` is not a grid of options.
    #[error("--sweep: `{part}` {reason}")]
    Grid {
        /// The part at fault.
        part: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A parameter of the decoding mode is wrong.
    #[error("{}", in_flags(.0))]
    Param(#[from] ParamError),
    /// A file cannot be read or written.
    #[error("{}: {what}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A file is longer than any that makes sense, or has no end.
    #[error("{}: longer than {max_mib} MiB", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        max_mib: u64,
    },
    /// A file holds nothing to do.
    #[error("{}: {what}", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// A text file is not UTF-8.
    #[error("{}: not UTF-8 at byte {offset}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first bad byte.
        offset: usize,
    },
    /// A line of a file of prompts, tasks or a trace is refused.
    #[error(transparent)]
    Line(#[from] LineError),
    /// One of several prompts is refused.
    #[error("prompt {number}: {source}")]
    Prompt {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: Box<Error>,
    },
    /// The model file is refused.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The engine fails.
    #[error(transparent)]
    Engine(EngineError),
    /// A trace file drives nothing.
    #[error("{}: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TraceError,
    },
    /// The simulator refuses.
    #[error("{}{source}", if matches!(source, SimulateError::Memory(_)) { "--budget: " } else { "" })]
    Simulate {
        /// Why.
        source: SimulateError,
    },
    /// A setting is not understood.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// The kernels are not those that were asked for.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no device of ours in this process.
    #[error("backend {name} is not available: {0}", name = crate::args::BACKEND)]
    Init(#[from] InitError),
    /// The vocabulary or the template is refused.
    #[error(transparent)]
    Vocab(#[from] VocabError),
    /// The reader of stdout went away.
    #[error("stdout is closed")]
    StdoutClosed,
    /// Stdout cannot be written.
    #[error("stdout: {source}")]
    Stdout {
        /// What the system says.
        source: io::Error,
    },
    /// The handler of Ctrl-C cannot be installed.
    #[error("handler of Ctrl-C: {source}")]
    Interrupt {
        /// What the system says.
        source: io::Error,
    },
    /// Ctrl-C stopped the generation; what was stable is printed.
    #[error("interrupted")]
    Interrupted,
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Param(error) => Self::Param(error),
            EngineError::Load(error) => Self::Model(error),
            other => Self::Engine(other),
        }
    }
}

impl From<SimulateError> for Error {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Param(error) => Self::Param(error),
            source => Self::Simulate { source },
        }
    }
}

impl Error {
    /// Returns the error of a file that cannot be written.
    pub(crate) fn unwritable(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            what: "cannot be written",
            source,
        }
    }

    /// Returns the exit code: 1 for what fails, 2 for a wrong command line, 130 after Ctrl-C, 141 when the reader of
    /// stdout went away (what the shell shows for a process that SIGPIPE ended).
    pub(crate) fn exit_code(&self) -> ExitCode {
        if let Self::Prompt { source, .. } = self {
            return source.exit_code();
        }
        ExitCode::from(match self {
            Self::CommandLine { .. }
            | Self::UnknownFlag(_)
            | Self::Flags(_)
            | Self::Backend { .. }
            | Self::Grid { .. }
            | Self::NoMeaning { .. }
            | Self::SameFile { .. }
            | Self::Value { .. } => 2,
            Self::Param(error) if is_usage(error) => 2,
            Self::StdoutClosed => 141,
            Self::Interrupted => sigint::EXIT_CODE,
            _ => 1,
        })
    }

    /// Returns whether the end needs no line that explains it.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Self::StdoutClosed | Self::Interrupted)
    }
}

/// Returns whether the command line alone is at fault, whatever the model.
fn is_usage(error: &ParamError) -> bool {
    !matches!(
        error,
        ParamError::Context { .. } | ParamError::NoMask | ParamError::MaskRange { .. }
    )
}

/// Says what is wrong with the options as flags are spelled.
fn in_flags(error: &ParamError) -> String {
    match error {
        ParamError::Value {
            key,
            value,
            expected,
        } => format!("--diffusion-{key}: `{value}` is not {expected}"),
        ParamError::NoMeaningInMode { key, mode } => {
            format!("--diffusion-{key} has no meaning in mode `{mode}`")
        }
        ParamError::NoMeaningWithAlgorithm { key, algorithm } => {
            format!("--diffusion-{key} has no meaning with algorithm `{algorithm}`")
        }
        ParamError::Conflict { first, second } => {
            format!(
                "--diffusion-{first} and --diffusion-{second} exclude each other: they choose different schedules"
            )
        }
        ParamError::NoMask => {
            "the model names no mask token: give --diffusion-mask-id N".to_owned()
        }
        other => other.to_string(),
    }
}
