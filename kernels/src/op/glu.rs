//! `GLU` of rows: `out = activation(a) * b`.
//!
//! Everything is f32; the activation is within the tolerance of [`crate::op::unary`], and the product is rounded once.

use std::fmt::Debug;

/// A gated linear unit, named as in ggml.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GluOp {
    /// `relu(a) * b`.
    Reglu,
    /// `gelu(a) * b`.
    Geglu,
    /// `silu(a) * b`.
    Swiglu,
    /// `gelu_quick(a) * b`.
    GegluQuick,
    /// `x / (1 + e^(-alpha x)) * (clamp(b, -limit, limit) + 1)` with `x = min(a, limit)`.
    SwigluOai {
        /// Steepness of the gate.
        alpha: f32,
        /// Bound of both operands.
        limit: f32,
    },
}

/// What a family implements; [`Glu`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Glu::glu`].
    fn glu(&self, op: GluOp, a: &[f32], b: &[f32], out: &mut [f32]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct Glu(pub(crate) Box<dyn Implementation>);

impl Glu {
    /// Computes a row.
    ///
    /// # Panics
    ///
    /// When lengths differ.
    pub fn glu(&self, op: GluOp, a: &[f32], b: &[f32], out: &mut [f32]) {
        super::check_len(Some(a), out);
        super::check_len(Some(b), out);
        self.0.glu(op, a, b, out);
    }
}
