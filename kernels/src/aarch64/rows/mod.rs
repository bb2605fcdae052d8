//! Products with plain rows of weights, by the [shared algorithm](crate::panel): eight rows of x are two vectors of f32.

mod quant;

pub(crate) use quant::{DotQ4_0, DotQ8_0, LongQ4_0, LongQ8_0};

use super::mem::*;

/// Rows of x in a group.
const LANES: usize = 8;

/// Vectors of those.
const VECTORS: usize = LANES / 4;

/// Writes `acc[r][lane]` to `out[lane * stride + r]`, for 4 values of `r` and `n_lanes` lanes.
#[target_feature(enable = "neon")]
pub(super) fn store_transposed(acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
    let fours = acc.as_chunks().0;
    for first in (0..n_lanes).step_by(4) {
        let row = |r: usize| load_f32(&fours[r * VECTORS + first / 4]);
        let columns = transpose([row(0), row(1), row(2), row(3)]);
        for (lane, column) in (first..n_lanes).zip(columns) {
            let out = out[lane * stride..].first_chunk_mut();
            store_f32(out.expect("four results of a row"), column);
        }
    }
}
