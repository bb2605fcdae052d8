//! Functions of every element, in f64.

use super::Reference;
use crate::op::unary::{Implementation, UnaryOp};

/// Returns the function of an element.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the rounding of the result"
)]
pub(super) fn value(op: UnaryOp, x: f32) -> f32 {
    let x = f64::from(x);
    let hardsigmoid = ((x + 3.0) / 6.0).clamp(0.0, 1.0);
    let value = match op {
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sgn if x == 0.0 || x.is_nan() => 0.0,
        UnaryOp::Sgn => x.signum(),
        UnaryOp::Neg => -x,
        UnaryOp::Step => f64::from(u8::from(x > 0.0)),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Elu if x > 0.0 => x,
        UnaryOp::Elu => x.exp_m1(),
        UnaryOp::Relu if x > 0.0 => x,
        UnaryOp::Relu => 0.0,
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Gelu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }
        UnaryOp::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Hardswish => x * hardsigmoid,
        UnaryOp::Hardsigmoid => hardsigmoid,
        UnaryOp::Exp => x.exp(),
    };
    value as f32
}

impl Implementation for Reference {
    fn unary(&self, op: UnaryOp, x: Option<&[f32]>, out: &mut [f32]) {
        if let Some(x) = x {
            out.copy_from_slice(x);
        }
        for out in out {
            *out = value(op, *out);
        }
    }

    fn scale(&self, scale: f32, bias: f32, x: Option<&[f32]>, out: &mut [f32]) {
        if let Some(x) = x {
            out.copy_from_slice(x);
        }
        for out in out {
            *out *= scale;
            if bias != 0.0 {
                *out += bias;
            }
        }
    }
}
