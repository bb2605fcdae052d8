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
//! remaining steps would leave. For the same reason steps that commit nothing are counted and not run, and algorithms that
//! choose positions without looking at the model (`origin`, `random`) choose before the forward and predict nothing else.

use std::ops::Range;

use super::canvas::{Canvas, Change};
use super::error::DecodeError;
use super::event::Event;
use super::options::Algorithm;
use super::params::{Resolved, Schedule};
use super::plan::{ForwardKind, Predict, Prediction, Row, RowPlan, Slot, Stream};
use super::random::{Key, Purpose};

/// How many of a step's candidates commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quota {
    /// So many, the best first.
    Count(usize),
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
    started: bool,
    /// The part of the canvas that commits now, its steps, and the next one of them.
    block: Range<u32>,
    n_steps: u32,
    step_in_block: u32,
    /// How many of the plan's predictions commit.
    n_commit: usize,
    /// Candidates of a step: what they are ranked by, and which they are.
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
        let mut reference = Self {
            schedule,
            algorithm,
            alg_temp,
            guided,
            shift: resolved.shift_logits,
            seed,
            n_prompt: resolved.n_prompt,
            n_canvas: resolved.n_canvas(),
            started: false,
            block: resolved.n_prompt..resolved.n_prompt,
            n_steps: 0,
            step_in_block: 0,
            n_commit: 0,
            ranked: Vec::new(),
        };
        reference.next_block();
        reference
    }

    pub(super) fn plan(&mut self, canvas: &Canvas, plan: &mut RowPlan) {
        plan.kind = if self.started {
            ForwardKind::Step
        } else {
            ForwardKind::Prefill
        };
        self.started = true;
        if canvas.masked(self.block.clone()).next().is_none() {
            plan.step += self.n_steps - self.step_in_block;
            self.next_block();
        }
        // Ends: the last step of a block commits all that is left.
        while !self.choose(canvas, plan) {
            plan.step += 1;
            self.step_in_block += 1;
        }
        self.fill_rows(canvas, plan);
    }

    pub(super) fn absorb(
        &mut self,
        canvas: &mut Canvas,
        plan: &RowPlan,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
    ) -> Result<(), DecodeError> {
        self.ranked.clear();
        for (index, prediction) in predictions.iter().enumerate() {
            let mut key = f64::from(prediction.score);
            if self.alg_temp > 0.0 {
                // Gumbel-top-k: the k largest keys are a draw of k without replacement from softmax(score / alg_temp).
                key =
                    key / f64::from(self.alg_temp) + self.draw(plan.step, prediction.pos).gumbel(0);
            }
            self.ranked.push((key, index));
        }
        best_first(&mut self.ranked);
        for &(_, index) in self.ranked.iter().take(self.n_commit) {
            let Prediction { pos, token, .. } = predictions[index];
            canvas.change(pos, Change::CommitStable(token), events)?;
        }
        self.step_in_block += 1;
        Ok(())
    }

    fn next_block(&mut self) {
        let start = self.block.end;
        let n_gen = self.n_canvas - self.n_prompt;
        self.step_in_block = 0;
        match self.schedule {
            Schedule::Blocks {
                steps,
                block_length,
            } => {
                self.block = start..start.saturating_add(block_length).min(self.n_canvas);
                self.n_steps = block_steps(steps, self.block.end - start, n_gen);
            }
            Schedule::Timesteps { steps, .. } => {
                self.block = start..self.n_canvas;
                self.n_steps = steps;
            }
        }
    }

    /// Fills in the predictions of this step and how many of them commit; returns false when none does.
    fn choose(&mut self, canvas: &Canvas, plan: &mut RowPlan) -> bool {
        let n_masked = canvas.masked(self.block.clone()).count();
        let quota = self.quota(n_masked);
        let masked = canvas.masked(self.block.clone());
        match (quota, self.algorithm) {
            (Quota::Count(0), _) => return false,
            (Quota::Count(n), Algorithm::Random) => {
                self.ranked.clear();
                let order = masked
                    .map(|pos| (self.draw(plan.step, pos).unit(0), pos as usize))
                    .collect();
                self.ranked = order;
                best_first(&mut self.ranked);
                self.ranked.truncate(n);
                self.ranked.sort_unstable_by_key(|&(_, pos)| pos);
                let chosen = self
                    .ranked
                    .iter()
                    .filter_map(|&(_, pos)| u32::try_from(pos).ok());
                plan.predict.extend(chosen.map(|pos| self.predict(pos)));
                self.n_commit = n;
            }
            (Quota::Count(n), _) => {
                plan.predict.extend(masked.map(|pos| self.predict(pos)));
                self.n_commit = n;
            }
            (Quota::Probability(p), _) => {
                let chosen = masked.filter(|&pos| self.draw(plan.step, pos).unit(0) < p);
                plan.predict.extend(chosen.map(|pos| self.predict(pos)));
                self.n_commit = plan.predict.len();
            }
        }
        !plan.predict.is_empty()
    }

    /// Returns how many of `n_masked` candidates commit in this step.
    fn quota(&self, n_masked: usize) -> Quota {
        let step = self.step_in_block;
        match self.schedule {
            Schedule::Blocks { .. } => {
                let n_block = self.block.end - self.block.start;
                let now = share(n_block, self.n_steps, step);
                if self.algorithm != Algorithm::Origin {
                    return Quota::Count(now as usize);
                }
                let before: u32 = (0..step)
                    .map(|step| share(n_block, self.n_steps, step))
                    .sum();
                Quota::Probability(f64::from(now) / f64::from((n_block - before).max(1)))
            }
            Schedule::Timesteps { steps, eps } => {
                let p = timestep_share(steps, eps, step);
                match self.algorithm {
                    Algorithm::Origin => Quota::Probability(p),
                    _ => Quota::Count(floor_share(n_masked, p)),
                }
            }
        }
    }

    fn predict(&self, pos: u32) -> Predict {
        let row = pos.saturating_sub(u32::from(self.shift));
        Predict {
            pos,
            row,
            uncond_row: self.guided.then_some(self.n_canvas + row),
            probe: None,
        }
    }

    fn fill_rows(&self, canvas: &Canvas, plan: &mut RowPlan) {
        let n = self.n_canvas;
        plan.streams.clear();
        for copy in 0..if self.guided { 2 } else { 1 } {
            let start = u32::from(copy) * n;
            let mut stream = Stream::default();
            stream.scratch.push(start..start + n);
            plan.streams.push(stream);
            plan.rows.extend((0..n).map(|pos| Row {
                token: if copy == 1 && pos < self.n_prompt {
                    canvas.mask()
                } else {
                    canvas.token(pos)
                },
                pos,
                stream: copy,
                kv: Some(Slot::Scratch(start + pos)),
            }));
        }
    }

    fn draw(&self, step: u32, pos: u32) -> Key {
        Key::new(self.seed, pos, step, Purpose::Order)
    }
}

/// Sorts by key, largest first. The sort is stable, so ties keep the order by position. Keys are not NaN.
fn best_first(ranked: &mut [(f64, usize)]) {
    // The addition makes -0 a 0, which `total_cmp` would put below it.
    ranked.sort_by(|a, b| (b.0 + 0.0).total_cmp(&(a.0 + 0.0)));
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
    reason = "0 <= p <= 1 and canvas lengths are far below 2^53"
)]
fn floor_share(n_masked: usize, p: f64) -> usize {
    (n_masked as f64 * p) as usize
}
