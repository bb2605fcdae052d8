//! Exponentials of vectors.

use std::arch::aarch64::*;

/// Returns `exp(x)`: within 2 ULP for `x` in -87..88; outside, the value at the nearer end; NaN stays NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn exp(x: float32x4_t) -> float32x4_t {
    // x = n ln 2 + r with |r| <= ln(2) / 2, ln 2 in two parts; the polynomial is Cephes' expf on that interval.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    const POLY: [f32; 6] = [
        1.987_569_1e-4,
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        5e-1,
    ];
    // These minima and maxima are NaN where an operand is.
    let x = vmaxq_f32(x, vdupq_n_f32(-87.0));
    let x = vminq_f32(x, vdupq_n_f32(88.0));
    let n = vrndnq_f32(vmulq_n_f32(x, std::f32::consts::LOG2_E));
    let r = vfmsq_f32(x, n, vdupq_n_f32(LN2_HI));
    let r = vfmsq_f32(r, n, vdupq_n_f32(LN2_LO));
    let mut p = vdupq_n_f32(POLY[0]);
    for c in &POLY[1..] {
        p = vfmaq_f32(vdupq_n_f32(*c), p, r);
    }
    let y = vfmaq_f32(r, vmulq_f32(p, r), r);
    let y = vaddq_f32(y, vdupq_n_f32(1.0));
    // 2^n, normal: n is from -126 to 127.
    let bits = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    vmulq_f32(y, vreinterpretq_f32_s32(vshlq_n_s32::<23>(bits)))
}

/// Returns `tanh(x)` with an absolute error below `2^-22`; NaN stays NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn tanh(x: float32x4_t) -> float32x4_t {
    let one = vdupq_n_f32(1.0);
    let e = exp(vaddq_f32(x, x));
    vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0), vaddq_f32(e, one)))
}
