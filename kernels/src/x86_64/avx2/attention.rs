//! Attention by the [shared algorithm](crate::flash): four vectors are the 32 positions of a step.

use std::arch::x86_64::*;
use std::ops::Range;

use super::exp::{exp, tanh};
use super::float::transpose;
use super::{LANES, LINE, reduce_add};
use crate::flash::{Micro, RowScores, ScoreRow, StepMask};
use crate::op::attention::STEP;
use crate::tile::TILE;
use crate::tile::kv::{LINE_SIZE_BYTES, Tile};
use crate::x86_64::mem::*;

/// Rows of Q in a group.
const MR: usize = 4;

/// The CPU has what every function here is compiled with: `avx2`, `fma` and `f16c`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        let detected = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        detected.then_some(Self(()))
    }
}

impl Micro for Avx2 {
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

/// Loads up to 8 elements from element `i` of a row on, followed by zeros.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_row<const HALF: bool>(row: &[u8], i: usize) -> __m256 {
    let size = if HALF { 2 } else { 4 };
    // A missing row is shorter than any offset.
    let rest = row.get(i * size..).unwrap_or(&[]);
    if HALF {
        let halves = match rest.first_chunk() {
            Some(chunk) => load_128(chunk),
            None => load_128(&padded(rest)),
        };
        _mm256_cvtph_ps(halves)
    } else {
        let floats = match rest.first_chunk() {
            Some(chunk) => load_256(chunk),
            None => load_256(&padded(rest)),
        };
        _mm256_castsi256_ps(floats)
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn keys<const HALF: bool>(rows: &[&[u8]], panel: &mut [[f32; STEP]]) {
    for (c, lines) in panel.chunks_mut(LANES).enumerate() {
        for side in 0..STEP / LANES {
            let mut m = [_mm256_setzero_ps(); LANES];
            for (kv, v) in m.iter_mut().enumerate() {
                let row = rows.get(side * LANES + kv).copied().unwrap_or(&[]);
                *v = load_row::<HALF>(row, c * LANES);
            }
            for (line, v) in lines.iter_mut().zip(transpose(m)) {
                store_f32x8(&mut line.as_chunks_mut().0[side], v);
            }
        }
    }
}

/// Returns the first and the second half float of each of 8 pairs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unzip(pairs: &[u8; LINE]) -> [__m256; 2] {
    let pairs = load_256(pairs);
    // Within each part of 128 bits: first halves, then second halves; then the parts are joined.
    let order = _mm256_set_epi8(
        15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0, 15, 14, 11, 10, 7, 6, 3, 2, 13, 12,
        9, 8, 5, 4, 1, 0,
    );
    let parts = _mm256_permute4x64_epi64::<0xd8>(_mm256_shuffle_epi8(pairs, order));
    let (even, odd) = (
        _mm256_castsi256_si128(parts),
        _mm256_extracti128_si256::<1>(parts),
    );
    [_mm256_cvtph_ps(even), _mm256_cvtph_ps(odd)]
}

#[target_feature(enable = "avx2,fma,f16c")]
fn key_tiles(tiles: &[Tile], panel: &mut [[f32; STEP]]) {
    let lines = tiles.as_flattened().as_chunks::<LINE_SIZE_BYTES>().0;
    for (line, out) in lines.iter().zip(panel.as_chunks_mut::<2>().0) {
        for (side, pairs) in line.as_chunks().0.iter().enumerate() {
            let [even, odd] = unzip(pairs);
            store_f32x8(&mut out[0].as_chunks_mut().0[side], even);
            store_f32x8(&mut out[1].as_chunks_mut().0[side], odd);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn value_row<const HALF: bool>(row: &[u8], out: &mut [f32]) {
    for (c, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        store_f32x8(out, load_row::<HALF>(row, c * LANES));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
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
                store_f32x8(&mut even[side], a);
                store_f32x8(&mut odd[side], b);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn score(q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
    match scores.len() {
        1 => scores_of::<1>(q, panel, scores, at),
        2 => scores_of::<2>(q, panel, scores, at),
        3 => scores_of::<3>(q, panel, scores, at),
        _ => scores_of::<4>(q, panel, scores, at),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scores_of<const N: usize>(q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
    // Two vectors of positions at a time, so that all sums stay in registers.
    for side in 0..2 {
        let mut sums = [[_mm256_setzero_ps(); 2]; N];
        for (q, k) in q.as_chunks::<MR>().0.iter().zip(panel) {
            let k = k.as_chunks().0;
            let k = [load_f32x8(&k[2 * side]), load_f32x8(&k[2 * side + 1])];
            for r in 0..N {
                let q = _mm256_set1_ps(q[r]);
                sums[r][0] = _mm256_fmadd_ps(q, k[0], sums[r][0]);
                sums[r][1] = _mm256_fmadd_ps(q, k[1], sums[r][1]);
            }
        }
        for (scores, sums) in scores.iter_mut().zip(sums) {
            let out = scores[at + side * 2 * LANES..].as_chunks_mut().0;
            store_f32x8(&mut out[0], sums[0]);
            store_f32x8(&mut out[1], sums[1]);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn soft_max(scores: &mut ScoreRow, steps: &[StepMask<'_>], row: RowScores, max: f32) -> (f32, f32) {
    let unseen = _mm256_set1_ps(f32::NEG_INFINITY);
    let (factor, slope) = (_mm256_set1_ps(row.scale), _mm256_set1_ps(row.slope));
    let (cap, is_capped) = (_mm256_set1_ps(row.softcap), row.softcap != 0.0);
    let vectors = &mut scores.as_chunks_mut::<LANES>().0[..4 * steps.len()];
    let mut greatest = _mm256_set1_ps(max);
    for (vectors, mask) in vectors.as_chunks_mut::<4>().0.iter_mut().zip(steps) {
        for (part, vector) in vectors.iter_mut().enumerate() {
            let mut s = load_f32x8(vector);
            // Positions that are not there are -inf already, and stay so.
            let there = _mm256_cmp_ps::<_CMP_NEQ_UQ>(s, unseen);
            s = _mm256_blendv_ps(s, _mm256_mul_ps(s, factor), there);
            if is_capped {
                s = _mm256_blendv_ps(s, _mm256_mul_ps(cap, tanh(s)), there);
            }
            if let Some(mask) = mask {
                let halves = &mask.as_flattened().as_chunks().0[part];
                let mask = _mm256_mul_ps(slope, _mm256_cvtph_ps(load_128(halves)));
                let seen = _mm256_cmp_ps::<_CMP_NEQ_UQ>(mask, unseen);
                s = _mm256_blendv_ps(unseen, _mm256_add_ps(s, mask), seen);
            }
            store_f32x8(vector, s);
            greatest = _mm256_max_ps(greatest, s);
        }
    }
    let mut lanes = [0.0; LANES];
    store_f32x8(&mut lanes, greatest);
    let max = lanes.into_iter().fold(max, f32::max);
    let shift = _mm256_set1_ps(max);
    let mut sum = _mm256_setzero_ps();
    for vector in vectors {
        let s = load_f32x8(vector);
        let seen = _mm256_cmp_ps::<_CMP_NEQ_UQ>(s, unseen);
        let p = _mm256_and_ps(seen, exp(_mm256_sub_ps(s, shift)));
        store_f32x8(vector, p);
        sum = _mm256_add_ps(sum, p);
    }
    (max, reduce_add(sum))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scale(x: &mut [f32], factor: f32) {
    let factor = _mm256_set1_ps(factor);
    for x in x.as_chunks_mut::<LANES>().0 {
        store_f32x8(x, _mm256_mul_ps(load_f32x8(x), factor));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn mix(scores: &[ScoreRow], p: Range<usize>, panel: &[f32], acc: &mut [f32], stride: usize) {
    match scores.len() {
        1 => mix_rows::<1, 4>(scores, p, panel, acc, stride),
        2 => mix_rows::<2, 4>(scores, p, panel, acc, stride),
        3 => mix_rows::<3, 2>(scores, p, panel, acc, stride),
        _ => mix_rows::<4, 2>(scores, p, panel, acc, stride),
    }
}

/// Adds weighted rows to the mixtures of `N` rows, `NV` vectors at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
#[target_feature(enable = "avx2,fma,f16c")]
fn mix_columns<const N: usize, const NV: usize>(
    p: [&[f32]; N],
    panel: &[f32],
    acc: &mut [f32],
    stride: usize,
    d: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); NV]; N];
    for r in 0..N {
        let acc = acc[r * stride + d..].as_chunks().0;
        for i in 0..NV {
            sums[r][i] = load_f32x8(&acc[i]);
        }
    }
    let n = p[0].len();
    for (kv, v) in panel.chunks_exact(stride).take(n).enumerate() {
        let v = v[d..].as_chunks().0;
        let mut values = [_mm256_setzero_ps(); NV];
        for i in 0..NV {
            values[i] = load_f32x8(&v[i]);
        }
        for r in 0..N {
            let p = _mm256_set1_ps(p[r][kv]);
            for i in 0..NV {
                sums[r][i] = _mm256_fmadd_ps(p, values[i], sums[r][i]);
            }
        }
    }
    for r in 0..N {
        let acc = acc[r * stride + d..].as_chunks_mut().0;
        for i in 0..NV {
            store_f32x8(&mut acc[i], sums[r][i]);
        }
    }
}
