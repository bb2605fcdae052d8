//! `F32` and `F16` weights: both are multiplied as f32.
//!
//! A packed group is an f32 of each of 8 rows for every element of k; a row by itself is padded with zeros to whole eights.

use std::arch::aarch64::*;

use super::{LANES, VECTORS, store_transposed};
use crate::aarch64::Neon;
use crate::aarch64::mem::*;
use crate::panel::{DOT_ROWS, Micro};
use crate::{F32Rows, WeightType};

const MR: usize = 8;
const KC: usize = 256;

/// Bytes of one element of a group.
const LINE: usize = 4 * LANES;

/// A tile of decoded weights.
pub(crate) type Tile = [[f32; KC]; MR];

/// `F32` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32(Neon);

/// `F16` weights; x is rounded to f16 when packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16(Neon);

macro_rules! micro {
    ($name:ident, $half:literal) => {
        impl $name {
            /// Returns the implementation if this CPU can run it.
            pub(crate) fn detect() -> Option<Self> {
                Neon::detect().map(Self)
            }
        }

        impl Micro for $name {
            const TYPE: WeightType = WeightType::$name;
            const LANES: usize = LANES;
            const MR: usize = MR;
            const GROUPS: usize = 1;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 4;
            type Tile = Tile;

            fn new_tile() -> Tile {
                [[0.0; KC]; MR]
            }

            fn group_size_bytes(k: usize) -> usize {
                k * LINE
            }

            fn row_size_bytes(k: usize) -> usize {
                k.div_ceil(8) * LINE
            }

            fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
                // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
                unsafe { prepare_group::<$half>(x, group) }
            }

            fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
                // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
                unsafe { prepare_row::<$half>(x, out) }
            }

            fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile) {
                // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
                unsafe { decode::<$half>(weights, &mut tile[r]) }
            }

            fn tile<const G: usize>(
                &self,
                tile: &Tile,
                kc: usize,
                x: [&[u8]; G],
                acc: [&mut [f32]; G],
            ) {
                for (x, acc) in x.into_iter().zip(acc) {
                    // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
                    unsafe { multiply(tile, kc, x, acc) }
                }
            }

            fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
                // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
                unsafe { store_transposed(acc, n_lanes, out, stride) }
            }

            fn dot(&self, _k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
                unsafe { dot::<$half>(weights, x) }
            }
        }
    };
}

micro!(F32, false);
micro!(F16, true);

/// Loads four elements of x, rounded to f16 if `HALF`, from element `i` of a row on; zeros behind its end.
#[inline]
#[target_feature(enable = "neon")]
fn load_x<const HALF: bool>(row: &[u8], i: usize) -> float32x4_t {
    let v = load_row::<false>(row, i);
    if HALF { round_to_f16(v) } else { v }
}

#[target_feature(enable = "neon")]
fn prepare_row<const HALF: bool>(x: &[u8], out: &mut [u8]) {
    for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        store_u8(out, vreinterpretq_u8_f32(load_x::<HALF>(x, 4 * i)));
    }
}

#[target_feature(enable = "neon")]
fn prepare_group<const HALF: bool>(x: &F32Rows<'_>, group: &mut [u8]) {
    let rows: [&[u8]; LANES] = std::array::from_fn(|i| if i < x.n_rows() { x.row(i) } else { &[] });
    for (c, lines) in group.chunks_mut(4 * LINE).enumerate() {
        for v in 0..VECTORS {
            let load = |r: usize| load_x::<HALF>(rows[4 * v + r], 4 * c);
            let columns = transpose([load(0), load(1), load(2), load(3)]);
            for (line, column) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(columns) {
                let out = &mut line.as_chunks_mut().0[v];
                store_u8(out, vreinterpretq_u8_f32(column));
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn decode<const HALF: bool>(weights: &[u8], out: &mut [f32; KC]) {
    let n = weights.len() / if HALF { 2 } else { 4 };
    for (c, out) in out
        .as_chunks_mut()
        .0
        .iter_mut()
        .enumerate()
        .take(n.div_ceil(4))
    {
        store_f32(out, load_row::<HALF>(weights, 4 * c));
    }
}

#[target_feature(enable = "neon")]
fn multiply(tile: &Tile, kc: usize, x: &[u8], acc: &mut [f32]) {
    let kc = kc.min(KC);
    let lines = &x.as_chunks::<LINE>().0[..kc];
    let acc = acc.as_chunks_mut::<LANES>().0;
    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; MR];
    for r in 0..MR {
        for v in 0..VECTORS {
            sums[r][v] = load_f32(&acc[r].as_chunks().0[v]);
        }
    }
    let (fours, last) = lines.as_chunks::<4>();
    for (c, lines) in fours.iter().enumerate() {
        let mut weights = [vdupq_n_f32(0.0); MR];
        for r in 0..MR {
            weights[r] = load_f32(&tile[r].as_chunks().0[c]);
        }
        for i in 0..4 {
            for v in 0..VECTORS {
                let x = load_f32_bytes(&lines[i].as_chunks().0[v]);
                for r in 0..MR {
                    sums[r][v] = add_scaled(sums[r][v], x, weights[r], i);
                }
            }
        }
    }
    for (i, line) in (kc - last.len()..).zip(last) {
        for v in 0..VECTORS {
            let x = load_f32_bytes(&line.as_chunks().0[v]);
            for r in 0..MR {
                sums[r][v] = vfmaq_n_f32(sums[r][v], x, tile[r][i]);
            }
        }
    }
    for r in 0..MR {
        for v in 0..VECTORS {
            store_f32(&mut acc[r].as_chunks_mut().0[v], sums[r][v]);
        }
    }
}

/// Loads eight weights from element `i` of a row on, zeros behind its end.
#[inline]
#[target_feature(enable = "neon")]
fn load_eight<const HALF: bool>(row: &[u8], i: usize) -> [float32x4_t; 2] {
    if HALF && let Some(eight) = row.get(2 * i..).and_then(|rest| rest.first_chunk()) {
        widen_f16(load_u16(eight))
    } else {
        [load_row::<HALF>(row, i), load_row::<HALF>(row, i + 4)]
    }
}

#[target_feature(enable = "neon")]
fn dot<const HALF: bool>(weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
    let mut sums = [[vdupq_n_f32(0.0); 2]; DOT_ROWS];
    for (c, x) in x.as_chunks::<LINE>().0.iter().enumerate() {
        let x = x.as_chunks().0;
        let x = [load_f32_bytes(&x[0]), load_f32_bytes(&x[1])];
        for r in 0..DOT_ROWS {
            let w = load_eight::<HALF>(weights[r], 8 * c);
            for v in 0..2 {
                sums[r][v] = vfmaq_f32(sums[r][v], w[v], x[v]);
            }
        }
    }
    sums.map(|[low, high]| vaddvq_f32(vaddq_f32(low, high)))
}
