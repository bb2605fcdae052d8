//! Functions of one float without branches, so that loops over them become vectors.

use super::{Isa, mul_add};

/// 1.5 * 2^23: adding it rounds to an integer, which is then the low bits.
const ROUND: f32 = 12_582_912.0;

/// ln 2, to the bits that make products with small integers exact, and the rest.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// A polynomial for twice e^r with |r| at most half of ln 2, highest power first: the least largest relative error (3e-9)
/// of its degree.
const FIRST: f32 = 2.0 * 0.001_381_446_7;
const REST: [f32; 6] = [
    2.0 * 0.008_368_781,
    2.0 * 0.041_668_393,
    2.0 * 0.166_665_2,
    2.0 * 0.499_999_94,
    2.0,
    2.0,
];

/// e^x to 1 ULP; 0 where that is below 2^-125.
///
/// x = n ln 2 + r with |r| at most half of ln 2; twice e^r by a polynomial, times 2^(n - 1): so that the factor is a normal
/// float, or infinity, or 0, wherever the result is.
#[inline(always)]
pub(super) fn exp<I: Isa>(x: f32) -> f32 {
    // Beyond these the result is infinity or 0; NaN passes both comparisons.
    let x = if x > 89.5 { 89.5 } else { x };
    let x = if x < -87.5 { -87.5 } else { x };
    let shifted = mul_add::<I>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<I>(n, -LN2_HIGH, x);
    let r = mul_add::<I>(n, -LN2_LOW, r);
    let mut p = FIRST;
    for c in REST {
        p = mul_add::<I>(p, r, c);
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits() - 126);
    p * f32::from_bits(exponent << 23)
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
