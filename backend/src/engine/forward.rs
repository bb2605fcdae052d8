//! One forward: a plan in, logits out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use llada_npu_ffi::ggml::memory::MemoryError;
use llada_npu_ffi::ggml::{Backend, GraphRunner, Status};

use super::check;
use super::error::EngineError;
use super::graph::{self, ForwardGraph, GraphKey};
use super::kv::{KvStore, KvType};
use super::model::Model;
use super::slot::Capacity;
use crate::decode::plan::RowPlan;

/// f16 bits of 0 and `-inf`, the two values of a mask.
const SEEN: u16 = 0x0000;
const UNSEEN: u16 = 0xfc00;

/// Executes plans of one session: owns its K/V, its graph memory and its instance of the device.
#[derive(Debug)]
pub(super) struct Forwarder {
    model: Arc<Model>,
    backend: Backend,
    kv: KvStore,
    runner: GraphRunner,
    graph: Option<ForwardGraph>,
    inputs: Inputs,
    logits: Vec<f32>,
    /// Row of the plan → row of `logits`.
    out_of_row: Vec<Option<u32>>,
}

/// Logits of the rows that a plan's predictions name.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    data: &'a [f32],
    n_vocab: usize,
    out_of_row: &'a [Option<u32>],
}

impl<'a> Logits<'a> {
    /// Logits of a row of the plan, `[n_vocab]`; `None` for rows that no prediction names.
    pub fn row(&self, row: u32) -> Option<&'a [f32]> {
        let out = (*self.out_of_row.get(row as usize)?)? as usize;
        self.data.get(out * self.n_vocab..(out + 1) * self.n_vocab)
    }
}

/// Contents of the inputs; kept for their memory.
#[derive(Debug, Default)]
struct Inputs {
    tokens: Vec<i32>,
    pos: Vec<i32>,
    kv_index: Vec<i64>,
    mask: Vec<u16>,
    stream: Vec<u16>,
    out_rows: Vec<i32>,
}

impl Forwarder {
    pub(super) fn new(
        model: Arc<Model>,
        types: (KvType, KvType),
        n_threads: u32,
    ) -> Result<Self, EngineError> {
        let target = *model.target();
        let device = target.device();
        let mut backend = device.init("").ok_or_else(|| EngineError::Device {
            device: device.name(),
        })?;
        backend.set_n_threads(n_threads);
        let hparams = model.file().hparams();
        let kv = KvStore::new(
            target,
            types,
            hparams.n_layer,
            hparams.n_embd_kv(),
            Capacity::default(),
        )?;
        let runner =
            GraphRunner::new(target.buffer_type()).map_err(EngineError::memory("graph"))?;
        let (inputs, logits, out_of_row) = Default::default();
        Ok(Self {
            model,
            backend,
            kv,
            runner,
            graph: None,
            inputs,
            logits,
            out_of_row,
        })
    }

    pub(super) const fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Forgets all K/V.
    pub(super) fn clear(&mut self) {
        self.kv.clear();
    }

    /// Makes room for all slots that a generation needs, at once.
    pub(super) fn reserve(&mut self, need: Capacity) -> Result<(), EngineError> {
        if self.kv.reserve(need)? {
            self.graph = None;
        }
        Ok(())
    }

    /// Runs the rows of `plan`. `abort` ends the computation with [`EngineError::Cancelled`] soon after it is set.
    pub(super) fn forward(
        &mut self,
        plan: &RowPlan,
        abort: &AtomicBool,
    ) -> Result<Logits<'_>, EngineError> {
        check::check(plan, self.model.file().tokens().n_vocab)?;
        self.reserve(Capacity::of(plan))?;
        self.inputs
            .fill(plan, self.kv.capacity(), &mut self.out_of_row);
        let key = GraphKey {
            n_rows: count(plan.rows.len()),
            window: self.kv.capacity().window(&plan.streams),
            n_out: count(self.inputs.out_rows.len()),
        };
        if self.graph.as_ref().is_none_or(|graph| graph.key != key) {
            self.graph = None;
            let (graph, forward) = graph::build(&self.model, &self.kv, key);
            self.runner
                .set_graph(graph)
                .map_err(EngineError::memory("graph"))?;
            self.graph = Some(forward);
        }
        let graph = self.graph.clone().expect("set just above");
        self.write(&graph).map_err(EngineError::memory("inputs"))?;
        self.run(plan, abort)?;
        self.read(&graph).map_err(EngineError::memory("logits"))?;
        let n_vocab = self.model.file().tokens().n_vocab as usize;
        Ok(Logits {
            data: &self.logits,
            n_vocab,
            out_of_row: &self.out_of_row,
        })
    }

    fn write(&mut self, graph: &ForwardGraph) -> Result<(), MemoryError> {
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
        if graph.out.is_some() || self.model.file().hparams().n_layer > 1 {
            self.runner.write_slice(&graph.mask, mask)?;
        }
        if let Some((rows, _)) = &graph.out {
            self.runner.write_slice(rows, out_rows)?;
        }
        Ok(())
    }

    fn run(&mut self, plan: &RowPlan, abort: &AtomicBool) -> Result<(), EngineError> {
        let weights = self.model.sets();
        let (runner, store) = (&mut self.runner, self.kv.set());
        let run = self
            .backend
            .with_abort_flag(abort, |backend| runner.run(backend, &weights, store));
        run.map_err(|status| match status {
            Status::ABORTED => EngineError::Cancelled,
            status => EngineError::Compute {
                n_rows: plan.rows.len(),
                status,
            },
        })
    }

    fn read(&mut self, graph: &ForwardGraph) -> Result<(), MemoryError> {
        let n_vocab = self.model.file().tokens().n_vocab as usize;
        self.logits
            .resize(n_vocab * self.inputs.out_rows.len(), 0.0);
        match &graph.out {
            Some((_, logits)) => self.runner.read_slice(logits, &mut self.logits),
            None => Ok(()),
        }
    }
}

impl Inputs {
    fn fill(&mut self, plan: &RowPlan, kv: Capacity, out_of_row: &mut Vec<Option<u32>>) {
        let signed = |n: u32| i32::try_from(n).expect("bounded by the check of the plan");
        self.tokens.clear();
        self.pos.clear();
        self.kv_index.clear();
        self.stream.clear();
        let mut n_unseen = 0;
        for row in &plan.rows {
            self.tokens.push(row.token);
            self.pos.push(signed(row.pos));
            self.stream.push(row.stream);
            let index = row.kv.map_or_else(
                || {
                    n_unseen += 1;
                    kv.unseen_index(n_unseen - 1)
                },
                |slot| kv.index(slot),
            );
            self.kv_index.push(index.into());
        }
        self.fill_mask(plan, kv);
        out_of_row.clear();
        out_of_row.resize(plan.rows.len(), None);
        self.out_rows.clear();
        for row in plan
            .predict
            .iter()
            .flat_map(|predict| [Some(predict.row), predict.uncond_row])
            .flatten()
        {
            let out = &mut out_of_row[row as usize];
            if out.is_none() {
                *out = Some(count(self.out_rows.len()));
                self.out_rows.push(signed(row));
            }
        }
    }

    /// One line per stream, copied to each of its rows.
    fn fill_mask(&mut self, plan: &RowPlan, kv: Capacity) {
        let window = kv.window(&plan.streams);
        let n_kv = window.len();
        let mut lines = vec![UNSEEN; n_kv * plan.streams.len()];
        for (line, stream) in lines.chunks_exact_mut(n_kv.max(1)).zip(&plan.streams) {
            for Range { start, end } in kv.ranges(stream) {
                line[(start - window.start) as usize..(end - window.start) as usize].fill(SEEN);
            }
        }
        self.mask.clear();
        for &stream in &self.stream {
            let start = usize::from(stream) * n_kv;
            self.mask.extend_from_slice(&lines[start..start + n_kv]);
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("bounded by the check of the plan")
}
