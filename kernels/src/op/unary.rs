//! `UNARY` of rows: a function of every element.
//!
//! Formulas are those of [`UnaryOp`], in f32. Those with e^t are within `(16 + 4 min(|t|, 128)) * 2^-24` of the exact
//! value, relative to the larger of it and 2^-100 (`tanh` and `elu`: of it and 1), the others are exact. Where a formula
//! gives NaN, as `silu` of -infinity does, a kernel may give 0, and the other way round.

use std::fmt::Debug;

/// A function of one element, named as in ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    /// `|x|`.
    Abs,
    /// -1, 0 or 1; 0 of NaN.
    Sgn,
    /// `-x`.
    Neg,
    /// 1 if `x > 0`, else 0.
    Step,
    /// `tanh(x)`.
    Tanh,
    /// `x` if `x > 0`, else `e^x - 1`.
    Elu,
    /// `x` if `x > 0`, else 0; a signalling NaN may stay NaN.
    Relu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    Gelu,
    /// `x / (1 + e^(-1.702 x))`.
    GeluQuick,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x * clamp((x + 3) / 6, 0, 1)`.
    Hardswish,
    /// `clamp((x + 3) / 6, 0, 1)`.
    Hardsigmoid,
    /// `e^x`.
    Exp,
}

impl UnaryOp {
    /// Every function, in the order of the enum.
    pub const ALL: [Self; 14] = [
        Self::Abs,
        Self::Sgn,
        Self::Neg,
        Self::Step,
        Self::Tanh,
        Self::Elu,
        Self::Relu,
        Self::Sigmoid,
        Self::Gelu,
        Self::GeluQuick,
        Self::Silu,
        Self::Hardswish,
        Self::Hardsigmoid,
        Self::Exp,
    ];
}

/// What a family implements; [`Unary`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Unary::unary`].
    fn unary(&self, op: UnaryOp, x: Option<&[f32]>, out: &mut [f32]);
    /// See [`Unary::scale`].
    fn scale(&self, scale: f32, bias: f32, x: Option<&[f32]>, out: &mut [f32]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct Unary(pub(crate) Box<dyn Implementation>);

impl Unary {
    /// Writes the function of every element; without `x`, of `out` itself.
    ///
    /// # Panics
    ///
    /// When lengths differ.
    pub fn unary(&self, op: UnaryOp, x: Option<&[f32]>, out: &mut [f32]) {
        super::check_len(x, out);
        self.0.unary(op, x, out);
    }

    /// `SCALE`: writes `scale * x + bias`, rounded once or twice; without `x`, of `out` itself. A bias of 0 adds nothing:
    /// products that are -0 stay so.
    ///
    /// # Panics
    ///
    /// When lengths differ.
    pub fn scale(&self, scale: f32, bias: f32, x: Option<&[f32]>, out: &mut [f32]) {
        super::check_len(x, out);
        self.0.scale(scale, bias, x, out);
    }
}
