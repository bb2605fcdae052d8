//! `F16` tiles, x rounded to f16: both are multiplied as f32.
//!
//! A decoded tile is two vectors for each of 32 elements. A packed block of x is 32 floats.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::F32Rows;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::{TILE, TileType};
use crate::x86_64::avx512::LINE;
use crate::x86_64::block::implementation;
use crate::x86_64::mem::*;

/// Bytes of a packed block.
const BLOCK: usize = 4 * QK;

/// Rows of x multiplied at a time: with two sums each they leave registers for the weights.
const ROWS: usize = 8;

/// The CPU has what every function here is compiled with: `avx512f` (with what it implies).
#[derive(Clone, Copy, Debug)]
struct Cpu(());

impl Cpu {
    fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

implementation!(F16, 128, prepare, strip);

#[target_feature(enable = "avx512f")]
fn prepare(x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
    let mut blocks = units.as_chunks_mut::<BLOCK>().0.iter_mut();
    for k_tile in k_tiles {
        for (row, block) in (0..x.n_rows()).zip(&mut blocks) {
            let row = x.row(row);
            let part = &row[(k_tile * BLOCK).min(row.len())..];
            let floats = match part.first_chunk::<BLOCK>() {
                Some(floats) => floats,
                None => &padded(part),
            };
            for (x, out) in floats
                .as_chunks::<LINE>()
                .0
                .iter()
                .zip(block.as_chunks_mut::<LINE>().0)
            {
                let half =
                    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_castsi512_ps(load_512(x)));
                store_512(out, _mm512_castps_si512(_mm512_cvtph_ps(half)));
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn strip(tiles: &[u8], _bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let mut w = [[[0.0; 16]; 2]; QK];
    let (mut units, unit) = (group, out.len() * BLOCK);
    for tile in tiles.as_chunks::<2048>().0 {
        let (x, rest) = units.split_at(unit);
        units = rest;
        decode(tile, &mut w);
        let (x, _) = x.as_chunks::<BLOCK>();
        let (eights, out) = out.as_chunks_mut::<ROWS>();
        let (x, x_tail) = x.as_chunks::<ROWS>();
        for (x, out) in x.iter().zip(eights) {
            multiply(&w, x, out);
        }
        let (fours, out) = out.as_chunks_mut::<4>();
        let (x, x_tail) = x_tail.as_chunks::<4>();
        for (x, out) in x.iter().zip(fours) {
            multiply(&w, x, out);
        }
        for (x, out) in x_tail.iter().zip(out) {
            multiply(&w, std::array::from_ref(x), std::array::from_mut(out));
        }
    }
}

/// Decodes a tile: lanes of 32 bits are pairs of elements of one row.
#[inline]
#[target_feature(enable = "avx512f")]
fn decode(tile: &[u8; 2048], w: &mut [[[f32; 16]; 2]; QK]) {
    for (cp, pairs) in tile.as_chunks::<LINE>().0.iter().enumerate() {
        let (kk, h) = (cp / 2 * 2, cp % 2);
        let pairs = load_512(pairs);
        let even = _mm512_cvtepi32_epi16(pairs);
        let odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs));
        store_f32x16(&mut w[kk][h], _mm512_cvtph_ps(even));
        store_f32x16(&mut w[kk + 1][h], _mm512_cvtph_ps(odd));
    }
}

/// Adds the products of a tile with `R` rows of x.
#[inline]
#[target_feature(enable = "avx512f")]
fn multiply<const R: usize>(
    w: &[[[f32; 16]; 2]; QK],
    x: &[[u8; BLOCK]; R],
    out: &mut [[f32; TILE]; R],
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    for r in 0..R {
        let (halves, _) = out[r].as_chunks::<16>();
        sums[r] = [load_f32x16(&halves[0]), load_f32x16(&halves[1])];
    }
    for kk in 0..QK {
        let w = [load_f32x16(&w[kk][0]), load_f32x16(&w[kk][1])];
        for r in 0..R {
            let x = x[r].as_chunks().0[kk];
            let x = _mm512_set1_ps(f32::from_ne_bytes(x));
            sums[r][0] = _mm512_fmadd_ps(w[0], x, sums[r][0]);
            sums[r][1] = _mm512_fmadd_ps(w[1], x, sums[r][1]);
        }
    }
    for r in 0..R {
        let (halves, _) = out[r].as_chunks_mut::<16>();
        store_f32x16(&mut halves[0], sums[r][0]);
        store_f32x16(&mut halves[1], sums[r][1]);
    }
}
