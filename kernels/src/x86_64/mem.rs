//! Loads and stores of whole vectors; no alignment needed.

use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn load_128(p: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to 16 readable bytes, and the instruction takes any alignment.
    unsafe { _mm_loadu_si128(p.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load_256(p: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to 32 readable bytes, and the instruction takes any alignment.
    unsafe { _mm256_loadu_si256(p.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_512(p: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to 64 readable bytes, and the instruction takes any alignment.
    unsafe { _mm512_loadu_si512(p.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn load_f32x8(p: &[f32; 8]) -> __m256 {
    // SAFETY: the reference is to 8 readable floats, and the instruction takes any alignment.
    unsafe { _mm256_loadu_ps(p.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_f32x16(p: &[f32; 16]) -> __m512 {
    // SAFETY: the reference is to 16 readable floats, and the instruction takes any alignment.
    unsafe { _mm512_loadu_ps(p.as_ptr()) }
}

#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn store_128(p: &mut [u8; 16], v: __m128i) {
    // SAFETY: the reference is to 16 writable bytes, and the instruction takes any alignment.
    unsafe { _mm_storeu_si128(p.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn store_256(p: &mut [u8; 32], v: __m256i) {
    // SAFETY: the reference is to 32 writable bytes, and the instruction takes any alignment.
    unsafe { _mm256_storeu_si256(p.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_512(p: &mut [u8; 64], v: __m512i) {
    // SAFETY: the reference is to 64 writable bytes, and the instruction takes any alignment.
    unsafe { _mm512_storeu_si512(p.as_mut_ptr().cast(), v) }
}

#[inline]
#[target_feature(enable = "avx")]
pub(super) fn store_f32x8(p: &mut [f32; 8], v: __m256) {
    // SAFETY: the reference is to 8 writable floats, and the instruction takes any alignment.
    unsafe { _mm256_storeu_ps(p.as_mut_ptr(), v) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_f32x16(p: &mut [f32; 16], v: __m512) {
    // SAFETY: the reference is to 16 writable floats, and the instruction takes any alignment.
    unsafe { _mm512_storeu_ps(p.as_mut_ptr(), v) }
}

#[inline]
#[target_feature(enable = "sse")]
pub(super) fn store_f32x4(p: &mut [f32; 4], v: __m128) {
    // SAFETY: the reference is to 4 writable floats, and the instruction takes any alignment.
    unsafe { _mm_storeu_ps(p.as_mut_ptr(), v) }
}

/// Returns the bytes of a shorter tail, followed by zeros.
#[inline]
pub(super) fn padded<const N: usize>(tail: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..tail.len()].copy_from_slice(tail);
    bytes
}

/// Asks for the cache line at byte `at` of `bytes`, or beyond their end, to come to the second-level cache: a hint that
/// reads nothing.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch(bytes: &[u8], at: usize) {
    _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast());
}

/// Asks for all cache lines of `bytes`, as [`prefetch`] does.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_all(bytes: &[u8]) {
    (0..bytes.len())
        .step_by(64)
        .for_each(|at| prefetch(bytes, at));
}
