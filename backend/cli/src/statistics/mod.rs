//! Shares and their differences, with their uncertainty.

mod paired;

use serde::Serialize;

pub(crate) use paired::{Difference, Pairs};

/// Standard normal deviate of two-sided 95 %.
const Z: f64 = 1.959_963_984_540_054;

/// How many of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Successes.
    pub(crate) n_right: u32,
    /// Trials.
    pub(crate) n: u32,
}

/// A share as a fraction of 1, with the bounds of its Wilson 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Estimate {
    /// Trials.
    pub(crate) n: u32,
    /// Successes.
    pub(crate) n_right: u32,
    /// `n_right / n`; 0 without trials.
    pub(crate) accuracy: f64,
    /// Lower bound.
    pub(crate) low: f64,
    /// Upper bound.
    pub(crate) high: f64,
}

impl Share {
    /// Counts one trial.
    pub(crate) fn count(&mut self, right: bool) {
        self.n += 1;
        self.n_right += u32::from(right);
    }

    /// Returns the share with its Wilson score interval,
    /// `(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)` with z = 1.96; without trials 0 in [0, 1].
    pub(crate) fn estimate(self) -> Estimate {
        let Self { n_right, n } = self;
        if n == 0 {
            return Estimate {
                n,
                n_right,
                accuracy: 0.0,
                low: 0.0,
                high: 1.0,
            };
        }
        let (trials, z) = (f64::from(n), Z);
        let accuracy = f64::from(n_right) / trials;
        let scale = 1.0 + z * z / trials;
        let centre = (accuracy + z * z / (2.0 * trials)) / scale;
        let spread = z / scale
            * (accuracy * (1.0 - accuracy) / trials + z * z / (4.0 * trials * trials)).sqrt();
        Estimate {
            n,
            n_right,
            accuracy,
            // Exact at the ends, where rounding would leave a trace.
            low: if n_right == 0 { 0.0 } else { centre - spread },
            high: if n_right == n { 1.0 } else { centre + spread },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn the_interval_is_wilson_s() {
        // Bounds of published tables (Newcombe 1998, method 3).
        let cases = [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
            (29, 29, 0.8830, 1.0),
        ];
        for (n_right, n, low, high) in cases {
            let estimate = Share { n_right, n }.estimate();
            assert!(
                (estimate.low - low).abs() < 5e-5,
                "{n_right}/{n}: {estimate:?}"
            );
            assert!(
                (estimate.high - high).abs() < 5e-5,
                "{n_right}/{n}: {estimate:?}"
            );
        }
    }

    #[test]
    fn nothing_is_known_without_trials() {
        let estimate = Share::default().estimate();
        assert_eq!(
            (estimate.accuracy, estimate.low, estimate.high),
            (0.0, 0.0, 1.0)
        );
    }

    #[test]
    fn counting_adds_up() {
        let mut share = Share::default();
        for right in [true, false, true] {
            share.count(right);
        }
        assert_eq!(share, Share { n_right: 2, n: 3 });
    }
}
