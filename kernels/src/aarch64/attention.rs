//! Attention by the [shared algorithm](crate::flash): eight vectors are the 32 positions of a step.

mod half;

pub(crate) use half::HalfAttention;

use std::arch::aarch64::*;
use std::ops::Range;

use super::Neon;
use super::exp::{exp, tanh};
use super::mem::*;
use crate::flash::{Micro, RowScores, ScoreRow, StepMask};
use crate::op::attention::STEP;
use crate::tile::TILE;
use crate::tile::kv::{LINE_SIZE_BYTES, Tile};

/// Rows of Q in a group: lanes of a vector.
const MR: usize = 4;

/// Floats of a vector.
const LANES: usize = 4;

/// Vectors of positions, or of elements of V, at a time.
const VECTORS: usize = 4;

impl Micro for Neon {
    const MR: usize = MR;

    fn keys(&self, rows: &[&[u8]], half: bool, panel: &mut [[f32; STEP]]) {
        if half {
            // SAFETY: `self` is made only where the features of the callee were detected.
            unsafe { keys::<true>(rows, panel) }
        } else {
            // SAFETY: as above.
            unsafe { keys::<false>(rows, panel) }
        }
    }

    fn key_tiles(&self, tiles: &[Tile], panel: &mut [[f32; STEP]]) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { key_tiles(tiles, panel) }
    }

    fn values(&self, rows: &[&[u8]], half: bool, panel: &mut [f32], stride: usize) {
        for (row, out) in rows.iter().zip(panel.chunks_exact_mut(stride)) {
            if half {
                // SAFETY: `self` is made only where the features of the callee were detected.
                unsafe { value_row::<true>(row, out) }
            } else {
                // SAFETY: as above.
                unsafe { value_row::<false>(row, out) }
            }
        }
    }

    fn value_tiles(&self, tiles: &[Tile], panel: &mut [f32], stride: usize) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { value_tiles(tiles, panel, stride) }
    }

    fn scores(&self, q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
        let score = match scores.len() {
            1 => scores_of::<1>,
            2 => scores_of::<2>,
            3 => scores_of::<3>,
            _ => scores_of::<MR>,
        };
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { score(q, panel, scores, at) }
    }

    fn soft_max(
        &self,
        scores: &mut ScoreRow,
        steps: &[StepMask<'_>],
        row: RowScores,
        max: f32,
    ) -> (f32, f32) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { soft_max::<false>(scores, steps, row, max) }
    }

    fn scale(&self, x: &mut [f32], factor: f32) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { scale(x, factor) }
    }

    fn mix(
        &self,
        scores: &[ScoreRow],
        at: usize,
        n: usize,
        panel: &[f32],
        acc: &mut [f32],
        stride: usize,
    ) {
        let mix = match scores.len() {
            1 => mix_rows::<1>,
            2 => mix_rows::<2>,
            3 => mix_rows::<3>,
            _ => mix_rows::<MR>,
        };
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { mix(scores, at..at + n, panel, acc, stride) }
    }
}

#[target_feature(enable = "neon")]
fn keys<const HALF: bool>(rows: &[&[u8]], panel: &mut [[f32; STEP]]) {
    for (c, lines) in panel.chunks_mut(LANES).enumerate() {
        for side in 0..STEP / LANES {
            let mut m = [vdupq_n_f32(0.0); LANES];
            for (kv, v) in m.iter_mut().enumerate() {
                let row = rows.get(side * LANES + kv).copied().unwrap_or(&[]);
                *v = load_row::<HALF>(row, c * LANES);
            }
            for (line, v) in lines.iter_mut().zip(transpose(m)) {
                store_f32(&mut line.as_chunks_mut().0[side], v);
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn key_tiles(tiles: &[Tile], panel: &mut [[f32; STEP]]) {
    let lines = tiles
        .iter()
        .flat_map(|tile| tile.as_chunks::<LINE_SIZE_BYTES>().0);
    for (line, [even, odd]) in lines.zip(panel.as_chunks_mut().0) {
        unzip_line(line, even, odd);
    }
}

#[target_feature(enable = "neon")]
fn value_row<const HALF: bool>(row: &[u8], out: &mut [f32]) {
    let size = if HALF { 2 } else { 4 };
    let n = row.len() / size;
    let (whole, _) = out.as_chunks_mut::<LANES>();
    for (i, out) in whole.iter_mut().enumerate().take(n.div_ceil(LANES)) {
        store_f32(out, load_row::<HALF>(row, i * LANES));
    }
}

#[target_feature(enable = "neon")]
fn value_tiles(tiles: &[Tile], panel: &mut [f32], stride: usize) {
    for (strip, tile) in tiles.iter().enumerate() {
        let lines = tile.as_chunks::<LINE_SIZE_BYTES>().0;
        for (line, rows) in lines.iter().zip(panel.chunks_exact_mut(2 * stride)) {
            let (even, odd) = rows.split_at_mut(stride);
            let even = even[strip * TILE..].first_chunk_mut();
            let odd = odd[strip * TILE..].first_chunk_mut();
            unzip_line(
                line,
                even.expect("a row has all strips"),
                odd.expect("a row has all strips"),
            );
        }
    }
}

#[target_feature(enable = "neon")]
fn scores_of<const N: usize>(q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
    for first in (0..STEP / LANES).step_by(VECTORS) {
        let mut sums = [[vdupq_n_f32(0.0); VECTORS]; N];
        for (q, k) in q.as_chunks::<MR>().0.iter().zip(panel) {
            let q = load_f32(q);
            let k: &[[f32; LANES]] = k.as_chunks().0;
            for v in 0..VECTORS {
                let k = load_f32(&k[first + v]);
                for r in 0..N {
                    sums[r][v] = add_scaled(sums[r][v], k, q, r);
                }
            }
        }
        for (scores, sums) in scores.iter_mut().zip(sums) {
            let out = scores[at + first * LANES..].as_chunks_mut().0;
            for v in 0..VECTORS {
                store_f32(&mut out[v], sums[v]);
            }
        }
    }
}

/// See [`Micro::soft_max`]; exponentials are rounded to half floats if `HALF`.
#[target_feature(enable = "neon")]
fn soft_max<const HALF: bool>(
    scores: &mut ScoreRow,
    steps: &[StepMask<'_>],
    row: RowScores,
    max: f32,
) -> (f32, f32) {
    const PARTS: usize = STEP / LANES;
    let unseen = vdupq_n_f32(f32::NEG_INFINITY);
    let is_capped = row.softcap != 0.0;
    let vectors = &mut scores.as_chunks_mut::<LANES>().0[..PARTS * steps.len()];
    let mut greatest = vdupq_n_f32(max);
    for (vectors, mask) in vectors.as_chunks_mut::<PARTS>().0.iter_mut().zip(steps) {
        for (part, vector) in vectors.iter_mut().enumerate() {
            let mut s = load_f32(vector);
            if is_capped {
                // Positions that are not there are -inf already, and stay so.
                let hidden = vceqq_f32(s, unseen);
                s = vbslq_f32(hidden, s, vmulq_n_f32(tanh(s), row.softcap));
            }
            if let Some(mask) = mask {
                let halves = &mask.as_flattened().as_chunks().0[part];
                let mask = vmulq_n_f32(load_f16(halves), row.slope);
                let hidden = vceqq_f32(mask, unseen);
                s = vbslq_f32(hidden, unseen, vaddq_f32(s, mask));
            }
            store_f32(vector, s);
            // NaN is passed over.
            greatest = vmaxnmq_f32(greatest, s);
        }
    }
    let max = vmaxnmvq_f32(greatest).max(max);
    let shift = vdupq_n_f32(max);
    let mut sum = vdupq_n_f32(0.0);
    for vector in vectors {
        let s = load_f32(vector);
        let hidden = vceqq_f32(s, unseen);
        let p = exp(vsubq_f32(s, shift));
        let p = if HALF { round_to_f16(p) } else { p };
        let p = vbslq_f32(hidden, vdupq_n_f32(0.0), p);
        store_f32(vector, p);
        sum = vaddq_f32(sum, p);
    }
    (max, vaddvq_f32(sum))
}

#[target_feature(enable = "neon")]
fn scale(x: &mut [f32], factor: f32) {
    for x in x.as_chunks_mut().0 {
        store_f32(x, vmulq_n_f32(load_f32(x), factor));
    }
}

/// Adds weighted rows to the mixtures of `N` rows.
#[target_feature(enable = "neon")]
fn mix_rows<const N: usize>(
    scores: &[ScoreRow],
    p: Range<usize>,
    panel: &[f32],
    acc: &mut [f32],
    stride: usize,
) {
    let p: [&[f32]; N] = std::array::from_fn(|r| &scores[r][p.clone()]);
    for d in (0..stride).step_by(VECTORS * LANES) {
        let mut sums = [[vdupq_n_f32(0.0); VECTORS]; N];
        for r in 0..N {
            let acc = acc[r * stride + d..].as_chunks().0;
            for v in 0..VECTORS {
                sums[r][v] = load_f32(&acc[v]);
            }
        }
        let n = p[0].len();
        let fours = p.map(|p| p.as_chunks::<LANES>().0);
        for four in 0..n / LANES {
            let weights = fours.map(|p| p[four]);
            for i in 0..LANES {
                let row = panel[(four * LANES + i) * stride + d..].as_chunks().0;
                for v in 0..VECTORS {
                    let value = load_f32(&row[v]);
                    for r in 0..N {
                        sums[r][v] = add_scaled(sums[r][v], value, load_f32(&weights[r]), i);
                    }
                }
            }
        }
        for kv in n / LANES * LANES..n {
            let row = panel[kv * stride + d..].as_chunks().0;
            for v in 0..VECTORS {
                let value = load_f32(&row[v]);
                for r in 0..N {
                    sums[r][v] = vfmaq_n_f32(sums[r][v], value, p[r][kv]);
                }
            }
        }
        for r in 0..N {
            let acc = acc[r * stride + d..].as_chunks_mut().0;
            for v in 0..VECTORS {
                store_f32(&mut acc[v], sums[r][v]);
            }
        }
    }
}
