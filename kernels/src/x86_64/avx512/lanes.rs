//! AVX-512 as an instruction set of [`crate::lanes`].

use std::arch::x86_64::*;

use super::{LANES, LINE, store_transposed};
use crate::lanes::attention::Vectors;
use crate::lanes::{Body, Lanes, float, lanes};
use crate::tile::TILE;
use crate::tile::kv::LINE_SIZE_BYTES;
use crate::x86_64::Avx512f;
use crate::x86_64::mem::*;

/// Attention: groups of 8 rows of Q, whose scores are scaled as in ggml.
pub(crate) type Attention = Vectors<Avx512f, LANES, 8, true>;

/// Returns it, if this CPU can run it.
pub(crate) fn attention() -> Option<Attention> {
    Avx512f::detect().map(Vectors)
}

/// Products with weights of `SIZE` bytes: a vector for a group.
pub(crate) type Rows<const SIZE: usize> = float::Rows<Avx512f, LANES, SIZE, 8, 1, 7>;

/// Returns them, if this CPU can run them.
pub(crate) fn rows<const SIZE: usize>() -> Option<Rows<SIZE>> {
    Avx512f::detect().map(float::Rows)
}

lanes! {
    Avx512f, 16, "avx512f", __m512, 32, 89.0;

    fn prefetch(bytes: &[u8]) {
        prefetch_all(bytes);
    }

    fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }

    fn load(x: &[f32; 16]) -> __m512 {
        load_f32x16(x)
    }

    fn load_bytes(x: &[[u8; 4]; 16]) -> __m512 {
        _mm512_castsi512_ps(load_512(x.as_flattened().as_array().expect("64 bytes")))
    }

    fn load_halves(x: &[[u8; 2]; 16]) -> __m512 {
        _mm512_cvtph_ps(load_256(x.as_flattened().as_array().expect("32 bytes")))
    }

    fn store(out: &mut [f32; 16], x: __m512) {
        store_f32x16(out, x);
    }

    fn store_bytes(out: &mut [[u8; 4]; 16], x: __m512) {
        let out = out.as_flattened_mut().as_mut_array().expect("64 bytes");
        store_512(out, _mm512_castps_si512(x));
    }

    fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }

    fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }

    fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    fn sub_product(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fnmadd_ps(a, b, c)
    }

    fn add_scaled(sum: __m512, x: __m512, scales: &[f32; 4], i: usize) -> __m512 {
        _mm512_fmadd_ps(_mm512_set1_ps(scales[i]), x, sum)
    }

    fn larger(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }

    fn clamp(x: __m512, min: f32, max: f32) -> __m512 {
        // The second operand is the result where one is NaN.
        let x = _mm512_max_ps(_mm512_set1_ps(min), x);
        _mm512_min_ps(_mm512_set1_ps(max), x)
    }

    fn where_differ(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b), x)
    }

    fn round(x: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }

    fn times_power(x: __m512, n: __m512) -> __m512 {
        _mm512_scalef_ps(x, n)
    }

    fn round_to_f16(x: __m512) -> __m512 {
        _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
    }

    fn sum(x: __m512) -> f32 {
        _mm512_reduce_add_ps(x)
    }

    fn greatest(x: __m512) -> f32 {
        _mm512_reduce_max_ps(x)
    }

    fn transpose(rows: [__m512; 16]) -> [__m512; 16] {
        transpose(rows)
    }

    fn store_transposed(acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
        store_transposed(acc, n_lanes, out, stride);
    }

    fn unzip(line: &[u8; LINE_SIZE_BYTES], even: &mut [f32; TILE], odd: &mut [f32; TILE]) {
        let (even, odd) = (even.as_chunks_mut().0, odd.as_chunks_mut().0);
        for (i, pairs) in line.as_chunks::<LINE>().0.iter().enumerate() {
            let pairs = load_512(pairs);
            let low = _mm512_cvtepi32_epi16(pairs);
            let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs));
            store_f32x16(&mut even[i], _mm512_cvtph_ps(low));
            store_f32x16(&mut odd[i], _mm512_cvtph_ps(high));
        }
    }
}

/// Returns the transpose of a 16 x 16 matrix: pairs, then fours inside 128-bit parts, then the parts.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(m: [__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    let (mut a, mut b) = ([zero; 16], [zero; 16]);
    for i in 0..8 {
        a[2 * i] = _mm512_unpacklo_ps(m[2 * i], m[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_ps(m[2 * i], m[2 * i + 1]);
    }
    // b[4 q + j]: element 4 p + j of rows 4 q .. 4 q + 4 in part p.
    for q in 0..4 {
        let a: [__m512d; 4] = std::array::from_fn(|j| _mm512_castps_pd(a[4 * q + j]));
        b[4 * q] = _mm512_castpd_ps(_mm512_unpacklo_pd(a[0], a[2]));
        b[4 * q + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a[0], a[2]));
        b[4 * q + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(a[1], a[3]));
        b[4 * q + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(a[1], a[3]));
    }
    for j in 0..4 {
        let lo01 = _mm512_shuffle_f32x4::<0x88>(b[j], b[4 + j]);
        let hi01 = _mm512_shuffle_f32x4::<0xdd>(b[j], b[4 + j]);
        let lo23 = _mm512_shuffle_f32x4::<0x88>(b[8 + j], b[12 + j]);
        let hi23 = _mm512_shuffle_f32x4::<0xdd>(b[8 + j], b[12 + j]);
        a[j] = _mm512_shuffle_f32x4::<0x88>(lo01, lo23);
        a[8 + j] = _mm512_shuffle_f32x4::<0xdd>(lo01, lo23);
        a[4 + j] = _mm512_shuffle_f32x4::<0x88>(hi01, hi23);
        a[12 + j] = _mm512_shuffle_f32x4::<0xdd>(hi01, hi23);
    }
    a
}
