//! Drives the real state machine by a commit trace, and counts the rows of its plans.
//!
//! There is no model: a decider answers each plan with confidences such that what commits is what the trace says. Positions
//! are decided from left to right. Where the trace decides more than the block has left, the rest is made up for by the next
//! forward, so that its pace is kept; right of the block what is sure becomes a draft, if the mode looks ahead.

use super::shape::{ModelShape, number};
use super::trace::Trace;
use crate::decode::plan::{ForwardKind, Prediction, RowPlan, Slot};
use crate::decode::{DecodeError, Decoder, Event, ParamError, Params, Report, Stage};

/// What one forward computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Rows.
    pub n_rows: u64,
    /// Rows with an output projection.
    pub n_logits: u64,
    /// K/V slots that all rows see, summed up.
    pub n_seen: u64,
}

/// One forward: its two paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Why it is made.
    pub kind: ForwardKind,
    /// Rows of the step, and all rows of a sweep.
    pub dense: Rows,
    /// Rows of the revision beside the step.
    pub revision: Rows,
}

impl Forward {
    /// Returns the rows of both paths.
    #[must_use]
    pub const fn all(&self) -> Rows {
        Rows {
            n_rows: self.dense.n_rows + self.revision.n_rows,
            n_logits: self.dense.n_logits + self.revision.n_logits,
            n_seen: self.dense.n_seen + self.revision.n_seen,
        }
    }
}

/// The forwards of one generation, and how much K/V they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plans {
    /// In order.
    pub forwards: Vec<Forward>,
    /// K/V slots, store and scratch.
    pub n_slots: u64,
    /// Tokens generated.
    pub n_gen: u64,
    /// Counters of the decoder; of a model that has none, zeros.
    pub report: Report,
}

/// Why no plans are made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DriveError {
    /// A parameter is wrong.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The decoder refuses a call, which would be a mistake of this module.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Returns the forwards of a generation of `n_gen` tokens behind a prompt of `n_prompt`.
///
/// # Errors
/// [`DriveError`].
pub fn drive(
    shape: &ModelShape,
    params: &Params,
    trace: &Trace,
    n_prompt: u32,
    n_gen: u32,
) -> Result<Plans, DriveError> {
    let resolved = params.resolve(&shape.traits(), n_prompt, n_gen)?;
    let mut decoder = Decoder::new(resolved, &vec![NOTHING; n_prompt as usize], 0)?;
    let mut decider = Decider::new(trace, n_prompt);
    let (mut forwards, mut n_store, mut n_scratch) = (Vec::new(), 0, 0);
    loop {
        let frontier = decider.frontier(&decoder);
        let Some(plan) = decoder.next_plan()? else {
            break;
        };
        forwards.push(count(plan));
        for slot in plan.rows.iter().filter_map(|row| row.kv) {
            match slot {
                Slot::Store(slot) => n_store = n_store.max(slot + 1),
                Slot::Scratch(slot) => n_scratch = n_scratch.max(slot + 1),
            }
        }
        let predictions = decider.decide(plan, frontier);
        decider.note(plan.kind, decoder.absorb(&predictions)?);
    }
    let n_slots = u64::from(n_store) + u64::from(n_scratch);
    Ok(Plans {
        forwards,
        n_slots,
        n_gen: n_gen.into(),
        report: *decoder.report(),
    })
}

/// Returns the forwards of an autoregressive model: the prompt, then token after token.
#[must_use]
pub fn autoregressive(n_prompt: u32, n_gen: u32) -> Plans {
    let first = u64::from(n_prompt.max(1));
    let one = |seen| Rows {
        n_rows: 1,
        n_logits: 1,
        n_seen: seen,
    };
    let prefill = Rows {
        n_rows: first,
        n_logits: 1,
        n_seen: first * (first + 1) / 2,
    };
    let steps = (1..u64::from(n_gen)).map(|i| (ForwardKind::Step, one(first + i)));
    let forward = |(kind, dense)| Forward {
        kind,
        dense,
        revision: Rows::default(),
    };
    Plans {
        forwards: std::iter::once((ForwardKind::Prefill, prefill))
            .chain(steps)
            .map(forward)
            .collect(),
        n_slots: first + u64::from(n_gen),
        n_gen: n_gen.into(),
        report: Report::default(),
    }
}

/// Token of the prompt.
const NOTHING: i32 = 0;
/// Token that is predicted; [`OTHER`] where a revision finds another.
const WORD: i32 = 1;
const OTHER: i32 = 2;

/// Confidences that pass every threshold, that of visible tokens only, and none.
const SURE: f32 = 0.95;
const LIKELY: f32 = 0.75;
const UNLIKELY: f32 = 0.05;

fn count(plan: &RowPlan) -> Forward {
    let seen: Vec<u64> = plan
        .streams
        .iter()
        .map(|stream| {
            let ranges = stream.store.iter().chain(&stream.scratch);
            ranges.map(|range| u64::from(range.end - range.start)).sum()
        })
        .collect();
    let (row, predict) = match (plan.kind, plan.split) {
        (ForwardKind::Sweep, _) | (_, None) => (plan.rows.len(), plan.predict.len()),
        (_, Some(split)) => (split.row as usize, split.predict as usize),
    };
    let rows = |rows: &[crate::decode::plan::Row], predict: &[crate::decode::plan::Predict]| {
        // Each path's `predict` ascends, so equal rows are neighbours.
        let mut wanted: Vec<u32> = predict.iter().map(|wanted| wanted.row).collect();
        wanted.dedup();
        Rows {
            n_rows: rows.len() as u64,
            n_logits: wanted.len() as u64,
            n_seen: rows.iter().map(|row| seen[usize::from(row.stream)]).sum(),
        }
    };
    Forward {
        kind: plan.kind,
        dense: rows(&plan.rows[..row], &plan.predict[..predict]),
        revision: rows(&plan.rows[row..], &plan.predict[predict..]),
    }
}

/// The first masked position and the end of its block.
#[derive(Clone, Copy, Debug)]
struct Frontier {
    block_end: u32,
}

/// Answers plans.
#[derive(Debug)]
struct Decider<'a> {
    trace: &'a Trace,
    n_prompt: u32,
    /// Dense forwards so far, positions committed by them, and those that were sure.
    n_steps: u64,
    n_committed: u64,
    n_sure: u64,
    /// Revisions so far, and what they found.
    n_revisions: u64,
    n_replaced: u64,
    n_remasked: u64,
}

impl<'a> Decider<'a> {
    fn new(trace: &'a Trace, n_prompt: u32) -> Self {
        Self {
            trace,
            n_prompt,
            n_steps: 0,
            n_committed: 0,
            n_sure: 0,
            n_revisions: 0,
            n_replaced: 0,
            n_remasked: 0,
        }
    }

    fn frontier(&self, decoder: &Decoder) -> Frontier {
        let masked = |stage: &Stage| matches!(stage, Stage::Invisible | Stage::Draft);
        let stages = &decoder.stages()[self.n_prompt as usize..];
        let first = stages.iter().position(masked).unwrap_or(stages.len());
        let first = u32::try_from(first).expect("canvas lengths are a u32");
        Frontier {
            block_end: self.n_prompt + (first / BLOCK + 1) * BLOCK,
        }
    }

    fn decide(&mut self, plan: &RowPlan, frontier: Frontier) -> Vec<Prediction> {
        let (all, sure) = self.trace.after(self.n_steps + 1);
        let mut n_left = all.saturating_sub(self.n_committed);
        let mut n_sure_left = sure.saturating_sub(self.n_sure);
        let mut predictions = Vec::with_capacity(plan.predict.len());
        for wanted in &plan.predict {
            if let Some(own) = wanted.probe {
                predictions.push(self.revise(wanted.pos, own));
                continue;
            }
            let confidence = if n_sure_left > 0 {
                SURE
            } else if n_left > 0 && wanted.pos < frontier.block_end {
                LIKELY
            } else {
                UNLIKELY
            };
            n_left = n_left.saturating_sub(1);
            n_sure_left = n_sure_left.saturating_sub(1);
            predictions.push(prediction(wanted.pos, WORD, confidence));
        }
        predictions
    }

    /// Spreads what revisions find evenly over them.
    fn revise(&mut self, pos: u32, own: i32) -> Prediction {
        self.n_revisions += 1;
        let due = |share: f64, n: u64| number(self.n_revisions) * share >= number(n + 1) - 1e-9;
        if due(self.trace.replaced, self.n_replaced) {
            self.n_replaced += 1;
            let other = if own == WORD { OTHER } else { WORD };
            return Prediction {
                probe: UNLIKELY,
                ..prediction(pos, other, SURE)
            };
        }
        if due(self.trace.remasked, self.n_remasked) {
            self.n_remasked += 1;
            return Prediction {
                probe: UNLIKELY,
                ..prediction(pos, own, UNLIKELY)
            };
        }
        Prediction {
            probe: SURE,
            ..prediction(pos, own, SURE)
        }
    }

    fn note(&mut self, kind: ForwardKind, events: &[Event]) {
        for event in events {
            if let Event::Committed { stage, .. } = event {
                self.n_committed += 1;
                self.n_sure += u64::from(*stage == Stage::Stable);
            }
        }
        self.n_steps += u64::from(kind != ForwardKind::Sweep);
    }
}

/// Length of a block in every row of the ablation.
pub(super) const BLOCK: u32 = 32;

fn prediction(pos: u32, token: i32, confidence: f32) -> Prediction {
    Prediction {
        pos,
        token,
        confidence,
        score: confidence,
        probe: 0.0,
    }
}
