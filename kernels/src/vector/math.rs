//! Functions of one float without branches, so that loops over them become vectors.

use super::{Isa, mul_add};

/// 1.5 * 2^23: adding it rounds to an integer, which is then the low bits.
const ROUND: f32 = 12_582_912.0;

/// ln 2, to the bits that make products with small integers exact, and the rest.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x to 2 ULP where the result is normal; subnormal results lose what their scaling loses.
///
/// x = n ln 2 + r with |r| at most half of ln 2; e^r by its series to the seventh power (what follows is below 2^-27),
/// then scaled twice by half of n, since 2^n alone may be no normal float.
#[inline(always)]
pub(super) fn exp<I: Isa>(x: f32) -> f32 {
    // Beyond these the result is 0 or infinity; NaN passes both comparisons.
    let x = if x > 130.0 { 130.0 } else { x };
    let x = if x < -150.0 { -150.0 } else { x };
    let shifted = mul_add::<I>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<I>(n, -LN2_HIGH, x);
    let r = mul_add::<I>(n, -LN2_LOW, r);
    let mut p = 1.0 / 5040.0;
    for c in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = mul_add::<I>(p, r, c);
    }
    let n = shifted.to_bits().cast_signed() - ROUND.to_bits().cast_signed();
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// 2^n for n whose result is a normal float.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned())
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid<I: Isa>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<I>(-x))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(super) fn silu<I: Isa>(x: f32) -> f32 {
    x / (1.0 + exp::<I>(-x))
}

/// `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x + 0.044715 x^3)`, as `x * sigmoid(2 u)`.
#[inline(always)]
pub(super) fn gelu<I: Isa>(x: f32) -> f32 {
    let u = 0.797_884_6 * x * mul_add::<I>(0.044_715 * x, x, 1.0);
    x / (1.0 + exp::<I>(-2.0 * u))
}

/// `x * sigmoid(1.702 x)`.
#[inline(always)]
pub(super) fn gelu_quick<I: Isa>(x: f32) -> f32 {
    x / (1.0 + exp::<I>(-1.702 * x))
}

/// The hyperbolic tangent: `1 - 2 / (e^2x + 1)`, and the series near 0, where that loses digits.
#[inline(always)]
pub(super) fn tanh<I: Isa>(x: f32) -> f32 {
    let far = 1.0 - 2.0 / (exp::<I>(2.0 * x) + 1.0);
    let square = x * x;
    let mut p = 62.0 / 2835.0;
    for c in [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        p = mul_add::<I>(p, square, c);
    }
    let near = mul_add::<I>(p * square, x, x);
    if square < 0.04 { near } else { far }
}
