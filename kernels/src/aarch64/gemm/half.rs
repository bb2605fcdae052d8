//! `F16` weights, multiplied [as half floats](crate::aarch64::half).
//!
//! A decoded tile has the 32 weights of each element of k side by side. A unit has, for up to 8 rows at a time, a half of
//! each row for every element, then an f32 of each row that its results are multiplied with; rows that are missing from the
//! last eight are zeros.
//!
//! Where sums are half floats, the 32 elements of a row are scaled by a power of two that brings the largest to `2^8 ..
//! 2^9`: products with usual weights are then far from both ends of the format, and a sum that is subnormal is rounded by
//! no more than `2^-33` of the largest x. An element that scaling makes subnormal is off by as much before its weight
//! multiplies it.

use std::arch::aarch64::*;
use std::ops::Range;

use crate::F32Rows;
use crate::aarch64::half::{Lanes, Line, Multiply, ROWS, Rows, VECTORS, normaliser};
use crate::aarch64::mem::*;
use crate::aarch64::quantize::{block_bytes, greatest};
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::kv::LINE_SIZE_BYTES;
use crate::tile::{TILE, TileType};

/// Bytes of 32 elements of eight rows.
const HALVES: usize = size_of::<Lanes>() * QK;

/// Bytes of a piece: elements, and factors of the rows.
const PIECE: usize = HALVES + 4 * ROWS;

/// The binary logarithm of what the largest of 32 elements is scaled to, where sums are half floats.
const LOG: i32 = 8;

/// Half float weights.
#[derive(Debug)]
pub(crate) struct Half<M>(M);

impl<M: Multiply> Half<M> {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        M::detect().map(Self)
    }
}

impl<M: Multiply> Implementation for Half<M> {
    fn ty(&self) -> TileType {
        TileType::F16
    }

    fn unit_size_bytes(&self, n_rows: usize) -> usize {
        n_rows.div_ceil(ROWS) * PIECE
    }

    fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
        let prepare = if M::IS_SHORT {
            prepare::<true>
        } else {
            prepare::<false>
        };
        // SAFETY: `self` holds the proof that the features of the callee, and more, were detected.
        unsafe { prepare(x, k_tiles, units) }
    }

    fn strip(&self, tiles: &[u8], _bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        out.fill([0.0; TILE]);
        let n_pieces = out.len().div_ceil(ROWS);
        let mut decoded = [[[0; 16]; VECTORS]; QK];
        let units = group.chunks_exact(n_pieces * PIECE);
        let tiles = tiles.chunks_exact(TileType::F16.tile_size_bytes());
        for (tile, unit) in tiles.zip(units) {
            // SAFETY: `self` holds the proof that the features of the callee, and more, were detected.
            unsafe { decode(tile, &mut decoded) };
            let pieces = unit.as_chunks::<PIECE>().0.iter();
            for (piece, out) in pieces.zip(out.chunks_mut(ROWS)) {
                let (lanes, bytes) = piece.split_at(HALVES);
                let mut factors = [0.0; ROWS];
                for (factor, bytes) in factors.iter_mut().zip(bytes.as_chunks().0) {
                    *factor = f32::from_ne_bytes(*bytes);
                }
                let n = out.len();
                let rows = Rows {
                    floats: out.as_flattened_mut(),
                    stride: TILE,
                    offset: 0,
                };
                let lanes = lanes.as_chunks().0;
                self.0.multiply(&decoded, lanes, &factors, n, rows);
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn prepare<const IS_SCALED: bool>(x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
    let n_pieces = x.n_rows().div_ceil(ROWS);
    for (k_tile, unit) in k_tiles.zip(units.chunks_exact_mut(n_pieces * PIECE)) {
        for (i, piece) in unit.as_chunks_mut::<PIECE>().0.iter_mut().enumerate() {
            let rows = i * ROWS..x.n_rows().min((i + 1) * ROWS);
            if rows.len() < ROWS {
                piece.fill(0);
            }
            let (halves, factors) = piece.split_at_mut(HALVES);
            let halves = halves.as_chunks_mut::<2>().0;
            for (lane, row) in rows.enumerate() {
                let block = block_bytes(x.row(row), k_tile * QK);
                let mut factor = 1.0;
                if IS_SCALED {
                    // Scaled is what x was rounded to.
                    let max = round_to_f16(vdupq_n_f32(greatest(&block)));
                    factor = normaliser(vgetq_lane_f32::<0>(max), LOG);
                }
                for (j, eight) in block.as_chunks::<32>().0.iter().enumerate() {
                    let fours: &[[u8; 16]] = eight.as_chunks().0;
                    let load =
                        |i: usize| vmulq_n_f32(round_to_f16(load_f32_bytes(&fours[i])), factor);
                    let mut rounded = [0; 16];
                    store_u16(&mut rounded, narrow_f32(load(0), load(1)));
                    for (i, half) in rounded.as_chunks().0.iter().enumerate() {
                        halves[(8 * j + i) * ROWS + lane] = *half;
                    }
                }
                factors[4 * lane..][..4].copy_from_slice(&factor.recip().to_ne_bytes());
            }
        }
    }
}

/// Writes two lines for each line of the tile, in which their elements are interleaved.
#[target_feature(enable = "neon")]
fn decode(tile: &[u8], out: &mut [Line; QK]) {
    let lines = tile.as_chunks::<LINE_SIZE_BYTES>().0;
    for (line, [even, odd]) in lines.iter().zip(out.as_chunks_mut().0) {
        unzip_halves(line, even, odd);
    }
}
