//! Exponentials of vectors.

use super::Lanes;

/// ln 2, in two parts.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// The polynomial of Cephes' expf for |r| at most half of ln 2: `e^r = 1 + r + r^2 p(r)`, highest power first.
const FIRST: f32 = 1.987_569_1e-4;
const REST: [f32; 5] = [
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    5e-1,
];

/// Returns `exp(x)`: within 2 ULP for `x` from -87 to 88; below that `exp(-87)`, above the value at
/// [`Lanes::EXP_MAX`]; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<const L: usize, I: Lanes<L>>(isa: I, x: I::Floats) -> I::Floats {
    // x = n ln 2 + r.
    let x = isa.clamp(x, -87.0, I::EXP_MAX);
    let n = isa.round(isa.mul(x, isa.splat(std::f32::consts::LOG2_E)));
    let r = isa.sub_product(n, isa.splat(LN2_HIGH), x);
    let r = isa.sub_product(n, isa.splat(LN2_LOW), r);
    let mut p = isa.splat(FIRST);
    for c in REST {
        p = isa.mul_add(p, r, isa.splat(c));
    }
    let y = isa.mul_add(isa.mul(p, r), r, r);
    isa.times_power(isa.add(y, isa.splat(1.0)), n)
}

/// Returns `tanh(x)` with an absolute error below `2^-22`; NaN stays NaN.
#[inline(always)]
pub(crate) fn tanh<const L: usize, I: Lanes<L>>(isa: I, x: I::Floats) -> I::Floats {
    let one = isa.splat(1.0);
    let e = exp(isa, isa.add(x, x));
    isa.sub(one, isa.div(isa.splat(2.0), isa.add(e, one)))
}
