//! The contract as scalar code: obvious, never tuned, and what every other implementation is tested against.

pub(crate) mod attention;
mod binary;
pub(crate) mod convert;
mod copy;
pub(crate) mod gemm;
mod glu;
pub(crate) mod mul_mat;
mod norm;
mod rope;
mod soft_max;
mod unary;

/// Every row operation as its definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference;
