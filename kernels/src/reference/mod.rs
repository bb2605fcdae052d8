//! The contract as scalar code: obvious, never tuned, and what every other implementation is tested against.

pub(crate) mod attention;
pub(crate) mod convert;
pub(crate) mod gemm;
pub(crate) mod mul_mat;
