//! The decoder: a state machine between the engine's forwards.
//!
//! ```text
//!                 next_plan: a plan               absorb: something is left
//!     new ──► Ready ─────────────► Awaiting ────────────────────────► Ready
//!                                      │
//!                                      └──────────► Done   absorb: no mask left before the leftmost EOS, nothing to revise
//!
//!     Ready     next_plan → Awaiting      absorb → error
//!     Awaiting  next_plan → error         absorb → Ready or Done; wrong predictions → error, stays Awaiting
//!     Done      next_plan → None          absorb → error
//! ```
//!
//! A mode is a [`Strategy`]: it fills plans and decides which predictions commit. The machine around it is the same for
//! all: checks, events, counters and the end.

use super::cached::Cached;
use super::canvas::Canvas;
use super::error::DecodeError;
use super::event::{Event, Stage};
use super::full::Full;
use super::params::{ModeParams, Resolved};
use super::plan::{Prediction, RowPlan, Token};
use super::reference::Reference;
use super::report::Report;

/// Where the machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A plan can be made.
    Ready,
    /// A plan is out; its predictions are awaited.
    Awaiting,
    /// Nothing is left to decode.
    Done,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Awaiting => "awaiting predictions",
            Self::Done => "done",
        }
    }
}

/// What a mode decides.
#[derive(Debug)]
enum Strategy {
    Reference(Reference),
    Cached(Cached),
    Full(Box<Full>),
}

/// Decodes one canvas: gives row plans, takes predictions, tells events.
///
/// # Examples
/// ```
/// use ggml_llada_npu::decode::{Decoder, Family, ModelTraits, Params, Prediction};
///
/// let model = ModelTraits {
///     mask: Some(9), eos: None, eot: None, n_vocab: 10, n_ctx: 64, shift_logits: false, default_block_length: 32,
///     family: Family::Llada,
/// };
/// let resolved = Params::default().resolve(&model, 2, 3)?;
/// let mut decoder = Decoder::new(resolved, &[1, 2], 42)?;
/// while let Some(plan) = decoder.next_plan()? {
///     // An engine would run the rows of the plan and sample here.
///     let predictions: Vec<_> = plan
///         .predict
///         .iter()
///         .map(|wanted| Prediction { pos: wanted.pos, token: 7, confidence: 1.0, score: 1.0, probe: 1.0 })
///         .collect();
///     let _events = decoder.absorb(&predictions)?;
/// }
/// assert_eq!(decoder.output(), [7, 7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    resolved: Resolved,
    canvas: Canvas,
    strategy: Strategy,
    state: State,
    step: u32,
    plan: RowPlan,
    events: Vec<Event>,
    report: Report,
}

impl Decoder {
    /// Returns a decoder in its first state. `seed` keys the choice of positions where an algorithm draws them.
    ///
    /// # Errors
    /// [`DecodeError::PromptLength`] or [`DecodeError::PromptToken`].
    pub fn new(resolved: Resolved, prompt: &[Token], seed: u64) -> Result<Self, DecodeError> {
        if usize::try_from(resolved.n_prompt) != Ok(prompt.len()) {
            return Err(DecodeError::PromptLength {
                expected: resolved.n_prompt,
                found: prompt.len(),
            });
        }
        let n_vocab = resolved.n_vocab;
        if let Some((pos, &token)) = prompt
            .iter()
            .enumerate()
            .find(|&(_, &token)| !is_in(token, n_vocab))
        {
            return Err(DecodeError::PromptToken {
                pos,
                token,
                n_vocab,
            });
        }
        let strategy = match resolved.mode {
            ModeParams::Reference {
                schedule,
                algorithm,
                alg_temp,
                cfg_scale,
            } => Strategy::Reference(Reference::new(
                &resolved,
                schedule,
                algorithm,
                alg_temp,
                cfg_scale > 0.0,
                seed,
            )),
            ModeParams::Cached(params) => Strategy::Cached(Cached::new(&resolved, params)),
            ModeParams::Full(params) => Strategy::Full(Box::new(Full::new(&resolved, params))),
        };
        Ok(Self {
            canvas: Canvas::new(&resolved, prompt),
            strategy,
            state: State::Ready,
            step: 0,
            plan: RowPlan::empty(),
            events: Vec::new(),
            report: Report {
                n_prompt: resolved.n_prompt,
                ..Report::default()
            },
            resolved,
        })
    }

    /// Returns a decoder that revises a text: the generated positions start with the tokens of `text` as if they had been
    /// committed and may still change, the others masked.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`DecodeError::NoRevision`] when the parameters have none,
    /// [`DecodeError::TextLength`] for more tokens than are to be generated, [`DecodeError::PredictionToken`] for one that
    /// cannot stand in a text.
    pub fn revise(
        resolved: Resolved,
        prompt: &[Token],
        text: &[Token],
        seed: u64,
    ) -> Result<Self, DecodeError> {
        let mut decoder = Self::new(resolved, prompt, seed)?;
        if text.len() > resolved.n_gen as usize {
            return Err(DecodeError::TextLength {
                most: resolved.n_gen,
                found: text.len(),
            });
        }
        let Strategy::Full(full) = &mut decoder.strategy else {
            return Err(DecodeError::NoRevision);
        };
        for (pos, &token) in (resolved.n_prompt..).zip(text) {
            if token == resolved.mask || !is_in(token, resolved.n_vocab) {
                return Err(DecodeError::PredictionToken { pos, token });
            }
        }
        full.start_with(&mut decoder.canvas, text, &mut decoder.events)?;
        // Forwards come after the step that committed the text.
        decoder.step = 1;
        decoder.canvas.settle(&mut decoder.events);
        if full.finish(&mut decoder.canvas, &mut decoder.events)? {
            decoder.state = State::Done;
        }
        Ok(decoder)
    }

    /// Returns the plan of the next forward, or `None` when nothing is left to decode.
    ///
    /// # Errors
    /// [`DecodeError::State`] while the predictions of a plan are awaited.
    pub fn next_plan(&mut self) -> Result<Option<&RowPlan>, DecodeError> {
        match self.state {
            State::Ready => {
                self.plan.step = self.step;
                self.plan.rows.clear();
                self.plan.predict.clear();
                self.plan.split = None;
                match &mut self.strategy {
                    Strategy::Reference(reference) => reference.plan(&self.canvas, &mut self.plan),
                    Strategy::Cached(cached) => cached.plan(&self.canvas, &mut self.plan),
                    Strategy::Full(full) => full.plan(&self.canvas, &mut self.plan),
                }
                self.state = State::Awaiting;
                Ok(Some(&self.plan))
            }
            State::Awaiting => Err(self.illegal("next_plan")),
            State::Done => Ok(None),
        }
    }

    /// Takes the predictions of the plan that is out, in its order, and returns what changed. [`Event::Step`] comes last.
    ///
    /// # Errors
    /// [`DecodeError::State`] when no plan is out; the other variants when the predictions are not those of the plan. Nothing
    /// changes then.
    pub fn absorb(&mut self, predictions: &[Prediction]) -> Result<&[Event], DecodeError> {
        if self.state != State::Awaiting {
            return Err(self.illegal("absorb"));
        }
        self.check(predictions)?;
        self.events.clear();
        let Self {
            canvas,
            plan,
            events,
            report,
            ..
        } = self;
        match &mut self.strategy {
            Strategy::Reference(reference) => {
                reference.absorb(canvas, plan, predictions, events)?
            }
            Strategy::Cached(cached) => cached.absorb(canvas, plan, predictions, events)?,
            Strategy::Full(full) => full.absorb(canvas, plan, predictions, events, report)?,
        }
        canvas.settle(events);
        let done = match &mut self.strategy {
            Strategy::Reference(_) | Strategy::Cached(_) => canvas.n_masked() == 0,
            Strategy::Full(full) => full.finish(canvas, events)?,
        };
        self.events.push(Event::Step {
            step: self.plan.step,
            kind: self.plan.kind,
            n_masked: self.canvas.n_masked(),
        });
        self.report.count(&self.plan);
        self.report.n_committed = self.canvas.n_committed();
        self.report.n_generated = u32::try_from(self.canvas.output().len()).unwrap_or(u32::MAX);
        self.step = self.plan.step + 1;
        self.state = if done { State::Done } else { State::Ready };
        Ok(&self.events)
    }

    /// Returns the tokens of all positions, the mask token where masked: `[n_prompt + n_gen]`.
    pub fn canvas(&self) -> &[Token] {
        self.canvas.tokens()
    }

    /// Returns the stages of all positions: `[n_prompt + n_gen]`.
    pub fn stages(&self) -> &[Stage] {
        self.canvas.stages()
    }

    /// Returns the generated tokens that are final: up to the first EOS or EoT, or the first mask before it, excluding it.
    pub fn output(&self) -> &[Token] {
        self.canvas.output()
    }

    /// Returns true when nothing is left to decode.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns the counters so far.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the parameters.
    pub const fn resolved(&self) -> &Resolved {
        &self.resolved
    }

    fn illegal(&self, call: &'static str) -> DecodeError {
        DecodeError::State {
            call,
            state: self.state.name(),
        }
    }

    fn check(&self, predictions: &[Prediction]) -> Result<(), DecodeError> {
        if predictions.len() != self.plan.predict.len() {
            return Err(DecodeError::PredictionCount {
                expected: self.plan.predict.len(),
                found: predictions.len(),
            });
        }
        for (index, (wanted, prediction)) in self.plan.predict.iter().zip(predictions).enumerate() {
            let Prediction {
                pos,
                token,
                confidence,
                score,
                probe,
            } = *prediction;
            if pos != wanted.pos {
                return Err(DecodeError::PredictionPosition {
                    index,
                    expected: wanted.pos,
                    found: pos,
                });
            }
            if token == self.resolved.mask || !is_in(token, self.resolved.n_vocab) {
                return Err(DecodeError::PredictionToken { pos, token });
            }
            if confidence.is_nan() || score.is_nan() || probe.is_nan() {
                return Err(DecodeError::NotANumber {
                    pos,
                    confidence,
                    score,
                });
            }
        }
        Ok(())
    }
}

fn is_in(token: Token, n_vocab: u32) -> bool {
    u32::try_from(token).is_ok_and(|id| id < n_vocab)
}
