//! Instances of the device: one thread of work each.

use std::ffi::CStr;
use std::ops::Range;

use llada_npu_ffi::ggml::Status;
use llada_npu_ffi::ggml::plugin::delegate::Delegate;
use llada_npu_ffi::ggml::plugin::view::{self, GraphView};
use llada_npu_ffi::ggml::plugin::{AbortCallback, BackendImpl};
use llada_npu_ffi::ggml::types::OpCodes;

use llada_npu_kernels::WeightType;

use super::NAME;
use super::device::default_n_threads;
use crate::device::{Accelerator, DeviceError, MulMat, Operand};
use crate::graph::{Segment, describe, n_threads_for, segments};

/// Identity of instances of this kind.
static GUID: [u8; 16] = *b"llada-npu ggml\x00\x01";

/// Why a graph was not computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The host asked to stop.
    #[error("aborted by the host")]
    Aborted,
    /// The host's CPU backend failed.
    #[error("host CPU backend failed at nodes {first}..{end}: {status}")]
    Delegate {
        /// First node of the run.
        first: usize,
        /// End of the run.
        end: usize,
        /// What it returned.
        #[source]
        status: Status,
    },
    /// A kernel of ours failed.
    #[error("node {node}: {source}")]
    Device {
        /// The node.
        node: usize,
        /// What happened.
        source: DeviceError,
    },
}

impl From<ComputeError> for Status {
    fn from(error: ComputeError) -> Self {
        match error {
            ComputeError::Aborted => Self::ABORTED,
            ComputeError::Delegate { status, .. } => status,
            ComputeError::Device {
                source: DeviceError::OutOfMemory { .. },
                ..
            } => Self::ALLOC_FAILED,
            ComputeError::Device { .. } => Self::FAILED,
        }
    }
}

/// An instance.
#[derive(Debug)]
pub struct NpuBackend {
    codes: OpCodes,
    accelerator: Box<dyn Accelerator>,
    delegate: Delegate,
    n_threads: u32,
    abort: Option<AbortCallback>,
    n_native: u64,
    n_delegated: u64,
}

impl NpuBackend {
    pub(super) fn new(
        codes: OpCodes,
        accelerator: Box<dyn Accelerator>,
        delegate: Delegate,
    ) -> Self {
        Self {
            codes,
            accelerator,
            delegate,
            n_threads: u32::try_from(default_n_threads()).unwrap_or(u32::MAX),
            abort: None,
            n_native: 0,
            n_delegated: 0,
        }
    }

    fn run(&mut self, graph: &mut GraphView<'_>, segment: Segment) -> Result<(), ComputeError> {
        match segment {
            Segment::Native(node) => self.run_native(graph, node),
            Segment::Delegated {
                nodes,
                cost,
                n_delegated,
            } => {
                self.n_delegated += n_delegated as u64;
                self.run_delegated(graph, nodes, cost)
            }
        }
    }

    fn run_native(&mut self, graph: &mut GraphView<'_>, node: usize) -> Result<(), ComputeError> {
        let Some(op) = graph.mul_mat(node).and_then(native_mul_mat) else {
            // Operands that overlap, say: the host knows what it means by them.
            self.n_delegated += 1;
            return self.run_delegated(graph, node..node + 1, u64::MAX);
        };
        self.n_native += 1;
        self.accelerator
            .mul_mat(op)
            .map_err(|source| ComputeError::Device { node, source })
    }

    fn run_delegated(
        &mut self,
        graph: &mut GraphView<'_>,
        nodes: Range<usize>,
        cost: u64,
    ) -> Result<(), ComputeError> {
        let n_threads = n_threads_for(cost, self.n_threads);
        graph
            .delegate(nodes.clone(), &mut self.delegate, n_threads)
            .map_err(|status| match status {
                Status::ABORTED => ComputeError::Aborted,
                status => ComputeError::Delegate {
                    first: nodes.start,
                    end: nodes.end,
                    status,
                },
            })
    }
}

/// Hands the operands on to our kernels.
fn native_mul_mat(op: view::MulMat<'_>) -> Option<MulMat<'_>> {
    Some(MulMat {
        ty: WeightType::from_ggml_type(op.type0.0)?,
        src0: operand(op.src0),
        src1: operand(op.src1),
        dst: op.dst,
    })
}

/// The same bytes, as the devices call them.
fn operand(operand: view::Operand<'_>) -> Operand<'_> {
    Operand {
        data: operand.data,
        ne: operand.ne,
        nb: operand.nb,
    }
}

impl Drop for NpuBackend {
    fn drop(&mut self) {
        log::debug!(
            "nodes computed: native {}, delegated {}",
            self.n_native,
            self.n_delegated
        );
    }
}

impl BackendImpl for NpuBackend {
    type Error = ComputeError;

    fn name(&self) -> &'static CStr {
        NAME
    }

    fn guid(&self) -> &'static [u8; 16] {
        &GUID
    }

    fn set_n_threads(&mut self, n_threads: u32) {
        self.n_threads = n_threads;
        let n_threads = usize::try_from(n_threads).unwrap_or(usize::MAX);
        if let Err(error) = self.accelerator.set_n_threads(n_threads) {
            log::warn!("{error}");
        }
    }

    fn set_abort_callback(&mut self, callback: Option<AbortCallback>) {
        self.abort = callback;
        self.delegate.set_abort_callback(callback);
    }

    fn graph_compute(&mut self, graph: &mut GraphView<'_>) -> Result<(), ComputeError> {
        let work: Vec<_> = (0..graph.n_nodes())
            .map(|i| {
                describe(&self.codes, graph.node(i), |shape| {
                    self.accelerator.supports_mul_mat(shape)
                })
            })
            .collect();
        for segment in segments(&work) {
            if self.abort.is_some_and(|abort| abort.requested()) {
                return Err(ComputeError::Aborted);
            }
            self.run(graph, segment)?;
        }
        Ok(())
    }
}
