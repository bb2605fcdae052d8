//! The arithmetic of softmax over one row of logits, in shapes that the compiler turns into vector code.
//!
//! Sums run over [`LANES`] f32 partial sums per chunk and over chunks in f64, always in the same order: the same logits
//! give the same bits on every machine.

/// Partial sums side by side.
const LANES: usize = 16;
/// Elements per f64 addition.
const CHUNK: usize = 1024;

/// Returns `e^x` for `x <= 0`, 0 below -87; at most 2 ULP off. `x` is not NaN.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let inside = if x > -87.0 { x } else { -87.0 };
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = inside - n * LN_2_HIGH - n * LN_2_LOW;
    // Minimax polynomial of (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2] (Cephes expf).
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    // 2^n by its exponent bits; n is in -126..=0.
    let scale = f32::from_bits(
        (rounded
            .to_bits()
            .wrapping_sub(ROUND.to_bits())
            .wrapping_add(127))
            << 23,
    );
    if x > -87.0 { y * scale } else { 0.0 }
}

/// Returns `ln x` for a positive, normal `x`; at most 2 ULP off, or `1e-7` near 1.
#[inline]
#[expect(
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    reason = "an exponent has 8 bits"
)]
pub(super) fn ln(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// Bits of sqrt(1/2): the mantissa is taken between it and sqrt(2).
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let shifted = x.to_bits().wrapping_sub(SQRT_HALF);
    let e = ((shifted as i32) >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff) + SQRT_HALF) - 1.0;
    // Minimax polynomial of (ln(1 + m) - m + m^2 / 2) / m^3 (Cephes logf).
    let mut p = 7.037_683_6e-2;
    p = p * m - 1.151_461e-1;
    p = p * m + 1.167_699_9e-1;
    p = p * m - 1.242_014_1e-1;
    p = p * m + 1.424_932_3e-1;
    p = p * m - 1.666_805_8e-1;
    p = p * m + 2.000_071_5e-1;
    p = p * m - 2.499_999_4e-1;
    p = p * m + 3.333_333e-1;
    let m2 = m * m;
    m2 * m * p + e * LN_2_LOW - 0.5 * m2 + m + e * LN_2_HIGH
}

/// Returns the largest logit (`-inf` for none), or `None` when one is NaN or `+inf`.
pub(super) fn max(logits: &[f32]) -> Option<f32> {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            lanes[lane] = if x > lanes[lane] { x } else { lanes[lane] };
            bad[lane] |= x.is_nan() | (x == f32::INFINITY);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        lanes[lane] = if x > lanes[lane] { x } else { lanes[lane] };
        bad[lane] |= x.is_nan() | (x == f32::INFINITY);
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (!bad.contains(&true)).then_some(max)
}

/// Returns the sum of `f(logit)` over a row.
#[inline]
pub(super) fn sum(logits: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    logits
        .chunks(CHUNK)
        .map(|chunk| {
            let mut lanes = [0.0f32; LANES];
            let (vectors, rest) = chunk.as_chunks::<LANES>();
            for vector in vectors {
                for lane in 0..LANES {
                    lanes[lane] += f(vector[lane]);
                }
            }
            for (lane, &x) in rest.iter().enumerate() {
                lanes[lane] += f(x);
            }
            lanes.into_iter().map(f64::from).sum::<f64>()
        })
        .sum()
}

/// Returns the index of the first element equal to `x`.
pub(super) fn position(logits: &[f32], x: f32) -> Option<usize> {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let found = |chunk: &[f32; LANES]| chunk.iter().fold(false, |found, &y| found | (y == x));
    // A chunk is searched only where it holds the element: comparing without an exit is several times faster.
    let start = chunks.iter().position(found).unwrap_or(chunks.len()) * LANES;
    let tail = if start < logits.len() - rest.len() {
        &logits[start..]
    } else {
        rest
    };
    let place = tail.iter().position(|&y| y == x)?;
    Some(logits.len() - tail.len() + place)
}

/// Returns the two largest numbers, `-inf` where there are not so many.
pub(super) fn two_largest(numbers: &[f32]) -> (f32, f32) {
    let mut first = [f32::NEG_INFINITY; LANES];
    let mut second = [f32::NEG_INFINITY; LANES];
    for chunk in numbers.chunks(LANES) {
        for (lane, &x) in chunk.iter().enumerate() {
            let loser = if x > first[lane] { first[lane] } else { x };
            first[lane] = if x > first[lane] { x } else { first[lane] };
            second[lane] = if loser > second[lane] {
                loser
            } else {
                second[lane]
            };
        }
    }
    let mut best: Vec<f32> = first.into_iter().chain(second).collect();
    best.sort_unstable_by(|a, b| b.total_cmp(a));
    (best[0], best[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the spacing of f32 numbers is asked for"
    )]
    fn exp_is_within_two_ulp_of_the_exact_value() {
        let mut worst = 0.0f64;
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            if x > -87.0 {
                let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
                worst = worst.max((f64::from(exp(x)) - exact).abs() / ulp);
            }
        }
        assert!(worst <= 2.0, "{worst} ULP");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn ln_is_close_to_the_exact_value() {
        let mut x = 1e-10f32;
        while x < 1.5 {
            let exact = f64::from(x).ln();
            let bound = 2.0f64.powi(-22) * exact.abs() + 1e-7;
            assert!(
                (f64::from(ln(x)) - exact).abs() <= bound,
                "{x}: {}, {exact}",
                ln(x)
            );
            x *= 1.000_1;
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn position_is_that_of_the_first() {
        for len in [1usize, 15, 16, 17, 33] {
            for place in 0..len {
                let mut numbers = vec![-1.0f32; len];
                numbers[place..].fill(2.0);
                assert_eq!(position(&numbers, 2.0), Some(place), "{len}");
            }
            assert_eq!(position(&vec![-1.0; len], 2.0), None);
        }
    }

    #[test]
    fn two_largest_are_found_wherever_they_are() {
        for len in [2usize, 15, 16, 17, 33] {
            for first in 0..len {
                for second in (0..len).filter(|&second| second != first) {
                    let mut numbers = vec![-1.0f32; len];
                    numbers[first] = 3.0;
                    numbers[second] = 2.0;
                    assert_eq!(two_largest(&numbers), (3.0, 2.0));
                    numbers[second] = 3.0;
                    assert_eq!(two_largest(&numbers), (3.0, 3.0));
                }
            }
        }
        assert_eq!(two_largest(&[1.0]), (1.0, f32::NEG_INFINITY));
    }

    #[test]
    fn max_sees_every_place_and_refuses_what_is_not_a_logit() {
        for len in [1, 15, 16, 17, 33] {
            for place in 0..len {
                let mut logits = vec![-1.0f32; len];
                logits[place] = 2.0;
                assert_eq!(max(&logits), Some(2.0), "{place} of {len}");
                logits[place] = f32::NAN;
                assert_eq!(max(&logits), None, "NaN at {place} of {len}");
                logits[place] = f32::INFINITY;
                assert_eq!(max(&logits), None, "inf at {place} of {len}");
            }
        }
        assert_eq!(max(&[f32::NEG_INFINITY; 20]), Some(f32::NEG_INFINITY));
        assert_eq!(max(&[]), Some(f32::NEG_INFINITY));
    }

    #[test]
    fn sum_adds_every_element_once() {
        for len in [0u16, 1, 15, 16, 17, 1023, 1024, 1025, 5000] {
            let numbers: Vec<f32> = (0..len).map(f32::from).collect();
            let exact = f64::from(len) * (f64::from(len) - 1.0) / 2.0;
            assert_eq!(sum(&numbers, |x| x), exact, "{len}");
        }
    }
}
