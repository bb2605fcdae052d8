//! Loads and stores of whole vectors, no alignment needed, and a few steps that several operations share.

use std::arch::aarch64::*;

use crate::tile::TILE;
use crate::tile::kv::LINE_SIZE_BYTES;

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

/// Loads 4 half floats as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_f16(p: &[u8; 8]) -> float32x4_t {
    // SAFETY: the reference is to 8 readable bytes, and the instruction takes any alignment.
    let bytes = unsafe { vld1_u8(p.as_ptr()) };
    vcvt_f32_f16(vreinterpret_f16_u8(bytes))
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

/// Returns the bytes of a shorter tail, followed by zeros.
#[inline]
pub(super) fn padded<const N: usize>(tail: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..tail.len()].copy_from_slice(tail);
    bytes
}

/// Adds `v` times lane `lane` of `scales`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn add_scaled(
    sum: float32x4_t,
    v: float32x4_t,
    scales: float32x4_t,
    lane: usize,
) -> float32x4_t {
    match lane {
        0 => vfmaq_laneq_f32::<0>(sum, v, scales),
        1 => vfmaq_laneq_f32::<1>(sum, v, scales),
        2 => vfmaq_laneq_f32::<2>(sum, v, scales),
        _ => vfmaq_laneq_f32::<3>(sum, v, scales),
    }
}

/// Returns the transpose of a 4 x 4 matrix.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose(m: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let pair = |a, b| {
        let even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
        (even, vreinterpretq_f64_f32(vtrn2q_f32(a, b)))
    };
    let (a0, a1) = pair(m[0], m[1]);
    let (b0, b1) = pair(m[2], m[3]);
    [
        vreinterpretq_f32_f64(vtrn1q_f64(a0, b0)),
        vreinterpretq_f32_f64(vtrn1q_f64(a1, b1)),
        vreinterpretq_f32_f64(vtrn2q_f64(a0, b0)),
        vreinterpretq_f32_f64(vtrn2q_f64(a1, b1)),
    ]
}

/// Widens a line of an fp16 tile: two rows of 32 half floats, their elements interleaved.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unzip_line(
    line: &[u8; LINE_SIZE_BYTES],
    even: &mut [f32; TILE],
    odd: &mut [f32; TILE],
) {
    let parts = line.as_chunks().0;
    for i in 0..4 {
        let a = vreinterpretq_u16_u8(load_u8(&parts[2 * i]));
        let b = vreinterpretq_u16_u8(load_u8(&parts[2 * i + 1]));
        for (out, halves) in [&mut *even, &mut *odd]
            .into_iter()
            .zip([vuzp1q_u16(a, b), vuzp2q_u16(a, b)])
        {
            let out = &mut out.as_chunks_mut().0[2 * i..];
            let [low, high] = widen_f16(halves);
            store_f32(&mut out[0], low);
            store_f32(&mut out[1], high);
        }
    }
}
