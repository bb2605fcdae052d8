//! The safe entries: arguments are checked here, once, and implementations rely on it.

#![deny(unsafe_code)]

pub mod attention;
pub mod convert;
pub mod gemm;
pub mod mul_mat;
