//! The code under test: models and sessions of the engine, on a device of the host that this process is linked with.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ggml_llada_npu::abi;
use ggml_llada_npu::decode::plan::{ForwardKind, Predict, Row, RowPlan, Slot, Stream};
use ggml_llada_npu::decode::{CommitRule, Decoder, Event, ModeParams, Params, Resolved};
use ggml_llada_npu::engine::sample::{SampleParams, Sampler, Sampling};
use ggml_llada_npu::engine::{
    Control, KvType, LoadOptions, Model, RunReport, Session, SessionParams, Target,
};
use llada_npu_ffi::ggml::Api;
use llada_npu_ffi::ggml::backend::Device;

use crate::llama;
use crate::near_tie::{self, Predicted, Trace};

/// Returns our device.
///
/// # Panics
/// When this process's ggml cannot serve it.
#[must_use]
pub fn target() -> Target {
    llama::init();
    abi::target().expect("this process's ggml serves our device")
}

/// Returns the host's CPU device: the engine without our kernels.
///
/// # Panics
/// When this process's ggml has none.
#[must_use]
pub fn cpu_target() -> Target {
    llama::init();
    let api = Api::get().expect("this process has a ggml");
    let device = Device::cpu(api).expect("the host has a CPU device");
    let buft = device.buffer_type().expect("the device has a buffer type");
    Target::new(api, device, buft, None)
}

/// Loads a model.
///
/// # Panics
/// When the engine refuses it.
#[must_use]
pub fn load(path: &Path, target: Target) -> Arc<Model> {
    let mut options = LoadOptions {
        check_tensors: true,
        progress: &mut |_share| true,
    };
    Model::load(path, target, &mut options)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Makes a session with f32 K/V, so that nothing is rounded that an oracle does not round.
///
/// # Panics
/// When the engine refuses it.
#[must_use]
pub fn session(model: &Arc<Model>, n_threads: u32, sampling: Sampling) -> Session {
    session_over(model, KvType::F32, n_threads, sampling)
}

/// Makes one with K/V of a type.
///
/// # Panics
/// When the engine refuses it.
#[must_use]
pub fn session_over(model: &Arc<Model>, kv: KvType, n_threads: u32, sampling: Sampling) -> Session {
    let params = SessionParams {
        n_ctx: 512,
        n_threads,
        type_k: kv,
        type_v: kv,
        sampling,
    };
    Session::new(Arc::clone(model), params).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a plan in which all rows, at positions 0…, see each other, with the logits of all of them; the first
/// `n_store` go to the store, the others to scratch.
///
/// # Panics
/// When there are more tokens than positions.
#[must_use]
pub fn whole_plan(tokens: &[i32], n_store: u32) -> RowPlan {
    let n = u32::try_from(tokens.len()).expect("a short sequence");
    rows_plan(tokens, 0, n_store.min(n))
}

/// Returns a plan for `tokens` at positions `first_pos…`, with the logits of all of them; positions below `n_store` go to
/// the store, the others to scratch. All see each other and the store's slots below `first_pos`.
///
/// # Panics
/// When there are more tokens than positions.
#[must_use]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "streams are lists of ranges"
)]
pub fn rows_plan(tokens: &[i32], first_pos: u32, n_store: u32) -> RowPlan {
    let n = u32::try_from(tokens.len()).expect("a short sequence");
    let n_scratch = first_pos + n - n_store;
    let slot = |pos: u32| match pos.checked_sub(n_store) {
        None => Slot::Store(pos),
        Some(slot) => Slot::Scratch(slot),
    };
    RowPlan {
        kind: ForwardKind::Step,
        step: 0,
        rows: (first_pos..)
            .zip(tokens)
            .map(|(pos, &token)| Row {
                token,
                pos,
                stream: 0,
                kv: Some(slot(pos)),
            })
            .collect(),
        streams: vec![Stream {
            store: if n_store > 0 {
                vec![0..n_store]
            } else {
                vec![]
            },
            scratch: if n_scratch > 0 {
                vec![0..n_scratch]
            } else {
                vec![]
            },
        }],
        predict: (0..n)
            .map(|row| Predict {
                pos: first_pos + row,
                row,
                uncond_row: None,
                probe: None,
            })
            .collect(),
        split: None,
    }
}

/// Runs a plan; returns the logits of its predictions, in their order.
///
/// # Panics
/// When the engine fails.
pub fn forward(session: &mut Session, plan: &RowPlan) -> Vec<Vec<f32>> {
    let logits = session
        .forward(plan)
        .unwrap_or_else(|error| panic!("{error}"));
    plan.predict
        .iter()
        .map(|predict| {
            let row = logits.row(predict.row);
            row.expect("predicting rows have logits").to_vec()
        })
        .collect()
}

/// What a generation came to.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Text before the first end token.
    pub output: Vec<i32>,
    /// Canvas positions that each forward committed, ascending.
    pub commits: Vec<Vec<u32>>,
    /// Counters and times.
    pub report: RunReport,
}

/// Parses `key=value` words.
///
/// # Panics
/// When an option or its value is unknown.
#[must_use]
pub fn params(options: &str) -> Params {
    let mut params = Params::default();
    for option in options.split_whitespace() {
        let (key, value) = option.split_once('=').expect("key=value");
        params
            .set(key, value)
            .unwrap_or_else(|error| panic!("{option}: {error}"));
    }
    params
}

/// Generates with options written as `key=value` words.
///
/// # Panics
/// When the engine fails.
pub fn generate(session: &mut Session, prompt: &[i32], n_gen: u32, options: &str) -> Generated {
    let mut commits = vec![Vec::new()];
    let mut on_event = |event: &Event, _canvas: &ggml_llada_npu::engine::CanvasView<'_>| {
        match *event {
            Event::Committed { pos, .. } => commits.last_mut().expect("not empty").push(pos),
            Event::Step { .. } => commits.push(Vec::new()),
            Event::Replaced { .. } | Event::Remasked { .. } | Event::StablePrefix { .. } => {}
        }
        Control::Continue
    };
    let report = session
        .generate(prompt, n_gen, &params(options), &mut on_event)
        .unwrap_or_else(|error| panic!("{options}: {error}"));
    commits.pop();
    commits.iter_mut().for_each(|step| step.sort_unstable());
    Generated {
        output: session.output().to_vec(),
        commits,
        report,
    }
}

/// Generates as [`generate`] does, and records every forward.
///
/// # Panics
/// When the engine fails, or a commit rule has no thresholds.
pub fn traced(session: &mut Session, prompt: &[i32], n_gen: u32, options: &str) -> Trace {
    let mut tracer = Tracer::new(session, prompt, n_gen, options);
    while let Some(plan) = tracer.next_plan() {
        let rows = forward(session, &plan);
        tracer.absorb(&plan, rows);
    }
    tracer.finish()
}

/// Generates after each prompt as [`traced`] does, after up to `n_seats` of them at a time: each prompt has a forward of its own
/// first, then those of one step share one.
///
/// # Panics
/// As [`traced`].
pub fn traced_together(
    session: &mut Session,
    prompts: &[Vec<i32>],
    n_gen: u32,
    options: &str,
    n_seats: usize,
) -> Vec<Trace> {
    let mut traces = Vec::new();
    for prompts in prompts.chunks(n_seats) {
        let tracers = prompts.iter();
        let mut tracers: Vec<_> = tracers
            .map(|prompt| Tracer::new(session, prompt, n_gen, options))
            .collect();
        let resolved = tracers.iter().map(|tracer| tracer.decoder.resolved());
        let (n_store, n_scratch) = resolved.fold((0, 0), |(store, scratch), resolved| {
            let (n_store, n_scratch) = (resolved.n_store_slots(), resolved.n_scratch_slots());
            (n_store.max(store), n_scratch.max(scratch))
        });
        let seat = |i: u32| (n_store * i, n_scratch * i);
        for (i, tracer) in (0..).zip(&mut tracers) {
            let plan = tracer.next_plan().expect("there is something to generate");
            let rows = forward(session, &side_by_side(&[(seat(i), &plan)]));
            tracer.absorb(&plan, rows);
        }
        loop {
            let plans: Vec<_> = tracers.iter_mut().map(Tracer::next_plan).collect();
            let wanted: Vec<_> = (0..)
                .zip(&plans)
                .filter_map(|(i, plan)| Some((seat(i), plan.as_ref()?)))
                .collect();
            if wanted.is_empty() {
                break;
            }
            let mut rows = forward(session, &side_by_side(&wanted)).into_iter();
            for (tracer, plan) in tracers.iter_mut().zip(&plans) {
                if let Some(plan) = plan {
                    let own = rows.by_ref().take(plan.predict.len());
                    tracer.absorb(plan, own.collect());
                }
            }
        }
        traces.extend(tracers.into_iter().map(Tracer::finish));
    }
    traces
}

/// Returns one plan that computes several, each with its own store and scratch slots from `(store, scratch)` on.
fn side_by_side(plans: &[((u32, u32), &RowPlan)]) -> RowPlan {
    let (_, first) = plans.first().expect("a plan");
    let mut whole = RowPlan {
        rows: vec![],
        streams: vec![],
        predict: vec![],
        split: None,
        ..(*first).clone()
    };
    for &((store, scratch), plan) in plans {
        assert!(plan.split.is_none(), "the rows of a revision have no seat");
        let n_rows = u32::try_from(whole.rows.len()).expect("few rows");
        let n_streams = u16::try_from(whole.streams.len()).expect("few streams");
        let moved = |ranges: &[Range<u32>], by| {
            let ranges = ranges.iter();
            ranges.map(|it| it.start + by..it.end + by).collect()
        };
        whole.rows.extend(plan.rows.iter().map(|&row| Row {
            stream: row.stream + n_streams,
            kv: row.kv.map(|slot| match slot {
                Slot::Store(n) => Slot::Store(n + store),
                Slot::Scratch(n) => Slot::Scratch(n + scratch),
            }),
            ..row
        }));
        whole.streams.extend(plan.streams.iter().map(|it| Stream {
            store: moved(&it.store, store),
            scratch: moved(&it.scratch, scratch),
        }));
        whole.predict.extend(plan.predict.iter().map(|&it| Predict {
            row: it.row + n_rows,
            ..it
        }));
    }
    whole
}

/// A generation that is being recorded.
struct Tracer {
    decoder: Decoder,
    sampler: Sampler,
    forwards: Vec<near_tie::Forward>,
}

impl Tracer {
    fn new(session: &Session, prompt: &[i32], n_gen: u32, options: &str) -> Self {
        let n_prompt = u32::try_from(prompt.len()).expect("a short prompt");
        let resolved = session
            .check(n_prompt, n_gen, &params(options))
            .unwrap_or_else(|error| panic!("{options}: {error}"));
        let sampling = session.params().sampling;
        let sampling_params = SampleParams::new(&resolved, sampling).expect("checked before");
        Self {
            decoder: Decoder::new(resolved, prompt, sampling.seed).expect("checked before"),
            sampler: Sampler::new(sampling_params),
            forwards: Vec::new(),
        }
    }

    fn next_plan(&mut self) -> Option<RowPlan> {
        let plan = self.decoder.next_plan();
        plan.expect("a decoder that goes on").cloned()
    }

    /// Decides by the logits of what the plan predicts.
    fn absorb(&mut self, plan: &RowPlan, rows: Vec<Vec<f32>>) {
        let wanted = plan.predict.iter().zip(&rows);
        let predictions: Vec<_> = wanted
            .map(|(&predict, row)| self.sampler.predict(row, None, predict, plan.step))
            .collect::<Result<_, _>>()
            .expect("logits that can be sampled");
        let decoder = &mut self.decoder;
        decoder.absorb(&predictions).expect("what was asked for");
        let stages = decoder.stages().iter().map(|&stage| stage as u8);
        let all = plan.predict.iter().zip(predictions).zip(rows);
        self.forwards.push(near_tie::Forward {
            plan: name_of(plan),
            canvas: decoder.canvas().iter().copied().zip(stages).collect(),
            predictions: all
                .map(|((predict, prediction), logits)| Predicted {
                    pos: predict.pos as usize,
                    token: prediction.token,
                    probe: predict.probe,
                    logits,
                })
                .collect(),
        });
    }

    fn finish(self) -> Trace {
        let resolved = self.decoder.resolved();
        Trace {
            thresholds: thresholds(resolved),
            ends: [resolved.eos, resolved.eot].into_iter().flatten().collect(),
            forwards: self.forwards,
            output: self.decoder.output().to_vec(),
        }
    }
}

fn name_of(plan: &RowPlan) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{plan:?}").hash(&mut hasher);
    hasher.finish()
}

/// Returns what confidences are compared with.
fn thresholds(resolved: &Resolved) -> Vec<f64> {
    let of_rule = |rule| match rule {
        CommitRule::Threshold(threshold) => threshold,
        CommitRule::Factor(_) | CommitRule::EntropyBound(_) => panic!("{rule:?} has no threshold"),
    };
    let all = match &resolved.mode {
        ModeParams::Reference { .. } => vec![],
        ModeParams::Cached(cached) => vec![of_rule(cached.commit.rule)],
        ModeParams::Full(full) => {
            let mut all = vec![of_rule(full.cache.commit.rule)];
            all.extend([full.tau_stable, full.draft_threshold]);
            let revision = full.revision.iter();
            all.extend(revision.flat_map(|revision| [revision.tau_replace, revision.tau_remask]));
            all
        }
    };
    all.into_iter().map(f64::from).collect()
}
