//! Mode `reference`: the official schedules, a full-sequence forward every step, no cache.
//!
//! Every position is a row of every forward, all K/V is scratch, everyone sees everything. Guidance adds a second copy of
//! the sequence, with the prompt masked, as a stream of its own.
//!
//! Block schedule (LLaDA): blocks left to right; a block of length `b` gets `max(1, round(S b / n_gen))` steps; step `i`
//! commits `floor(m / s)` of its `m` masks, one more in the first `m mod s` steps. Timestep schedule (Dream): step `i`
//! commits `floor(n_masked (1 - t[i+1] / t[i]))`, the last one everything.
//!
//! Both end when no mask is left before the leftmost EOS or EoT: commits are never revised, so the text is what the
//! remaining steps would leave. For the same reason a block ends with its last mask, though the official code would spend
//! the rest of the block's steps without a commit.

use std::ops::Range;

use super::canvas::Canvas;
use super::event::Event;
use super::options::Algorithm;
use super::params::{Resolved, Schedule};
use super::plan::{ForwardKind, Predict, Prediction, Row, RowPlan, Slot, Stream};
use super::random::{Key, Purpose};

/// How many of a step's candidates commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quota {
    /// So many, the best first.
    Count(u32),
    /// Each with this probability ([`Algorithm::Origin`]).
    Probability(f64),
}

/// State of the mode.
#[derive(Debug)]
pub(super) struct Reference {
    schedule: Schedule,
    algorithm: Algorithm,
    alg_temp: f32,
    guided: bool,
    shift: bool,
    seed: u64,
    n_prompt: u32,
    n_canvas: u32,
    /// The part of the canvas that commits now, and the step within it.
    block: Range<u32>,
    step_in_block: u32,
    /// Candidates of a step: what they are ranked by, and their index in the predictions.
    ranked: Vec<(f64, usize)>,
}

impl Reference {
    pub(super) fn new(
        resolved: &Resolved,
        schedule: Schedule,
        algorithm: Algorithm,
        alg_temp: f32,
        guided: bool,
        seed: u64,
    ) -> Self {
        let n_canvas = resolved.n_canvas();
        let end = match schedule {
            Schedule::Blocks { block_length, .. } => {
                resolved.n_prompt.saturating_add(block_length).min(n_canvas)
            }
            Schedule::Timesteps { .. } => n_canvas,
        };
        Self {
            schedule,
            algorithm,
            alg_temp,
            guided,
            shift: resolved.shift_logits,
            seed,
            n_prompt: resolved.n_prompt,
            n_canvas,
            block: resolved.n_prompt..end,
            step_in_block: 0,
            ranked: Vec::new(),
        }
    }

    pub(super) fn plan(&mut self, canvas: &Canvas, plan: &mut RowPlan) {
        if canvas.masked(self.block.clone()).next().is_none() {
            self.next_block();
        }
        plan.kind = if plan.step == 0 {
            ForwardKind::Prefill
        } else {
            ForwardKind::Step
        };
        let n = self.n_canvas;
        let n_copies = if self.guided { 2 } else { 1 };
        plan.streams.clear();
        for copy in 0..n_copies {
            let mut stream = Stream::default();
            stream.scratch.push(u32::from(copy) * n..(u32::from(copy) + 1) * n);
            plan.streams.push(stream);
            plan.rows.extend((0..n).map(|pos| Row {
                token: if copy == 1 && pos < self.n_prompt {
                    canvas.mask()
                } else {
                    canvas.token(pos)
                },
                pos,
                stream: copy,
                kv: Some(Slot::Scratch(u32::from(copy) * n + pos)),
            }));
        }
        let shift = u32::from(self.shift);
        plan.predict
            .extend(canvas.masked(self.block.clone()).map(|pos| {
                let row = pos.saturating_sub(shift);
                Predict {
                    pos,
                    row,
                    uncond_row: self.guided.then_some(n + row),
                }
            }));
    }

    pub(super) fn absorb(
        &mut self,
        canvas: &mut Canvas,
        plan: &RowPlan,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
    ) {
        // The predictions are those of all masked positions of the block.
        let n_masked = predictions.len();
        match self.quota(n_masked) {
            Quota::Count(n_commit) => {
                self.rank(plan.step, predictions);
                for &(_, index) in self.ranked.iter().take(n_commit as usize) {
                    canvas.commit(predictions[index].pos, predictions[index].token, events);
                }
            }
            Quota::Probability(p) => {
                for prediction in predictions {
                    if self.draw(plan.step, prediction.pos).unit(0) < p {
                        canvas.commit(prediction.pos, prediction.token, events);
                    }
                }
            }
        }
        self.step_in_block += 1;
    }

    fn next_block(&mut self) {
        if let Schedule::Blocks { block_length, .. } = self.schedule {
            let start = self.block.end;
            self.block = start..start.saturating_add(block_length).min(self.n_canvas);
            self.step_in_block = 0;
        }
    }

    /// Returns how many of `n_masked` candidates commit in this step.
    fn quota(&self, n_masked: usize) -> Quota {
        match self.schedule {
            Schedule::Blocks { steps, .. } => {
                let n_block = self.block.end - self.block.start;
                let n_steps = block_steps(steps, n_block, self.n_canvas - self.n_prompt);
                let now = share(n_block, n_steps, self.step_in_block);
                if self.algorithm != Algorithm::Origin {
                    return Quota::Count(now);
                }
                let before: u32 = (0..self.step_in_block)
                    .map(|step| share(n_block, n_steps, step))
                    .sum();
                Quota::Probability(f64::from(now) / f64::from((n_block - before).max(1)))
            }
            Schedule::Timesteps { steps, eps } => {
                let p = timestep_share(steps, eps, self.step_in_block);
                match self.algorithm {
                    Algorithm::Origin => Quota::Probability(p),
                    _ => Quota::Count(floor_share(n_masked, p)),
                }
            }
        }
    }

    /// Sorts the candidates, best first, ties by lower position.
    fn rank(&mut self, step: u32, predictions: &[Prediction]) {
        self.ranked.clear();
        for (index, prediction) in predictions.iter().enumerate() {
            let draw = self.draw(step, prediction.pos);
            let key = match self.algorithm {
                Algorithm::Random => draw.unit(0),
                // Gumbel-top-k: the k largest keys are a draw of k without replacement from softmax(score / alg_temp).
                _ if self.alg_temp > 0.0 => {
                    f64::from(prediction.score) / f64::from(self.alg_temp) + draw.gumbel(0)
                }
                _ => f64::from(prediction.score),
            };
            self.ranked.push((key, index));
        }
        // Stable, and the candidates ascend by position. Keys are not NaN: `absorb` checked the scores.
        self.ranked
            .sort_by(|a, b| (b.0 + 0.0).total_cmp(&(a.0 + 0.0)));
    }

    fn draw(&self, step: u32, pos: u32) -> Key {
        Key::new(self.seed, pos, step, Purpose::Order)
    }
}

/// Returns the steps of a block of `n_block` positions: `max(1, round(steps n_block / n_gen))`, halves up.
fn block_steps(steps: u32, n_block: u32, n_gen: u32) -> u32 {
    let (steps, n_block, n_gen) = (u64::from(steps), u64::from(n_block), u64::from(n_gen));
    let rounded = (2 * steps * n_block + n_gen) / (2 * n_gen);
    u32::try_from(rounded).unwrap_or(u32::MAX).max(1)
}

/// Returns the masks that step `step` of `n_steps` commits of a block that started with `n_masked`.
fn share(n_masked: u32, n_steps: u32, step: u32) -> u32 {
    n_masked / n_steps + u32::from(step < n_masked % n_steps)
}

/// Returns `1 - s / t` of a step of the timestep schedule, 1 in the last step and after.
fn timestep_share(steps: u32, eps: f32, step: u32) -> f64 {
    if step + 1 >= steps {
        return 1.0;
    }
    let time = |i: u32| 1.0 + (f64::from(eps) - 1.0) * f64::from(i) / f64::from(steps);
    1.0 - time(step + 1) / time(step)
}

/// Returns `floor(n_masked p)`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "0 <= p <= 1 and a canvas length fits u32"
)]
fn floor_share(n_masked: usize, p: f64) -> u32 {
    (n_masked as f64 * p) as u32
}
