//! `Q8_0` and `Q4_0` weights, x quantised to `Q8_0`.
//!
//! A packed block of a group is an f32 scale of each of 8 rows, then for every four elements those of each row. A block of a
//! row by itself is its f32 scale and its bytes.

use std::arch::aarch64::*;

use super::{LANES, VECTORS, store_transposed};
use crate::aarch64::mem::*;
use crate::aarch64::products::{dot, dot_lane, long_dot, long_dot_lane};
use crate::aarch64::quantize::{quantize, scale_q8_0};
use crate::aarch64::{Dotprod, Neon};
use crate::block::{self, QK};
use crate::panel::{DOT_ROWS, Micro};
use crate::{F32Rows, WeightType};

const MR: usize = 4;
const KC: usize = 512;
const BLOCKS: usize = KC / QK;

/// Bytes of a packed block of a group, and of a row by itself.
const GROUP_BLOCK: usize = LANES * ROW_BLOCK;
const ROW_BLOCK: usize = 4 + QK;

/// The 32 integers of a block.
type Bytes = [[u8; 16]; 2];

/// A tile of decoded weights.
pub(crate) struct Tile {
    q: [[Bytes; BLOCKS]; MR],
    d: [[f32; BLOCKS]; MR],
}

macro_rules! micro {
    ($name:ident, $ty:ident, $load:ident, $cpu:ident, $features:literal, $dot:ident, $dot_lane:ident) => {
        /// Weights of one type, with one CPU's products of bytes.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name($cpu);

        impl $name {
            /// Returns the implementation if this CPU can run it.
            pub(crate) fn detect() -> Option<Self> {
                $cpu::detect().map(Self)
            }
        }

        impl Micro for $name {
            const TYPE: WeightType = WeightType::$ty;
            const LANES: usize = LANES;
            const MR: usize = MR;
            const GROUPS: usize = 1;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 4;
            type Tile = Tile;

            fn new_tile() -> Tile {
                Tile {
                    q: [[[[0; 16]; 2]; BLOCKS]; MR],
                    d: [[0.0; BLOCKS]; MR],
                }
            }

            fn group_size_bytes(k: usize) -> usize {
                k / QK * GROUP_BLOCK
            }

            fn row_size_bytes(k: usize) -> usize {
                k / QK * ROW_BLOCK
            }

            fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
                // SAFETY: `self` holds the proof that the features of the callee, or more, were detected.
                unsafe { prepare_group(x, group) }
            }

            fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
                // SAFETY: `self` holds the proof that the features of the callee, or more, were detected.
                unsafe { prepare_row(x, out) }
            }

            fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile) {
                #[target_feature(enable = "neon")]
                fn decode(weights: &[u8], q: &mut [Bytes; BLOCKS], d: &mut [f32; BLOCKS]) {
                    let blocks = weights.as_chunks::<{ block::$ty::SIZE_BYTES }>().0;
                    for ((block, q), d) in blocks.iter().zip(q).zip(d) {
                        let bytes = $load(block::$ty(block));
                        for (q, bytes) in q.iter_mut().zip(bytes) {
                            store_s8(q, bytes);
                        }
                        *d = scale(block);
                    }
                }
                // SAFETY: `self` holds the proof that the features of the callee, or more, were detected.
                unsafe { decode(weights, &mut tile.q[r], &mut tile.d[r]) }
            }

            fn tile<const G: usize>(
                &self,
                tile: &Tile,
                kc: usize,
                x: [&[u8]; G],
                acc: [&mut [f32]; G],
            ) {
                #[target_feature(enable = $features)]
                fn multiply(tile: &Tile, n_blocks: usize, x: &[u8], acc: &mut [f32]) {
                    let blocks = &x.as_chunks::<GROUP_BLOCK>().0[..n_blocks.min(BLOCKS)];
                    let acc = acc.as_chunks_mut::<LANES>().0;
                    let mut sums = [[vdupq_n_f32(0.0); VECTORS]; MR];
                    for r in 0..MR {
                        for v in 0..VECTORS {
                            sums[r][v] = load_f32(&acc[r].as_chunks().0[v]);
                        }
                    }
                    for (b, x) in blocks.iter().enumerate() {
                        let lines = x.as_chunks::<16>().0;
                        let mut dots = [[vdupq_n_s32(0); VECTORS]; MR];
                        for half in 0..2 {
                            let mut w = [vdupq_n_s8(0); MR];
                            for r in 0..MR {
                                w[r] = load_s8(&tile.q[r][b][half]);
                            }
                            let lines = &lines[VECTORS * (1 + 4 * half)..];
                            for v in 0..VECTORS {
                                let x = |i: usize| load_s8(&lines[VECTORS * i + v]);
                                let (x0, x1, x2, x3) = (x(0), x(1), x(2), x(3));
                                for r in 0..MR {
                                    let sum = $dot_lane::<0>(dots[r][v], x0, w[r]);
                                    let sum = $dot_lane::<1>(sum, x1, w[r]);
                                    let sum = $dot_lane::<2>(sum, x2, w[r]);
                                    dots[r][v] = $dot_lane::<3>(sum, x3, w[r]);
                                }
                            }
                        }
                        for v in 0..VECTORS {
                            let scales = load_f32_bytes(&lines[v]);
                            for r in 0..MR {
                                let d = vmulq_n_f32(scales, tile.d[r][b]);
                                sums[r][v] = vfmaq_f32(sums[r][v], vcvtq_f32_s32(dots[r][v]), d);
                            }
                        }
                    }
                    for r in 0..MR {
                        for v in 0..VECTORS {
                            store_f32(&mut acc[r].as_chunks_mut().0[v], sums[r][v]);
                        }
                    }
                }
                for (x, acc) in x.into_iter().zip(acc) {
                    // SAFETY: `self` holds the proof that the features of the callee were detected.
                    unsafe { multiply(tile, kc / QK, x, acc) }
                }
            }

            fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
                // SAFETY: `self` holds the proof that the features of the callee, or more, were detected.
                unsafe { store_transposed(acc, n_lanes, out, stride) }
            }

            fn dot(&self, k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                #[target_feature(enable = $features)]
                fn body(n: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                    let w = weights.map(|w| &w.as_chunks::<{ block::$ty::SIZE_BYTES }>().0[..n]);
                    let x = &x.as_chunks::<ROW_BLOCK>().0[..n];
                    let mut sums = [vdupq_n_f32(0.0); DOT_ROWS];
                    for b in 0..n {
                        let (d, q) = x[b].split_first_chunk().expect("a scale and 32 bytes");
                        let (d, q) = (f32::from_ne_bytes(*d), q.as_chunks().0);
                        let x = [load_s8(&q[0]), load_s8(&q[1])];
                        for r in 0..DOT_ROWS {
                            let block = &w[r][b];
                            let w = $load(block::$ty(block));
                            let dots = $dot($dot(vdupq_n_s32(0), w[0], x[0]), w[1], x[1]);
                            sums[r] = vfmaq_n_f32(sums[r], vcvtq_f32_s32(dots), scale(block) * d);
                        }
                    }
                    sums.map(|sum| vaddvq_f32(sum))
                }
                // SAFETY: `self` holds the proof that the features of the callee were detected.
                unsafe { body(k / QK, weights, x) }
            }
        }
    };
}

micro!(
    DotQ8_0,
    Q8_0,
    load_q8_0,
    Dotprod,
    "neon,dotprod",
    dot,
    dot_lane
);
micro!(
    DotQ4_0,
    Q4_0,
    load_q4_0,
    Dotprod,
    "neon,dotprod",
    dot,
    dot_lane
);
micro!(
    LongQ8_0,
    Q8_0,
    load_q8_0,
    Neon,
    "neon",
    long_dot,
    long_dot_lane
);
micro!(
    LongQ4_0,
    Q4_0,
    load_q4_0,
    Neon,
    "neon",
    long_dot,
    long_dot_lane
);

/// Returns the integers of a block.
#[inline]
#[target_feature(enable = "neon")]
fn load_q8_0(block: block::Q8_0<'_>) -> [int8x16_t; 2] {
    let halves = block.qs().as_chunks().0;
    [load_s8(&halves[0]), load_s8(&halves[1])]
}

/// Returns the integers of a block.
#[inline]
#[target_feature(enable = "neon")]
fn load_q4_0(block: block::Q4_0<'_>) -> [int8x16_t; 2] {
    let bytes = load_u8(block.qs());
    let nibbles = [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)];
    nibbles.map(|q| vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(8)))
}

/// Returns the scale at the start of a block.
#[inline]
#[target_feature(enable = "neon")]
fn scale<const N: usize>(block: &[u8; N]) -> f32 {
    let half = vdup_n_u16(u16::from_le_bytes([block[0], block[1]]));
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(half)))
}

#[target_feature(enable = "neon")]
fn prepare_row(x: &[u8], out: &mut [u8]) {
    let blocks = x.as_chunks().0.iter();
    for (x, out) in blocks.zip(out.as_chunks_mut::<ROW_BLOCK>().0) {
        let block = quantize::<false>(x, scale_q8_0(x));
        out[..4].copy_from_slice(&block.d.to_ne_bytes());
        out[4..].copy_from_slice(&block.q);
    }
}

#[target_feature(enable = "neon")]
fn prepare_group(x: &F32Rows<'_>, group: &mut [u8]) {
    if x.n_rows() < LANES {
        group.fill(0);
    }
    for lane in 0..x.n_rows() {
        let blocks = x.row(lane).as_chunks().0.iter();
        for (x, out) in blocks.zip(group.as_chunks_mut::<GROUP_BLOCK>().0) {
            let block = quantize::<false>(x, scale_q8_0(x));
            // Words of the packed block, in lines of one word per lane.
            let words = out.as_chunks_mut::<4>().0;
            words[lane] = block.d.to_ne_bytes();
            for (i, word) in block.q.as_chunks().0.iter().enumerate() {
                words[(1 + i) * LANES + lane] = *word;
            }
        }
    }
}
