//! Dense segments: parts of a graph around weights, which an accelerator may compute at once.
//!
//! A segment reads its input when its first node's turn comes, and writes each output when the turn of that output's node
//! comes: where results lie in memory, and who else uses that memory before, does not matter. Nodes between that only
//! the segment itself reads are left out.

use std::sync::Arc;

use super::{DeviceError, Layout, Spec};
use crate::memory::PlainGuard;

/// A weight of a segment: `n` contiguous rows of `k` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseWeight {
    /// The node whose first operand it is.
    pub node: usize,
    /// Where it lies.
    pub address: usize,
    /// Its bytes.
    pub size_bytes: usize,
    /// ggml's number of its type.
    pub ggml_type: u32,
    /// Elements of a row.
    pub k: usize,
    /// Rows.
    pub n: usize,
}

/// What a segment computes from its input `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseKind {
    /// The product with each weight; as many outputs as weights.
    Products,
    /// `down (silu(gate x) * (up x))`, weights in this order; one output.
    FeedForward,
}

/// A low-rank addition to the product of a weight: `weight x + scale * (b (a x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addition {
    /// The weight, among those of the segment.
    pub weight: usize,
    /// `rank` rows, as long as those of the weight.
    pub a: DenseWeight,
    /// As many rows as the weight has, of `rank` elements.
    pub b: DenseWeight,
    /// Factor.
    pub scale: f32,
}

/// A dense segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// What it computes.
    pub kind: DenseKind,
    /// Its input: f32 rows that are contiguous by themselves.
    pub x: Layout,
    /// The weights.
    pub weights: Vec<DenseWeight>,
    /// What is added to products of weights before anything else is done with them. Factors and scales are other ones whenever
    /// the host likes, the graph being the same.
    pub additions: Vec<Addition>,
}

impl Dense {
    /// Returns the rows of the input.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.x.n_rows()
    }

    /// Returns what is added to the product of a weight.
    pub fn additions_to(&self, weight: usize) -> impl Iterator<Item = &Addition> {
        self.additions
            .iter()
            .filter(move |addition| addition.weight == weight)
    }
}

/// Hands out the plain bytes of the weight that is the first operand of a node, valid during the call.
pub type ReadWeight<'a> = dyn FnMut(usize, &mut dyn FnMut(&[u8])) + 'a;

/// A context of an accelerator, with weights of segments: it has to be there while one of them starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextNeed {
    /// Which one.
    pub context: u64,
    /// Its bytes.
    pub size_bytes: u64,
}

/// Contexts that come and go as a memory runtime says. Both calls may be made while segments that do not need the context start.
pub trait Contexts: std::fmt::Debug + Send + Sync {
    /// Makes a context for one more user, if it is not there yet. Where that fails, the segments that need it do not start any more: the
    /// accelerator counts that with its reason.
    fn map(&self, context: u64);

    /// Undoes one call of [`Self::map`]: frees the context if nobody else uses it.
    fn unmap(&self, context: u64);
}

/// An accelerator that computes whole segments.
pub trait SegmentAccelerator {
    /// Tells whether a product of a weight is one that segments may have.
    fn wants(&self, product: &Spec) -> bool;

    /// Tells whether a product of a matrix is one that low-rank additions may have.
    fn wants_factor(&self, product: &Spec) -> bool;

    /// Tells whether segments may be feed-forward parts.
    fn fuses(&self) -> bool;

    /// Gets ready for the segments of a graph that is about to be computed, with the factors of their additions as they are
    /// now. What was prepared for earlier graphs is kept as long as its weights do not change.
    ///
    /// It may take minutes: `is_aborted` is asked again and again whether to end early. Segments that are not ready then
    /// do not start.
    fn prepare(
        &mut self,
        segments: &[Dense],
        weights: &PlainGuard<'_>,
        read: &mut ReadWeight<'_>,
        is_aborted: &dyn Fn() -> bool,
    );

    /// Tells whether [`prepare`](Self::prepare) has nothing to make for these segments.
    fn is_prepared(&self, segments: &[Dense], weights: &PlainGuard<'_>) -> bool;

    /// Gets ready for operations that it computes one by one ([`offload`](super::Accelerator::offload)), where a memory runtime decides
    /// which contexts are there: what each of them needs, `None` where the host has to compute it.
    fn prepare_alone(&mut self, operations: &[Spec]) -> Vec<Option<Vec<ContextNeed>>>;

    /// Tells whether [`prepare_alone`](Self::prepare_alone) has nothing to make for these operations.
    fn is_prepared_alone(&self, operations: &[Spec]) -> bool;

    /// Takes notice of an operation that is left to the host, which it would have computed alone.
    fn leave_alone(&self, reason: &dyn std::fmt::Display);

    /// Returns the contexts that segment `i` of those that were prepared needs; `None` where the host has to compute it.
    fn needs(&self, i: usize) -> Option<Vec<ContextNeed>>;

    /// Leaves segment `i` of those that were prepared to the host from now on.
    fn leave(&mut self, i: usize, reason: &dyn std::fmt::Display);

    /// Returns who makes and frees contexts, where a memory runtime decides which are there.
    fn contexts(&self) -> Arc<dyn Contexts>;

    /// Computes segment `i` of those that were prepared, of the input's bytes. Tells whether it did; if not, the nodes are
    /// computed one by one. If it did, [`finish`](Self::finish) has the outputs, whatever happens to the accelerator.
    fn start(&mut self, i: usize, x: &[u8]) -> bool;

    /// Writes an output of segment `i`, whose start succeeded: contiguous f32 rows.
    ///
    /// # Errors
    /// [`OperandError`](super::OperandError) when `dst` is not as long as the output.
    fn finish(&mut self, i: usize, output: usize, dst: &mut [u8]) -> Result<(), DeviceError>;
}
