//! Randomness as a pure function of (seed, position, step, purpose, index).
//!
//! No stream is kept anywhere, so a draw does not depend on how many draws were made before it, on the order of rows
//! or on the number of threads. The generator is the SplitMix64 sequence (Steele, Lea, Flood 2014) read by counter:
//!
//! ```text
//! key   = mix(mix(mix(seed) ^ (position << 32 | step)) ^ purpose)
//! bits  = mix(key + (index + 1) * 0x9e3779b97f4a7c15)
//! unit  = ((bits >> 11) + 1/2) * 2^-53          strictly between 0 and 1
//! ```

/// What a draw is for. Draws of different purposes are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Choosing a token by one categorical draw.
    Token,
    /// The Gumbel noise of each token, indexed by token id.
    Noise,
    /// Choosing which positions commit.
    Order,
}

/// All draws of one position in one step for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Key {
    /// Returns the key of a position in a step.
    pub const fn new(seed: u64, pos: u32, step: u32, purpose: Purpose) -> Self {
        let place = ((pos as u64) << 32) | step as u64;
        let salt = match purpose {
            Purpose::Token => 1,
            Purpose::Noise => 2,
            Purpose::Order => 3,
        };
        // The first addition keeps seed 0 away from the fixed point of `mix`.
        Self(mix(mix(mix(seed.wrapping_add(GAMMA)) ^ place) ^ salt))
    }

    /// Returns 64 random bits.
    pub const fn bits(self, index: u32) -> u64 {
        mix(self.0.wrapping_add(GAMMA.wrapping_mul(index as u64 + 1)))
    }

    /// Returns a number strictly between 0 and 1.
    pub fn unit(self, index: u32) -> f64 {
        unit(self.bits(index))
    }

    /// Returns a draw of the standard Gumbel distribution, `-ln(-ln u)`.
    pub fn gumbel(self, index: u32) -> f64 {
        gumbel(self.bits(index))
    }
}

/// Maps 64 random bits to a number strictly between 0 and 1, on a grid of 2^-53.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit the mantissa")]
pub fn unit(bits: u64) -> f64 {
    // The largest value, 1 - 2^-54, rounds to 1: keep it below.
    (((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)).min(1.0 - f64::EPSILON / 2.0)
}

/// Maps 64 random bits to a draw of the standard Gumbel distribution.
pub fn gumbel(bits: u64) -> f64 {
    -(-unit(bits).ln()).ln()
}

/// Returns an upper bound of [`gumbel`]`(bits)` without a logarithm.
///
/// With `k` leading one bits `1 - u >= 2^-(k+1)`, and `-ln u >= 1 - u`, so `-ln(-ln u) <= (k + 1) ln 2`; one more `ln 2`
/// covers the rounding of the logarithms.
pub fn gumbel_bound(bits: u64) -> f64 {
    f64::from(bits.leading_ones() + 2) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_do_not_depend_on_other_draws_and_differ_by_every_part_of_the_key() {
        let base = Key::new(7, 3, 2, Purpose::Token).bits(0);
        assert_eq!(base, Key::new(7, 3, 2, Purpose::Token).bits(0));
        for other in [
            Key::new(8, 3, 2, Purpose::Token).bits(0),
            Key::new(7, 2, 3, Purpose::Token).bits(0),
            Key::new(7, 3, 3, Purpose::Token).bits(0),
            Key::new(7, 3, 2, Purpose::Noise).bits(0),
            Key::new(7, 3, 2, Purpose::Order).bits(0),
            Key::new(7, 3, 2, Purpose::Token).bits(1),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn units_are_strictly_inside_and_gumbel_is_finite_at_the_ends() {
        for bits in [0, 1, u64::MAX >> 1, u64::MAX - 1, u64::MAX] {
            assert!(unit(bits) > 0.0 && unit(bits) < 1.0, "{bits:#x}");
            assert!(gumbel(bits).is_finite(), "{bits:#x}");
            assert!(gumbel(bits) <= gumbel_bound(bits), "{bits:#x}");
        }
    }

    #[test]
    fn the_bound_holds_and_the_moments_fit() {
        let key = Key::new(1, 2, 3, Purpose::Noise);
        let (mut units, mut gumbels) = (0.0, 0.0);
        let n = 100_000u32;
        for index in 0..n {
            let bits = key.bits(index);
            assert!(gumbel(bits) <= gumbel_bound(bits), "{bits:#x}");
            units += unit(bits);
            gumbels += gumbel(bits);
        }
        // Means 1/2 and Euler's constant, standard errors 0.0009 and 0.004.
        assert!((units / f64::from(n) - 0.5).abs() < 0.005);
        assert!((gumbels / f64::from(n) - 0.577_215_7).abs() < 0.02);
    }
}
