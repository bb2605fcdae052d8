//! Row operations with what the target has without asking.

use crate::block::{f16_to_f32, f32_to_f16};
use crate::vector::{Body, Isa, LANES};

/// The target's own instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline;

impl Isa for Baseline {
    const FMA: bool = cfg!(target_arch = "aarch64");

    fn run<B: Body>(self, body: B) -> B::Output {
        body.run(self)
    }

    fn widen(self, x: &[u8; 2 * LANES]) -> [f32; LANES] {
        std::array::from_fn(|i| f16_to_f32([x[2 * i], x[2 * i + 1]]))
    }

    fn narrow(self, x: &[f32; LANES]) -> [u8; 2 * LANES] {
        let mut out = [0; 2 * LANES];
        for (out, x) in out.as_chunks_mut().0.iter_mut().zip(x) {
            *out = f32_to_f16(*x);
        }
        out
    }
}
