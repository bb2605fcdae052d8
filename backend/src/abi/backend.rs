//! Instances of the device: one thread of work each.

use std::ffi::CStr;

use llada_npu_ffi::ggml::Status;
use llada_npu_ffi::ggml::plugin::delegate::Delegate;
use llada_npu_ffi::ggml::plugin::view::GraphView;
use llada_npu_ffi::ggml::plugin::{AbortCallback, BackendImpl};
use llada_npu_ffi::ggml::types::OpCodes;

use super::NAME;
use super::device::default_n_threads;
use crate::graph::{Segment, describe, n_threads_for, segments};

/// Identity of instances of this kind.
static GUID: [u8; 16] = *b"llada-npu ggml\x00\x01";

/// Why a graph was not computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
}

impl From<ComputeError> for Status {
    fn from(error: ComputeError) -> Self {
        match error {
            ComputeError::Aborted => Self::ABORTED,
            ComputeError::Delegate { status, .. } => status,
        }
    }
}

/// An instance.
#[derive(Debug)]
pub struct NpuBackend {
    codes: OpCodes,
    delegate: Delegate,
    n_threads: u32,
    abort: Option<AbortCallback>,
    n_native: u64,
    n_delegated: u64,
}

impl NpuBackend {
    pub(super) fn new(codes: OpCodes, delegate: Delegate) -> Self {
        Self {
            codes,
            delegate,
            n_threads: default_n_threads(),
            abort: None,
            n_native: 0,
            n_delegated: 0,
        }
    }

    fn run(&mut self, graph: &mut GraphView<'_>, segment: Segment) -> Result<(), ComputeError> {
        match segment {
            Segment::Native(_) => unreachable!("no kernel of ours claims a node"),
            Segment::Delegated {
                nodes,
                cost,
                n_delegated,
            } => {
                let n_threads = n_threads_for(cost, self.n_threads);
                self.n_delegated += n_delegated as u64;
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
    }

    fn set_abort_callback(&mut self, callback: Option<AbortCallback>) {
        self.abort = callback;
        self.delegate.set_abort_callback(callback);
    }

    fn graph_compute(&mut self, graph: &mut GraphView<'_>) -> Result<(), ComputeError> {
        let work: Vec<_> = (0..graph.n_nodes())
            .map(|i| describe(&self.codes, graph.node(i), |_| false))
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
