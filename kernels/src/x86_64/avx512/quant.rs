//! `Q8_0` and `Q4_0` weights, x quantised to `Q8_0`, with VNNI byte dots.
//!
//! The instruction multiplies unsigned with signed bytes. Weights become unsigned by an offset (128 for `Q8_0`; the
//! nibbles of `Q4_0` have their 8 already) and sums start at `-offset * sum of x`, which is packed with x:
//! `sum (w + offset) * x - offset * sum x = sum w * x`, exactly, in 32-bit integers.
//!
//! A packed block of a group is ten vectors over its 16 rows: start values, scales (f32, rounded through f16), and
//! eight times four consecutive bytes of each row. A packed block of a row by itself is its scale, eight start values
//! (one per four bytes) and 32 bytes.

use std::arch::x86_64::*;

use super::{LANES, LINE, store_transposed};
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

/// A tile of decoded weights: unsigned bytes in words of four, and scales.
pub(crate) struct Tile {
    q: [[[i32; WORDS]; BLOCKS]; MR],
    d: [[f32; BLOCKS]; MR],
}

/// The CPU has what every function here is compiled with: `avx512f`, `avx512bw`, `avx512vl`, `avx512vnni` and `f16c`.
#[derive(Clone, Copy, Debug)]
struct Cpu(());

impl Cpu {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
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
    ($name:ident, $offset:literal, $size:expr, $load:ident) => {
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
            const GROUPS: usize = 2;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 4;
            type Tile = Tile;

            fn new_tile() -> Tile {
                Tile {
                    q: [[[0; WORDS]; BLOCKS]; MR],
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
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
                fn body(weights: &[u8], q: &mut [[i32; WORDS]; BLOCKS], d: &mut [f32; BLOCKS]) {
                    let blocks = weights.as_chunks::<{ $size }>().0;
                    for ((block, q), d) in blocks.iter().zip(q).zip(d) {
                        store_i32x8(q, $load(block));
                        *d = scale(block);
                    }
                }
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { body(weights, &mut tile.q[r], &mut tile.d[r]) }
            }

            fn tile<const G: usize>(
                &self,
                tile: &Tile,
                kc: usize,
                x: [&[u8]; G],
                acc: [&mut [f32]; G],
            ) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { multiply(tile, kc / QK, x, acc) }
            }

            fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { store_transposed(acc, n_lanes, out, stride) }
            }

            fn dot(&self, k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
                fn body(n: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                    let w = weights.map(|w| &w.as_chunks::<{ $size }>().0[..n]);
                    let x = &x.as_chunks::<ROW_BLOCK>().0[..n];
                    let mut sums = [_mm256_setzero_ps(); DOT_ROWS];
                    for b in 0..n {
                        let (d, start, q) = row_block(&x[b]);
                        for r in 0..DOT_ROWS {
                            let dot = _mm256_dpbusd_epi32(start, $load(&w[r][b]), q);
                            let d = _mm256_set1_ps(scale(&w[r][b]) * d);
                            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), d, sums[r]);
                        }
                    }
                    let mut dots = [0.0; DOT_ROWS];
                    for r in 0..DOT_ROWS {
                        dots[r] = _mm512_reduce_add_ps(_mm512_zextps256_ps512(sums[r]));
                    }
                    dots
                }
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { body(k / QK, weights, x) }
            }
        }
    };
}

micro!(Q8_0, 128, block::Q8_0::SIZE_BYTES, load_q8_0);
micro!(Q4_0, 8, block::Q4_0::SIZE_BYTES, load_q4_0);

/// Returns the bytes of a block, each with 128 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn load_q8_0(block: &[u8; block::Q8_0::SIZE_BYTES]) -> __m256i {
    _mm256_xor_si256(load_256(block::Q8_0(block).qs()), _mm256_set1_epi8(-128))
}

/// Returns the nibbles of a block as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn load_q4_0(block: &[u8; block::Q4_0::SIZE_BYTES]) -> __m256i {
    let bytes = load_128(block::Q4_0(block).qs());
    let both =
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Returns the scale at the start of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn scale<const N: usize>(block: &[u8; N]) -> f32 {
    let bits = i32::from(u16::from_le_bytes([block[0], block[1]]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn store_i32x8(out: &mut [i32; 8], v: __m256i) {
    let mut bytes = [0; 32];
    store_256(&mut bytes, v);
    for (out, word) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = i32::from_ne_bytes(*word);
    }
}

/// Returns scale, start values and bytes of a packed block of a row by itself.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
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

/// Returns the floats of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn load_block(x: &[u8; 4 * QK]) -> [__m512; 2] {
    let (x0, x1) = x
        .split_first_chunk::<LINE>()
        .expect("a block is longer than half");
    let x1 = x1.as_array().expect("the other half");
    [x0, x1].map(|x| _mm512_castsi512_ps(load_512(x)))
}

/// Returns the greatest magnitude in blocks, NaN above infinity.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn greatest(blocks: &[[u8; 4 * QK]]) -> f32 {
    // Magnitudes compare as integers do.
    let mut max = _mm512_setzero_si512();
    for x in blocks {
        for x in load_block(x) {
            max = _mm512_max_epi32(max, _mm512_castps_si512(_mm512_abs_ps(x)));
        }
    }
    f32::from_bits(_mm512_reduce_max_epi32(max).cast_unsigned())
}

/// Returns the `Q8_0` scale of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn scale_q8_0(x: &[u8; 4 * QK]) -> Scale {
    let amax = greatest(std::array::from_ref(x));
    let d = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(
        _mm_set_ss(amax / 127.0),
    )));
    Scale::q8_0(amax, d)
}

/// Returns the `Q8_K` scale that blocks share.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn scale_q8_k(blocks: &[[u8; 4 * QK]]) -> Scale {
    Scale::q8_k(greatest(blocks))
}

/// Returns `Q8_0` scale, start values per four bytes, and bytes of 32 floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn quantize_block<const OFFSET: u8>(x: &[u8; 4 * QK]) -> (f32, __m256i, __m256i) {
    let scale = scale_q8_0(x);
    let (start, q) = quantize::<OFFSET, false>(x, scale);
    (scale.d, start, q)
}

/// Returns start values per four bytes, and bytes of 32 floats with a scale. Halves go to even numbers or, as in `Q8_0`,
/// away from zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
pub(super) fn quantize<const OFFSET: u8, const EVEN: bool>(
    x: &[u8; 4 * QK],
    scale: Scale,
) -> (__m256i, __m256i) {
    if scale.id == 0.0 {
        return (_mm256_setzero_si256(), _mm256_setzero_si256());
    }
    let id = _mm512_set1_ps(scale.id);
    let [q0, q1] = load_block(x).map(|x| {
        let x = _mm512_mul_ps(x, id);
        _mm512_cvtepi32_epi8(if EVEN {
            _mm512_cvtps_epi32(x)
        } else {
            round(x)
        })
    });
    let q = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(q0), q1);
    let sums = _mm256_dpbusd_epi32(
        _mm256_setzero_si256(),
        _mm256_set1_epi8(OFFSET.cast_signed()),
        q,
    );
    (_mm256_sub_epi32(_mm256_setzero_si256(), sums), q)
}

/// Rounds to integers, halves away from zero: the largest float below one half, added with the sign, truncated.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn round(v: __m512) -> __m512i {
    let sign = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(i32::MIN));
    let half = _mm512_or_si512(
        _mm512_castps_si512(_mm512_set1_ps(0.5f32.next_down())),
        sign,
    );
    _mm512_cvttps_epi32(_mm512_add_ps(v, _mm512_castsi512_ps(half)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn prepare_row<const OFFSET: u8>(x: &[u8], out: &mut [u8]) {
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn prepare_group<const OFFSET: u8>(x: &F32Rows<'_>, group: &mut [u8]) {
    if x.n_rows() < LANES {
        group.fill(0);
    }
    for lane in 0..x.n_rows() {
        let blocks = x.row(lane).as_chunks().0;
        for (x, out) in blocks.iter().zip(group.as_chunks_mut::<GROUP_BLOCK>().0) {
            let (d, start, q) = quantize_block::<OFFSET>(x);
            let start = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(start));
            let mut bytes = [0; QK];
            store_256(&mut bytes, q);
            // Words of the packed block, in lines of one word per lane.
            let (lines, _) = out.as_chunks_mut::<4>();
            lines[lane] = start.to_ne_bytes();
            lines[LANES + lane] = d.to_ne_bytes();
            for (i, word) in bytes.as_chunks().0.iter().enumerate() {
                lines[(2 + i) * LANES + lane] = *word;
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
fn multiply<const G: usize>(tile: &Tile, n_blocks: usize, x: [&[u8]; G], acc: [&mut [f32]; G]) {
    let n_blocks = n_blocks.min(BLOCKS);
    let x: [&[[u8; GROUP_BLOCK]]; G] = x.map(|x| &x.as_chunks().0[..n_blocks]);
    let acc = acc.map(|acc| acc.as_chunks_mut::<LANES>().0);
    let mut sums = [[_mm512_setzero_ps(); MR]; G];
    for g in 0..G {
        for r in 0..MR {
            sums[g][r] = load_f32x16(&acc[g][r]);
        }
    }
    for b in 0..n_blocks {
        let lines: [&[[u8; LINE]]; G] = x.map(|x| x[b].as_chunks().0);
        let mut dots = [[_mm512_setzero_si512(); MR]; G];
        for g in 0..G {
            dots[g] = [load_512(&lines[g][0]); MR];
        }
        for i in 0..WORDS {
            let mut q = [_mm512_setzero_si512(); G];
            for g in 0..G {
                q[g] = load_512(&lines[g][2 + i]);
            }
            for r in 0..MR {
                let w = _mm512_set1_epi32(tile.q[r][b][i]);
                for g in 0..G {
                    dots[g][r] = _mm512_dpbusd_epi32(dots[g][r], w, q[g]);
                }
            }
        }
        for g in 0..G {
            let d = _mm512_castsi512_ps(load_512(&lines[g][1]));
            for r in 0..MR {
                let d = _mm512_mul_ps(_mm512_set1_ps(tile.d[r][b]), d);
                sums[g][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[g][r]), d, sums[g][r]);
            }
        }
    }
    for g in 0..G {
        for r in 0..MR {
            store_f32x16(&mut acc[g][r], sums[g][r]);
        }
    }
}
