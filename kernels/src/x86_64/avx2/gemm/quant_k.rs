//! Tiles of K-quants, x quantised to `Q8_K`, with byte products added in pairs.
//!
//! Scales and minima of 256 elements are integers times a half float, and x has one scale for as many. So their products
//! are added up as integers, in floats that hold them: exactly, but for up to three bits where sums pass 2^24 (those of
//! `Q6_K` stay below 2^27). The rest is two products and a sum in 256 elements.

use std::arch::x86_64::*;
use std::ops::Range;

use super::quant::*;
use crate::F32Rows;
use crate::block::QK;
use crate::op::gemm::{GROUP_ROWS, Implementation};
use crate::tile::block::QK_K;
use crate::tile::{TILE, TileType};
use crate::x86_64::avx2::LANES;
use crate::x86_64::block::{NATURAL, NIBBLES, implementation, word};
use crate::x86_64::mem::*;

/// Tiles that share a base.
const TILES: usize = QK_K / QK;

/// Rows that are so few that clearing room for a whole group would take a while of its own.
const FEW: usize = 8;

/// Integers that scale the parts of a tile, and its minima.
type Integers<const PARTS: usize> = ([Floats; PARTS], Floats);

/// A type's kernel: its tile, its block of x, its bases, the scales of a row, whether it has minima, the offset of its
/// integers, how many pair sums fit 16 bits, the order of x, and the functions that decode a tile.
macro_rules! kernel {
    ($name:ident, $tile:literal, $block:literal, $bases:literal, $parts:literal, $min:literal, $offset:literal, $pairs:literal,
     $order:ident, $words:ident, $integers:ident) => {
        implementation!(
            $name,
            $block,
            |x: &F32Rows<'_>, k_tiles, units: &mut [u8]| prepare_k::<$block, $parts, $min, $offset>(
                x, k_tiles, units, $order
            ),
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn rows<const ROWS: usize>(
                    tiles: &[u8],
                    bases: &[u8],
                    group: &[u8],
                    out: &mut [[f32; TILE]],
                ) {
                    out.fill([0.0; TILE]);
                    let mut dots = [[0.0; TILE]; ROWS];
                    let dots = &mut dots[..out.len()];
                    let units = group
                        .as_chunks::<$block>()
                        .0
                        .chunks_exact(TILES * out.len());
                    let blocks = tiles.as_chunks::<$tile>().0.as_chunks::<TILES>().0.iter();
                    for ((tiles, units), bases) in
                        blocks.zip(units).zip(bases.as_chunks::<$bases>().0)
                    {
                        let inverses = inverses::<$bases, $min>(bases);
                        dots.fill([0.0; TILE]);
                        let mut minima = [[_mm256_setzero_ps(); QUARTERS]; TILES];
                        for (t, (tile, x)) in
                            tiles.iter().zip(units.chunks_exact(out.len())).enumerate()
                        {
                            let (w, (d, m)) = ($words(tile), $integers(tile, inverses));
                            minima[t] = m;
                            multiply::<$block, $parts, $min, $pairs>(&w, &d, x, dots);
                        }
                        finish::<$block, $bases, $min>(bases, &minima, units, dots, out);
                    }
                }

                #[target_feature(enable = "avx2,fma,f16c")]
                fn body(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    match out.len() {
                        ..=FEW => rows::<FEW>(tiles, bases, group, out),
                        _ => rows::<GROUP_ROWS>(tiles, bases, group, out),
                    }
                }
                body
            }
        );
    };
}

kernel!(
    Q4K,
    640,
    40,
    128,
    1,
    true,
    1,
    8,
    NIBBLES,
    nibbles,
    scales_and_minima_of
);
kernel!(
    Q6K,
    896,
    44,
    64,
    2,
    false,
    32,
    2,
    NATURAL,
    six_bits,
    scales_of_halves
);

/// Decodes the six bits of a tile: words of rows already, low four and high two bits apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn six_bits(tile: &[u8; 896]) -> Words {
    let (low, high) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
    let mut words = [[_mm256_setzero_si256(); WORDS]; QUARTERS];
    for q in 0..QUARTERS {
        for g in 0..WORDS {
            let four = load(tile, 128 * (g / 2) + 32 * q);
            let four = if g % 2 == 0 {
                four
            } else {
                _mm256_srli_epi16::<4>(four)
            };
            let two = load(tile, 512 + 128 * (g / 4) + 32 * q);
            let two = match g % 4 {
                0 => _mm256_slli_epi16::<4>(two),
                1 => _mm256_slli_epi16::<2>(two),
                2 => two,
                _ => _mm256_srli_epi16::<2>(two),
            };
            words[q][g] = _mm256_or_si256(_mm256_and_si256(four, low), _mm256_and_si256(two, high));
        }
    }
    words
}

/// Returns the reciprocals of the bases of scales and, with `MIN`, of minima; 0 for those that are 0.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn inverses<const BASES: usize, const MIN: bool>(bases: &[u8; BASES]) -> [Floats; 2] {
    let m = if MIN { 2 * TILE } else { 0 };
    [inverse(halves(bases, 0)), inverse(halves(bases, m))]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn inverse(mut base: Floats) -> Floats {
    for base in &mut base {
        let there = _mm256_cmp_ps::<_CMP_NEQ_UQ>(*base, _mm256_setzero_ps());
        *base = _mm256_and_ps(_mm256_rcp_ps(*base), there);
    }
    base
}

/// Returns the integers that scales and minima are multiples of their bases by.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_and_minima_of(tile: &[u8; 640], inverses: [Floats; 2]) -> Integers<1> {
    let (d, m) = scales_and_minima(tile);
    ([integers(d, inverses[0])], integers(m, inverses[1]))
}

/// Returns the integers that the scales of both halves along k are multiples of their base by, and no minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_of_halves(tile: &[u8; 896], inverses: [Floats; 2]) -> Integers<2> {
    let d = [768, 832].map(|at| integers(halves(tile, at), inverses[0]));
    (d, [_mm256_setzero_ps(); QUARTERS])
}

/// Returns what multiples of bases that were rounded to half floats are multiples by: integers of at most 128, 2^-11 of them
/// off, which leaves room for reciprocals with an error of 1.5 * 2^-12.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn integers(mut rounded: Floats, inverse: Floats) -> Floats {
    for q in 0..QUARTERS {
        rounded[q] = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            _mm256_mul_ps(rounded[q], inverse[q]),
        );
    }
    rounded
}

/// Adds the products of a tile with one unit of x, without the scales of bases and x.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<const BLOCK: usize, const PARTS: usize, const MIN: bool, const PAIRS: usize>(
    w: &Words,
    d: &[Floats; PARTS],
    x: &[[u8; BLOCK]],
    out: &mut [[f32; TILE]],
) {
    for q in 0..QUARTERS {
        for (x, out) in x.iter().zip(&mut *out) {
            let out = &mut out.as_chunks_mut::<LANES>().0[q];
            let mut sums = load_f32x8(out);
            for part in 0..PARTS {
                let start = if MIN { 0 } else { word(x, WORDS + 1 + part) };
                let words = part * WORDS / PARTS..(part + 1) * WORDS / PARTS;
                let dots = dots::<BLOCK, PAIRS>(&w[q], x, words, start);
                sums = _mm256_fmadd_ps(dots, d[part][q], sums);
            }
            store_f32x8(out, sums);
        }
    }
}

/// Adds what 256 elements have added up to, times the scales of bases and x, and minima times sums of x.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn finish<const BLOCK: usize, const BASES: usize, const MIN: bool>(
    bases: &[u8; BASES],
    minima: &[Floats; TILES],
    units: &[[u8; BLOCK]],
    dots: &[[f32; TILE]],
    out: &mut [[f32; TILE]],
) {
    let n_rows = out.len();
    let (base, base_m) = (
        halves(bases, 0),
        if MIN {
            halves(bases, 2 * TILE)
        } else {
            minima[0]
        },
    );
    for (r, (dots, out)) in dots.iter().zip(out).enumerate() {
        let d = float(&units[r], WORDS);
        let dots = dots.as_chunks::<LANES>().0;
        let out = out.as_chunks_mut::<LANES>().0;
        for q in 0..QUARTERS {
            let scale = _mm256_mul_ps(base[q], d);
            let mut sums = _mm256_fmadd_ps(load_f32x8(&dots[q]), scale, load_f32x8(&out[q]));
            if MIN {
                let mut products = _mm256_setzero_ps();
                for (t, m) in minima.iter().enumerate() {
                    let x = float(&units[t * n_rows + r], WORDS + 1);
                    products = _mm256_fmadd_ps(m[q], x, products);
                }
                sums = _mm256_fmadd_ps(products, _mm256_mul_ps(base_m[q], d), sums);
            }
            store_f32x8(&mut out[q], sums);
        }
    }
}
