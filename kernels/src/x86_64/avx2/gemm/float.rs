//! `F16` tiles, x rounded to f16: both are multiplied as f32.
//!
//! A decoded tile is four vectors for each of 32 elements. A packed block of x is 32 floats.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::F32Rows;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::{TILE, TileType};
use crate::x86_64::avx2::{LANES, LINE};
use crate::x86_64::block::implementation;
use crate::x86_64::mem::*;

/// Bytes of a packed block.
const BLOCK: usize = 4 * QK;

/// Rows of x multiplied at a time: with two sums each they leave registers for the weights.
const ROWS: usize = 4;

/// The CPU has what every function here is compiled with: `avx2`, `fma` and `f16c`.
#[derive(Clone, Copy, Debug)]
struct Cpu(());

impl Cpu {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

implementation!(F16, 128, prepare, strip);

/// A decoded tile: `[half of the strip][element][vector]`.
type Tile = [[[[f32; LANES]; 2]; QK]; 2];

#[target_feature(enable = "avx2,fma,f16c")]
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
            let lines = floats.as_chunks::<LINE>().0.iter();
            for (x, out) in lines.zip(block.as_chunks_mut::<LINE>().0) {
                let x = _mm256_castsi256_ps(load_256(x));
                let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                store_256(out, _mm256_castps_si256(_mm256_cvtph_ps(half)));
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn strip(tiles: &[u8], _bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let mut w = [[[[0.0; LANES]; 2]; QK]; 2];
    let units = group.as_chunks::<BLOCK>().0.chunks_exact(out.len());
    for (tile, x) in tiles.as_chunks::<2048>().0.iter().zip(units) {
        decode(tile, &mut w);
        for h in 0..2 {
            let (fours, rest) = out.as_chunks_mut::<ROWS>();
            let (x_fours, x_rest) = x.as_chunks::<ROWS>();
            for (x, out) in x_fours.iter().zip(fours) {
                multiply(&w[h], h, x, out);
            }
            for (x, out) in x_rest.iter().zip(rest) {
                multiply(&w[h], h, std::array::from_ref(x), std::array::from_mut(out));
            }
        }
    }
}

/// Decodes a tile: lanes of 32 bits are pairs of elements of one row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode(tile: &[u8; 2048], w: &mut Tile) {
    for (i, pairs) in tile.as_chunks::<LINE>().0.iter().enumerate() {
        let (kk, h, v) = (i / 4 * 2, i % 4 / 2, i % 2);
        let pairs = load_256(pairs);
        let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
        // Packing works inside 128-bit parts: the low halves of both are wanted.
        let both = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(pairs));
        let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
        store_f32x8(
            &mut w[h][kk][v],
            _mm256_cvtph_ps(_mm256_castsi256_si128(both)),
        );
        let odd = _mm256_extracti128_si256::<1>(both);
        store_f32x8(&mut w[h][kk + 1][v], _mm256_cvtph_ps(odd));
    }
}

/// Adds the products of half a tile with `R` rows of x.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<const R: usize>(
    w: &[[[f32; LANES]; 2]; QK],
    h: usize,
    x: &[[u8; BLOCK]; R],
    out: &mut [[f32; TILE]; R],
) {
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for r in 0..R {
        let (parts, _) = out[r].as_chunks::<LANES>();
        sums[r] = [load_f32x8(&parts[2 * h]), load_f32x8(&parts[2 * h + 1])];
    }
    for kk in 0..QK {
        let w = [load_f32x8(&w[kk][0]), load_f32x8(&w[kk][1])];
        for r in 0..R {
            let x = _mm256_set1_ps(f32::from_ne_bytes(x[r].as_chunks().0[kk]));
            sums[r][0] = _mm256_fmadd_ps(w[0], x, sums[r][0]);
            sums[r][1] = _mm256_fmadd_ps(w[1], x, sums[r][1]);
        }
    }
    for r in 0..R {
        let (parts, _) = out[r].as_chunks_mut::<LANES>();
        store_f32x8(&mut parts[2 * h], sums[r][0]);
        store_f32x8(&mut parts[2 * h + 1], sums[r][1]);
    }
}
