//! Difference of two shares that were counted on the same trials.

use serde::Serialize;

use super::Z;

/// Halvings of an interval of length 2 or less; what is left is far below the rounding of a share.
const N_HALVINGS: u32 = 60;

/// Trials on which both of two ways were tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    n: u32,
    n_first_alone: u32,
    n_second_alone: u32,
}

/// Share of the second way less that of the first, as fractions of 1, with the bounds of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    /// Trials.
    pub(crate) n: u32,
    /// Trials on which the first way alone was right.
    pub(crate) n_first_alone: u32,
    /// Trials on which the second way alone was right.
    pub(crate) n_second_alone: u32,
    /// Second less first; 0 without trials.
    pub(crate) difference: f64,
    /// Lower bound.
    pub(crate) low: f64,
    /// Upper bound.
    pub(crate) high: f64,
}

impl Pairs {
    /// Counts one trial.
    pub(crate) fn count(&mut self, first: bool, second: bool) {
        self.n += 1;
        self.n_first_alone += u32::from(first && !second);
        self.n_second_alone += u32::from(second && !first);
    }

    /// Returns the difference with Tango's score interval (Statistics in Medicine 17, 1998): all `d` for which
    /// `(s - f - n d)² <= z² n (2 q + d (1 - d))`, where `f` and `s` are the trials that the first and the second way alone
    /// had right, and `q` is the most likely share of `f` if the difference is `d`. It keeps its level for shares near 1 and
    /// when the two ways never differ, where the usual normal interval has no width.
    pub(crate) fn difference(self) -> Difference {
        let Self {
            n,
            n_first_alone,
            n_second_alone,
        } = self;
        let (difference, low, high) = if n == 0 {
            (0.0, -1.0, 1.0)
        } else {
            let estimate = (f64::from(n_second_alone) - f64::from(n_first_alone)) / f64::from(n);
            (
                estimate,
                self.bound(estimate, -1.0),
                self.bound(estimate, 1.0),
            )
        };
        Difference {
            n,
            n_first_alone,
            n_second_alone,
            difference,
            low,
            high,
        }
    }

    /// Returns where the interval ends on the way from the estimate, which is inside, to `end`.
    fn bound(self, estimate: f64, end: f64) -> f64 {
        let (mut inside, mut outside) = (estimate, end);
        for _ in 0..N_HALVINGS {
            let middle = inside.midpoint(outside);
            if self.is_inside(middle) {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        inside
    }

    fn is_inside(self, d: f64) -> bool {
        let [n, first, second] = [self.n, self.n_first_alone, self.n_second_alone].map(f64::from);
        let distance = second - first - n * d;
        let q = self.most_likely(d);
        distance * distance <= Z * Z * n * (2.0 * q + d * (1.0 - d))
    }

    /// Returns the most likely share of trials that the first way alone has right, if the difference is `d`.
    fn most_likely(self, d: f64) -> f64 {
        let [n, first, second] = [self.n, self.n_first_alone, self.n_second_alone].map(f64::from);
        let a = 2.0 * n;
        let b = (2.0 * n - second + first) * d - second - first;
        let c = -first * d * (1.0 - d);
        ((b * b - 4.0 * a * c).max(0.0).sqrt() - b) / (2.0 * a)
    }
}

#[cfg(test)]
mod tests {
    use super::{Difference, Pairs, Z};

    fn pairs(n: u32, n_first_alone: u32, n_second_alone: u32) -> Pairs {
        Pairs {
            n,
            n_first_alone,
            n_second_alone,
        }
    }

    #[test]
    fn ways_that_never_differ_are_not_known_to_be_equal() {
        for n in [1, 20, 600, 3000] {
            let Difference {
                difference,
                low,
                high,
                ..
            } = pairs(n, 0, 0).difference();
            // The equation of the bounds has this solution then.
            let bound = Z * Z / (f64::from(n) + Z * Z);
            assert_eq!(difference.abs(), 0.0);
            assert!((high - bound).abs() < 1e-9, "{n}: {high} {bound}");
            assert!((low + bound).abs() < 1e-9, "{n}: {low} {bound}");
        }
    }

    #[test]
    fn exchanging_the_ways_changes_the_sign() {
        for (n, first, second) in [(50, 2, 12), (600, 7, 0), (3000, 31, 25), (9, 0, 9)] {
            let there = pairs(n, first, second).difference();
            let back = pairs(n, second, first).difference();
            assert!((there.low + back.high).abs() < 1e-9, "{there:?} {back:?}");
            assert!((there.high + back.low).abs() < 1e-9, "{there:?} {back:?}");
            assert!(there.low <= there.difference && there.difference <= there.high);
        }
    }

    #[test]
    fn the_share_that_is_assumed_is_the_most_likely_one() {
        for (n, first, second, d) in [
            (50_u32, 2_u32, 12_u32, 0.1),
            (600, 9, 4, -0.02),
            (40, 3, 3, 0.2),
        ] {
            let p = pairs(n, first, second);
            let likelihood = |q: f64| {
                let rest = f64::from(n - first - second) * (1.0 - 2.0 * q - d).ln();
                f64::from(first) * q.ln() + f64::from(second) * (q + d).ln() + rest
            };
            let best = p.most_likely(d);
            for other in [best - 1e-3, best + 1e-3] {
                assert!(
                    likelihood(best) > likelihood(other) || likelihood(other).is_nan(),
                    "{p:?} {d}: {best}"
                );
            }
        }
    }

    #[test]
    fn with_many_trials_it_is_the_normal_interval() {
        let (n, first, second) = (1_000_000_u32, 30_000_u32, 31_000_u32);
        let found = pairs(n, first, second).difference();
        let [trials, f, s] = [n, first, second].map(f64::from);
        let spread = Z * ((f + s) - (s - f).powi(2) / trials).sqrt() / trials;
        assert!((found.low - (0.001 - spread)).abs() < 1e-6, "{found:?}");
        assert!((found.high - (0.001 + spread)).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn counting_tells_who_was_right_alone() {
        let mut counted = Pairs::default();
        for (first, second) in [(true, true), (true, false), (false, true), (false, true)] {
            counted.count(first, second);
        }
        assert_eq!(counted, pairs(4, 1, 2));
        let none = Pairs::default().difference();
        assert_eq!((none.difference, none.low, none.high), (0.0, -1.0, 1.0));
    }
}
