//! Functions of every element.

use super::{Body, Isa, Vectored, map, math, mul_add};
use crate::op::unary::{Implementation, UnaryOp};

struct Unary<'a>(UnaryOp, Option<&'a [f32]>, &'a mut [f32]);

impl Body for Unary<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(op, x, out) = self;
        match op {
            UnaryOp::Abs => map(x, out, f32::abs),
            UnaryOp::Sgn => map(x, out, |x| {
                if x > 0.0 {
                    1.0
                } else if x < 0.0 {
                    -1.0
                } else {
                    0.0
                }
            }),
            UnaryOp::Neg => map(x, out, |x| -x),
            UnaryOp::Step => map(x, out, |x| if x > 0.0 { 1.0 } else { 0.0 }),
            UnaryOp::Tanh => map(x, out, math::tanh::<I>),
            UnaryOp::Elu => map(x, out, |x| {
                let below = math::exp::<I>(x) - 1.0;
                if x > 0.0 { x } else { below }
            }),
            UnaryOp::Relu => map(x, out, |x| if x > 0.0 { x } else { 0.0 }),
            UnaryOp::Sigmoid => map(x, out, math::sigmoid::<I>),
            UnaryOp::Gelu => map(x, out, math::gelu::<I>),
            UnaryOp::GeluQuick => map(x, out, math::gelu_quick::<I>),
            UnaryOp::Silu => map(x, out, math::silu::<I>),
            UnaryOp::Hardswish => map(x, out, |x| x * hardsigmoid(x)),
            UnaryOp::Hardsigmoid => map(x, out, hardsigmoid),
            UnaryOp::Exp => map(x, out, math::exp::<I>),
        }
    }
}

#[inline(always)]
fn hardsigmoid(x: f32) -> f32 {
    let x = (x + 3.0) / 6.0;
    let x = if x < 0.0 { 0.0 } else { x };
    if x > 1.0 { 1.0 } else { x }
}

struct Scale<'a>(f32, f32, Option<&'a [f32]>, &'a mut [f32]);

impl Body for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(scale, bias, x, out) = self;
        if bias == 0.0 {
            map(x, out, |x| x * scale);
        } else {
            map(x, out, |x| mul_add::<I>(x, scale, bias));
        }
    }
}

impl<I: Isa> Implementation for Vectored<I> {
    fn unary(&self, op: UnaryOp, x: Option<&[f32]>, out: &mut [f32]) {
        self.0.run(Unary(op, x, out));
    }

    fn scale(&self, scale: f32, bias: f32, x: Option<&[f32]>, out: &mut [f32]) {
        self.0.run(Scale(scale, bias, x, out));
    }
}
