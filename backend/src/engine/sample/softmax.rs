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

/// Returns the two largest of some numbers, `-inf` where there are not so many.
pub(super) fn two_largest(numbers: impl Iterator<Item = f32>) -> (f32, f32) {
    numbers.fold(
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
        |(first, second), x| {
            if x > first {
                (x, first)
            } else if x > second {
                (first, x)
            } else {
                (first, second)
            }
        },
    )
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
