//! Safe Rust for every target, shaped so that the compiler can vectorise it.

#![deny(unsafe_code)]

pub(crate) mod attention;
pub(crate) mod float;
pub(crate) mod gemm;
pub(crate) mod quant;
pub(crate) mod row;

/// Rows of x in a group of this family.
const LANES: usize = 8;

/// Weight rows of a tile of this family.
const MR: usize = 4;
