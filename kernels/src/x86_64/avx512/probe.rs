//! The integer peak with VNNI.

use std::arch::x86_64::*;
use std::hint::black_box;

use crate::op::probe::Implementation;

/// Independent sums.
const SUMS: usize = 16;

/// Dots of each sum in a round.
const STEPS: usize = 16;

/// The CPU has what the body is compiled with: `avx512f` and `avx512vnni`.
#[derive(Debug)]
pub(crate) struct Vnni(());

impl Vnni {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni"))
            .then_some(Self(()))
    }
}

impl Implementation for Vnni {
    fn run(&self, n: usize) -> u64 {
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn body(n: usize) -> i32 {
            let (w, x) = (
                _mm512_set1_epi32(black_box(0x0102_0304)),
                _mm512_set1_epi32(black_box(0x0102_0304)),
            );
            let mut sums = [_mm512_setzero_si512(); SUMS];
            for _ in 0..n {
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        *sum = _mm512_dpbusd_epi32(*sum, w, x);
                    }
                }
                // The compiler must not find out what the sums are.
                black_box(());
            }
            let all = sums
                .into_iter()
                .fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi32(a, b));
            _mm512_reduce_add_epi32(all)
        }
        // SAFETY: `self` is made only where the features of the callee were detected.
        black_box(unsafe { body(n) });
        (n * STEPS * SUMS * 64 * 2) as u64
    }
}
