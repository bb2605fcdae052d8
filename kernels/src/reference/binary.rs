//! Operations on two rows, element by element.

use super::Reference;
use crate::op::binary::{BinaryOp, Implementation};

fn value(op: BinaryOp, a: f32, b: f32) -> f32 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
    }
}

impl Implementation for Reference {
    fn binary(&self, op: BinaryOp, a: Option<&[f32]>, b: Option<&[f32]>, out: &mut [f32]) {
        for i in 0..out.len() {
            let of = |x: Option<&[f32]>| x.map_or(out[i], |x| x[i]);
            out[i] = value(op, of(a), of(b));
        }
    }

    fn binary_scalar(&self, op: BinaryOp, a: Option<&[f32]>, b: f32, out: &mut [f32]) {
        for i in 0..out.len() {
            out[i] = value(op, a.map_or(out[i], |a| a[i]), b);
        }
    }
}
