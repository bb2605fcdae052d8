//! Several canvases in one forward.
//!
//! Each prompt has a decoder of its own, which knows nothing of the others, and a *seat*: a range of store slots and one of
//! scratch slots. In every round the plans of all decoders are put together, their slots moved into the seats, their
//! streams side by side: no row of one prompt sees a slot of another. Rows of a revision path ride along. A seat whose prompt
//! is done takes the next one.
//!
//! ```text
//!     seat 0   plan of prompt 3 ─┐                          ┌─► predictions ─► decoder of prompt 3
//!     seat 1   plan of prompt 1 ─┼─► one plan ─► one forward┼─► predictions ─► decoder of prompt 1
//!     seat 2   plan of prompt 4 ─┘                          └─► predictions ─► decoder of prompt 4
//! ```

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::error::EngineError;
use super::report::RunReport;
use super::sample::SampleParams;
use super::session::{CanvasView, Control, SamplerPool, Session};
use super::slot::Capacity;
use crate::decode::plan::{Predict, Row, RowPlan, Slot, Stream, Token};
use crate::decode::{Decoder, Event, ModeParams, Params, Resolved};

/// Most prompts of one forward: streams are numbered in 16 bits.
pub const MAX_N_SEATS: usize = 256;

/// One prompt of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPrompt<'a> {
    /// Its tokens.
    pub tokens: &'a [Token],
    /// Tokens to generate.
    pub n_gen: u32,
}

/// What came of one prompt of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchOutcome {
    /// Tokens kept.
    pub output: Vec<Token>,
    /// What it cost: of forwards shared with others its share by rows, so that the sum over the prompts is the time of all.
    pub report: RunReport,
}

impl Session {
    /// Generates after each of `prompts`, up to `n_seats` of them in one forward, and returns what came of each, in their
    /// order. `on_event` gets the index of the prompt with every event. Each prompt gets the text that
    /// [`generate`](Self::generate) gives, as far as that does not hang on the last bit of a logit: like any change of the
    /// number of rows, company may change the order of sums.
    ///
    /// # Errors
    /// As [`generate`](Self::generate); lengths of all prompts are checked first. [`EngineError::SessionParam`] for a number
    /// of seats outside 1 to [`MAX_N_SEATS`].
    pub fn generate_batch(
        &mut self,
        prompts: &[BatchPrompt<'_>],
        n_seats: usize,
        params: &Params,
        on_event: &mut dyn FnMut(usize, &Event, &CanvasView<'_>) -> Control,
    ) -> Result<Vec<BatchOutcome>, EngineError> {
        if !(1..=MAX_N_SEATS).contains(&n_seats) {
            return Err(EngineError::SessionParam {
                name: "n_seats",
                value: n_seats.to_string(),
                expected: "1 to 256",
            });
        }
        let mut resolved = prompts
            .iter()
            .map(|prompt| {
                let n_prompt = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
                self.check(n_prompt, prompt.n_gen, params)
            })
            .collect::<Result<Vec<_>, EngineError>>()?;
        for resolved in &mut resolved {
            if let ModeParams::Full(params) = &mut resolved.mode {
                self.set_up(params, resolved.mask)?;
            }
        }
        let stride = Capacity {
            n_scratch: most(&resolved, Resolved::n_scratch_slots),
            n_store: most(&resolved, Resolved::n_store_slots),
            n_unseen: 0,
        };
        let seats = (0..n_seats.min(prompts.len())).map(|_| None).collect();
        let mut batch = Batch {
            prompts,
            resolved: &resolved,
            stride,
            seed: self.params().sampling.seed,
            seats,
            next: 0,
            outcomes: vec![BatchOutcome::default(); prompts.len()],
        };
        let result = batch.drive(self, on_event);
        self.cancel_flag().store(false, Ordering::Relaxed);
        if result
            .as_ref()
            .is_err_and(|error| !matches!(error, EngineError::Cancelled))
        {
            self.clear();
        }
        result?;
        Ok(batch.outcomes)
    }
}

fn most(resolved: &[Resolved], slots: impl Fn(&Resolved) -> u32) -> u32 {
    resolved.iter().map(slots).max().unwrap_or(0)
}

/// A batch under way.
struct Batch<'a> {
    prompts: &'a [BatchPrompt<'a>],
    resolved: &'a [Resolved],
    /// Slots of a seat.
    stride: Capacity,
    seed: u64,
    seats: Vec<Option<Seat>>,
    /// The next prompt that gets a seat.
    next: usize,
    outcomes: Vec<BatchOutcome>,
}

/// A prompt under way.
struct Seat {
    prompt: usize,
    decoder: Decoder,
    report: RunReport,
}

/// The part of a forward that belongs to one seat.
struct Part {
    seat: usize,
    n_rows: usize,
    /// Its predictions, rows counted in the whole forward, and its step.
    wanted: RowPlan,
}

impl Batch<'_> {
    fn drive(
        &mut self,
        session: &mut Session,
        on_event: &mut dyn FnMut(usize, &Event, &CanvasView<'_>) -> Control,
    ) -> Result<(), EngineError> {
        let Some(first) = self.resolved.first() else {
            return Ok(());
        };
        let sample_params = SampleParams::new(first, session.params().sampling)?;
        let mut samplers = SamplerPool::new(sample_params, session.n_threads());
        let cancel = session.cancel_flag();
        loop {
            self.fill_seats()?;
            let (plan, parts) = self.plan()?;
            if parts.is_empty() {
                return Ok(());
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(EngineError::Cancelled);
            }
            let start = Instant::now();
            let logits = session.forward(&plan)?;
            let elapsed = start.elapsed();
            for part in &parts {
                let Some(seat) = &mut self.seats[part.seat] else {
                    unreachable!("a plan comes from a seat that is in use");
                };
                seat.report.dense += share(elapsed, part.n_rows, plan.rows.len());
                let start = Instant::now();
                let predictions = samplers.predict(&part.wanted, &logits)?;
                seat.report.sampling += start.elapsed();
                let events = seat.decoder.absorb(&predictions)?.to_vec();
                let canvas = CanvasView {
                    tokens: seat.decoder.canvas(),
                    stages: seat.decoder.stages(),
                    n_prompt: seat.decoder.resolved().n_prompt,
                };
                for event in &events {
                    if on_event(seat.prompt, event, &canvas) == Control::Cancel {
                        return Err(EngineError::Cancelled);
                    }
                }
            }
        }
    }

    /// Takes what is done out of its seat, and puts the next prompts in.
    fn fill_seats(&mut self) -> Result<(), EngineError> {
        for slot in &mut self.seats {
            if let Some(seat) = slot.take_if(|seat| seat.decoder.is_done()) {
                self.outcomes[seat.prompt] = BatchOutcome {
                    output: seat.decoder.output().to_vec(),
                    report: RunReport {
                        counts: *seat.decoder.report(),
                        total: seat.report.dense + seat.report.sampling,
                        ..seat.report
                    },
                };
            }
            if slot.is_none() && self.next < self.prompts.len() {
                let prompt = self.next;
                self.next += 1;
                let tokens = self.prompts[prompt].tokens;
                *slot = Some(Seat {
                    prompt,
                    decoder: Decoder::new(self.resolved[prompt], tokens, self.seed)?,
                    report: RunReport::default(),
                });
            }
        }
        Ok(())
    }

    /// Puts the plans of all seats together.
    fn plan(&mut self) -> Result<(RowPlan, Vec<Part>), EngineError> {
        let mut whole: Option<RowPlan> = None;
        let mut parts = Vec::new();
        for (index, slot) in (0..).zip(&mut self.seats) {
            let Some(seat) = slot else { continue };
            let Some(plan) = seat.decoder.next_plan()? else {
                continue;
            };
            let whole = whole.get_or_insert_with(|| empty_like(plan));
            let mut wanted = empty_like(plan);
            wanted.predict = append(whole, plan, Offset::of(self.stride, index));
            parts.push(Part {
                seat: index as usize,
                n_rows: plan.rows.len(),
                wanted,
            });
        }
        Ok((whole.unwrap_or_else(RowPlan::empty), parts))
    }
}

/// A plan of the same step without rows.
fn empty_like(plan: &RowPlan) -> RowPlan {
    RowPlan {
        kind: plan.kind,
        step: plan.step,
        ..RowPlan::empty()
    }
}

/// First slots of a seat.
#[derive(Clone, Copy, Debug)]
struct Offset {
    store: u32,
    scratch: u32,
}

impl Offset {
    const fn of(stride: Capacity, seat: u32) -> Self {
        Self {
            store: stride.n_store * seat,
            scratch: stride.n_scratch * seat,
        }
    }
}

/// Adds the rows of a plan to a whole; returns its predictions with the rows that they have there.
fn append(whole: &mut RowPlan, plan: &RowPlan, offset: Offset) -> Vec<Predict> {
    let n_rows = u32::try_from(whole.rows.len()).expect("bounded by the check of the plan");
    let n_streams = u16::try_from(whole.streams.len()).expect("few streams a seat");
    let slot = |slot| match slot {
        Slot::Store(n) => Slot::Store(n + offset.store),
        Slot::Scratch(n) => Slot::Scratch(n + offset.scratch),
    };
    whole.rows.extend(plan.rows.iter().map(|row| Row {
        stream: row.stream + n_streams,
        kv: row.kv.map(slot),
        ..*row
    }));
    let moved = |ranges: &[std::ops::Range<u32>], by: u32| {
        ranges
            .iter()
            .map(|range| range.start + by..range.end + by)
            .collect()
    };
    whole
        .streams
        .extend(plan.streams.iter().map(|stream| Stream {
            store: moved(&stream.store, offset.store),
            scratch: moved(&stream.scratch, offset.scratch),
        }));
    let predict: Vec<Predict> = plan
        .predict
        .iter()
        .map(|wanted| Predict {
            row: wanted.row + n_rows,
            uncond_row: wanted.uncond_row.map(|row| row + n_rows),
            ..*wanted
        })
        .collect();
    whole.predict.extend_from_slice(&predict);
    predict
}

#[expect(clippy::cast_precision_loss, reason = "row counts are small")]
fn share(total: Duration, n: usize, of: usize) -> Duration {
    total.mul_f64(n as f64 / of.max(1) as f64)
}
