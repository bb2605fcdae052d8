//! Quantised tiles, x quantised to `Q8_0`, with byte products added in pairs; and what those of
//! [K-quants](super::quant_k) share with them.
//!
//! The instruction (`maddubs`) multiplies unsigned with signed bytes and saturates sums of two at 16 bits. Lane `n` of a
//! decoded tile has four elements of row `n`.
//!
//! * Nibbles: eight sums of two are at most 16 * 15 * 127, so a block's are added in 16 bits.
//! * Six bits: two sums of two are at most 4 * 63 * 127.
//! * Bytes: `|w|` times x with the sign of w; two products are at most 2 * 128 * 127.
//!
//! Unsigned integers are 8 or 32 above their values; sums start at what corrects that (see [`crate::x86_64::block`]).

use std::arch::x86_64::*;
use std::ops::Range;

use crate::F32Rows;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::block::QK_K;
use crate::tile::{TILE, TileType};
use crate::x86_64::avx2::quant::{quantize, scale_q8_0, scale_q8_k};
use crate::x86_64::avx2::{LANES, LINE};
use crate::x86_64::block::{
    NATURAL, NIBBLES, each_block, finish, implementation, prepare, shuffle, word,
};
use crate::x86_64::mem::*;

/// Four-byte words of a block.
pub(super) const WORDS: usize = QK / 4;

/// Vectors of a strip.
pub(super) const QUARTERS: usize = TILE / LANES;

/// The CPU has what every function here is compiled with: `avx2`, `fma` and `f16c`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu(());

impl Cpu {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

/// A decoded tile: `[quarter of the strip][group of four elements]`.
pub(super) type Words = [[__m256i; WORDS]; QUARTERS];

/// A float for each row of a strip.
pub(super) type Floats = [__m256; QUARTERS];

/// A type's kernel: its tile, its block of x, whether it has minima, the offset of its integers, how many pair sums fit 16
/// bits (0: they are signed), the order of x, and the functions that decode a tile.
macro_rules! kernel {
    ($name:ident, $tile:literal, $block:literal, $min:literal, $offset:literal, $pairs:literal, $order:ident, $words:ident,
     $scales:ident) => {
        implementation!(
            $name,
            $block,
            |x: &F32Rows<'_>, k_tiles, units: &mut [u8]| prepare::<$block, 1, $min, $offset>(
                x, k_tiles, units, $order
            ),
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn body(tiles: &[u8], _bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    out.fill([0.0; TILE]);
                    let units = group.as_chunks::<$block>().0.chunks_exact(out.len());
                    for (tile, x) in tiles.as_chunks::<$tile>().0.iter().zip(units) {
                        let (w, (d, m)) = ($words(tile), $scales(tile));
                        multiply::<$block, $min, $pairs>(&w, &d, &m, x, out);
                    }
                }
                body
            }
        );
    };
}

kernel!(Q4_0, 576, 40, false, 8, 8, NIBBLES, nibbles, scales_of_rows);
kernel!(
    Q4_1,
    640,
    40,
    true,
    1,
    8,
    NIBBLES,
    nibbles,
    scales_and_minima
);
kernel!(Q8_0, 1088, 40, false, 0, 0, NATURAL, bytes, scales_of_rows);

/// Returns 32 bytes of a tile.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(tile: &[u8], at: usize) -> __m256i {
    load_256(tile[at..][..LINE].as_array().expect("32 bytes"))
}

/// Decodes the nibbles of a tile: four bytes of a row, 32 apart, are eight elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles<const N: usize>(tile: &[u8; N]) -> Words {
    let low = _mm256_set1_epi8(15);
    let mut words = [[_mm256_setzero_si256(); WORDS]; QUARTERS];
    for g in 0..WORDS / 2 {
        let (a, b) = (load(tile, 128 * g), load(tile, 128 * g + 32));
        let (c, d) = (load(tile, 128 * g + 64), load(tile, 128 * g + 96));
        // Pairs, then fours of bytes: four rows in each part of 128 bits, 16 rows apart.
        let (ab, cd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
        let (v0, v1) = (_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd));
        let (ab, cd) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
        let (v2, v3) = (_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd));
        let quarters = [
            _mm256_permute2x128_si256::<0x20>(v0, v1),
            _mm256_permute2x128_si256::<0x20>(v2, v3),
            _mm256_permute2x128_si256::<0x31>(v0, v1),
            _mm256_permute2x128_si256::<0x31>(v2, v3),
        ];
        for (words, both) in words.iter_mut().zip(quarters) {
            words[2 * g] = _mm256_and_si256(both, low);
            words[2 * g + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), low);
        }
    }
    words
}

/// Decodes the bytes of a tile: two pairs of a row, 64 bytes apart, are four elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes(tile: &[u8; 1088]) -> Words {
    let mut words = [[_mm256_setzero_si256(); WORDS]; QUARTERS];
    for g in 0..WORDS {
        for h in 0..2 {
            let (a, b) = (
                load(tile, 128 * g + 32 * h),
                load(tile, 128 * g + 64 + 32 * h),
            );
            // Four rows in each part of 128 bits, 8 rows apart.
            let (v0, v1) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
            words[2 * h][g] = _mm256_permute2x128_si256::<0x20>(v0, v1);
            words[2 * h + 1][g] = _mm256_permute2x128_si256::<0x31>(v0, v1);
        }
    }
    words
}

/// Returns 32 half floats at byte `at` of a tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn halves(tile: &[u8], at: usize) -> Floats {
    let mut floats = [_mm256_setzero_ps(); QUARTERS];
    for (q, floats) in floats.iter_mut().enumerate() {
        let part = tile[at + 16 * q..][..16].as_array().expect("16 bytes");
        *floats = _mm256_cvtph_ps(load_128(part));
    }
    floats
}

/// Returns the scales at the end of a tile, one for each row, and no minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_of_rows<const N: usize>(tile: &[u8; N]) -> (Floats, Floats) {
    (halves(tile, N - 64), [_mm256_setzero_ps(); QUARTERS])
}

/// Returns the pairs of scale and minimum at the end of a tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scales_and_minima(tile: &[u8; 640]) -> (Floats, Floats) {
    let mut d = [_mm256_setzero_ps(); QUARTERS];
    let mut m = [_mm256_setzero_ps(); QUARTERS];
    for q in 0..QUARTERS {
        let pairs = load(tile, 512 + 32 * q);
        let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
        // Packing works inside 128-bit parts: the low halves of both are wanted.
        let both = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(pairs));
        let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
        d[q] = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
        m[q] = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both));
    }
    (d, m)
}

/// Returns word `i` of a block of x, which is a float, in all lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn float<const BLOCK: usize>(x: &[u8; BLOCK], i: usize) -> __m256 {
    _mm256_set1_ps(f32::from_bits(word(x, i).cast_unsigned()))
}

/// Returns `start` and the products of some words of a quarter of a tile with those of a block of x. `PAIRS` sums of two
/// products fit 16 bits; 0 if weights are signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dots<const BLOCK: usize, const PAIRS: usize>(
    w: &[__m256i; WORDS],
    x: &[u8; BLOCK],
    words: Range<usize>,
    start: i32,
) -> __m256 {
    let ones = _mm256_set1_epi16(1);
    let mut dots = _mm256_set1_epi32(start);
    if PAIRS == 0 {
        for g in words {
            let x = _mm256_sign_epi8(_mm256_set1_epi32(word(x, g)), w[g]);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), x);
            dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
        }
    } else {
        for first in words.step_by(PAIRS) {
            let mut pairs = _mm256_setzero_si256();
            for g in first..first + PAIRS {
                let x = _mm256_set1_epi32(word(x, g));
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[g], x));
            }
            dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
        }
    }
    _mm256_cvtepi32_ps(dots)
}

/// Adds the products of a tile with one unit of x.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<const BLOCK: usize, const MIN: bool, const PAIRS: usize>(
    w: &Words,
    d: &Floats,
    m: &Floats,
    x: &[[u8; BLOCK]],
    out: &mut [[f32; TILE]],
) {
    for q in 0..QUARTERS {
        for (x, out) in x.iter().zip(&mut *out) {
            let out = &mut out.as_chunks_mut::<LANES>().0[q];
            let start = if MIN || PAIRS == 0 {
                0
            } else {
                word(x, WORDS + 1)
            };
            let dots = dots::<BLOCK, PAIRS>(&w[q], x, 0..WORDS, start);
            let scale = _mm256_mul_ps(d[q], float(x, WORDS));
            let mut sums = _mm256_fmadd_ps(dots, scale, load_f32x8(out));
            if MIN {
                sums = _mm256_fmadd_ps(m[q], float(x, WORDS + 1), sums);
            }
            store_f32x8(out, sums);
        }
    }
}

prepare!("avx2,fma,f16c", i16);
