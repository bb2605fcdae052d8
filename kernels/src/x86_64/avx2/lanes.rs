//! AVX2 as an instruction set of [`crate::lanes`].

use std::arch::x86_64::*;

use super::{LANES, LINE, reduce_add, store_transposed};
use crate::lanes::attention::Vectors;
use crate::lanes::{Body, Lanes, float, lanes};
use crate::tile::TILE;
use crate::tile::kv::LINE_SIZE_BYTES;
use crate::x86_64::Avx2;
use crate::x86_64::mem::*;

/// Attention: groups of 4 rows of Q, whose scores are scaled as in ggml.
pub(crate) type Attention = Vectors<Avx2, LANES, 4, true>;

/// Returns it, if this CPU can run it.
pub(crate) fn attention() -> Option<Attention> {
    Avx2::detect().map(Vectors)
}

/// Products with weights of `SIZE` bytes: a vector for a group.
pub(crate) type Rows<const SIZE: usize> = float::Rows<Avx2, LANES, SIZE, 4, 1, 6>;

/// Returns them, if this CPU can run them.
pub(crate) fn rows<const SIZE: usize>() -> Option<Rows<SIZE>> {
    Avx2::detect().map(float::Rows)
}

lanes! {
    Avx2, 8, "avx2,fma,f16c", __m256, 16, 88.0;

    fn prefetch(bytes: &[u8]) {
        prefetch_all(bytes);
    }

    fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    fn load(x: &[f32; 8]) -> __m256 {
        load_f32x8(x)
    }

    fn load_bytes(x: &[[u8; 4]; 8]) -> __m256 {
        _mm256_castsi256_ps(load_256(x.as_flattened().as_array().expect("32 bytes")))
    }

    fn load_halves(x: &[[u8; 2]; 8]) -> __m256 {
        _mm256_cvtph_ps(load_128(x.as_flattened().as_array().expect("16 bytes")))
    }

    fn store(out: &mut [f32; 8], x: __m256) {
        store_f32x8(out, x);
    }

    fn store_bytes(out: &mut [[u8; 4]; 8], x: __m256) {
        let out = out.as_flattened_mut().as_mut_array().expect("32 bytes");
        store_256(out, _mm256_castps_si256(x));
    }

    fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }

    fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    fn div(a: __m256, b: __m256) -> __m256 {
        _mm256_div_ps(a, b)
    }

    fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    fn sub_product(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fnmadd_ps(a, b, c)
    }

    fn add_scaled(sum: __m256, x: __m256, scales: &[f32; 4], i: usize) -> __m256 {
        _mm256_fmadd_ps(_mm256_set1_ps(scales[i]), x, sum)
    }

    fn larger(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }

    fn clamp(x: __m256, min: f32, max: f32) -> __m256 {
        // The second operand is the result where one is NaN.
        let x = _mm256_max_ps(_mm256_set1_ps(min), x);
        _mm256_min_ps(_mm256_set1_ps(max), x)
    }

    fn where_differ(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b))
    }

    fn round(x: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }

    fn times_power(x: __m256, n: __m256) -> __m256 {
        // 2^n, normal: n is from -126 to 127.
        let bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(bits));
        _mm256_mul_ps(x, power)
    }

    fn round_to_f16(x: __m256) -> __m256 {
        _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
    }

    fn sum(x: __m256) -> f32 {
        reduce_add(x)
    }

    fn greatest(x: __m256) -> f32 {
        let mut lanes = [0.0; LANES];
        store_f32x8(&mut lanes, x);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
        transpose(rows)
    }

    fn store_transposed(acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
        store_transposed(acc, n_lanes, out, stride);
    }

    fn unzip(line: &[u8; LINE_SIZE_BYTES], even: &mut [f32; TILE], odd: &mut [f32; TILE]) {
        // Within each part of 128 bits: first halves, then second halves; then the parts are joined.
        let order = _mm256_set_epi8(
            15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0, 15, 14, 11, 10, 7, 6, 3, 2, 13,
            12, 9, 8, 5, 4, 1, 0,
        );
        let (even, odd) = (even.as_chunks_mut().0, odd.as_chunks_mut().0);
        for (i, pairs) in line.as_chunks::<LINE>().0.iter().enumerate() {
            let shuffled = _mm256_shuffle_epi8(load_256(pairs), order);
            let parts = _mm256_permute4x64_epi64::<0xd8>(shuffled);
            let (low, high) = (
                _mm256_castsi256_si128(parts),
                _mm256_extracti128_si256::<1>(parts),
            );
            store_f32x8(&mut even[i], _mm256_cvtph_ps(low));
            store_f32x8(&mut odd[i], _mm256_cvtph_ps(high));
        }
    }
}

/// Returns the transpose of an 8 x 8 matrix: pairs, then fours inside 128-bit parts, then the parts.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(m: [__m256; 8]) -> [__m256; 8] {
    let zero = _mm256_setzero_ps();
    let (mut a, mut b) = ([zero; 8], [zero; 8]);
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_ps(m[2 * i], m[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(m[2 * i], m[2 * i + 1]);
    }
    // b[4 q + j]: element 4 p + j of rows 4 q .. 4 q + 4 in part p.
    for q in 0..2 {
        b[4 * q] = _mm256_shuffle_ps::<0x44>(a[4 * q], a[4 * q + 2]);
        b[4 * q + 1] = _mm256_shuffle_ps::<0xee>(a[4 * q], a[4 * q + 2]);
        b[4 * q + 2] = _mm256_shuffle_ps::<0x44>(a[4 * q + 1], a[4 * q + 3]);
        b[4 * q + 3] = _mm256_shuffle_ps::<0xee>(a[4 * q + 1], a[4 * q + 3]);
    }
    for j in 0..4 {
        a[j] = _mm256_permute2f128_ps::<0x20>(b[j], b[4 + j]);
        a[4 + j] = _mm256_permute2f128_ps::<0x31>(b[j], b[4 + j]);
    }
    a
}
