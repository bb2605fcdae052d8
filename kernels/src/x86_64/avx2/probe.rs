//! The integer peak with AVX2: bytes are multiplied in pairs to 16 bits, which are added in pairs to 32.

use std::arch::x86_64::*;
use std::hint::black_box;

use crate::op::probe::Implementation;

/// Independent sums: with the two factors and what is between, all 16 registers.
const SUMS: usize = 12;

/// Dots of each sum in a round.
const STEPS: usize = 16;

/// The CPU has what the body is compiled with: `avx2`.
#[derive(Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl Implementation for Avx2 {
    fn run(&self, n: usize) -> u64 {
        #[target_feature(enable = "avx2")]
        fn body(n: usize) -> i32 {
            let (w, ones) = (
                _mm256_set1_epi32(black_box(0x0102_0304)),
                _mm256_set1_epi16(1),
            );
            // Each product is of the sum before it, and no two sums are known to be equal: none is made once for several.
            let mut sums: [__m256i; SUMS] =
                std::array::from_fn(|_| _mm256_set1_epi32(black_box(0x0102_0304)));
            for _ in 0..n {
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        let pairs = _mm256_maddubs_epi16(w, *sum);
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            let all = sums
                .into_iter()
                .fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi32(a, b));
            let (low, high) = (
                _mm256_castsi256_si128(all),
                _mm256_extracti128_si256::<1>(all),
            );
            _mm_cvtsi128_si32(_mm_add_epi32(low, high))
        }
        // SAFETY: `self` is made only where the features of the callee were detected.
        black_box(unsafe { body(n) });
        (n * STEPS * SUMS * 32 * 2) as u64
    }
}
