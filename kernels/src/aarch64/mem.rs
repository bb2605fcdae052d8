//! Loads and stores of whole vectors; no alignment needed. Half floats are widened and rounded here.

use std::arch::aarch64::*;

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_u8(p: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference is to 16 readable bytes, and the instruction takes any alignment.
    unsafe { vld1q_u8(p.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_s8(p: &[u8; 16]) -> int8x16_t {
    vreinterpretq_s8_u8(load_u8(p))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_f32(p: &[f32; 4]) -> float32x4_t {
    // SAFETY: the reference is to 4 readable floats, and the instruction takes any alignment.
    unsafe { vld1q_f32(p.as_ptr()) }
}

/// Loads 4 floats from their bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_f32_bytes(p: &[u8; 16]) -> float32x4_t {
    vreinterpretq_f32_u8(load_u8(p))
}

/// Returns the half floats of a vector as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widen_f16(v: uint16x8_t) -> [float32x4_t; 2] {
    [
        vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(v))),
        vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(v))),
    ]
}

/// Rounds through f16 and back; ties to even.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn round_to_f16(v: float32x4_t) -> float32x4_t {
    vcvt_f32_f16(vcvt_f16_f32(v))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_u8(p: &mut [u8; 16], v: uint8x16_t) {
    // SAFETY: the reference is to 16 writable bytes, and the instruction takes any alignment.
    unsafe { vst1q_u8(p.as_mut_ptr(), v) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_s8(p: &mut [u8; 16], v: int8x16_t) {
    store_u8(p, vreinterpretq_u8_s8(v));
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_f32(p: &mut [f32; 4], v: float32x4_t) {
    // SAFETY: the reference is to 4 writable floats, and the instruction takes any alignment.
    unsafe { vst1q_f32(p.as_mut_ptr(), v) }
}
