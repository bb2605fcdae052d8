//! Attention by the [shared algorithm](crate::flash): two vectors are the 32 positions of a step.

use std::arch::x86_64::*;
use std::ops::Range;

use super::exp::{exp, tanh};
use super::float::transpose;
use super::{LANES, LINE};
use crate::flash::{Micro, RowScores, ScoreRow, StepMask};
use crate::op::attention::STEP;
use crate::tile::TILE;
use crate::tile::kv::{LINE_SIZE_BYTES, Tile};
use crate::x86_64::mem::*;

/// Rows of Q in a group.
const MR: usize = 8;

/// The CPU has what every function here is compiled with: `avx512f` (with what it implies).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

impl Micro for Avx512 {
    const MR: usize = MR;
    const SCALES: bool = true;

    fn fetch(&self, row: &[u8]) {
        // SAFETY: every x86_64 has `sse`.
        unsafe { prefetch_all(row) }
    }

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
        unsafe { soft_max(scores, steps, row, max) }
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
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { mix(scores, at..at + n, panel, acc, stride) }
    }
}

/// Loads up to 16 elements from element `i` of a row on, followed by zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_row<const HALF: bool>(row: &[u8], i: usize) -> __m512 {
    let size = if HALF { 2 } else { 4 };
    // A missing row is shorter than any offset.
    let rest = row.get(i * size..).unwrap_or(&[]);
    if HALF {
        let halves = match rest.first_chunk() {
            Some(chunk) => load_256(chunk),
            None => load_256(&padded(rest)),
        };
        _mm512_cvtph_ps(halves)
    } else {
        let floats = match rest.first_chunk() {
            Some(chunk) => load_512(chunk),
            None => load_512(&padded(rest)),
        };
        _mm512_castsi512_ps(floats)
    }
}

#[target_feature(enable = "avx512f")]
fn keys<const HALF: bool>(rows: &[&[u8]], panel: &mut [[f32; STEP]]) {
    for (c, lines) in panel.chunks_mut(LANES).enumerate() {
        for side in 0..STEP / LANES {
            let mut m = [_mm512_setzero_ps(); LANES];
            for (kv, v) in m.iter_mut().enumerate() {
                let row = rows.get(side * LANES + kv).copied().unwrap_or(&[]);
                *v = load_row::<HALF>(row, c * LANES);
            }
            for (line, v) in lines.iter_mut().zip(transpose(m)) {
                store_f32x16(&mut line.as_chunks_mut().0[side], v);
            }
        }
    }
}

/// Returns the first and the second half float of each pair of a line's half.
#[inline]
#[target_feature(enable = "avx512f")]
fn unzip(pairs: &[u8; LINE]) -> [__m512; 2] {
    let pairs = load_512(pairs);
    let even = _mm512_cvtepi32_epi16(pairs);
    let odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs));
    [_mm512_cvtph_ps(even), _mm512_cvtph_ps(odd)]
}

#[target_feature(enable = "avx512f")]
fn key_tiles(tiles: &[Tile], panel: &mut [[f32; STEP]]) {
    let lines = tiles.as_flattened().as_chunks::<LINE_SIZE_BYTES>().0;
    for (line, out) in lines.iter().zip(panel.as_chunks_mut::<2>().0) {
        for (side, pairs) in line.as_chunks().0.iter().enumerate() {
            let [even, odd] = unzip(pairs);
            store_f32x16(&mut out[0].as_chunks_mut().0[side], even);
            store_f32x16(&mut out[1].as_chunks_mut().0[side], odd);
        }
    }
}

#[target_feature(enable = "avx512f")]
fn value_row<const HALF: bool>(row: &[u8], out: &mut [f32]) {
    for (c, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        store_f32x16(out, load_row::<HALF>(row, c * LANES));
    }
}

#[target_feature(enable = "avx512f")]
fn value_tiles(tiles: &[Tile], panel: &mut [f32], stride: usize) {
    for (strip, tile) in tiles.iter().enumerate() {
        let lines = tile.as_chunks::<LINE_SIZE_BYTES>().0;
        for (line, rows) in lines.iter().zip(panel.chunks_exact_mut(2 * stride)) {
            let (even, odd) = rows.split_at_mut(stride);
            let strip = strip * TILE..(strip + 1) * TILE;
            let even = even[strip.clone()].as_chunks_mut::<LANES>().0;
            let odd = odd[strip].as_chunks_mut::<LANES>().0;
            for (side, pairs) in line.as_chunks().0.iter().enumerate() {
                let [a, b] = unzip(pairs);
                store_f32x16(&mut even[side], a);
                store_f32x16(&mut odd[side], b);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn score(q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
    match scores.len() {
        1 => scores_of::<1>(q, panel, scores, at),
        2 => scores_of::<2>(q, panel, scores, at),
        3 => scores_of::<3>(q, panel, scores, at),
        4 => scores_of::<4>(q, panel, scores, at),
        5 => scores_of::<5>(q, panel, scores, at),
        6 => scores_of::<6>(q, panel, scores, at),
        7 => scores_of::<7>(q, panel, scores, at),
        _ => scores_of::<8>(q, panel, scores, at),
    }
}

#[target_feature(enable = "avx512f")]
fn scores_of<const N: usize>(q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    for (q, k) in q.as_chunks::<MR>().0.iter().zip(panel) {
        let k = k.as_chunks().0;
        let k = [load_f32x16(&k[0]), load_f32x16(&k[1])];
        for r in 0..N {
            let q = _mm512_set1_ps(q[r]);
            sums[r][0] = _mm512_fmadd_ps(q, k[0], sums[r][0]);
            sums[r][1] = _mm512_fmadd_ps(q, k[1], sums[r][1]);
        }
    }
    for (scores, sums) in scores.iter_mut().zip(sums) {
        let out = scores[at..at + STEP].as_chunks_mut().0;
        store_f32x16(&mut out[0], sums[0]);
        store_f32x16(&mut out[1], sums[1]);
    }
}

#[target_feature(enable = "avx512f")]
fn soft_max(scores: &mut ScoreRow, steps: &[StepMask<'_>], row: RowScores, max: f32) -> (f32, f32) {
    let unseen = _mm512_set1_ps(f32::NEG_INFINITY);
    let (factor, slope) = (_mm512_set1_ps(row.scale), _mm512_set1_ps(row.slope));
    let (cap, is_capped) = (_mm512_set1_ps(row.softcap), row.softcap != 0.0);
    let vectors = &mut scores.as_chunks_mut::<LANES>().0[..2 * steps.len()];
    let mut greatest = _mm512_set1_ps(max);
    for (vectors, mask) in vectors.as_chunks_mut::<2>().0.iter_mut().zip(steps) {
        for (side, vector) in vectors.iter_mut().enumerate() {
            let mut s = load_f32x16(vector);
            // Positions that are not there are -inf already, and stay so.
            let there = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(s, unseen);
            s = _mm512_mask_mul_ps(s, there, s, factor);
            if is_capped {
                s = _mm512_mask_mul_ps(s, there, cap, tanh(s));
            }
            if let Some(mask) = mask {
                let halves = &mask.as_flattened().as_chunks().0[side];
                let mask = _mm512_mul_ps(slope, _mm512_cvtph_ps(load_256(halves)));
                let seen = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(mask, unseen);
                s = _mm512_mask_add_ps(unseen, seen, s, mask);
            }
            store_f32x16(vector, s);
            greatest = _mm512_max_ps(greatest, s);
        }
    }
    let max = _mm512_reduce_max_ps(greatest);
    let shift = _mm512_set1_ps(max);
    let mut sum = _mm512_setzero_ps();
    for vector in vectors {
        let s = load_f32x16(vector);
        let seen = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(s, unseen);
        let p = _mm512_maskz_mov_ps(seen, exp(_mm512_sub_ps(s, shift)));
        store_f32x16(vector, p);
        sum = _mm512_add_ps(sum, p);
    }
    (max, _mm512_reduce_add_ps(sum))
}

#[target_feature(enable = "avx512f")]
fn scale(x: &mut [f32], factor: f32) {
    let factor = _mm512_set1_ps(factor);
    for x in x.as_chunks_mut::<LANES>().0 {
        store_f32x16(x, _mm512_mul_ps(load_f32x16(x), factor));
    }
}

#[target_feature(enable = "avx512f")]
fn mix(scores: &[ScoreRow], p: Range<usize>, panel: &[f32], acc: &mut [f32], stride: usize) {
    match scores.len() {
        1 => mix_rows::<1, 4>(scores, p, panel, acc, stride),
        2 => mix_rows::<2, 4>(scores, p, panel, acc, stride),
        3 => mix_rows::<3, 4>(scores, p, panel, acc, stride),
        4 => mix_rows::<4, 4>(scores, p, panel, acc, stride),
        5 => mix_rows::<5, 2>(scores, p, panel, acc, stride),
        6 => mix_rows::<6, 2>(scores, p, panel, acc, stride),
        7 => mix_rows::<7, 2>(scores, p, panel, acc, stride),
        _ => mix_rows::<8, 2>(scores, p, panel, acc, stride),
    }
}

/// Adds weighted rows to the mixtures of `N` rows, `NV` vectors at a time.
#[inline]
#[target_feature(enable = "avx512f")]
fn mix_rows<const N: usize, const NV: usize>(
    scores: &[ScoreRow],
    p: Range<usize>,
    panel: &[f32],
    acc: &mut [f32],
    stride: usize,
) {
    let p: [&[f32]; N] = std::array::from_fn(|r| &scores[r][p.clone()]);
    let mut d = 0;
    while d + NV * LANES <= stride {
        mix_columns::<N, NV>(p, panel, acc, stride, d);
        d += NV * LANES;
    }
    while d < stride {
        mix_columns::<N, 1>(p, panel, acc, stride, d);
        d += LANES;
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn mix_columns<const N: usize, const NV: usize>(
    p: [&[f32]; N],
    panel: &[f32],
    acc: &mut [f32],
    stride: usize,
    d: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); NV]; N];
    for r in 0..N {
        let acc = acc[r * stride + d..].as_chunks().0;
        for i in 0..NV {
            sums[r][i] = load_f32x16(&acc[i]);
        }
    }
    let n = p[0].len();
    for (kv, v) in panel.chunks_exact(stride).take(n).enumerate() {
        let v = v[d..].as_chunks().0;
        let mut values = [_mm512_setzero_ps(); NV];
        for i in 0..NV {
            values[i] = load_f32x16(&v[i]);
        }
        for r in 0..N {
            let p = _mm512_set1_ps(p[r][kv]);
            for i in 0..NV {
                sums[r][i] = _mm512_fmadd_ps(p, values[i], sums[r][i]);
            }
        }
    }
    for r in 0..N {
        let acc = acc[r * stride + d..].as_chunks_mut().0;
        for i in 0..NV {
            store_f32x16(&mut acc[i], sums[r][i]);
        }
    }
}
