//! Row plans: what one forward computes, said without tensors.
//!
//! A plan lists rows. Each row has an input token, a position, a place for its K/V, and a *stream*: the set of K/V
//! slots that it attends to. Modes only produce plans; the engine only executes them. K/V slots come in two kinds:
//!
//! * **store** slots keep the K/V of tokens that stand in the text, slot number = position by convention of the
//!   decoder, and outlive the forward;
//! * **scratch** slots hold the K/V of rows whose token is not decided (masks, drafts, shadows). They are valid from
//!   the forward that writes them until a later plan writes the slot again.
//!
//! A row sees exactly the slots its stream names, *after* all rows of the forward have written theirs; so a row sees
//! itself when its own slot is named.
//!
//! What every plan of a [`Decoder`](super::Decoder) keeps:
//!
//! * no two rows write the same slot;
//! * the ranges of a stream are sorted, not empty, neither overlapping nor touching, and name only slots that a row of
//!   this plan or of an earlier plan has written;
//! * `predict` names masked positions, sorted by position, then positions under revision, sorted likewise. Two entries may
//!   name the same row (with shifted logits row 0 predicts positions 0 and 1).
//!
//! A plan may have two *paths*, see [`Split`]: rows of the step, and rows of the revision. Neither sees a slot that the other
//! writes, so they may run one after the other in any order, at the same time, or as one forward.

use std::ops::Range;

/// A token id of the model's vocabulary.
pub type Token = i32;

/// Place of a row's K/V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// Long-term store, by slot number.
    Store(u32),
    /// Scratch of the step, by slot number.
    Scratch(u32),
}

/// One row of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token whose embedding enters the model.
    pub token: Token,
    /// Position for rotary embedding.
    pub pos: u32,
    /// Index into [`RowPlan::streams`]: what the row attends to.
    pub stream: u16,
    /// Where the row's K/V goes; `None` when nobody may see it.
    pub kv: Option<Slot>,
}

/// What the rows of one stream attend to, as half-open slot ranges. Ranges do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Visible slots of the long-term store, ascending.
    pub store: Vec<Range<u32>>,
    /// Visible scratch slots, ascending.
    pub scratch: Vec<Range<u32>>,
}

/// One prediction wanted from a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predict {
    /// Position that is predicted (differs from the row's own position in models with shifted logits).
    pub pos: u32,
    /// Index of the row whose logits predict `pos`.
    pub row: u32,
    /// Row of the unconditional pass, for classifier-free guidance: `un + (scale + 1) (cond - un)`.
    pub uncond_row: Option<u32>,
    /// Token whose probability is wanted besides.
    pub probe: Option<Token>,
}

/// Where the revision path of a plan begins. Its streams are not those of the step's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Index of its first row; all others are right of it.
    pub row: u32,
    /// Index of its first entry of [`RowPlan::predict`].
    pub predict: u32,
}

/// Why a forward is made; reports count forwards by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardKind {
    /// First forward over the prompt (and the visible tail).
    Prefill,
    /// Recomputation of everything committed, plus the current window.
    Refresh,
    /// Ordinary denoising step.
    Step,
    /// Fresh prediction of a new current block's drafts.
    Promotion,
    /// Revision-only round at the end.
    Sweep,
}

/// Everything one forward computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPlan {
    /// Reason of the forward.
    pub kind: ForwardKind,
    /// Step number, from 0 and ascending; with the seed and the position it keys all randomness. A schedule leaves out the
    /// numbers of steps that it need not run.
    pub step: u32,
    /// Rows, in any order; positions need not ascend.
    pub rows: Vec<Row>,
    /// Attend rules, indexed by [`Row::stream`].
    pub streams: Vec<Stream>,
    /// Predictions wanted, in the order in which they are returned. Rows that no entry names get no output
    /// projection.
    pub predict: Vec<Predict>,
    /// Where the revision path begins, if there is one.
    pub split: Option<Split>,
}

impl RowPlan {
    /// Returns an empty plan of step 0.
    pub(crate) const fn empty() -> Self {
        Self {
            kind: ForwardKind::Prefill,
            step: 0,
            rows: Vec::new(),
            streams: Vec::new(),
            predict: Vec::new(),
            split: None,
        }
    }

    /// Returns the number of rows that are not of the revision path; none of a sweep's is.
    pub fn n_dense_rows(&self) -> usize {
        match (self.kind, self.split) {
            (ForwardKind::Sweep, _) => 0,
            (_, Some(split)) => split.row as usize,
            (_, None) => self.rows.len(),
        }
    }
}

/// What the model says of one position: the answer to a [`Predict`], made by the engine's sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Position that is predicted.
    pub pos: u32,
    /// Chosen token; never the mask token.
    pub token: Token,
    /// Softmax probability of `token` in f32 over the whole vocabulary, before temperature, top-k and top-p. 0 where
    /// an EOS rule of the confidence demotes the token.
    pub confidence: f32,
    /// What the session's [`Measure`] says: the higher, the earlier the position commits. Not NaN.
    pub score: f32,
    /// Probability of [`Predict::probe`] as [`Prediction::confidence`] has it; 0 without one.
    pub probe: f32,
}

/// What [`Prediction::score`] holds.
///
/// "The sampled distribution" is, at temperature 0, the softmax of [`Prediction::confidence`]; above 0, the distribution
/// that the token was drawn from: tokens that may be chosen, after temperature, top-p and top-k, renormalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// A copy of [`Prediction::confidence`].
    Confidence,
    /// Probability of the chosen token in the sampled distribution.
    Probability,
    /// Difference of the two largest probabilities of the sampled distribution, among tokens that may be chosen.
    Margin,
    /// `sum p ln(p + 1e-10)` of the sampled distribution: the higher, the less uncertain.
    NegEntropy,
}
