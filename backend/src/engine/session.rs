//! A session: one canvas at a time on one model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::check::MAX_N_ROWS;
use super::cost;
use super::error::EngineError;
use super::forward::{Delay, Forwarder, Logits, Times};
use super::kv::KvType;
use super::model::Model;
use super::report::RunReport;
use super::sample::{SampleError, SampleParams, Sampler, Sampling};
use super::slot::Capacity;
use super::thread::n_physical_cores;
use crate::decode::plan::{ForwardKind, Predict, Prediction, RowPlan, Token};
use crate::decode::{
    CostSource, CostTable, Decoder, Event, FullParams, ModeParams, ModelTraits, Params, Resolved,
    RevisionPath, Stage,
};

/// Logits below this number are sampled by one thread: starting others takes longer.
const MIN_LOGITS_PER_THREAD: usize = 1 << 18;
/// Most threads of a session.
const MAX_N_THREADS: u32 = 512;

/// Parameters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SessionParams {
    /// Largest canvas, prompt and generated tokens; 0 = the model's context length.
    pub n_ctx: u32,
    /// Threads; 0 = one per physical core.
    pub n_threads: u32,
    /// Element type of the K store.
    pub type_k: KvType,
    /// Element type of the V store.
    pub type_v: KvType,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

/// What a caller wants after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Stop; what is final stays.
    Cancel,
}

/// The canvas during an event; it shows the end of the step that the event belongs to.
#[derive(Clone, Copy, Debug)]
pub struct CanvasView<'a> {
    /// Tokens of all positions, the mask token where masked.
    pub tokens: &'a [Token],
    /// Stages of all positions.
    pub stages: &'a [Stage],
    /// Positions of the prompt.
    pub n_prompt: u32,
}

/// Owning state of a session: K/V, graph memory, an instance of the device. Used by one thread at a time.
#[derive(Debug)]
pub struct Session {
    forwarder: Forwarder,
    params: SessionParams,
    n_ctx: u32,
    n_threads: u32,
    /// What forwards take on this device, once it was asked for.
    measured: Option<CostTable>,
    cancel: Arc<AtomicBool>,
    output: Vec<Token>,
    report: RunReport,
}

impl Session {
    /// Makes a session on a model.
    ///
    /// # Errors
    /// [`EngineError::SessionParam`] for a parameter out of range, [`EngineError::Device`] or [`EngineError::Memory`]
    /// when the device has no room.
    pub fn new(model: Arc<Model>, params: SessionParams) -> Result<Self, EngineError> {
        let n_threads = match params.n_threads {
            0 => n_physical_cores().min(MAX_N_THREADS),
            n => n,
        };
        if n_threads > MAX_N_THREADS {
            let value = n_threads.to_string();
            return Err(EngineError::SessionParam {
                name: "n_threads",
                value,
                expected: "0 to 512",
            });
        }
        let n_ctx_train = model.file().hparams().n_ctx_train;
        let n_ctx = if params.n_ctx == 0 {
            n_ctx_train.min(u32::try_from(MAX_N_ROWS).unwrap_or(u32::MAX))
        } else {
            params.n_ctx
        };
        if usize::try_from(n_ctx).is_ok_and(|n_ctx| n_ctx > MAX_N_ROWS) {
            let value = n_ctx.to_string();
            return Err(EngineError::SessionParam {
                name: "n_ctx",
                value,
                expected: "0 to 1048576",
            });
        }
        if n_ctx > n_ctx_train {
            log::warn!(
                "context of {n_ctx} tokens exceeds the {n_ctx_train} the model was trained on"
            );
        }
        let forwarder = Forwarder::new(model, (params.type_k, params.type_v), n_threads)?;
        let (cancel, output, report) = Default::default();
        Ok(Self {
            forwarder,
            params,
            n_ctx,
            n_threads,
            measured: None,
            cancel,
            output,
            report,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.forwarder.model()
    }

    /// Parameters the session was made with.
    pub const fn params(&self) -> &SessionParams {
        &self.params
    }

    /// What the decoder needs to know of the model and the session.
    pub fn traits(&self) -> ModelTraits {
        self.model().traits(self.n_ctx)
    }

    /// Threads, as resolved.
    pub(super) const fn n_threads(&self) -> u32 {
        self.n_threads
    }

    /// Flag that ends a running [`generate`](Self::generate) from another thread, within one node of the graph.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Kept tokens of the last generation: up to EOS, or what was final when it was cancelled or failed.
    pub fn output(&self) -> &[Token] {
        &self.output
    }

    /// Report of the last generation.
    pub const fn report(&self) -> &RunReport {
        &self.report
    }

    /// Checks parameters and lengths against each other and the model, without computing.
    ///
    /// # Errors
    /// [`EngineError::Param`] or [`EngineError::Sampling`].
    pub fn check(
        &self,
        n_prompt: u32,
        n_gen: u32,
        params: &Params,
    ) -> Result<Resolved, EngineError> {
        let resolved = params.resolve(&self.traits(), n_prompt, n_gen)?;
        SampleParams::new(&resolved, self.params.sampling)?;
        Ok(resolved)
    }

    /// Runs one plan and returns its logits. Slots keep their K/V for later plans.
    ///
    /// # Errors
    /// [`EngineError::Plan`], [`EngineError::Memory`] or [`EngineError::Compute`].
    pub fn forward(&mut self, plan: &RowPlan) -> Result<Logits<'_>, EngineError> {
        let (logits, _times) = self.forwarder.forward(plan, &self.cancel)?;
        Ok(logits)
    }

    /// Makes the paths of each step wait before they start: for tests, which show by it that text does not depend on timing.
    pub fn set_delay(&mut self, delay: Option<Delay>) {
        self.forwarder.set_delay(delay);
    }

    /// Forgets all K/V.
    pub fn clear(&mut self) {
        self.forwarder.clear();
    }

    /// Generates `n_gen` positions after `prompt`; `on_event` sees each change. [`output`](Self::output) and
    /// [`report`](Self::report) then tell what came of it, also after an error.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`] when `on_event` or the [flag](Self::cancel_flag) says so; else whatever a parameter,
    /// a forward or its logits do wrong.
    pub fn generate(
        &mut self,
        prompt: &[Token],
        n_gen: u32,
        params: &Params,
        on_event: &mut dyn FnMut(&Event, &CanvasView<'_>) -> Control,
    ) -> Result<RunReport, EngineError> {
        self.output.clear();
        self.report = RunReport::default();
        let n_prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let mut resolved = self.check(n_prompt, n_gen, params)?;
        if let ModeParams::Full(params) = &mut resolved.mode {
            self.set_up(params, resolved.mask)?;
        }
        let decoder = Decoder::new(resolved, prompt, self.params.sampling.seed)?;
        let samplers = SamplerPool::new(
            SampleParams::new(&resolved, self.params.sampling)?,
            self.n_threads,
        );
        self.forwarder.reserve(Capacity {
            n_scratch: resolved.n_scratch_slots(),
            n_store: resolved.n_store_slots(),
            n_unseen: 0,
        })?;
        let start = Instant::now();
        let mut run = Run {
            forwarder: &mut self.forwarder,
            decoder,
            samplers,
            report: RunReport::default(),
        };
        let result = run.drive(&self.cancel, on_event);
        self.output = run.decoder.output().to_vec();
        self.report = RunReport {
            counts: *run.decoder.report(),
            total: start.elapsed(),
            ..run.report
        };
        self.cancel.store(false, Ordering::Relaxed);
        match result {
            Ok(()) => Ok(self.report),
            Err(error) => {
                if !matches!(error, EngineError::Cancelled) {
                    // What a failed forward left behind must not be seen by the next generation.
                    self.forwarder.clear();
                }
                Err(error)
            }
        }
    }
}

impl Session {
    /// Puts a measured cost table in, and gives revision the path that it is to have.
    pub(super) fn set_up(
        &mut self,
        params: &mut FullParams,
        mask: Token,
    ) -> Result<(), EngineError> {
        if params.cost == CostSource::Measured {
            let table = match self.measured {
                Some(table) => table,
                None => cost::measure(&mut self.forwarder, mask, &self.cancel)?,
            };
            self.measured = Some(table);
            params.cost = CostSource::Table(table);
        }
        // Beside an accelerator the CPU has nothing else to do; beside itself it would read all weights twice.
        let own = params
            .revision
            .filter(|revision| revision.path == RevisionPath::Own);
        self.forwarder
            .set_revision_threads(own.map(|revision| revision.n_threads))
    }
}

/// One generation under way.
struct Run<'a> {
    forwarder: &'a mut Forwarder,
    decoder: Decoder,
    samplers: SamplerPool,
    report: RunReport,
}

impl Run<'_> {
    fn drive(
        &mut self,
        cancel: &AtomicBool,
        on_event: &mut dyn FnMut(&Event, &CanvasView<'_>) -> Control,
    ) -> Result<(), EngineError> {
        let mut events = Vec::new();
        while let Some(plan) = self.decoder.next_plan()? {
            if cancel.load(Ordering::Relaxed) {
                return Err(EngineError::Cancelled);
            }
            let (logits, times) = self.forwarder.forward(plan, cancel)?;
            add_times(&mut self.report, plan.kind, times);
            let predictions = timed(&mut self.report.sampling, || {
                self.samplers.predict(plan, &logits)
            })?;
            events.clear();
            events.extend_from_slice(self.decoder.absorb(&predictions)?);
            let canvas = CanvasView {
                tokens: self.decoder.canvas(),
                stages: self.decoder.stages(),
                n_prompt: self.decoder.resolved().n_prompt,
            };
            for event in &events {
                if on_event(event, &canvas) == Control::Cancel {
                    return Err(EngineError::Cancelled);
                }
            }
        }
        Ok(())
    }
}

fn add_times(report: &mut RunReport, kind: ForwardKind, times: Times) {
    if kind == ForwardKind::Sweep {
        report.revision += times.dense;
    } else {
        report.dense += times.dense;
        report.revision += times.revision;
    }
    report.waiting += times.waiting;
}

fn timed<T>(total: &mut Duration, body: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = body();
    *total += start.elapsed();
    value
}

/// One sampler per thread; a prediction does not depend on which one makes it.
#[derive(Debug)]
pub(super) struct SamplerPool {
    samplers: Vec<Sampler>,
    n_vocab: usize,
}

impl SamplerPool {
    pub(super) fn new(params: SampleParams, n_threads: u32) -> Self {
        let samplers = (0..n_threads.max(1))
            .map(|_| Sampler::new(params))
            .collect();
        Self {
            samplers,
            n_vocab: params.n_vocab as usize,
        }
    }

    pub(super) fn predict(
        &mut self,
        plan: &RowPlan,
        logits: &Logits<'_>,
    ) -> Result<Vec<Prediction>, EngineError> {
        let wanted = &plan.predict[..];
        let n_threads =
            (wanted.len() * self.n_vocab / MIN_LOGITS_PER_THREAD).clamp(1, self.samplers.len());
        let n_each = wanted.len().div_ceil(n_threads).max(1);
        let predict_some =
            |sampler: &mut Sampler, wanted: &[Predict]| -> Result<Vec<Prediction>, SampleError> {
                wanted
                    .iter()
                    .map(|predict| predict_one(sampler, logits, *predict, plan.step))
                    .collect()
            };
        let parts: Vec<_> = if n_threads == 1 {
            vec![predict_some(&mut self.samplers[0], wanted)]
        } else {
            std::thread::scope(|scope| {
                let spawn = |(sampler, wanted)| scope.spawn(move || predict_some(sampler, wanted));
                let threads: Vec<_> = self
                    .samplers
                    .iter_mut()
                    .zip(wanted.chunks(n_each))
                    .map(spawn)
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("the sampler does not panic"))
                    .collect()
            })
        };
        let mut predictions = Vec::with_capacity(wanted.len());
        for part in parts {
            predictions.extend(part.map_err(|source| EngineError::Sample {
                step: plan.step,
                source,
            })?);
        }
        Ok(predictions)
    }
}

fn predict_one(
    sampler: &mut Sampler,
    logits: &Logits<'_>,
    predict: Predict,
    step: u32,
) -> Result<Prediction, SampleError> {
    let cond = logits
        .row(predict.row)
        .expect("predicting rows have logits");
    let uncond = predict
        .uncond_row
        .map(|row| logits.row(row).expect("predicting rows have logits"));
    sampler.predict(cond, uncond, predict, step)
}
