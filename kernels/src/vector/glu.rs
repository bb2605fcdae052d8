//! Gated linear units of rows.

use super::{Body, Isa, Vectored, map_2, math};
use crate::op::glu::{GluOp, Implementation};

struct Glu<'a>(GluOp, &'a [f32], &'a [f32], &'a mut [f32]);

impl Body for Glu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(op, a, b, out) = self;
        let (a, b) = (Some(a), Some(b));
        match op {
            GluOp::Reglu => map_2(a, b, out, |a, b| if a > 0.0 { a * b } else { 0.0 }),
            GluOp::Geglu => map_2(a, b, out, |a, b| math::gelu::<I>(a) * b),
            GluOp::Swiglu => map_2(a, b, out, |a, b| math::silu::<I>(a) * b),
            GluOp::GegluQuick => map_2(a, b, out, |a, b| math::gelu_quick::<I>(a) * b),
            GluOp::SwigluOai { alpha, limit } => map_2(a, b, out, |a, b| {
                let x = if a > limit { limit } else { a };
                let b = if b > limit { limit } else { b };
                let b = if b < -limit { -limit } else { b };
                x / (1.0 + math::exp::<I>(-alpha * x)) * (b + 1.0)
            }),
        }
    }
}

impl<I: Isa> Implementation for Vectored<I> {
    fn glu(&self, op: GluOp, a: &[f32], b: &[f32], out: &mut [f32]) {
        self.0.run(Glu(op, a, b, out));
    }
}
