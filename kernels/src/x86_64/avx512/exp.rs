//! Exponentials of vectors.

use std::arch::x86_64::*;

/// Returns `exp(x)`: within 2 ULP for `x` in -87..88; below that `exp(-87)`, above infinity; NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn exp(x: __m512) -> __m512 {
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
    // The second operand is the result where one is NaN.
    let x = _mm512_max_ps(_mm512_set1_ps(-87.0), x);
    let x = _mm512_min_ps(_mm512_set1_ps(89.0), x);
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
        _mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)),
    );
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_HI), x);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_LO), r);
    let mut p = _mm512_set1_ps(POLY[0]);
    for c in &POLY[1..] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
    }
    let y = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r);
    let y = _mm512_add_ps(y, _mm512_set1_ps(1.0));
    _mm512_scalef_ps(y, n)
}

/// Returns `tanh(x)` with an absolute error below `2^-22`; NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn tanh(x: __m512) -> __m512 {
    let one = _mm512_set1_ps(1.0);
    let e = exp(_mm512_add_ps(x, x));
    let two = _mm512_set1_ps(2.0);
    _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(e, one)))
}
