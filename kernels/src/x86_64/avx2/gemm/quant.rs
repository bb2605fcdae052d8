//! Quantised tiles, x quantised to `Q8_0` or `Q8_K`, with byte products added in pairs.
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
    NATURAL, NIBBLES, each_block, finish, implementation, prepare, shuffle,
};
use crate::x86_64::mem::*;

/// Four-byte words of a block.
const WORDS: usize = QK / 4;

/// Vectors of a strip.
const QUARTERS: usize = TILE / LANES;

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

/// A decoded tile: `[quarter of the strip][group of four elements]`.
type Words = [[__m256i; WORDS]; QUARTERS];

/// Scales of a tile for each part of 32 elements, and minima.
type Scales<const PARTS: usize> = ([[__m256; QUARTERS]; PARTS], [__m256; QUARTERS]);

/// A type's kernel: its tile, its block of x, the scales of a row, whether it has minima, the offset of its integers, how
/// many pair sums fit 16 bits (0: they are signed), and the functions that pack x and decode a tile.
macro_rules! kernel {
    ($name:ident, $tile:literal, $block:literal, $parts:literal, $min:literal, $offset:literal, $pairs:literal,
     $prepare:ident, $order:ident, $words:ident, $scales:ident) => {
        implementation!(
            $name,
            $block,
            |x: &F32Rows<'_>, k_tiles, units: &mut [u8]| $prepare::<$block, $parts, $min, $offset>(
                x, k_tiles, units, $order
            ),
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn body(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    out.fill([0.0; TILE]);
                    let units = group.as_chunks::<$block>().0.chunks_exact(out.len());
                    for (kt, (tile, x)) in
                        tiles.as_chunks::<$tile>().0.iter().zip(units).enumerate()
                    {
                        let (w, scales) = ($words(tile), $scales(tile, bases, kt));
                        multiply::<$block, $parts, $min, $pairs>(&w, &scales, x, out);
                    }
                }
                body
            }
        );
    };
}

kernel!(
    Q4_0,
    576,
    40,
    1,
    false,
    8,
    8,
    prepare,
    NIBBLES,
    nibbles,
    scales_of_rows
);
kernel!(
    Q4_1,
    640,
    40,
    1,
    true,
    1,
    8,
    prepare,
    NIBBLES,
    nibbles,
    scales_and_minima
);
kernel!(
    Q4K,
    640,
    40,
    1,
    true,
    1,
    8,
    prepare_k,
    NIBBLES,
    nibbles,
    exact_scales_and_minima
);
kernel!(
    Q8_0,
    1088,
    40,
    1,
    false,
    0,
    0,
    prepare,
    NATURAL,
    bytes,
    scales_of_rows
);
kernel!(
    Q6K,
    896,
    44,
    2,
    false,
    32,
    2,
    prepare_k,
    NATURAL,
    six_bits,
    exact_scales_of_halves
);

/// Returns 32 bytes of a tile.
#[inline]
#[target_feature(enable = "avx2")]
fn load(tile: &[u8], at: usize) -> __m256i {
    load_256(tile[at..][..LINE].as_array().expect("32 bytes"))
}

/// Decodes the nibbles of a tile: four bytes of a row, 32 apart, are eight elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles<const N: usize>(tile: &[u8; N]) -> Words {
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

/// Returns 32 half floats at byte `at` of a tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves(tile: &[u8], at: usize) -> [__m256; QUARTERS] {
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
fn scales_of_rows<const N: usize>(tile: &[u8; N], _bases: &[u8], _kt: usize) -> Scales<1> {
    ([halves(tile, N - 64)], [_mm256_setzero_ps(); QUARTERS])
}

/// Returns the pairs of scale and minimum at the end of a tile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_and_minima(tile: &[u8; 640], _bases: &[u8], _kt: usize) -> Scales<1> {
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
    ([d], m)
}

/// Returns scales and minima as the multiples of their bases that they are.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exact_scales_and_minima(tile: &[u8; 640], bases: &[u8], kt: usize) -> Scales<1> {
    let ([d], m) = scales_and_minima(tile, bases, kt);
    let at = kt * QK / QK_K * 4 * TILE;
    (
        [multiples(d, halves(bases, at))],
        multiples(m, halves(bases, at + 2 * TILE)),
    )
}

/// Returns the scales at the end of a tile for both halves along k, as the multiples of their bases that they are, and no
/// minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn exact_scales_of_halves(tile: &[u8; 896], bases: &[u8], kt: usize) -> Scales<2> {
    let base = halves(bases, kt * QK / QK_K * 2 * TILE);
    (
        [
            multiples(halves(tile, 768), base),
            multiples(halves(tile, 832), base),
        ],
        [_mm256_setzero_ps(); QUARTERS],
    )
}

/// Returns the multiples of bases that were rounded to half floats: integers of at most 128, 2^-11 of them off, which leaves
/// room for a reciprocal with an error of 1.5 * 2^-12.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiples(rounded: [__m256; QUARTERS], bases: [__m256; QUARTERS]) -> [__m256; QUARTERS] {
    let mut exact = rounded;
    for q in 0..QUARTERS {
        let there = _mm256_cmp_ps::<_CMP_NEQ_UQ>(bases[q], _mm256_setzero_ps());
        let inverse = _mm256_and_ps(_mm256_rcp_ps(bases[q]), there);
        let n = _mm256_mul_ps(rounded[q], inverse);
        let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
        exact[q] = _mm256_mul_ps(n, bases[q]);
    }
    exact
}

/// Adds the products of a tile with one unit of x. `PAIRS` sums of two products fit 16 bits; 0 if weights are signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply<const BLOCK: usize, const PARTS: usize, const MIN: bool, const PAIRS: usize>(
    w: &Words,
    scales: &Scales<PARTS>,
    x: &[[u8; BLOCK]],
    out: &mut [[f32; TILE]],
) {
    let ones = _mm256_set1_epi16(1);
    for q in 0..QUARTERS {
        let w = w[q];
        for (x, out) in x.iter().zip(&mut *out) {
            let (words, _) = x.as_chunks::<4>();
            let word = |i: usize| i32::from_ne_bytes(words[i]);
            let float = |i: usize| f32::from_ne_bytes(words[i]);
            let out = &mut out.as_chunks_mut::<LANES>().0[q];
            let mut sums = load_f32x8(out);
            for part in 0..PARTS {
                let mut dots = _mm256_set1_epi32(if MIN || PAIRS == 0 {
                    0
                } else {
                    word(WORDS + 1 + part)
                });
                let groups = part * WORDS / PARTS..(part + 1) * WORDS / PARTS;
                if PAIRS == 0 {
                    for g in groups {
                        let x = _mm256_sign_epi8(_mm256_set1_epi32(word(g)), w[g]);
                        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), x);
                        dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
                    }
                } else {
                    for start in groups.step_by(PAIRS) {
                        let mut pairs = _mm256_setzero_si256();
                        for g in start..start + PAIRS {
                            let x = _mm256_set1_epi32(word(g));
                            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[g], x));
                        }
                        dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, ones));
                    }
                }
                let scale = _mm256_mul_ps(scales.0[part][q], _mm256_set1_ps(float(WORDS)));
                sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, sums);
            }
            if MIN {
                sums = _mm256_fmadd_ps(scales.1[q], _mm256_set1_ps(float(WORDS + 1)), sums);
            }
            store_f32x8(out, sums);
        }
    }
}

prepare!("avx2,fma,f16c", i16);
