//! Quantised tiles, x quantised to `Q8_0` or `Q8_K`, with VNNI byte dots.
//!
//! The instruction multiplies unsigned with signed bytes and adds four products to a 32-bit lane. Lane `n` of a decoded
//! tile has four elements of row `n` as unsigned bytes: 8, 32 or 128 above their values where the type is signed. Sums
//! then start at `-offset * sum of x`, which is packed with x ([`crate::x86_64::block`]): exact, in 32-bit integers.
//!
//! A tile is 16 such vectors: for each of 8 groups of four elements, rows 0..16 and 16..32. They stay in registers while
//! rows of x pass by; a row costs 16 dots, and per scale a conversion, a product and a sum for each half of the strip.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::F32Rows;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::block::QK_K;
use crate::tile::{TILE, TileType};
use crate::x86_64::avx512::LINE;
use crate::x86_64::avx512::quant::{quantize, scale_q8_0, scale_q8_k};
use crate::x86_64::block::{
    NATURAL, NIBBLES, each_block, finish, implementation, prepare, shuffle,
};
use crate::x86_64::mem::*;

/// Four-byte words of a block.
const WORDS: usize = QK / 4;

/// How far ahead of its use a tile is fetched, in bytes, with many rows: the processor's own prefetching ends at every
/// page. With few rows reading takes all of the time, and asking for lines twice takes more.
const AHEAD: usize = 4096;

/// The CPU has what every function here is compiled with: `avx512f`, `avx512bw`, `avx512vl`, `avx512vnni`, `avx512vbmi`
/// and `f16c`.
#[derive(Clone, Copy, Debug)]
struct Cpu(());

impl Cpu {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

/// Vectors of a decoded tile: `[group of four elements][half of the strip]`.
type Words = [[__m512i; 2]; WORDS];

/// A type's kernel: its tile, its block of x, the elements that share a scale, whether it has minima, the offset of its
/// integers, and the functions that pack x and decode a tile.
macro_rules! kernel {
    ($name:ident, $tile:literal, $block:literal, $parts:literal, $min:literal, $offset:literal, $prepare:ident, $order:ident,
     $words:ident, $scales:ident) => {
        implementation!(
            $name,
            $block,
            |x: &F32Rows<'_>, k_tiles, units: &mut [u8]| $prepare::<$block, $parts, $min, $offset>(
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
                    let mut sums = [[_mm512_setzero_ps(); 2]; R];
                    let units = group.as_chunks::<$block>().0.as_chunks::<R>().0;
                    for (kt, (tile, x)) in
                        tiles.as_chunks::<$tile>().0.iter().zip(units).enumerate()
                    {
                        let (w, (d, m)) = ($words(tile), $scales(tile, bases, kt));
                        for r in 0..R {
                            sums[r] = add::<$block, $parts, $min>(&w, &d, &m, &x[r], sums[r]);
                        }
                    }
                    for (sums, out) in sums.into_iter().zip(out) {
                        store(out, sums);
                    }
                }

                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn many(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    out.fill([0.0; TILE]);
                    let units = group.as_chunks::<$block>().0.chunks_exact(out.len());
                    for (kt, (tile, x)) in
                        tiles.as_chunks::<$tile>().0.iter().zip(units).enumerate()
                    {
                        fetch(tile, AHEAD);
                        let (w, (d, m)) = ($words(tile), $scales(tile, bases, kt));
                        for (x, out) in x.iter().zip(&mut *out) {
                            store(
                                out,
                                add::<$block, $parts, $min>(&w, &d, &m, x, load_sums(out)),
                            );
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
                        _ => many(tiles, bases, group, out),
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
    128,
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
    prepare_k,
    NATURAL,
    six_bits,
    exact_scales_of_halves
);

/// Returns 64 bytes of a tile.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(tile: &[u8], at: usize) -> __m512i {
    load_512(tile[at..][..LINE].as_array().expect("64 bytes"))
}

/// Decodes the nibbles of a tile: four bytes of a row, 32 apart, are eight elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn nibbles<const N: usize>(tile: &[u8; N]) -> Words {
    const ROWS: [[u8; LINE]; 2] = {
        let mut rows = [[0; LINE]; 2];
        let mut i = 0;
        while i < LINE {
            // Byte `i % 4` of row `i / 4`.
            let at = (i % 4) * 32 + i / 4;
            #[expect(clippy::cast_possible_truncation, reason = "below 128")]
            let at = at as u8;
            rows[0][i] = at;
            rows[1][i] = at + 16;
            i += 1;
        }
        rows
    };
    let low = _mm512_set1_epi8(15);
    let mut words = [[_mm512_setzero_si512(); 2]; WORDS];
    for g in 0..WORDS / 2 {
        let (a, b) = (load(tile, 128 * g), load(tile, 128 * g + 64));
        for h in 0..2 {
            let both = _mm512_permutex2var_epi8(a, load_512(&ROWS[h]), b);
            words[2 * g][h] = _mm512_and_si512(both, low);
            words[2 * g + 1][h] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
        }
    }
    words
}

/// Decodes the bytes of a tile, each with 128 added: two pairs of a row, 64 bytes apart, are four elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn bytes(tile: &[u8; 1088]) -> Words {
    const ROWS: [[u8; LINE]; 2] = {
        let mut rows = [[0; LINE]; 2];
        let mut i = 0;
        while i < LINE / 2 {
            // Pair `i % 2` of row `i / 2`, as the index of 16 bits.
            let at = (i % 2) * 32 + i / 2;
            #[expect(clippy::cast_possible_truncation, reason = "below 64")]
            let at = at as u8;
            rows[0][2 * i] = at;
            rows[1][2 * i] = at + 16;
            i += 1;
        }
        rows
    };
    let offset = _mm512_set1_epi8(-128);
    let mut words = [[_mm512_setzero_si512(); 2]; WORDS];
    for g in 0..WORDS {
        let a = _mm512_xor_si512(load(tile, 128 * g), offset);
        let b = _mm512_xor_si512(load(tile, 128 * g + 64), offset);
        for h in 0..2 {
            words[g][h] = _mm512_permutex2var_epi16(a, load_512(&ROWS[h]), b);
        }
    }
    words
}

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

/// Returns 32 half floats at byte `at` of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn halves(tile: &[u8], at: usize) -> [__m512; 2] {
    let v = load(tile, at);
    [
        _mm512_cvtph_ps(_mm512_castsi512_si256(v)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(v)),
    ]
}

/// Returns the scales at the end of a tile, one for each row, and no minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn scales_of_rows<const N: usize>(
    tile: &[u8; N],
    _bases: &[u8],
    _kt: usize,
) -> ([[__m512; 2]; 1], [__m512; 2]) {
    ([halves(tile, N - 64)], [_mm512_setzero_ps(); 2])
}

/// Returns the pairs of scale and minimum at the end of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn scales_and_minima(
    tile: &[u8; 640],
    _bases: &[u8],
    _kt: usize,
) -> ([[__m512; 2]; 1], [__m512; 2]) {
    let mut d = [_mm512_setzero_ps(); 2];
    let mut m = [_mm512_setzero_ps(); 2];
    for h in 0..2 {
        let pairs = load(tile, 512 + 64 * h);
        d[h] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
        m[h] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs)));
    }
    ([d], m)
}

/// Returns scales and minima as the multiples of their bases that they are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn exact_scales_and_minima(
    tile: &[u8; 640],
    bases: &[u8],
    kt: usize,
) -> ([[__m512; 2]; 1], [__m512; 2]) {
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn exact_scales_of_halves(
    tile: &[u8; 896],
    bases: &[u8],
    kt: usize,
) -> ([[__m512; 2]; 2], [__m512; 2]) {
    let base = halves(bases, kt * QK / QK_K * 2 * TILE);
    (
        [
            multiples(halves(tile, 768), base),
            multiples(halves(tile, 832), base),
        ],
        [_mm512_setzero_ps(); 2],
    )
}

/// Returns the multiples of bases that were rounded to half floats: integers of at most 128, 2^-11 of them off, which leaves
/// room for a reciprocal with an error of 2^-14.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn multiples(rounded: [__m512; 2], bases: [__m512; 2]) -> [__m512; 2] {
    let mut exact = rounded;
    for h in 0..2 {
        let there = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(bases[h], _mm512_setzero_ps());
        let inverse = _mm512_maskz_rcp14_ps(there, bases[h]);
        let n = _mm512_mul_ps(rounded[h], inverse);
        let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
        exact[h] = _mm512_mul_ps(n, bases[h]);
    }
    exact
}

/// Asks for the tile some way ahead.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(tile: &[u8], ahead: usize) {
    for at in (0..tile.len()).step_by(LINE) {
        prefetch(tile, ahead + at);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_sums(out: &[f32; TILE]) -> [__m512; 2] {
    let (halves, _) = out.as_chunks::<16>();
    [load_f32x16(&halves[0]), load_f32x16(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(out: &mut [f32; TILE], sums: [__m512; 2]) {
    let (halves, _) = out.as_chunks_mut::<16>();
    store_f32x16(&mut halves[0], sums[0]);
    store_f32x16(&mut halves[1], sums[1]);
}

/// Adds the products of a tile with one block of x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn add<const BLOCK: usize, const PARTS: usize, const MIN: bool>(
    w: &Words,
    d: &[[__m512; 2]; PARTS],
    m: &[__m512; 2],
    x: &[u8; BLOCK],
    mut sums: [__m512; 2],
) -> [__m512; 2] {
    let word = |i: usize| i32::from_ne_bytes([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]);
    let float = |i: usize| _mm512_set1_ps(f32::from_bits(word(i).cast_unsigned()));
    for part in 0..PARTS {
        let start = if MIN { 0 } else { word(WORDS + 1 + part) };
        let mut dots = [_mm512_set1_epi32(start); 2];
        for g in part * WORDS / PARTS..(part + 1) * WORDS / PARTS {
            let q = _mm512_set1_epi32(word(g));
            for h in 0..2 {
                dots[h] = _mm512_dpbusd_epi32(dots[h], w[g][h], q);
            }
        }
        for h in 0..2 {
            let scale = _mm512_mul_ps(d[part][h], float(WORDS));
            sums[h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[h]), scale, sums[h]);
        }
    }
    if MIN {
        for h in 0..2 {
            sums[h] = _mm512_fmadd_ps(m[h], float(WORDS + 1), sums[h]);
        }
    }
    sums
}

prepare!("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c", u8);
