//! Where dense work runs.
//!
//! An [`Accelerator`] computes single operations on borrowed memory; [`host`] is the one that every machine has. What
//! to run where is decided above, from [`Accelerator::supports`].
//!
//! An operation is a [`Task`]: a [`Spec`] (kind, parameters and layouts, all that decides whether it is native) and its
//! data. A new native operation is a variant of [`Op`], a line in `graph::describe` that reads its parameters, and an
//! arm in each device.

mod contexts;
mod dense;
pub mod failure;
mod flash_attn;
pub mod host;
mod mul_mat;
mod op;
pub mod qnn;

pub use contexts::ContextMapping;
pub use dense::{
    Addition, ContextNeed, Contexts, Dense, DenseKind, DenseWeight, ReadWeight, SegmentAccelerator,
};
pub use flash_attn::{FlashAttn, FlashAttnParams, FlashAttnShape};
pub use mul_mat::{MulMat, MulMatShape, Operand};
pub use op::{Layout, Op, Source, Spec, Task};

use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::WeightType;

use crate::knobs::KnobError;

/// Parameters of an instance of our device (`ggml_backend_dev_init`) that computes with the host's kernels alone, whatever the
/// settings say: beside one that waits for an accelerator.
pub const HOST_ONLY: &str = "accelerator=host";

/// Something that computes dense operations. One graph at a time: operations take it exclusively.
pub trait Accelerator: std::fmt::Debug + Send {
    /// Returns the name, for people.
    fn name(&self) -> &'static str;

    /// Gets ready for a graph that the calling thread is about to have computed.
    fn start_graph(&mut self) {}

    /// Tells whether an operation can be computed, wherever its data lies.
    fn supports(&self, spec: &Spec) -> bool;

    /// Computes an operation that is supported; `task.dst` is written entirely where its strides leave no gaps, or left
    /// in any state on failure.
    ///
    /// # Errors
    ///
    /// When the operands are not those of the operation ([`DeviceError::Operands`]: nothing is written then, and another
    /// may compute it), or the device failed.
    fn run(&mut self, task: Task<'_>) -> Result<(), DeviceError>;

    /// Computes an operation that is supported elsewhere than on the host, if that is wanted and possible; tells whether it did. If
    /// not, the result is in any state, and [`run`](Self::run) has it computed. Where a memory runtime decides which contexts are
    /// there, those that the operation needs are.
    fn offload(&mut self, task: &mut Task<'_>) -> bool {
        let _stays = task;
        false
    }

    /// Returns what computes whole segments, if there is such a thing. The answer is the same at any time: whether a segment
    /// can be computed now is what [`SegmentAccelerator::start`] tells.
    fn segments(&mut self) -> Option<&mut dyn SegmentAccelerator> {
        None
    }

    /// Uses `n_threads` threads of the host from now on, the caller's among them; 0 is taken as 1.
    ///
    /// # Errors
    ///
    /// When the system gives no more threads; those there are stay in use.
    fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError>;
}

/// What is wrong with the operands of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandError {
    /// An operand is not there.
    #[error("src{src} is missing")]
    Missing {
        /// Number of the operand.
        src: usize,
    },
    /// An operand may not be the result's memory.
    #[error("src{src} is computed in place")]
    InPlace {
        /// Number of the operand.
        src: usize,
    },
    /// No kernel takes the type.
    #[error("src{src}: no kernel for ggml type {}", type_.0)]
    Type {
        /// Number of the operand.
        src: usize,
        /// The type.
        type_: Type,
    },
    /// Numbers lie where the type does not allow it.
    #[error("src{src} is not aligned for its type")]
    Alignment {
        /// Number of the operand.
        src: usize,
    },
    /// The operand's shape does not fit the others.
    #[error("src{src}: another shape than the operation takes")]
    Shape {
        /// Number of the operand.
        src: usize,
    },
    /// The result is not of the type, shape or strides that the operation gives.
    #[error("dst: another layout than the operation gives")]
    Dst,
    /// Row lengths differ.
    #[error("rows of {k0} weights and {k1} activations")]
    RowLength {
        /// Elements of a row of `src0`.
        k0: usize,
        /// Elements of a row of `src1`.
        k1: usize,
    },
    /// A row is not whole blocks.
    #[error("row of {k} elements is not whole blocks of {}", ty.name())]
    PartialBlock {
        /// Type of the weights.
        ty: WeightType,
        /// Elements of a row.
        k: usize,
    },
    /// An outer dimension of `src1` is not a multiple of that of `src0`.
    #[error("dimension {dim}: {ne0} weight planes cannot repeat to {ne1}")]
    Broadcast {
        /// The dimension, 2 or 3.
        dim: usize,
        /// Size in `src0`.
        ne0: usize,
        /// Size in `src1`.
        ne1: usize,
    },
    /// Elements of a row are apart.
    #[error("src{src}: elements {nb} bytes apart, expected {expected}")]
    RowStride {
        /// Number of the operand.
        src: usize,
        /// Stride found.
        nb: usize,
        /// Stride of contiguous rows.
        expected: usize,
    },
    /// The bytes of an operand end before its last element (or its size overflows).
    #[error("src{src}: {available} bytes are fewer than its shape spans")]
    TooShort {
        /// Number of the operand.
        src: usize,
        /// Bytes there are.
        available: usize,
    },
    /// The output has not the size of the product.
    #[error("dst: {len} elements, expected {expected}")]
    OutputLength {
        /// Elements there are.
        len: usize,
        /// Elements of the product (`usize::MAX` on overflow).
        expected: usize,
    },
}

/// Why a device could not be made, or did not compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operands are not those of the operation.
    #[error("operands: {0}")]
    Operands(#[from] OperandError),
    /// An index points to no row.
    #[error("index {index} of {n_rows} rows")]
    Index {
        /// The index.
        index: i64,
        /// Rows there are.
        n_rows: usize,
    },
    /// No memory for packed operands.
    #[error("no memory for {size_bytes} bytes of packed activations")]
    OutOfMemory {
        /// Bytes asked for.
        size_bytes: usize,
    },
    /// Tiles of a weight were needed while they were not mapped.
    #[error("a weight of {size_bytes} bytes is used while it is not mapped")]
    NotMapped {
        /// Bytes of the tiles.
        size_bytes: usize,
    },
    /// A kernel panicked; the result is incomplete.
    #[error("a thread panicked in a kernel")]
    Panicked,
    /// A thread could not be started.
    #[error("cannot start thread {index} of {n_threads}")]
    Thread {
        /// Index of the thread, the caller's being 0.
        index: usize,
        /// Threads asked for.
        n_threads: usize,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A setting is not understood.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// A kernel was asked for that does not exist.
    #[error(
        "LLADA_NPU_KERNEL: no kernel is named `{name}`; the nearest names are {}; `llada-npu doctor` lists all",
        nearest.join(", ")
    )]
    UnknownKernel {
        /// The name.
        name: String,
        /// The names of kernels that are most like it.
        nearest: Vec<&'static str>,
    },
    /// A kernel was asked for that this CPU cannot run.
    #[error("LLADA_NPU_KERNEL: kernel `{name}` needs instructions that this CPU lacks")]
    KernelUnavailable {
        /// The name.
        name: String,
    },
}
