//! Instances of the device: one thread of work each.

use std::collections::BTreeMap;
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
use crate::device::{Accelerator, ContextNeed, DeviceError, Op, OperandError, Task, failure};
use crate::graph::{
    DensePlan, Role, Segment, Server, Work, classify, cut, describe, facts, find, is_weight,
    n_threads_for, objects, settle, signature, touches_tiles,
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
    /// Where there is a budget: the contexts that each of them needs; `None` for those that the host computes.
    needs: Vec<Option<Vec<ContextNeed>>>,
    /// Likewise, those of operations that the accelerator computes one by one, by node.
    alone: BTreeMap<usize, Vec<ContextNeed>>,
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
            needs: Vec::new(),
            alone: BTreeMap::new(),
        }
    }

    fn run_all(
        &mut self,
        graph: &mut GraphView<'_>,
        segments: &[Segment],
    ) -> Result<(), ComputeError> {
        self.plan(graph, segments, 0)?;
        let store = Arc::clone(&self.store);
        for (i, segment) in segments.iter().enumerate() {
            if self.abort.is_some_and(|abort| abort.requested()) {
                return Err(ComputeError::Aborted);
            }
            self.map(i)?;
            if let Segment::Native(node) = segment
                && let Some(lost) = self.start_dense(graph, *node)
                && self.needs.get_mut(lost).and_then(Option::take).is_some()
            {
                // The host needs other things for it than were planned.
                self.plan(graph, segments, i)?;
                self.map(i)?;
            }
            self.run(graph, &store.plain(), segment.clone())?;
        }
        Ok(())
    }

    /// Plans what is mapped when from segment `first` on, where there is a budget.
    fn plan(
        &mut self,
        graph: &GraphView<'_>,
        segments: &[Segment],
        first: usize,
    ) -> Result<(), ComputeError> {
        let rest = &segments[first..];
        while let Some(resident) = &mut self.resident {
            let (roles, needs, alone) = (&self.dense.roles, &self.needs, &self.alone);
            let server = |node| match alone.get(&node) {
                Some(needs) => Server::Accelerator(needs),
                None => server(roles, needs, node),
            };
            let signature = signature(&self.codes, graph, rest, &self.work, &server);
            if first == 0 && resident.begin_again(signature)? {
                return Ok(());
            }
            let objects = objects(&self.codes, graph, rest, &self.work, &server);
            let too_large = resident.too_large(&objects);
            let budget_bytes = resident.limits().budget_bytes;
            if !self.leave(rest, &objects.groups, &too_large, budget_bytes) {
                let contexts = self.accelerator.segments().map(|dense| dense.contexts());
                let resident = self.resident.as_mut();
                return resident.map_or(Ok(()), |resident| {
                    Ok(resident.begin(objects, first, signature, contexts)?)
                });
            }
        }
        Ok(())
    }

    /// Leaves dense segments and operations to the host whose contexts are too large; tells whether there were some.
    fn leave(
        &mut self,
        segments: &[Segment],
        groups: &[usize],
        too_large: &[usize],
        budget_bytes: u64,
    ) -> bool {
        let reason = format!("its contexts do not fit the budget of {budget_bytes} bytes");
        let mut has_left = false;
        for (segment, group) in segments.iter().zip(groups) {
            if let Segment::Native(node) = segment
                && too_large.contains(group)
                && let Some(dense) = self.accelerator.segments()
            {
                if self.alone.remove(node).is_some() {
                    dense.leave_alone(&reason);
                    has_left = true;
                } else if let Some(&Role::Member { segment, .. }) = self.dense.roles.get(*node)
                    && self.needs.get_mut(segment).and_then(Option::take).is_some()
                {
                    dense.leave(segment, &reason);
                    has_left = true;
                }
            }
        }
        has_left
    }

    /// Maps what segment `i` needs, where there is a budget.
    fn map(&mut self, i: usize) -> Result<(), ComputeError> {
        if let Some(resident) = &mut self.resident {
            resident.before(i)?;
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
        self.needs.clear();
        self.alone.clear();
        let Some(accelerator) = self.accelerator.segments() else {
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
        if let Some(resident) = &mut self.resident
            && !accelerator.is_prepared(&self.dense.segments, guard)
        {
            // Contexts that are made take addresses as well.
            resident.vacate();
        }
        accelerator.prepare(&self.dense.segments, guard, &mut read, &is_aborted);
        if self.resident.is_some() {
            let all = 0..self.dense.segments.len();
            self.needs.extend(all.map(|i| accelerator.needs(i)));
            self.prepare_alone(graph);
        }
    }

    /// Has the accelerator get ready for operations that it computes one by one, where there is a budget.
    fn prepare_alone(&mut self, graph: &GraphView<'_>) {
        let (Some(accelerator), Some(resident)) = (self.accelerator.segments(), &mut self.resident)
        else {
            return;
        };
        let is_native = |&(_, work): &(usize, &Work)| *work == Work::Native;
        let native = self.work.iter().enumerate().filter(is_native);
        let spec = |(i, _)| Some((i, describe(&self.codes, graph.node(i))?));
        let (nodes, specs): (Vec<_>, Vec<_>) = native
            .filter_map(spec)
            .filter(|(_, spec)| matches!(spec.op, Op::FlashAttnExt(_) | Op::FlashAttnTiles(_)))
            .unzip();
        if !accelerator.is_prepared_alone(&specs) {
            resident.vacate();
        }
        let needs = accelerator.prepare_alone(&specs);
        let both = nodes.into_iter().zip(needs);
        self.alone
            .extend(both.filter_map(|(node, needs)| Some((node, needs?))));
    }

    /// Starts the dense segment of which a node is the first, if it is one; returns its number if that failed.
    fn start_dense(&mut self, graph: &mut GraphView<'_>, node: usize) -> Option<usize> {
        let Some(&Role::Member {
            segment,
            starts: true,
            ..
        }) = self.dense.roles.get(node)
        else {
            return None;
        };
        let accelerator = self.accelerator.segments()?;
        if let Some(operands) = graph.operands(node)
            && let Source::Data(x) = operands.srcs[1]
        {
            self.started[segment] = accelerator.start(segment, x);
        }
        (!self.started[segment]).then_some(segment)
    }

    /// Computes a node as a part of a dense segment that was started; tells whether it did, or nothing is left to do.
    fn run_dense(
        &mut self,
        graph: &mut GraphView<'_>,
        weights: &PlainGuard<'_>,
        node: usize,
    ) -> Result<bool, ComputeError> {
        let Some(&Role::Member {
            segment, output, ..
        }) = self.dense.roles.get(node)
        else {
            return Ok(false);
        };
        let Some(accelerator) = self.accelerator.segments() else {
            return Ok(false);
        };
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
            let mut task = Task { spec, dst, srcs, weights };
            let is_planned = self.resident.is_none() || self.alone.contains_key(&node);
            if is_planned && self.accelerator.offload(&mut task) {
                self.counts.add(graph.node(node), By::Accelerator);
                return Ok(());
            }
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

/// Says who computes a node, from the roles of nodes and what dense segments need.
fn server<'a>(roles: &[Role], needs: &'a [Option<Vec<ContextNeed>>], node: usize) -> Server<'a> {
    let Some(&Role::Member {
        segment, starts, ..
    }) = roles.get(node)
    else {
        return Server::Host;
    };
    match needs.get(segment) {
        Some(Some(needs)) if starts => Server::Accelerator(needs),
        Some(Some(_)) => Server::Accelerator(&[]),
        _ => Server::Host,
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
        failure::tell("graph_compute", reason);
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
