//! AVX2: groups of 8 rows of x.

pub(crate) mod gemm;
pub(crate) mod lanes;
pub(crate) mod probe;
pub(crate) mod quant;

use std::arch::x86_64::*;

use super::mem::{load_f32x8, store_f32x4, store_f32x8};

/// Rows of x in a group: 32-bit lanes of a vector.
const LANES: usize = 8;

/// Bytes of a vector.
const LINE: usize = 32;

/// Returns the sum of the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn reduce_add(v: __m256) -> f32 {
    let mut lanes = [0.0; LANES];
    store_f32x8(&mut lanes, v);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// Writes lane `i` of four vectors side by side to `out[i * stride..]`, for the first `n_lanes` lanes.
#[target_feature(enable = "avx2")]
fn store_transposed(acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
    let (acc, _) = acc.as_chunks::<LANES>();
    let (v0, v1) = (load_f32x8(&acc[0]), load_f32x8(&acc[1]));
    let (v2, v3) = (load_f32x8(&acc[2]), load_f32x8(&acc[3]));
    // Pairs, then fours: four lanes of each part of 128 bits.
    let (lo01, hi01) = (_mm256_unpacklo_ps(v0, v1), _mm256_unpackhi_ps(v0, v1));
    let (lo23, hi23) = (_mm256_unpacklo_ps(v2, v3), _mm256_unpackhi_ps(v2, v3));
    let fours = [
        _mm256_shuffle_ps::<0x44>(lo01, lo23),
        _mm256_shuffle_ps::<0xee>(lo01, lo23),
        _mm256_shuffle_ps::<0x44>(hi01, hi23),
        _mm256_shuffle_ps::<0xee>(hi01, hi23),
    ];
    let mut write = |lane: usize, four: __m128| {
        if lane < n_lanes {
            let four_out = out[lane * stride..].first_chunk_mut();
            store_f32x4(four_out.expect("the output has every lane"), four);
        }
    };
    for (j, v) in fours.into_iter().enumerate() {
        write(j, _mm256_extractf128_ps::<0>(v));
        write(4 + j, _mm256_extractf128_ps::<1>(v));
    }
}
