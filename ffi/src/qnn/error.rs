//! What goes wrong with QNN, in types.

use std::fmt;
use std::path::PathBuf;

/// The code of a QNN error: the low 16 bits of what a function returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u16);

impl ErrorCode {
    /// Not supported on this platform or by this backend.
    pub const NOT_SUPPORTED: Self = Self(1000);
    /// Out of memory; also what finalising returns for any failed preparation.
    pub const MEM_ALLOC: Self = Self(1002);
    /// The op package refuses an operation.
    pub const OP_PACKAGE_VALIDATION: Self = Self(3110);
    /// The backend cannot start: on an NPU-less machine the aarch64 library answers this.
    pub const BACKEND_CANNOT_INITIALIZE: Self = Self(4000);
    /// A context binary that is too new, or made for another chip.
    pub const CONTEXT_BINARY: Self = Self(5000);
    /// An invalid context handle.
    pub const CONTEXT_INVALID_HANDLE: Self = Self(5002);
    /// An invalid graph handle.
    pub const GRAPH_INVALID_HANDLE: Self = Self(6001);
    /// A graph of this name does not exist, or exists already.
    pub const GRAPH_INVALID_NAME: Self = Self(6003);
    /// A tensor without data or with a wrong id.
    pub const GRAPH_INVALID_TENSOR: Self = Self(6004);
    /// A graph was executed before it was finalised.
    pub const GRAPH_NOT_FINALIZED: Self = Self(6023);
    /// A graph was changed after it was finalised.
    pub const GRAPH_FINALIZED: Self = Self(6024);
    /// A tensor of this name exists already.
    pub const TENSOR_EXISTS: Self = Self(7003);
    /// A parameter of a tensor is invalid, such as its data type.
    pub const TENSOR_INVALID_PARAM: Self = Self(7004);
    /// The device's options are refused, or its libraries are missing or of another release.
    pub const DEVICE_INVALID_CONFIG: Self = Self(14001);

    /// The part of QNN that the code belongs to.
    pub fn area(self) -> &'static str {
        match self.0 {
            1000..2000 => "common",
            2000..3000 => "property",
            3000..4000 => "op package",
            4000..5000 => "backend",
            5000..6000 => "context",
            6000..7000 => "graph",
            7000..8000 => "tensor",
            8000..9000 => "memory",
            14000..15000 => "device",
            30000.. => "context binary",
            _ => "other",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.area())
    }
}

/// A call that QNN answered with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The function, by QNN's name without prefix, such as `graphFinalize`.
    pub call: &'static str,
    /// The code.
    pub code: ErrorCode,
    /// The whole value that was returned.
    pub raw: u64,
    /// The library's text for the code; empty where it has none.
    pub message: String,
    /// The last error that the library logged from this thread during the call; empty where there was none.
    pub logged: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: error {}", self.call, self.code)?;
        for text in [&self.message, &self.logged] {
            if !text.is_empty() {
                write!(f, ": {text}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Why QNN cannot be used, or refuses something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library cannot be opened.
    #[error("{}: {reason}", path.display())]
    Open {
        /// The library.
        path: PathBuf,
        /// What the loader of the system says.
        reason: String,
    },
    /// The library has no entry symbol: it is not QNN's.
    #[error("{}: no symbol `{symbol}`", path.display())]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The symbol.
        symbol: &'static str,
    },
    /// The library has no provider of the name asked for.
    #[error("{}: no provider `{wanted}`, it has [{found}]", path.display())]
    Provider {
        /// The library.
        path: PathBuf,
        /// The name asked for.
        wanted: &'static str,
        /// Names of those that are there, separated by blanks.
        found: String,
    },
    /// The library is of a version that was never looked at.
    #[error("{}: {part} version {found}, needed is {needed}", path.display())]
    Version {
        /// The library.
        path: PathBuf,
        /// `core` or `backend`.
        part: &'static str,
        /// What was found.
        found: super::Version,
        /// What is needed.
        needed: &'static str,
    },
    /// The library leaves out a function.
    #[error("`{call}` is missing from the library")]
    Missing {
        /// The function.
        call: &'static str,
    },
    /// A function returned an error.
    #[error(transparent)]
    Call(#[from] Failure),
    /// A graph is described wrongly.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The library refuses a node.
    #[error("node `{node}` ({op}): {failure}")]
    Node {
        /// The node.
        node: String,
        /// Its operation.
        op: String,
        /// What the library says.
        failure: Box<Failure>,
    },
    /// A graph of this context failed while it was built, so that the context cannot be written or built on.
    #[error("a graph of this context failed while it was built")]
    Broken,
    /// The number of inputs or outputs is wrong.
    #[error("graph `{graph}`: {found} {what}, needed are {needed}")]
    Count {
        /// The graph.
        graph: String,
        /// `inputs` or `outputs`.
        what: &'static str,
        /// What was given.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// A buffer has the wrong size.
    #[error("tensor `{tensor}`: {found} bytes, needed are {needed}")]
    Size {
        /// The tensor.
        tensor: String,
        /// Its size in bytes.
        needed: usize,
        /// That of the buffer.
        found: usize,
    },
    /// A stored context binary is damaged or another one.
    #[error("context binary: {0}")]
    Binary(&'static str),
    /// The library answered with something that makes no sense, such as no handle without an error.
    #[error("`{call}`: {what}")]
    Answer {
        /// The function.
        call: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl Error {
    /// The code, where the library returned one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Call(failure) => Some(failure.code),
            Self::Node { failure, .. } => Some(failure.code),
            _ => None,
        }
    }
}

/// What is wrong with the description of a graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A name is empty or holds a NUL byte.
    #[error("`{0}` is no name")]
    Name(String),
    /// Two tensors, or two nodes, have the same name.
    #[error("two of the name `{0}`")]
    Duplicate(String),
    /// A tensor has no dimension, one of zero, or 4 GiB and more.
    #[error("tensor `{tensor}`: bad dimensions {dims:?}")]
    Dims {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u32>,
    },
    /// The data of a constant has the wrong size.
    #[error("constant `{tensor}`: {found} bytes of data, needed are {needed}")]
    Data {
        /// The tensor.
        tensor: String,
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// A quantisation does not fit the tensor.
    #[error("tensor `{tensor}`: {what}")]
    Quantization {
        /// The tensor.
        tensor: String,
        /// What does not fit.
        what: &'static str,
    },
    /// A tensor is used in a place that its kind or shape does not fit.
    #[error("node `{node}`: tensor `{tensor}`: {what}")]
    Operand {
        /// The node.
        node: String,
        /// The tensor.
        tensor: String,
        /// What does not fit.
        what: &'static str,
    },
    /// A tensor that nothing produces or nothing reads.
    #[error("tensor `{tensor}`: {what}")]
    Loose {
        /// The tensor.
        tensor: String,
        /// What is missing.
        what: &'static str,
    },
    /// A graph has no node, no input or no output.
    #[error("graph `{graph}` has no {what}")]
    Empty {
        /// The graph.
        graph: String,
        /// What is missing.
        what: &'static str,
    },
}
