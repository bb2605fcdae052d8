//! Dense operations on Qualcomm's HTP, through QNN libraries loaded at run time.
//!
//! [`Qnn`] computes dense segments, and attention where that is wanted, with the library and everything else with the host's kernels. What the library refuses,
//! computes wrongly, or does not finish in time, the host computes, segment by segment; the first case is told, all are
//! counted ([`Report`]).
//!
//! | module | what |
//! |---|---|
//! | `settings` | what users say |
//! | [`rows`](RowCounts) | row counts of graphs |
//! | [`weight`](Weight) | ggml's blocks as QNN's integers, scales and offsets |
//! | `part` | a segment as graphs: slices, descriptions, how elements are kept |
//! | `low_rank` | additions to products, whose factors are inputs of graphs |
//! | [`attention`](AttentionForm) | attention, whose K and V are inputs of graphs |
//! | `check` | results compared with a reference before first use |
//! | `engine` | library, device, contexts: all that lives on the library's thread |
//! | `worker` | that thread, with a time limit |
//! | `cache` | context binaries on disk |
//! | `probe` | what a library can do, found by trying |
//! | `measure` | what products and layers of large models come to |
//! | `session` | what is ready, and how it becomes so |
//! | `open` | the session of this process |
//!
//! Inputs and outputs of graphs are half floats. Norms and all that has no weights stay with the host; attention as well, unless it
//! is wanted here (`LLADA_NPU_QNN_ATTENTION`).

#![deny(unsafe_code)]

mod attention;
mod cache;
mod check;
mod engine;
mod low_rank;
mod measure;
mod open;
mod part;
mod probe;
mod report;
mod rows;
mod session;
mod settings;
mod weight;
mod worker;

use std::sync::Arc;

use llada_npu_ffi::ggml::Type;

use super::host::Host;
use super::{
    Accelerator, ContextNeed, Contexts, Dense, DeviceError, FlashAttn, FlashAttnShape, Op,
    OperandError, ReadWeight, SegmentAccelerator, Spec, Task,
};
use crate::knobs::{Attention, Tier};
use crate::memory::PlainGuard;
pub use attention::{AttentionForm, HIDDEN};
pub use check::Sums;
pub use engine::{Identity, OpenOptions};
use low_rank::{FactorCache, Factors};
pub use measure::{LayerShape, Measured, measure, measure_layer};
pub use open::session;
pub use part::{Form, describe};
pub use probe::{Finding, FindingKind, probe};
pub use report::Report;
pub use rows::{Piece, RowCounts};
pub use session::Session;
use session::{Left, Within};
pub use settings::Settings;
pub use weight::{LowerError, QnnType, Weight, WeightData};

/// Fewest elements of a row, and fewest rows, of a weight that has a graph.
const MIN_K: usize = 32;
const MIN_N: usize = 16;

/// Owning: QNN for dense segments, the host for the rest.
#[derive(Debug)]
pub struct Qnn {
    host: Host,
    session: Arc<Session>,
    /// What the memory runtime lets be there at a time; `None`: everything.
    budget_bytes: Option<u64>,
    /// Segments of the current graph.
    segments: Vec<Dense>,
    /// The factors of their additions, by weight; `None` for a segment with factors that graphs do not take.
    factors: Vec<Option<Vec<Option<Factors>>>>,
    factor_cache: FactorCache,
    /// The contexts of each segment, where there is a budget; `None` where the host computes it.
    needs: Vec<Option<Vec<ContextNeed>>>,
    left: Left,
    /// Results that are not written yet, by segment.
    results: Vec<Vec<Vec<f32>>>,
}

impl Qnn {
    /// Makes an instance.
    #[must_use]
    pub fn new(host: Host, session: Arc<Session>) -> Self {
        Self {
            host,
            session,
            budget_bytes: None,
            segments: Vec::new(),
            factors: Vec::new(),
            factor_cache: FactorCache::default(),
            needs: Vec::new(),
            left: Left::default(),
            results: Vec::new(),
        }
    }

    /// Has a memory runtime decide which contexts are there, within so many bytes.
    #[must_use]
    pub fn within(mut self, budget_bytes: Option<u64>) -> Self {
        self.budget_bytes = budget_bytes;
        self
    }

    /// Tells whether attention is wanted here.
    fn takes_attention(&self) -> bool {
        self.session.settings().attention == Attention::Npu && self.session.is_alive()
    }
}

impl Accelerator for Qnn {
    fn name(&self) -> &'static str {
        "qnn"
    }

    fn start_graph(&mut self) {
        self.host.start_graph();
    }

    fn supports(&self, spec: &Spec) -> bool {
        self.host.supports(spec)
    }

    fn run(&mut self, task: Task<'_>) -> Result<(), DeviceError> {
        self.host.run(task)
    }

    fn offload(&mut self, task: &mut Task<'_>) -> bool {
        let is_attention = matches!(task.spec.op, Op::FlashAttnExt(_) | Op::FlashAttnTiles(_));
        if !is_attention || !self.takes_attention() {
            return false;
        }
        let task = Task {
            spec: task.spec,
            dst: &mut *task.dst,
            srcs: task.srcs,
            weights: None,
        };
        let has_budget = self.budget_bytes.is_some();
        FlashAttn::new(task).is_ok_and(|mut op| self.session.attend(&mut op, has_budget))
    }

    fn segments(&mut self) -> Option<&mut dyn SegmentAccelerator> {
        Some(self)
    }

    fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError> {
        self.host.set_n_threads(n_threads)
    }
}

impl SegmentAccelerator for Qnn {
    fn wants(&self, product: &Spec) -> bool {
        is_dense(product).is_some()
    }

    fn wants_factor(&self, product: &Spec) -> bool {
        matrix(product).is_some()
    }

    fn fuses(&self) -> bool {
        // Between products in 16 bits, ranges would have to be known.
        self.session.settings().tier != Tier::Int8
    }

    fn prepare(
        &mut self,
        segments: &[Dense],
        weights: &PlainGuard<'_>,
        read: &mut ReadWeight<'_>,
        is_aborted: &dyn Fn() -> bool,
    ) {
        self.segments.clear();
        self.segments.extend_from_slice(segments);
        self.results.clear();
        self.results.resize(segments.len(), Vec::new());
        self.factors.clear();
        let budget_bytes = self.budget_bytes;
        if self.session.is_alive() {
            self.session
                .prepare(segments, weights, read, is_aborted, budget_bytes);
            self.factors = self.factor_cache.of_graph(segments, weights, read);
            self.session.refuse_factors(self.factor_cache.take_failed());
        }
        self.needs.clear();
        if budget_bytes.is_some() {
            let has_factors = |i: usize| self.factors.get(i).is_some_and(Option::is_some);
            let needs = |(i, segment): (usize, &Dense)| {
                let needs = self.session.needs(segment, &self.left);
                needs.filter(|_| has_factors(i) && self.session.is_alive())
            };
            self.needs = segments.iter().enumerate().map(needs).collect();
        }
    }

    fn is_prepared(&self, segments: &[Dense], weights: &PlainGuard<'_>) -> bool {
        let budget_bytes = self.budget_bytes;
        !self.session.is_alive() || self.session.is_prepared(segments, weights, budget_bytes)
    }

    fn prepare_alone(&mut self, operations: &[Spec]) -> Vec<Option<Vec<ContextNeed>>> {
        let budget_bytes = self.budget_bytes.unwrap_or(u64::MAX);
        let needs = |spec: &Spec| {
            let shape = FlashAttnShape::of(spec).ok();
            let shape = shape.filter(|_| self.takes_attention())?;
            self.session.prepare_attention(&shape, budget_bytes)
        };
        operations.iter().map(needs).collect()
    }

    fn is_prepared_alone(&self, operations: &[Spec]) -> bool {
        let budget_bytes = self.budget_bytes.unwrap_or(u64::MAX);
        let is_prepared = |spec: &Spec| {
            let shape = FlashAttnShape::of(spec);
            shape.map_or(true, |shape| {
                self.session.is_attention_prepared(&shape, budget_bytes)
            })
        };
        !self.takes_attention() || operations.iter().all(is_prepared)
    }

    fn leave_alone(&self, reason: &dyn std::fmt::Display) {
        self.session.refuse_attention(reason);
    }

    fn needs(&self, i: usize) -> Option<Vec<ContextNeed>> {
        let (segment, needs) = (self.segments.get(i)?, self.needs.get(i)?.as_ref()?);
        let is_alive = self.session.is_alive();
        let is_ready = is_alive && self.session.needs(segment, &self.left).is_some();
        is_ready.then(|| needs.clone())
    }

    fn leave(&mut self, i: usize, reason: &dyn std::fmt::Display) {
        if let Some(segment) = self.segments.get(i) {
            self.session.leave(segment, &mut self.left, reason);
        }
        if let Some(needs) = self.needs.get_mut(i) {
            *needs = None;
        }
    }

    fn contexts(&self) -> Arc<dyn Contexts> {
        Arc::<Session>::clone(&self.session)
    }

    fn start(&mut self, i: usize, x: &[u8]) -> bool {
        let Some(segment) = self.segments.get(i).filter(|_| self.session.is_alive()) else {
            return false;
        };
        let Some(factors) = self.factors.get(i).and_then(Option::as_ref) else {
            return false;
        };
        let mut within = None;
        if self.budget_bytes.is_some() {
            // What has no needs has no contexts there.
            let Some(Some(needs)) = self.needs.get(i) else {
                return false;
            };
            let left = &mut self.left;
            within = Some(Within { needs, left });
        }
        let results =
            gather(segment, x).and_then(|x| self.session.run(segment, x, factors, within));
        let is_done = results.is_some();
        self.results[i] = results.unwrap_or_default();
        is_done
    }

    fn finish(&mut self, i: usize, output: usize, dst: &mut [u8]) -> Result<(), DeviceError> {
        let results = self
            .results
            .get_mut(i)
            .and_then(|results| results.get_mut(output));
        let result = std::mem::take(results.ok_or(OperandError::Dst)?);
        let dst: &mut [f32] =
            bytemuck::try_cast_slice_mut(dst).map_err(|_unaligned| OperandError::Dst)?;
        if dst.len() != result.len() {
            let (len, expected) = (dst.len(), result.len());
            return Err(OperandError::OutputLength { len, expected }.into());
        }
        dst.copy_from_slice(&result);
        Ok(())
    }
}

/// Returns elements of a row, and rows, of the matrix of a product that can be lowered: contiguous rows, and f32 rows to multiply.
fn matrix(product: &Spec) -> Option<(usize, usize)> {
    let (src0, src1) = (product.src(0).ok()?, product.src(1).ok()?);
    let ty = QnnType::from_ggml_type(src0.type_.0)?;
    let [k, n, ne2, ne3] = src0.ne;
    let row_size = ty.row_size(k)?;
    let is_matrix = ne2 == 1 && ne3 == 1 && src0.nb[1] == row_size && k > 0 && n > 0;
    let fits = u32::try_from(k.checked_mul(n)?.checked_mul(2)?).is_ok();
    let x_fits = src1.type_ == Type::F32 && src1.nb[0] == size_of::<f32>() && src1.ne[0] == k;
    let [_, m, ne12, ne13] = src1.ne;
    let dst = &product.dst;
    let dst_fits = dst.type_ == Type::F32 && dst.ne == [n, m, ne12, ne13] && dst.is_contiguous(4);
    let all = product.op == Op::MulMat && is_matrix && fits && x_fits && dst_fits;
    (all && src1.n_rows() > 0).then_some((k, n))
}

/// Tells whether a product is one of a weight that has a graph.
fn is_dense(product: &Spec) -> Option<()> {
    let (k, n) = matrix(product)?;
    (k >= MIN_K && n >= MIN_N).then_some(())
}

/// Reads the rows of an input, one after the other.
fn gather(segment: &Dense, bytes: &[u8]) -> Option<Vec<f32>> {
    let [k, ne1, ne2, ne3] = segment.x.ne;
    let [_, nb1, nb2, nb3] = segment.x.nb;
    let mut x = Vec::with_capacity(k * segment.n_rows());
    for (i3, i2) in (0..ne3).flat_map(|i3| (0..ne2).map(move |i2| (i3, i2))) {
        for i1 in 0..ne1 {
            let row = bytes.get(i1 * nb1 + i2 * nb2 + i3 * nb3..)?.get(..4 * k)?;
            x.extend(
                row.as_chunks()
                    .0
                    .iter()
                    .map(|&bytes| f32::from_le_bytes(bytes)),
            );
        }
    }
    Some(x)
}
