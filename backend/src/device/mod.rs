//! Where dense work runs.
//!
//! An [`Accelerator`] computes single operations on borrowed memory; [`host`] is the one that every machine has. What
//! to run where is decided above, from [`Accelerator::supports_mul_mat`].

pub mod host;
mod mul_mat;

pub use mul_mat::{MulMat, MulMatShape, Operand, OperandError};

use crate::knobs::KnobError;

/// Something that computes dense operations. One graph at a time: operations take it exclusively.
pub trait Accelerator: std::fmt::Debug + Send {
    /// Returns the name, for people.
    fn name(&self) -> &'static str;

    /// Tells whether a product of this shape can be computed.
    fn supports_mul_mat(&self, shape: &MulMatShape) -> bool;

    /// Computes a product; `op.dst` is written entirely, or left in any state on failure.
    ///
    /// # Errors
    ///
    /// When the operands are not those of a product, or the device failed.
    fn mul_mat(&mut self, op: MulMat<'_>) -> Result<(), DeviceError>;

    /// Uses `n_threads` threads of the host from now on, the caller's among them; 0 is taken as 1.
    ///
    /// # Errors
    ///
    /// When the system gives no more threads; those there are stay in use.
    fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError>;
}

/// Why a device could not be made, or did not compute.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operands are not those of a product.
    #[error("mul_mat: {0}")]
    Operands(#[from] OperandError),
    /// No memory for packed operands.
    #[error("no memory for {size_bytes} bytes of packed activations")]
    OutOfMemory {
        /// Bytes asked for.
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
    #[error("no kernel is named `{name}`; there are: {}", known.join(", "))]
    UnknownKernel {
        /// The name.
        name: String,
        /// Every name there is.
        known: Vec<&'static str>,
    },
    /// A kernel was asked for that this CPU cannot run.
    #[error("kernel `{name}` needs instructions that this CPU lacks")]
    KernelUnavailable {
        /// The name.
        name: String,
    },
}
