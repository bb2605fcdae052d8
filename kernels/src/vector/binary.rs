//! Operations on two rows.

use super::{Body, Isa, Vectored, map, map_2};
use crate::op::binary::{BinaryOp, Implementation};

struct Binary<'a>(
    BinaryOp,
    Option<&'a [f32]>,
    Option<&'a [f32]>,
    &'a mut [f32],
);

impl Body for Binary<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(op, a, b, out) = self;
        match op {
            BinaryOp::Add => map_2(a, b, out, |a, b| a + b),
            BinaryOp::Sub => map_2(a, b, out, |a, b| a - b),
            BinaryOp::Mul => map_2(a, b, out, |a, b| a * b),
            BinaryOp::Div => map_2(a, b, out, |a, b| a / b),
        }
    }
}

struct BinaryScalar<'a>(BinaryOp, Option<&'a [f32]>, f32, &'a mut [f32]);

impl Body for BinaryScalar<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(op, a, b, out) = self;
        match op {
            BinaryOp::Add => map(a, out, |a| a + b),
            BinaryOp::Sub => map(a, out, |a| a - b),
            BinaryOp::Mul => map(a, out, |a| a * b),
            BinaryOp::Div => map(a, out, |a| a / b),
        }
    }
}

impl<I: Isa> Implementation for Vectored<I> {
    fn binary(&self, op: BinaryOp, a: Option<&[f32]>, b: Option<&[f32]>, out: &mut [f32]) {
        self.0.run(Binary(op, a, b, out));
    }

    fn binary_scalar(&self, op: BinaryOp, a: Option<&[f32]>, b: f32, out: &mut [f32]) {
        self.0.run(BinaryScalar(op, a, b, out));
    }
}
