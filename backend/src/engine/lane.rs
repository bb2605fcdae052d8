//! One instance of the device: a plan in, logits out.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use llada_npu_ffi::ggml::memory::MemoryError;
use llada_npu_ffi::ggml::{Backend, GraphRunner, Status};

use super::error::EngineError;
use super::graph::{self, ForwardGraph, GraphKey};
use super::kv::KvStore;
use super::model::Model;
use super::slot::Capacity;
use crate::decode::plan::{RowPlan, Stream};
use crate::device::failure;

/// f16 bits of 0 and `-inf`, the two values of a mask.
const SEEN: u16 = 0x0000;
const UNSEEN: u16 = 0xfc00;

/// Owning instance of the device with its graph memory. Lanes of one session share its K/V.
#[derive(Debug)]
pub(super) struct Lane {
    backend: Backend,
    n_threads: u32,
    runner: GraphRunner,
    graph: Option<ForwardGraph>,
    inputs: Inputs,
    logits: Vec<f32>,
    /// Row of the plan → row of `logits`.
    out_of_row: Vec<Option<u32>>,
}

/// Rows of a plan that a lane runs, and what is decided by the plan as a whole: a row's result does not depend on which rows
/// run beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) rows: Range<usize>,
    pub(super) predict: Range<usize>,
    /// Slots that the streams of the whole plan see.
    pub(super) window: Range<u32>,
    /// Attention of the whole plan is fused.
    pub(super) fused: bool,
}

/// Contents of the inputs; kept for their memory.
#[derive(Debug, Default)]
struct Inputs {
    tokens: Vec<i32>,
    pos: Vec<i32>,
    kv_index: Vec<i64>,
    mask: Vec<u16>,
    out_rows: Vec<i32>,
}

impl Lane {
    pub(super) fn new(model: &Model, n_threads: u32, params: &str) -> Result<Self, EngineError> {
        let target = model.target();
        let device = target.device();
        let (backend, reason) = failure::catch(|| device.init(params));
        let mut backend = backend.ok_or_else(|| EngineError::Device {
            device: device.name(),
            reason,
        })?;
        backend.set_n_threads(n_threads);
        let runner =
            GraphRunner::new(target.buffer_type()).map_err(EngineError::memory("graph"))?;
        let (inputs, logits, out_of_row) = Default::default();
        Ok(Self {
            backend,
            n_threads,
            runner,
            graph: None,
            inputs,
            logits,
            out_of_row,
        })
    }

    pub(super) const fn n_threads(&self) -> u32 {
        self.n_threads
    }

    /// The K/V moved: graphs of its old tensors are gone.
    pub(super) fn forget_graph(&mut self) {
        self.graph = None;
    }

    /// Logits of the last [`compute`](Self::compute), `[n_vocab, n_out]`, and which row of the plan each is of.
    pub(super) fn logits(&self) -> (&[f32], &[Option<u32>]) {
        (&self.logits, &self.out_of_row)
    }

    /// Builds the graph for a share of a checked plan and fills in its inputs.
    pub(super) fn prepare(
        &mut self,
        model: &Model,
        kv: &KvStore,
        plan: &RowPlan,
        share: &Share,
    ) -> Result<(), EngineError> {
        self.inputs
            .fill(plan, share, kv.capacity(), &mut self.out_of_row);
        let key = GraphKey {
            n_rows: count(share.rows.len()),
            window: share.window.clone(),
            n_out: count(self.inputs.out_rows.len()),
            fused: share.fused,
        };
        if self.graph.as_ref().is_none_or(|graph| graph.key != key) {
            self.graph = None;
            let (graph, forward) = graph::build(model, kv, key);
            self.runner
                .set_graph(graph)
                .map_err(EngineError::memory("graph"))?;
            self.graph = Some(forward);
        }
        let graph = self.graph.clone().expect("set just above");
        self.write(&graph, model.file().hparams().n_layer)
            .map_err(EngineError::memory("inputs"))
    }

    fn write(&mut self, graph: &ForwardGraph, n_layer: u32) -> Result<(), MemoryError> {
        let Inputs {
            tokens,
            pos,
            kv_index,
            mask,
            out_rows,
            ..
        } = &self.inputs;
        self.runner.write_slice(&graph.tokens, tokens)?;
        self.runner.write_slice(&graph.kv_index, kv_index)?;
        // Inputs that nothing reads have no memory: without logits, the last layer's are not read if it is the only one.
        self.runner.write_slice(&graph.pos, pos)?;
        if graph.out.is_some() || n_layer > 1 {
            self.runner.write_slice(&graph.mask, mask)?;
        }
        if let Some((rows, _)) = &graph.out {
            self.runner.write_slice(rows, out_rows)?;
        }
        Ok(())
    }

    /// Runs what was prepared. Another lane may run a share of the same plan over the same K/V meanwhile. `abort` ends the
    /// computation with [`EngineError::Cancelled`] soon after it is set.
    pub(super) fn compute(
        &mut self,
        model: &Model,
        kv: &KvStore,
        abort: &AtomicBool,
    ) -> Result<(), EngineError> {
        let graph = self.graph.clone().expect("prepared before");
        let weights = model.sets();
        let runner = &mut self.runner;
        let backend = &mut self.backend;
        let (run, reason) = failure::catch(|| {
            backend.with_abort_flag(abort, |backend| {
                runner.run_beside(backend, &weights, &kv.sets())
            })
        });
        run.map_err(|status| match status {
            Status::ABORTED => EngineError::Cancelled,
            status => EngineError::Compute {
                n_rows: graph.key.n_rows as usize,
                status,
                reason,
            },
        })?;
        self.read(&graph, model.file().tokens().n_vocab as usize)
            .map_err(EngineError::memory("logits"))
    }

    fn read(&mut self, graph: &ForwardGraph, n_vocab: usize) -> Result<(), MemoryError> {
        self.logits
            .resize(n_vocab * self.inputs.out_rows.len(), 0.0);
        match &graph.out {
            Some((_, logits)) => self.runner.read_slice(logits, &mut self.logits),
            None => Ok(()),
        }
    }
}

impl Inputs {
    fn fill(
        &mut self,
        plan: &RowPlan,
        share: &Share,
        kv: Capacity,
        out_of_row: &mut Vec<Option<u32>>,
    ) {
        let rows = &plan.rows[share.rows.clone()];
        let signed = |n: u32| i32::try_from(n).expect("bounded by the check of the plan");
        self.tokens.clear();
        self.pos.clear();
        self.kv_index.clear();
        // Rows of other shares that nobody sees have places of their own.
        let before = &plan.rows[..share.rows.start];
        let mut n_unseen = count(before.iter().filter(|row| row.kv.is_none()).count());
        for row in rows {
            self.tokens.push(row.token);
            self.pos.push(signed(row.pos));
            let index = row.kv.map_or_else(
                || {
                    n_unseen += 1;
                    kv.unseen_index(n_unseen - 1)
                },
                |slot| kv.index(slot),
            );
            self.kv_index.push(index.into());
        }
        let streams = rows.iter().map(|row| row.stream);
        self.fill_mask(&plan.streams, streams, share, kv);
        out_of_row.clear();
        out_of_row.resize(rows.len(), None);
        self.out_rows.clear();
        for row in plan.predict[share.predict.clone()]
            .iter()
            .flat_map(|predict| [Some(predict.row), predict.uncond_row])
            .flatten()
        {
            let row = row - count(share.rows.start);
            let out = &mut out_of_row[row as usize];
            if out.is_none() {
                *out = Some(count(self.out_rows.len()));
                self.out_rows.push(signed(row));
            }
        }
    }

    /// One line per stream, copied to each of its rows.
    fn fill_mask(
        &mut self,
        streams: &[Stream],
        stream_of_row: impl Iterator<Item = u16>,
        share: &Share,
        kv: Capacity,
    ) {
        let window = &share.window;
        let n_kv = window.len();
        let mut lines = vec![UNSEEN; n_kv * streams.len()];
        for (line, stream) in lines.chunks_exact_mut(n_kv.max(1)).zip(streams) {
            for Range { start, end } in kv.ranges(stream) {
                line[(start - window.start) as usize..(end - window.start) as usize].fill(SEEN);
            }
        }
        self.mask.clear();
        for stream in stream_of_row {
            let start = usize::from(stream) * n_kv;
            self.mask.extend_from_slice(&lines[start..start + n_kv]);
        }
    }
}

pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).expect("bounded by the check of the plan")
}
