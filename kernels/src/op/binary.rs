//! `ADD`, `SUB`, `MUL` and `DIV` of rows: one f32 operation per element, rounded once; kernels agree bit for bit, NaN
//! payloads apart.

use std::fmt::Debug;

/// An operation on two elements, named as in ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
}

impl BinaryOp {
    /// Every operation, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::Add, Self::Sub, Self::Mul, Self::Div];
}

/// What a family implements; [`Binary`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Binary::binary`].
    fn binary(&self, op: BinaryOp, a: Option<&[f32]>, b: Option<&[f32]>, out: &mut [f32]);
    /// See [`Binary::binary_scalar`].
    fn binary_scalar(&self, op: BinaryOp, a: Option<&[f32]>, b: f32, out: &mut [f32]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct Binary(pub(crate) Box<dyn Implementation>);

impl Binary {
    /// Computes a row; an operand that is not given is `out` itself.
    ///
    /// # Panics
    ///
    /// When lengths differ.
    pub fn binary(&self, op: BinaryOp, a: Option<&[f32]>, b: Option<&[f32]>, out: &mut [f32]) {
        super::check_len(a, out);
        super::check_len(b, out);
        self.0.binary(op, a, b, out);
    }

    /// Computes a row with one number; without `a`, of `out` itself.
    ///
    /// # Panics
    ///
    /// When lengths differ.
    pub fn binary_scalar(&self, op: BinaryOp, a: Option<&[f32]>, b: f32, out: &mut [f32]) {
        super::check_len(a, out);
        self.0.binary_scalar(op, a, b, out);
    }
}
