//! Products of bytes, added in 32 bits. The intrinsics of the instructions that do both are unstable.

use std::arch::aarch64::*;
use std::arch::asm;

/// Adds to lane `i` the dot product of bytes `4i .. 4i + 4` of `w` with bytes `4 LANE .. 4 LANE + 4` of `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot_lane<const LANE: i32>(
    mut acc: int32x4_t,
    w: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    // SAFETY: the instruction touches these registers alone; the CPU has it where this function may be called.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            acc = inout(vreg) acc,
            w = in(vreg) w,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Adds to lane `i` the dot product of bytes `4i .. 4i + 4` of `w` with those of `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot(mut acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction touches these registers alone; the CPU has it where this function may be called.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {w:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// [`dot`] without dot products. Two products are at most 2 * 128 * 127 if one factor is at least -127, which 16 bits hold.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn long_dot(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(w, x)))
}

/// [`dot_lane`] without dot products, see [`long_dot`].
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn long_dot_lane<const LANE: i32>(
    acc: int32x4_t,
    w: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    let x = vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(x));
    long_dot(acc, w, vreinterpretq_s8_s32(x))
}

/// Adds to lane `2i + j` the dot product of eight bytes: those from `8i` of `x` on with those from `8j` of `w` on.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) fn matrix(mut acc: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction touches these registers alone; the CPU has it where this function may be called.
    unsafe {
        asm!(
            "smmla {acc:v}.4s, {x:v}.16b, {w:v}.16b",
            acc = inout(vreg) acc,
            x = in(vreg) x,
            w = in(vreg) w,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}
