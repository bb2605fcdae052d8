//! Row operations compiled for AVX2 and for AVX-512.

use std::arch::x86_64::*;

use super::Avx2;
use super::mem::{load_128, load_f32x8, store_128, store_f32x8};
use crate::vector::{Body, Isa, LANES};

/// The CPU has `avx512f`, `avx512vl`, `avx512dq` and what [`Avx2`] has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Returns the proof if this CPU has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        Avx2::detect()?;
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq"))
        .then_some(Self(()))
    }
}

macro_rules! isa {
    ($name:ident, $features:literal) => {
        impl Isa for $name {
            const FMA: bool = true;

            fn run<B: Body>(self, body: B) -> B::Output {
                #[target_feature(enable = $features)]
                fn compiled<I: Isa, B: Body>(isa: I, body: B) -> B::Output {
                    body.run(isa)
                }
                // SAFETY: `self` exists only where the features of the callee were detected.
                unsafe { compiled(self, body) }
            }

            #[inline(always)]
            fn widen(self, x: &[u8; 2 * LANES]) -> [f32; LANES] {
                // SAFETY: `self` exists only where the features of the callee were detected.
                unsafe { widen(x) }
            }

            #[inline(always)]
            fn rotate_pairs(
                self,
                x: &[f32; LANES],
                cos: &[f32; LANES],
                sin: &[f32; LANES],
            ) -> [f32; LANES] {
                // SAFETY: `self` exists only where the features of the callee were detected.
                unsafe { rotate_pairs(x, cos, sin) }
            }

            #[inline(always)]
            fn narrow(self, x: &[f32; LANES]) -> [u8; 2 * LANES] {
                // SAFETY: `self` exists only where the features of the callee were detected.
                unsafe { narrow(x) }
            }
        }
    };
}

isa!(Avx2, "avx2,fma,f16c");
isa!(Avx512, "avx2,fma,f16c,avx512f,avx512vl,avx512dq");

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(x: &[u8; 2 * LANES]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    let halves = x.as_chunks::<16>().0.iter();
    for (x, out) in halves.zip(out.as_chunks_mut::<8>().0) {
        store_f32x8(out, _mm256_cvtph_ps(load_128(x)));
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn rotate_pairs(x: &[f32; LANES], cos: &[f32; LANES], sin: &[f32; LANES]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    let (cos, sin) = (cos.as_chunks::<8>().0, sin.as_chunks::<8>().0);
    for (i, x) in x.as_chunks::<8>().0.iter().enumerate() {
        let x = load_f32x8(x);
        // 1, 0, 3, 2 within each 128 bits.
        let y = _mm256_permute_ps::<0b10_11_00_01>(x);
        let turned = _mm256_mul_ps(y, load_f32x8(&sin[i]));
        let sum = _mm256_fmadd_ps(x, load_f32x8(&cos[i]), turned);
        store_f32x8(&mut out.as_chunks_mut::<8>().0[i], sum);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(x: &[f32; LANES]) -> [u8; 2 * LANES] {
    let mut out = [0; 2 * LANES];
    let floats = x.as_chunks::<8>().0.iter();
    for (x, out) in floats.zip(out.as_chunks_mut::<16>().0) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load_f32x8(x));
        store_128(out, halves);
    }
    out
}
