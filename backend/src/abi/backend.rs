//! Instances of the device: one thread of work each.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;

use llada_npu_ffi::ggml::plugin::delegate::Delegate;
use llada_npu_ffi::ggml::plugin::view::{GraphView, Operands, Source};
use llada_npu_ffi::ggml::plugin::{AbortCallback, BackendImpl};
use llada_npu_ffi::ggml::{OpCodes, Status};

use super::NAME;
use super::counts::{By, Counts};
use super::device::default_n_threads;
use super::resident::Resident;
use crate::device::{Accelerator, DeviceError, Op, OperandError, Task, failure};
use crate::graph::{
    DensePlan, Role, Segment, Work, classify, cut, describe, facts, find, is_weight, n_threads_for,
    objects, settle, touches_tiles,
};
use crate::memory::runtime::SessionError;
use crate::memory::{PlainGuard, WeightStore};

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
    /// K or V in tiles where no kernel of ours takes them; the host's CPU backend does not know them.
    #[error("node {node}: K or V in tiles, in an operation that does not take them so")]
    Tiles {
        /// The node.
        node: usize,
    },
    /// What a segment needs could not be mapped.
    #[error("memory budget (LLADA_NPU_BUDGET): {0}")]
    Memory(#[from] SessionError),
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
            ComputeError::Memory(_)
            | ComputeError::Device {
                source: DeviceError::OutOfMemory { .. },
                ..
            } => Self::ALLOC_FAILED,
            ComputeError::Device { .. } | ComputeError::Tiles { .. } => Self::FAILED,
        }
    }
}

/// An instance.
#[derive(Debug)]
pub struct NpuBackend {
    codes: OpCodes,
    accelerator: Box<dyn Accelerator>,
    delegate: Delegate,
    store: Arc<WeightStore>,
    n_threads: u32,
    /// Maps what segments need, where there is a budget.
    resident: Option<Resident>,
    abort: Option<AbortCallback>,
    counts: Counts,
    /// What the nodes of the current graph are, and how it is cut; kept for their memory.
    work: Vec<Work>,
    segments: Vec<Segment>,
    /// What the accelerator was prepared for, if it takes whole segments.
    dense: DensePlan,
    /// Those that it has computed, in the current graph.
    started: Vec<bool>,
}

impl NpuBackend {
    pub(super) fn new(
        codes: OpCodes,
        accelerator: Box<dyn Accelerator>,
        delegate: Delegate,
        store: Arc<WeightStore>,
        resident: Option<Resident>,
    ) -> Self {
        Self {
            codes,
            accelerator,
            delegate,
            store,
            resident,
            n_threads: u32::try_from(default_n_threads()).unwrap_or(u32::MAX),
            abort: None,
            counts: Counts::default(),
            work: Vec::new(),
            segments: Vec::new(),
            dense: DensePlan::default(),
            started: Vec::new(),
        }
    }

    fn run_all(
        &mut self,
        graph: &mut GraphView<'_>,
        segments: &[Segment],
    ) -> Result<(), ComputeError> {
        if let Some(resident) = &mut self.resident {
            resident.begin(objects(&self.codes, graph, segments, &self.work))?;
        }
        let store = Arc::clone(&self.store);
        for (i, segment) in segments.iter().enumerate() {
            if self.abort.is_some_and(|abort| abort.requested()) {
                return Err(ComputeError::Aborted);
            }
            if let Some(resident) = &mut self.resident {
                resident.before(i)?;
            }
            self.run(graph, &store.plain(), segment.clone())?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        graph: &mut GraphView<'_>,
        weights: &PlainGuard<'_>,
        segment: Segment,
    ) -> Result<(), ComputeError> {
        match segment {
            Segment::Native(node) if self.run_dense(graph, weights, node)? => Ok(()),
            Segment::Native(node) => self.run_native(graph, weights, node),
            Segment::Delegated { nodes, cost, .. } => {
                self.run_delegated(graph, weights, nodes, cost)
            }
        }
    }

    /// Looks for dense segments and has the accelerator get ready for them.
    fn prepare_dense(&mut self, graph: &mut GraphView<'_>, guard: &PlainGuard<'_>) {
        self.dense.segments.clear();
        self.dense.roles.clear();
        self.started.clear();
        // A budget is one of the host: its products are what it limits.
        let is_wanted = self.resident.is_none();
        let Some(accelerator) = self.accelerator.segments().filter(|_| is_wanted) else {
            return;
        };
        let facts = facts(&self.codes, graph, &self.work, &*accelerator);
        self.dense = find(&facts, accelerator.fuses());
        self.started.resize(self.dense.segments.len(), false);
        let mut read = |node: usize, body: &mut dyn FnMut(&[u8])| {
            if let Some(place) = graph.node(node).src(0).and_then(|src0| src0.place()) {
                guard.use_plain(place.address, place.size_bytes, false);
            }
            if let Some(operands) = graph.operands(node)
                && let Source::Data(bytes) = operands.srcs[0]
            {
                body(bytes);
            }
        };
        let is_aborted = || self.abort.is_some_and(|abort| abort.requested());
        accelerator.prepare(&self.dense.segments, guard, &mut read, &is_aborted);
    }

    /// Computes a node as a part of a dense segment; tells whether it did, or nothing is left to do.
    fn run_dense(
        &mut self,
        graph: &mut GraphView<'_>,
        weights: &PlainGuard<'_>,
        node: usize,
    ) -> Result<bool, ComputeError> {
        let Some(&Role::Member {
            segment,
            output,
            starts,
        }) = self.dense.roles.get(node)
        else {
            return Ok(false);
        };
        let Some(accelerator) = self.accelerator.segments() else {
            return Ok(false);
        };
        if starts
            && let Some(operands) = graph.operands(node)
            && let Source::Data(x) = operands.srcs[1]
        {
            self.started[segment] = accelerator.start(segment, x);
        }
        if !self.started[segment] {
            return Ok(false);
        }
        settle(&self.codes, weights, graph.node(node), true);
        if let Some(output) = output {
            // What this node reads was left out: nobody else can compute it now.
            let dst = graph.result(node).ok_or(OperandError::Dst);
            let finished = dst
                .map_err(DeviceError::from)
                .and_then(|dst| accelerator.finish(segment, output, dst));
            finished.map_err(|source| ComputeError::Device { node, source })?;
        }
        self.counts.add(graph.node(node), By::Accelerator);
        Ok(true)
    }

    fn run_native(
        &mut self,
        graph: &mut GraphView<'_>,
        weights: &PlainGuard<'_>,
        node: usize,
    ) -> Result<(), ComputeError> {
        let op = graph.node(node);
        let spec = describe(&self.codes, op);
        let is_product = matches!(
            spec.as_ref().map(|spec| &spec.op),
            Some(Op::MulMat | Op::MulMatId)
        );
        let has_weight = is_product
            && op
                .src(0)
                .is_some_and(|src0| is_weight(&self.codes, src0).is_some());
        settle(&self.codes, weights, op, has_weight);
        if let Some((spec, Operands { dst, srcs })) = spec.zip(graph.operands(node)) {
            let weights = has_weight.then_some(weights);
            #[rustfmt::skip]
            let task = Task { spec, dst, srcs, weights };
            match self.accelerator.run(task) {
                // Data that lies where kernels do not take it.
                Err(DeviceError::Operands(_)) => {}
                Err(source) => return Err(ComputeError::Device { node, source }),
                Ok(()) => {
                    self.counts.add(graph.node(node), By::Native);
                    return Ok(());
                }
            }
        }
        // Operands that overlap, say: the host knows what it means by them.
        self.run_delegated(graph, weights, node..node + 1, u64::MAX)
    }

    fn run_delegated(
        &mut self,
        graph: &mut GraphView<'_>,
        weights: &PlainGuard<'_>,
        nodes: Range<usize>,
        cost: u64,
    ) -> Result<(), ComputeError> {
        for i in nodes.clone().filter(|&i| self.work[i] != Work::Nothing) {
            if touches_tiles(graph.node(i)) {
                return Err(ComputeError::Tiles { node: i });
            }
            settle(&self.codes, weights, graph.node(i), false);
            self.counts.add(graph.node(i), By::Delegated);
        }
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

impl Drop for NpuBackend {
    fn drop(&mut self) {
        self.counts.log();
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

    fn tell_failure(reason: &str) {
        failure::tell(reason);
    }

    fn graph_compute(&mut self, graph: &mut GraphView<'_>) -> Result<(), ComputeError> {
        self.accelerator.start_graph();
        self.work.clear();
        self.work.extend((0..graph.n_nodes()).map(|i| {
            classify(&self.codes, graph.node(i), |spec| {
                self.accelerator.supports(spec)
            })
        }));
        let mut segments = std::mem::take(&mut self.segments);
        cut(&self.work, &mut segments);
        let store = Arc::clone(&self.store);
        self.prepare_dense(graph, &store.plain());
        let result = self.run_all(graph, &segments);
        if let Some(resident) = &mut self.resident {
            resident.end();
        }
        self.segments = segments;
        result
    }
}
