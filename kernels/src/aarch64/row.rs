//! NEON as an instruction set of the row operations.

use std::arch::aarch64::*;

use super::Neon;
use super::mem::*;
use crate::vector::{Body, Isa, LANES};

impl Isa for Neon {
    const FMA: bool = true;

    fn run<B: Body>(self, body: B) -> B::Output {
        #[target_feature(enable = "neon")]
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
    fn narrow(self, x: &[f32; LANES]) -> [u8; 2 * LANES] {
        // SAFETY: `self` exists only where the features of the callee were detected.
        unsafe { narrow(x) }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn widen(x: &[u8; 2 * LANES]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    let halves = x.as_chunks().0.iter();
    for (x, out) in halves.zip(out.as_chunks_mut::<8>().0) {
        let [low, high] = widen_f16(vreinterpretq_u16_u8(load_u8(x)));
        let out = out.as_chunks_mut().0;
        store_f32(&mut out[0], low);
        store_f32(&mut out[1], high);
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
fn narrow(x: &[f32; LANES]) -> [u8; 2 * LANES] {
    let mut out = [0; 2 * LANES];
    let floats = x.as_chunks::<8>().0.iter();
    for (x, out) in floats.zip(out.as_chunks_mut().0) {
        let x = x.as_chunks().0;
        let halves = narrow_f32(load_f32(&x[0]), load_f32(&x[1]));
        store_u8(out, vreinterpretq_u8_u16(halves));
    }
    out
}
