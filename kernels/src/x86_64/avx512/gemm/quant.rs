//! Quantised tiles, x quantised to `Q8_0`, with VNNI byte dots; and what those of [K-quants](super::quant_k) share with them.
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
    NATURAL, NIBBLES, each_block, finish, implementation, prepare, shuffle, word,
};
use crate::x86_64::mem::*;

/// Four-byte words of a block.
pub(super) const WORDS: usize = QK / 4;

/// How far ahead of its use a tile is fetched, in bytes, with many rows: the processor's own prefetching ends at every
/// page. With few rows reading takes all of the time, and asking for lines twice takes more.
pub(super) const AHEAD: usize = 4096;

/// The CPU has what every function here is compiled with: `avx512f`, `avx512bw`, `avx512vl`, `avx512vnni`, `avx512vbmi`
/// and `f16c`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu(());

impl Cpu {
    pub(super) fn detect() -> Option<Self> {
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
pub(super) type Words = [[__m512i; 2]; WORDS];

/// A type's kernel: its tile, its block of x, whether it has minima, the offset of its integers, the order of x, and the
/// functions that decode a tile.
macro_rules! kernel {
    ($name:ident, $tile:literal, $block:literal, $min:literal, $offset:literal, $order:ident, $words:ident, $scales:ident) => {
        implementation!(
            $name,
            $block,
            |x: &F32Rows<'_>, k_tiles, units: &mut [u8]| prepare::<$block, 1, $min, $offset>(
                x, k_tiles, units, $order
            ),
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn few<const R: usize>(tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]; R]) {
                    let mut sums = [[_mm512_setzero_ps(); 2]; R];
                    let units = group.as_chunks::<$block>().0.as_chunks::<R>().0;
                    for (tile, x) in tiles.as_chunks::<$tile>().0.iter().zip(units) {
                        let (w, (d, m)) = ($words(tile), $scales(tile));
                        for r in 0..R {
                            sums[r] = add::<$block, $min>(&w, d, m, &x[r], sums[r]);
                        }
                    }
                    for (sums, out) in sums.into_iter().zip(out) {
                        store(out, sums);
                    }
                }

                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn many(tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    out.fill([0.0; TILE]);
                    let units = group.as_chunks::<$block>().0.chunks_exact(out.len());
                    for (tile, x) in tiles.as_chunks::<$tile>().0.iter().zip(units) {
                        fetch(tile, AHEAD);
                        let (w, (d, m)) = ($words(tile), $scales(tile));
                        for (x, out) in x.iter().zip(&mut *out) {
                            store(out, add::<$block, $min>(&w, d, m, x, load_sums(out)));
                        }
                    }
                }

                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
                fn body(tiles: &[u8], _bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                    match out.len() {
                        1 => few::<1>(tiles, group, out.first_chunk_mut().expect("one row")),
                        2 => few::<2>(tiles, group, out.first_chunk_mut().expect("two rows")),
                        _ => many(tiles, group, out),
                    }
                }
                body
            }
        );
    };
}

kernel!(Q4_0, 576, 40, false, 8, NIBBLES, nibbles, scales_of_rows);
kernel!(Q4_1, 640, 40, true, 1, NIBBLES, nibbles, scales_and_minima);
kernel!(Q8_0, 1088, 40, false, 128, NATURAL, bytes, scales_of_rows);

/// Returns 64 bytes of a tile.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(tile: &[u8], at: usize) -> __m512i {
    load_512(tile[at..][..LINE].as_array().expect("64 bytes"))
}

/// Decodes the nibbles of a tile: four bytes of a row, 32 apart, are eight elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
pub(super) fn nibbles<const N: usize>(tile: &[u8; N]) -> Words {
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

/// Returns 32 half floats at byte `at` of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
pub(super) fn halves(tile: &[u8], at: usize) -> [__m512; 2] {
    let v = load(tile, at);
    [
        _mm512_cvtph_ps(_mm512_castsi512_si256(v)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(v)),
    ]
}

/// Returns the scales at the end of a tile, one for each row, and no minima.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn scales_of_rows<const N: usize>(tile: &[u8; N]) -> ([__m512; 2], [__m512; 2]) {
    (halves(tile, N - 64), [_mm512_setzero_ps(); 2])
}

/// Returns the pairs of scale and minimum at the end of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
pub(super) fn scales_and_minima(tile: &[u8; 640]) -> ([__m512; 2], [__m512; 2]) {
    let mut d = [_mm512_setzero_ps(); 2];
    let mut m = [_mm512_setzero_ps(); 2];
    for h in 0..2 {
        let pairs = load(tile, 512 + 64 * h);
        d[h] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
        m[h] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs)));
    }
    (d, m)
}

/// Asks for the tile some way ahead.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn fetch(tile: &[u8], ahead: usize) {
    for at in (0..tile.len()).step_by(LINE) {
        prefetch(tile, ahead + at);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_sums(out: &[f32; TILE]) -> [__m512; 2] {
    let (halves, _) = out.as_chunks::<16>();
    [load_f32x16(&halves[0]), load_f32x16(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store(out: &mut [f32; TILE], sums: [__m512; 2]) {
    let (halves, _) = out.as_chunks_mut::<16>();
    store_f32x16(&mut halves[0], sums[0]);
    store_f32x16(&mut halves[1], sums[1]);
}

/// Returns word `i` of a block of x, which is a float, in all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn float<const BLOCK: usize>(x: &[u8; BLOCK], i: usize) -> __m512 {
    _mm512_set1_ps(f32::from_bits(word(x, i).cast_unsigned()))
}

/// Returns `start` and the products of some words of a tile with those of a block of x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
pub(super) fn dots<const BLOCK: usize>(
    w: &Words,
    x: &[u8; BLOCK],
    words: Range<usize>,
    start: i32,
) -> [__m512; 2] {
    let mut dots = [_mm512_set1_epi32(start); 2];
    for g in words {
        let q = _mm512_set1_epi32(word(x, g));
        for h in 0..2 {
            dots[h] = _mm512_dpbusd_epi32(dots[h], w[g][h], q);
        }
    }
    dots.map(|dots| _mm512_cvtepi32_ps(dots))
}

/// Adds the products of a tile with one block of x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c")]
fn add<const BLOCK: usize, const MIN: bool>(
    w: &Words,
    d: [__m512; 2],
    m: [__m512; 2],
    x: &[u8; BLOCK],
    mut sums: [__m512; 2],
) -> [__m512; 2] {
    let start = if MIN { 0 } else { word(x, WORDS + 1) };
    let dots = dots(w, x, 0..WORDS, start);
    for h in 0..2 {
        let scale = _mm512_mul_ps(d[h], float(x, WORDS));
        sums[h] = _mm512_fmadd_ps(dots[h], scale, sums[h]);
        if MIN {
            sums[h] = _mm512_fmadd_ps(m[h], float(x, WORDS + 1), sums[h]);
        }
    }
    sums
}

prepare!("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c", u8);
