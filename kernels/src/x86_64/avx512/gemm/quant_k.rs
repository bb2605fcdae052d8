//! Tiles of K-quants, x quantised to `Q8_K`, with VNNI byte dots.
//!
//! Scales and minima of 256 elements are integers times a half float, and x has one scale for as many. So their products
//! are added up as integers, in floats that hold them: exactly, but for up to three bits where sums of `Q4_K` and
//! `Q6_K` pass 2^24 (the latter stay below 2^27). The rest is two products and a sum in 256 elements.

use std::arch::x86_64::*;
use std::ops::Range;

use super::quant::*;
use crate::F32Rows;
use crate::block::QK;
use crate::op::gemm::{GROUP_ROWS, Implementation};
use crate::tile::block::QK_K;
use crate::tile::{TILE, TileType};
use crate::x86_64::block::{NATURAL, NIBBLES, implementation, word};

/// Tiles that share a base.
const TILES: usize = QK_K / QK;

/// Rows that are so few that clearing room for a whole group would take a while of its own.
const FEW: usize = 8;

/// Integers that scale the parts of a tile, and its minima.
type Integers<const PARTS: usize> = ([[__m512; 2]; PARTS], [__m512; 2]);

/// A type's kernel: its tile, its block of x, its bases, the scales of a row, whether it has minima, the offset of its
/// integers, the order of x, and the functions that decode a tile.
macro_rules! kernel {
    ($name:ident, $tile:literal, $block:literal, $bases:literal, $parts:literal, $min:literal, $offset:literal, $order:ident,
     $words:ident, $integers:ident) => {
        implementation!(
            $name,
            $block,
            |x: &F32Rows<'_>, k_tiles, units: &mut [u8]| prepare_k::<$block, $parts, $min, $offset>(
                x, k_tiles, units, $order
            ),
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn few<const R: usize>(
                    tiles: &[u8],
                    bases: &[u8],
                    group: &[u8],
                    out: &mut [[f32; TILE]; R],
                ) {
                    // They lie behind the tiles, where nobody expects the reader yet.
                    fetch(bases, 0);
                    let mut sums = [[_mm512_setzero_ps(); 2]; R];
                    let units = group.as_chunks::<$block>().0.as_chunks::<R>().0;
                    let blocks = tiles.as_chunks::<$tile>().0.as_chunks::<TILES>().0.iter();
                    let units = units.as_chunks::<TILES>().0;
                    for ((tiles, units), bases) in
                        blocks.zip(units).zip(bases.as_chunks::<$bases>().0)
                    {
                        let inverses = inverses::<$bases, $min>(bases);
                        let mut dots = [[_mm512_setzero_ps(); 2]; R];
                        let mut minima = [[_mm512_setzero_ps(); 2]; R];
                        for (tile, x) in tiles.iter().zip(units) {
                            let (w, (d, m)) = ($words(tile), $integers(tile, inverses));
                            for r in 0..R {
                                dots[r] = add::<$block, $parts, $min>(&w, &d, &x[r], dots[r]);
                                if $min {
                                    minima[r] = add_minima(m, &x[r], minima[r]);
                                }
                            }
                        }
                        for r in 0..R {
                            let x = &units[0][r];
                            sums[r] = finish::<$block, $bases, $min>(
                                bases, x, dots[r], minima[r], sums[r],
                            );
                        }
                    }
                    for (sums, out) in sums.into_iter().zip(out) {
                        store(out, sums);
                    }
                }

                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn many<const ROWS: usize>(
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
                        let mut minima = [[_mm512_setzero_ps(); 2]; TILES];
                        let tiles_x = units.chunks_exact(out.len());
                        for (t, (tile, x)) in tiles.iter().zip(tiles_x.clone()).enumerate() {
                            fetch(tile, AHEAD);
                            let (w, (d, m)) = ($words(tile), $integers(tile, inverses));
                            minima[t] = m;
                            for (x, dots) in x.iter().zip(&mut *dots) {
                                store(
                                    dots,
                                    add::<$block, $parts, $min>(&w, &d, x, load_sums(dots)),
                                );
                            }
                        }
                        for (r, (dots, out)) in dots.iter().zip(&mut *out).enumerate() {
                            let mut sum = [_mm512_setzero_ps(); 2];
                            if $min {
                                for (x, m) in tiles_x.clone().zip(minima) {
                                    sum = add_minima(m, &x[r], sum);
                                }
                            }
                            let sums = finish::<$block, $bases, $min>(
                                bases,
                                &units[r],
                                load_sums(dots),
                                sum,
                                load_sums(out),
                            );
                            store(out, sums);
                        }
                    }
                }

                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn body(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    match out.len() {
                        1 => few::<1>(tiles, bases, group, out.first_chunk_mut().expect("one row")),
                        2 => few::<2>(
                            tiles,
                            bases,
                            group,
                            out.first_chunk_mut().expect("two rows"),
                        ),
                        3..=FEW => many::<FEW>(tiles, bases, group, out),
                        _ => many::<GROUP_ROWS>(tiles, bases, group, out),
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
    NATURAL,
    six_bits,
    scales_of_halves
);

/// Decodes the six bits of a tile: words of rows already, low four and high two bits apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn six_bits(tile: &[u8; 896]) -> Words {
    let (low, high) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
    let mut words = [[_mm512_setzero_si512(); 2]; WORDS];
    for h in 0..2 {
        for g in 0..WORDS {
            let four = load(tile, 128 * (g / 2) + 64 * h);
            let four = if g % 2 == 0 {
                four
            } else {
                _mm512_srli_epi16::<4>(four)
            };
            let two = load(tile, 512 + 128 * (g / 4) + 64 * h);
            let two = match g % 4 {
                0 => _mm512_slli_epi16::<4>(two),
                1 => _mm512_slli_epi16::<2>(two),
                2 => two,
                _ => _mm512_srli_epi16::<2>(two),
            };
            words[g][h] = _mm512_or_si512(_mm512_and_si512(four, low), _mm512_and_si512(two, high));
        }
    }
    words
}

/// Returns the reciprocals of the bases of scales and, with `MIN`, of minima; 0 for those that are 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn inverses<const BASES: usize, const MIN: bool>(bases: &[u8; BASES]) -> [[__m512; 2]; 2] {
    let m = if MIN { 2 * TILE } else { 0 };
    [inverse(halves(bases, 0)), inverse(halves(bases, m))]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn inverse(mut base: [__m512; 2]) -> [__m512; 2] {
    for h in 0..2 {
        let there = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(base[h], _mm512_setzero_ps());
        base[h] = _mm512_maskz_rcp14_ps(there, base[h]);
    }
    base
}

/// Returns the integers that scales and minima are multiples of their bases by.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn scales_and_minima_of(tile: &[u8; 640], inverses: [[__m512; 2]; 2]) -> Integers<1> {
    let (d, m) = scales_and_minima(tile);
    ([integers(d, inverses[0])], integers(m, inverses[1]))
}

/// Returns the integers that the scales of both halves along k are multiples of their base by, and no minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn scales_of_halves(tile: &[u8; 896], inverses: [[__m512; 2]; 2]) -> Integers<2> {
    let d = [768, 832].map(|at| integers(halves(tile, at), inverses[0]));
    (d, [_mm512_setzero_ps(); 2])
}

/// Returns what multiples of bases that were rounded to half floats are multiples by: integers of at most 128, 2^-11 of them
/// off, which leaves room for reciprocals with an error of 2^-14.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn integers(mut rounded: [__m512; 2], inverse: [__m512; 2]) -> [__m512; 2] {
    for h in 0..2 {
        rounded[h] = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            _mm512_mul_ps(rounded[h], inverse[h]),
        );
    }
    rounded
}

/// Adds the products of a tile with one block of x, without the scales of bases and x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn add<const BLOCK: usize, const PARTS: usize, const MIN: bool>(
    w: &Words,
    d: &[[__m512; 2]; PARTS],
    x: &[u8; BLOCK],
    mut sums: [__m512; 2],
) -> [__m512; 2] {
    for part in 0..PARTS {
        let start = if MIN { 0 } else { word(x, WORDS + 1 + part) };
        let words = part * WORDS / PARTS..(part + 1) * WORDS / PARTS;
        let dots = dots(w, x, words, start);
        for h in 0..2 {
            sums[h] = _mm512_fmadd_ps(dots[h], d[part][h], sums[h]);
        }
    }
    sums
}

/// Adds minima times the sum of the integers of a block of x.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_minima<const BLOCK: usize>(
    m: [__m512; 2],
    x: &[u8; BLOCK],
    mut sums: [__m512; 2],
) -> [__m512; 2] {
    for h in 0..2 {
        sums[h] = _mm512_fmadd_ps(m[h], float(x, WORDS + 1), sums[h]);
    }
    sums
}

/// Adds what 256 elements have added up to, times the scales of bases and x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn finish<const BLOCK: usize, const BASES: usize, const MIN: bool>(
    bases: &[u8; BASES],
    x: &[u8; BLOCK],
    dots: [__m512; 2],
    minima: [__m512; 2],
    mut sums: [__m512; 2],
) -> [__m512; 2] {
    let d = float(x, WORDS);
    let base = halves(bases, 0);
    for h in 0..2 {
        sums[h] = _mm512_fmadd_ps(dots[h], _mm512_mul_ps(base[h], d), sums[h]);
    }
    if MIN {
        let base = halves(bases, 2 * TILE);
        for h in 0..2 {
            sums[h] = _mm512_fmadd_ps(minima[h], _mm512_mul_ps(base[h], d), sums[h]);
        }
    }
    sums
}
