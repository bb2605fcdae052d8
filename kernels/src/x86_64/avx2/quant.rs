//! `Q8_0` and `Q4_0` weights, x quantised to `Q8_0`, with byte products added in pairs.
//!
//! The instruction (`maddubs`) multiplies unsigned with signed bytes and saturates sums of two at 16 bits.
//!
//! * `Q8_0`: `|w|` times x with the sign of w; two products are at most 2 * 128 * 127, below saturation.
//! * `Q4_0`: nibbles, 8 above their values, times x. Eight sums of two are at most 16 * 15 * 127, so a block's are added
//!   in 16 bits. Sums of four then start at `-8 * sum of x`, which is packed with x.
//!
//! A packed block of a group is ten vectors over its 8 rows: start values, scales (f32, rounded through f16), and
//! eight times four consecutive bytes of each row. A packed block of a row by itself is its scale, eight start values
//! (one per four bytes) and 32 bytes.

use std::arch::x86_64::*;

use super::{LANES, LINE, reduce_add, store_transposed};
use crate::block::{self, QK, Scale};
use crate::panel::{DOT_ROWS, Micro};
use crate::x86_64::mem::*;
use crate::{F32Rows, WeightType};

const MR: usize = 4;
const KC: usize = 512;
const BLOCKS: usize = KC / QK;

/// Four-byte words of a block.
const WORDS: usize = QK / 4;

/// Bytes of a packed block of a group.
const GROUP_BLOCK: usize = (2 + WORDS) * LINE;

/// Bytes of a packed block of a row by itself.
const ROW_BLOCK: usize = 4 + QK + QK;

/// A tile of decoded weights in words of four bytes, and scales: `q` as they multiply x or give it their sign, `u` the
/// magnitudes that `Q8_0` multiplies with.
pub(crate) struct Tile {
    q: [[[i32; WORDS]; BLOCKS]; MR],
    u: [[[i32; WORDS]; BLOCKS]; MR],
    d: [[f32; BLOCKS]; MR],
}

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

/// `Q8_0` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q8_0(Cpu);

/// `Q4_0` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q4_0(Cpu);

macro_rules! micro {
    ($name:ident, $offset:literal, $size:expr, $load:ident, $dots:ident, $multiply:ident) => {
        impl $name {
            /// Returns the implementation if this CPU can run it.
            pub(crate) fn detect() -> Option<Self> {
                Cpu::detect().map(Self)
            }
        }

        impl Micro for $name {
            const TYPE: WeightType = WeightType::$name;
            const LANES: usize = LANES;
            const MR: usize = MR;
            const GROUPS: usize = 1;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 4;
            type Tile = Tile;

            fn new_tile() -> Tile {
                let words = [[[0; WORDS]; BLOCKS]; MR];
                Tile {
                    q: words,
                    u: words,
                    d: [[0.0; BLOCKS]; MR],
                }
            }

            fn group_size_bytes(k: usize) -> usize {
                k / QK * GROUP_BLOCK
            }

            fn row_size_bytes(k: usize) -> usize {
                k / QK * ROW_BLOCK
            }

            fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { prepare_group::<$offset>(x, group) }
            }

            fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { prepare_row::<$offset>(x, out) }
            }

            fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile) {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn body(weights: &[u8], r: usize, tile: &mut Tile) {
                    let blocks = weights.as_chunks::<{ $size }>().0;
                    for (b, block) in blocks.iter().enumerate() {
                        let q = $load(block);
                        tile.q[r][b] = words(q);
                        tile.u[r][b] = words(_mm256_abs_epi8(q));
                        tile.d[r][b] = scale(block);
                    }
                }
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { body(weights, r, tile) }
            }

            fn tile<const G: usize>(
                &self,
                tile: &Tile,
                kc: usize,
                x: [&[u8]; G],
                acc: [&mut [f32]; G],
            ) {
                for (x, acc) in x.into_iter().zip(acc) {
                    // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                    unsafe { $multiply(tile, kc / QK, x, acc) }
                }
            }

            fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { store_transposed(acc, n_lanes, out, stride) }
            }

            fn dot(&self, k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn body(n: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                    let w = weights.map(|w| &w.as_chunks::<{ $size }>().0[..n]);
                    let x = &x.as_chunks::<ROW_BLOCK>().0[..n];
                    let mut sums = [_mm256_setzero_ps(); DOT_ROWS];
                    for b in 0..n {
                        let (d, start, q) = row_block(&x[b]);
                        for r in 0..DOT_ROWS {
                            let dots = $dots(start, $load(&w[r][b]), q);
                            let d = _mm256_set1_ps(scale(&w[r][b]) * d);
                            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), d, sums[r]);
                        }
                    }
                    let mut dots = [0.0; DOT_ROWS];
                    for r in 0..DOT_ROWS {
                        dots[r] = reduce_add(sums[r]);
                    }
                    dots
                }
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { body(k / QK, weights, x) }
            }
        }
    };
}

micro!(
    Q8_0,
    0,
    block::Q8_0::SIZE_BYTES,
    load_q8_0,
    dots_q8_0,
    multiply_q8_0
);
micro!(
    Q4_0,
    8,
    block::Q4_0::SIZE_BYTES,
    load_q4_0,
    dots_q4_0,
    multiply_q4_0
);

/// Returns the bytes of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_q8_0(block: &[u8; block::Q8_0::SIZE_BYTES]) -> __m256i {
    load_256(block::Q8_0(block).qs())
}

/// Returns the nibbles of a block as bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_q4_0(block: &[u8; block::Q4_0::SIZE_BYTES]) -> __m256i {
    let bytes = load_128(block::Q4_0(block).qs());
    let both =
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Returns the sums of four products each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_q8_0(_start: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Returns the sums of four products each, with their start values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_q4_0(start: __m256i, w: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi32(
        start,
        _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)),
    )
}

/// Returns the scale at the start of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scale<const N: usize>(block: &[u8; N]) -> f32 {
    let bits = i32::from(u16::from_le_bytes([block[0], block[1]]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

/// Returns the words of a vector.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn words(v: __m256i) -> [i32; WORDS] {
    let mut bytes = [0; QK];
    store_256(&mut bytes, v);
    let mut words = [0; WORDS];
    for (out, word) in words.iter_mut().zip(bytes.as_chunks().0) {
        *out = i32::from_ne_bytes(*word);
    }
    words
}

/// Returns scale, start values and bytes of a packed block of a row by itself.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_block(block: &[u8; ROW_BLOCK]) -> (f32, __m256i, __m256i) {
    let (d, rest) = block
        .split_first_chunk()
        .expect("a block is longer than its scale");
    let (start, q) = rest
        .split_first_chunk()
        .expect("a block is longer than its start values");
    (
        f32::from_ne_bytes(*d),
        load_256(start),
        load_256(q.as_array().expect("the rest is 32 bytes")),
    )
}

/// Returns the greatest magnitude in blocks, NaN above infinity.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn greatest(blocks: &[[u8; 4 * QK]]) -> f32 {
    // Magnitudes compare as integers do.
    let mut max = _mm256_setzero_si256();
    for bits in blocks.as_flattened().as_chunks::<LINE>().0 {
        let magnitudes = _mm256_and_si256(load_256(bits), _mm256_set1_epi32(i32::MAX));
        max = _mm256_max_epi32(max, magnitudes);
    }
    f32::from_bits(words(max).into_iter().max().unwrap_or(0).cast_unsigned())
}

/// Returns the `Q8_0` scale of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scale_q8_0(x: &[u8; 4 * QK]) -> Scale {
    let amax = greatest(std::array::from_ref(x));
    let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(
        _mm_set_ss(amax / 127.0),
    )));
    Scale::q8_0(amax, d)
}

/// Returns the `Q8_K` scale that blocks share.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scale_q8_k(blocks: &[[u8; 4 * QK]]) -> Scale {
    Scale::q8_k(greatest(blocks))
}

/// Returns `Q8_0` scale, start values per four bytes, and bytes of 32 floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_block<const OFFSET: i16>(x: &[u8; 4 * QK]) -> (f32, __m256i, __m256i) {
    let scale = scale_q8_0(x);
    let (start, q) = quantize::<OFFSET, false>(x, scale);
    (scale.d, start, q)
}

/// Returns start values per four bytes, and bytes of 32 floats with a scale. Halves go to even numbers or, as in `Q8_0`,
/// away from zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantize<const OFFSET: i16, const EVEN: bool>(
    x: &[u8; 4 * QK],
    scale: Scale,
) -> (__m256i, __m256i) {
    if scale.id == 0.0 {
        return (_mm256_setzero_si256(), _mm256_setzero_si256());
    }
    let id = _mm256_set1_ps(scale.id);
    let parts = x.as_chunks::<LINE>().0;
    let mut r = [_mm256_setzero_si256(); 4];
    for i in 0..4 {
        let x = _mm256_mul_ps(_mm256_castsi256_ps(load_256(&parts[i])), id);
        r[i] = if EVEN {
            _mm256_cvtps_epi32(x)
        } else {
            round(x)
        };
    }
    // Packing works inside 128-bit parts and leaves the words of four bytes in the order 0 2 4 6 1 3 5 7.
    let packed = _mm256_packs_epi16(
        _mm256_packs_epi32(r[0], r[1]),
        _mm256_packs_epi32(r[2], r[3]),
    );
    let q = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    (_mm256_madd_epi16(pairs, _mm256_set1_epi16(-OFFSET)), q)
}

/// Rounds to integers, halves away from zero: the largest float below one half, added with the sign, truncated.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn round(v: __m256) -> __m256i {
    let sign = _mm256_and_ps(v, _mm256_set1_ps(-0.0));
    _mm256_cvttps_epi32(_mm256_add_ps(
        v,
        _mm256_or_ps(_mm256_set1_ps(0.5f32.next_down()), sign),
    ))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn prepare_row<const OFFSET: i16>(x: &[u8], out: &mut [u8]) {
    for (x, out) in x
        .as_chunks()
        .0
        .iter()
        .zip(out.as_chunks_mut::<ROW_BLOCK>().0)
    {
        let (d, start, q) = quantize_block::<OFFSET>(x);
        let (out_d, rest) = out
            .split_first_chunk_mut()
            .expect("a block is longer than its scale");
        let (out_start, out_q) = rest
            .split_first_chunk_mut()
            .expect("a block is longer than its start values");
        *out_d = d.to_ne_bytes();
        store_256(out_start, start);
        store_256(out_q.as_mut_array().expect("the rest is 32 bytes"), q);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn prepare_group<const OFFSET: i16>(x: &F32Rows<'_>, group: &mut [u8]) {
    if x.n_rows() < LANES {
        group.fill(0);
    }
    for lane in 0..x.n_rows() {
        let blocks = x.row(lane).as_chunks().0;
        for (x, out) in blocks.iter().zip(group.as_chunks_mut::<GROUP_BLOCK>().0) {
            let (d, start, q) = quantize_block::<OFFSET>(x);
            // Words of the packed block, in lines of one word per lane.
            let (lines, _) = out.as_chunks_mut::<4>();
            lines[lane] = words(start).iter().sum::<i32>().to_ne_bytes();
            lines[LANES + lane] = d.to_ne_bytes();
            for (i, word) in words(q).iter().enumerate() {
                lines[(2 + i) * LANES + lane] = word.to_ne_bytes();
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_q8_0(tile: &Tile, n_blocks: usize, x: &[u8], acc: &mut [f32]) {
    let n_blocks = n_blocks.min(BLOCKS);
    let x = &x.as_chunks::<GROUP_BLOCK>().0[..n_blocks];
    let acc = acc.as_chunks_mut::<LANES>().0;
    let mut sums = [_mm256_setzero_ps(); MR];
    for r in 0..MR {
        sums[r] = load_f32x8(&acc[r]);
    }
    for b in 0..n_blocks {
        let lines = x[b].as_chunks::<LINE>().0;
        let mut dots = [_mm256_setzero_si256(); MR];
        for i in 0..WORDS {
            let x = load_256(&lines[2 + i]);
            for r in 0..MR {
                let signed = _mm256_sign_epi8(x, _mm256_set1_epi32(tile.q[r][b][i]));
                let pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(tile.u[r][b][i]), signed);
                dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
        let d = _mm256_castsi256_ps(load_256(&lines[1]));
        for r in 0..MR {
            let d = _mm256_mul_ps(_mm256_set1_ps(tile.d[r][b]), d);
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), d, sums[r]);
        }
    }
    for r in 0..MR {
        store_f32x8(&mut acc[r], sums[r]);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_q4_0(tile: &Tile, n_blocks: usize, x: &[u8], acc: &mut [f32]) {
    let n_blocks = n_blocks.min(BLOCKS);
    let x = &x.as_chunks::<GROUP_BLOCK>().0[..n_blocks];
    let acc = acc.as_chunks_mut::<LANES>().0;
    let mut sums = [_mm256_setzero_ps(); MR];
    for r in 0..MR {
        sums[r] = load_f32x8(&acc[r]);
    }
    for b in 0..n_blocks {
        let lines = x[b].as_chunks::<LINE>().0;
        let mut pairs = [_mm256_setzero_si256(); MR];
        for i in 0..WORDS {
            let x = load_256(&lines[2 + i]);
            for r in 0..MR {
                let products = _mm256_maddubs_epi16(_mm256_set1_epi32(tile.q[r][b][i]), x);
                pairs[r] = _mm256_add_epi16(pairs[r], products);
            }
        }
        let (start, d) = (
            load_256(&lines[0]),
            _mm256_castsi256_ps(load_256(&lines[1])),
        );
        for r in 0..MR {
            let dots = _mm256_add_epi32(start, _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1)));
            let d = _mm256_mul_ps(_mm256_set1_ps(tile.d[r][b]), d);
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), d, sums[r]);
        }
    }
    for r in 0..MR {
        store_f32x8(&mut acc[r], sums[r]);
    }
}
