//! Attention as graphs: Q, K, V and the mask are inputs, half floats.
//!
//! A graph has room for a number of rows and of positions; what is left over is zeros that no row sees. The mask is always an
//! input, and all of it is finite: `-inf` becomes a number that no score makes up for ([`HIDDEN`]), and of each row the largest element
//! is subtracted, which softmax does not notice. Rows that see nothing are zero, as the host's kernels have it, whatever the graph computes.
//! Scores are half floats in the graph, so that large ones lose digits: see [`MAX_SCORE`].
//!
//! | module | what |
//! |---|---|
//! | `operands` | operands of ggml's operation as inputs, and its result |
//! | `reference` | an example with its results, for the check before first use |

mod operands;
mod reference;
#[cfg(test)]
mod tests;

use llada_npu_ffi::ggml::Type;
use llada_npu_ffi::qnn::{DataType, GraphOptions, GraphSpec, Precision, SpecError, TensorType};

pub(super) use operands::{gather, write};
pub(super) use reference::Example;

use crate::device::FlashAttnShape;

/// Fewest and most positions that graphs have room for: powers of two between.
const MIN_N_KV: usize = 32;
const MAX_N_KV: usize = 4096;

/// Most scores of a graph, of all its heads: 32 MiB.
const MAX_SCORES: usize = 1 << 24;

/// What is added to scores of positions that a row does not see.
pub const HIDDEN: f32 = -30000.0;

/// Largest bound of a score: the lengths of a row of Q (scaled) and one of K (about the mean of K) multiplied. A score near it is off by
/// 0.03 at most, as half floats have 11 bits; scores themselves are mostly far below.
const MAX_SCORE: f32 = 128.0;

/// Largest share of the error in the power of the results that passes. HTP's softmax alone comes to 2e-6.
pub(super) const MAX_NMSE: f64 = 1e-5;

/// Shape of a graph of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionForm {
    /// Rows of Q.
    pub n_rows: usize,
    /// Positions of K and V.
    pub n_kv: usize,
    /// Heads of Q.
    pub n_head: usize,
    /// Heads of K and V.
    pub n_head_kv: usize,
    /// Elements of a row of Q and K, of one head.
    pub d_k: usize,
    /// Elements of a row of V.
    pub d_v: usize,
    /// Fast memory to use, in MiB; 0: all.
    pub vtcm_mb: Option<u32>,
}

/// Why an operation has no graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("attention with slopes (ALiBi) or a bound of scores has no graph")]
    Scores,
    #[error("attention over K or V that are no half floats has no graph")]
    Type,
    #[error("attention with a mask for each head has no graph")]
    Masks,
    #[error(
        "attention over {n_kv} positions has no graph: at most {MAX_N_KV}, and {MAX_SCORES} scores"
    )]
    Large { n_kv: usize },
}

impl AttentionForm {
    /// Returns the shape of the graph that takes `n_rows` rows of an operation.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn of(
        shape: &FlashAttnShape,
        n_rows: usize,
        vtcm_mb: Option<u32>,
    ) -> Result<Self, Unfit> {
        let FlashAttnShape {
            params,
            q,
            k,
            v,
            mask,
            ..
        } = shape;
        if params.max_bias != 0.0 || params.softcap != 0.0 {
            return Err(Unfit::Scores);
        }
        if k.type_ != Type::F16 || v.type_ != Type::F16 {
            return Err(Unfit::Type);
        }
        if mask.as_ref().is_some_and(|mask| mask.ne[2] > 1) {
            return Err(Unfit::Masks);
        }
        let (n_head, room) = (q.ne[2], k.ne[1].max(MIN_N_KV).next_power_of_two());
        let n_scores = n_head.saturating_mul(n_rows).saturating_mul(room);
        if room > MAX_N_KV || n_scores > MAX_SCORES {
            return Err(Unfit::Large { n_kv: k.ne[1] });
        }
        Ok(Self {
            n_rows,
            n_kv: room,
            n_head,
            n_head_kv: k.ne[2],
            d_k: k.ne[0],
            d_v: v.ne[0],
            vtcm_mb,
        })
    }

    /// Returns the elements of the inputs: Q, K, V, mask.
    fn input_lens(&self) -> [usize; 4] {
        [
            self.n_rows * self.n_head * self.d_k,
            self.n_kv * self.n_head_kv * self.d_k,
            self.n_kv * self.n_head_kv * self.d_v,
            self.n_rows * self.n_kv,
        ]
    }

    /// Describes the graph.
    ///
    /// # Errors
    /// [`SpecError`] for shapes that do not fit.
    pub fn describe(&self, name: &str) -> Result<GraphSpec<'static>, SpecError> {
        let options = GraphOptions {
            precision: Some(Precision::Float16),
            vtcm_mb: self.vtcm_mb,
            ..GraphOptions::default()
        };
        let half = |dims: &[usize]| {
            let dims = dims.iter().map(|&n| u32::try_from(n).unwrap_or(u32::MAX));
            TensorType::new(DataType::Float16, &dims.collect::<Vec<_>>())
        };
        let mut spec = GraphSpec::new(name, options);
        let q = spec.input("q", half(&[self.n_rows, self.n_head, self.d_k]))?;
        let k = spec.input("k", half(&[self.n_kv, self.n_head_kv, self.d_k]))?;
        let v = spec.input("v", half(&[self.n_kv, self.n_head_kv, self.d_v]))?;
        let mask = spec.input("mask", half(&[self.n_rows, self.n_kv]))?;
        let y = spec.output("y", half(&[self.n_rows, self.n_head, self.d_v]))?;
        spec.attention("attention", [q, k, v, mask], y)?;
        Ok(spec)
    }
}

impl std::fmt::Display for AttentionForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            n_rows,
            n_kv,
            n_head,
            n_head_kv,
            d_k,
            d_v,
            ..
        } = self;
        write!(
            f,
            "attention ({n_rows} rows, {n_kv} positions, {n_head} heads over {n_head_kv}, rows of {d_k} and {d_v})"
        )
    }
}
