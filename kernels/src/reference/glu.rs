//! Gated linear units, element by element.

use super::Reference;
use super::unary::value;
use crate::op::glu::{GluOp, Implementation};
use crate::op::unary::UnaryOp;

impl Implementation for Reference {
    fn glu(&self, op: GluOp, a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *out = match op {
                GluOp::Reglu if a > 0.0 => a * b,
                GluOp::Reglu => 0.0,
                GluOp::Geglu => value(UnaryOp::Gelu, a) * b,
                GluOp::Swiglu => value(UnaryOp::Silu, a) * b,
                GluOp::GegluQuick => value(UnaryOp::GeluQuick, a) * b,
                GluOp::SwigluOai { alpha, limit } => {
                    let x = if a > limit { limit } else { a };
                    x / (1.0 + (-alpha * x).exp()) * (b.clamp(-limit, limit) + 1.0)
                }
            };
        }
    }
}
