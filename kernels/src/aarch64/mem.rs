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
        vcvt_high_f32_f16(vreinterpretq_f16_u16(v)),
    ]
}

/// Loads 8 half floats, as bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_u16(p: &[u8; 16]) -> uint16x8_t {
    vreinterpretq_u16_u8(load_u8(p))
}

/// Rounds to half floats, ties to even; returns their bits.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn narrow_f32(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high))
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

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_u16(p: &mut [u8; 16], v: uint16x8_t) {
    store_u8(p, vreinterpretq_u8_u16(v));
}

/// Returns the bytes of floats.
#[inline]
pub(super) fn as_bytes(x: &[f32]) -> &[u8] {
    // SAFETY: the bytes are those of the slice, which they borrow; a float has no bytes that are not set.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

/// Returns the bytes of floats, to be written.
#[inline]
pub(super) fn as_bytes_mut(x: &mut [f32]) -> &mut [u8] {
    // SAFETY: the bytes are those of the slice, which they borrow; any are a float.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
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

/// Returns the transpose of an 8 x 8 matrix: pairs, then fours, then halves of the vectors.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose_u16(m: [uint16x8_t; 8]) -> [uint16x8_t; 8] {
    let mut pairs = [vdupq_n_u32(0); 8];
    for i in 0..4 {
        let (a, b) = (m[2 * i], m[2 * i + 1]);
        pairs[2 * i] = vreinterpretq_u32_u16(vtrn1q_u16(a, b));
        pairs[2 * i + 1] = vreinterpretq_u32_u16(vtrn2q_u16(a, b));
    }
    // fours[4 q + c]: elements c and c + 4 of rows 4 q .. 4 q + 4.
    let mut fours = [vdupq_n_u64(0); 8];
    for q in 0..2 {
        for c in 0..2 {
            let (a, b) = (pairs[4 * q + c], pairs[4 * q + 2 + c]);
            fours[4 * q + c] = vreinterpretq_u64_u32(vtrn1q_u32(a, b));
            fours[4 * q + 2 + c] = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
        }
    }
    let mut out = m;
    for c in 0..4 {
        out[c] = vreinterpretq_u16_u64(vtrn1q_u64(fours[c], fours[4 + c]));
        out[4 + c] = vreinterpretq_u16_u64(vtrn2q_u64(fours[c], fours[4 + c]));
    }
    out
}

/// Returns eight of the 32 elements of both rows in a line of an fp16 tile, in which they are interleaved.
#[inline]
#[target_feature(enable = "neon")]
fn unzip(line: &[u8; LINE_SIZE_BYTES], i: usize) -> [uint16x8_t; 2] {
    let parts = line.as_chunks().0;
    let (a, b) = (load_u16(&parts[2 * i]), load_u16(&parts[2 * i + 1]));
    [vuzp1q_u16(a, b), vuzp2q_u16(a, b)]
}

/// Writes the two rows of a line of an fp16 tile.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unzip_halves(
    line: &[u8; LINE_SIZE_BYTES],
    even: &mut [[u8; 16]; TILE / 8],
    odd: &mut [[u8; 16]; TILE / 8],
) {
    for i in 0..TILE / 8 {
        let [a, b] = unzip(line, i);
        store_u16(&mut even[i], a);
        store_u16(&mut odd[i], b);
    }
}

/// Writes the two rows of a line of an fp16 tile as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn unzip_line(
    line: &[u8; LINE_SIZE_BYTES],
    even: &mut [f32; TILE],
    odd: &mut [f32; TILE],
) {
    for i in 0..TILE / 8 {
        for (out, halves) in [&mut *even, &mut *odd].into_iter().zip(unzip(line, i)) {
            let out = &mut out.as_chunks_mut().0[2 * i..];
            let [low, high] = widen_f16(halves);
            store_f32(&mut out[0], low);
            store_f32(&mut out[1], high);
        }
    }
}
