//! `F16` weights, multiplied as f32.
//!
//! A decoded tile has the 32 weights of each element of k side by side. A unit has, for up to 4 rows at a time, an f32 of
//! each row for every element; rows that are missing from the last four are zeros.

use std::arch::aarch64::*;
use std::ops::Range;

use crate::F32Rows;
use crate::aarch64::Neon;
use crate::aarch64::mem::*;
use crate::aarch64::quantize::block_bytes;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::{TILE, TileType};

/// Rows of x at a time: lanes of a vector.
const ROWS: usize = 4;

/// Bytes of 32 elements of four rows.
const PIECE: usize = 4 * ROWS * QK;

/// Vectors of weight rows at a time.
const VECTORS: usize = 4;

/// A decoded tile: `[kk][row]`.
type Tile = [[f32; TILE]; QK];

/// Half float weights.
#[derive(Debug)]
pub(crate) struct F16(Neon);

impl F16 {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        Neon::detect().map(Self)
    }
}

impl Implementation for F16 {
    fn ty(&self) -> TileType {
        TileType::F16
    }

    fn unit_size_bytes(&self, n_rows: usize) -> usize {
        n_rows.div_ceil(ROWS) * PIECE
    }

    fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
        // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
        unsafe { prepare(x, k_tiles, units) }
    }

    fn strip(&self, tiles: &[u8], _bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        // SAFETY: `self` holds a `Neon`, made only where the features of the callee were detected.
        unsafe { strip(tiles, group, out) }
    }
}

#[target_feature(enable = "neon")]
fn prepare(x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
    let n_pieces = x.n_rows().div_ceil(ROWS);
    for (k_tile, unit) in k_tiles.zip(units.chunks_exact_mut(n_pieces * PIECE)) {
        for (i, piece) in unit.as_chunks_mut::<PIECE>().0.iter_mut().enumerate() {
            let rows = i * ROWS..x.n_rows().min((i + 1) * ROWS);
            if rows.len() < ROWS {
                piece.fill(0);
            }
            let (words, _) = piece.as_chunks_mut::<4>();
            for (lane, row) in rows.enumerate() {
                let block = block_bytes(x.row(row), k_tile * QK);
                for (j, four) in block.as_chunks().0.iter().enumerate() {
                    let mut rounded = [0; 16];
                    store_u8(
                        &mut rounded,
                        vreinterpretq_u8_f32(round_to_f16(load_f32_bytes(four))),
                    );
                    for (i, word) in rounded.as_chunks().0.iter().enumerate() {
                        words[(4 * j + i) * ROWS + lane] = *word;
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn strip(tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let n_pieces = out.len().div_ceil(ROWS);
    let mut decoded = [[0.0; TILE]; QK];
    let units = group.chunks_exact(n_pieces * PIECE);
    for (tile, unit) in tiles
        .chunks_exact(TileType::F16.tile_size_bytes())
        .zip(units)
    {
        decode(tile, &mut decoded);
        for (x, out) in unit.as_chunks::<PIECE>().0.iter().zip(out.chunks_mut(ROWS)) {
            match out.len() {
                1 => multiply::<1>(&decoded, x, out),
                2 => multiply::<2>(&decoded, x, out),
                3 => multiply::<3>(&decoded, x, out),
                _ => multiply::<ROWS>(&decoded, x, out),
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn decode(tile: &[u8], out: &mut Tile) {
    for (line, [even, odd]) in tile.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        unzip_line(line, even, odd);
    }
}

/// Adds the products of a tile with the first `N` rows of a piece.
#[inline]
#[target_feature(enable = "neon")]
fn multiply<const N: usize>(tile: &Tile, x: &[u8; PIECE], out: &mut [[f32; TILE]]) {
    let xs = x.as_chunks().0;
    let out: &mut [[f32; TILE]; N] = out.as_mut_array().expect("N rows");
    for first in (0..TILE / 4).step_by(VECTORS) {
        let mut sums = [[vdupq_n_f32(0.0); VECTORS]; N];
        for r in 0..N {
            for v in 0..VECTORS {
                sums[r][v] = load_f32(&out[r].as_chunks().0[first + v]);
            }
        }
        for (w, x) in tile.iter().zip(xs) {
            let x = load_f32_bytes(x);
            for v in 0..VECTORS {
                let w = load_f32(&w.as_chunks().0[first + v]);
                for r in 0..N {
                    sums[r][v] = add_scaled(sums[r][v], w, x, r);
                }
            }
        }
        for r in 0..N {
            for v in 0..VECTORS {
                store_f32(&mut out[r].as_chunks_mut().0[first + v], sums[r][v]);
            }
        }
    }
}
