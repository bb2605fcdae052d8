//! AVX-512: groups of 16 rows of x.

pub(crate) mod gemm;
pub(crate) mod lanes;
pub(crate) mod probe;
pub(crate) mod quant;

use std::arch::x86_64::*;

use super::mem::{load_f32x16, store_f32x4};

/// Rows of x in a group: 32-bit lanes of a vector.
const LANES: usize = 16;

/// Bytes of a vector.
const LINE: usize = 64;

/// Writes lane `i` of four vectors side by side to `out[i * stride..]`, for the first `n_lanes` lanes.
#[target_feature(enable = "avx512f")]
fn store_transposed(acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
    let (acc, _) = acc.as_chunks::<LANES>();
    let (v0, v1) = (load_f32x16(&acc[0]), load_f32x16(&acc[1]));
    let (v2, v3) = (load_f32x16(&acc[2]), load_f32x16(&acc[3]));
    // Pairs, then fours: four lanes of each part of 128 bits.
    let lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(v0, v1));
    let hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(v0, v1));
    let lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(v2, v3));
    let hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(v2, v3));
    let fours = [
        _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23)),
    ];
    let mut write = |lane: usize, four: __m128| {
        if lane < n_lanes {
            let four_out = out[lane * stride..].first_chunk_mut();
            store_f32x4(four_out.expect("the output has every lane"), four);
        }
    };
    for (j, v) in fours.into_iter().enumerate() {
        write(j, _mm512_extractf32x4_ps::<0>(v));
        write(4 + j, _mm512_extractf32x4_ps::<1>(v));
        write(8 + j, _mm512_extractf32x4_ps::<2>(v));
        write(12 + j, _mm512_extractf32x4_ps::<3>(v));
    }
}
