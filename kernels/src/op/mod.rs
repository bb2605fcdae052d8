//! The safe entries: arguments are checked here, once, and implementations rely on it.

#![deny(unsafe_code)]

pub mod attention;
pub mod binary;
pub mod convert;
pub mod copy;
pub mod gemm;
pub mod glu;
pub mod mul_mat;
pub mod norm;
pub mod probe;
pub mod rope;
pub mod soft_max;
pub mod unary;

/// Checks that an operand is as long as the result, or not there.
#[track_caller]
fn check_len<T>(x: Option<&[T]>, out: &[T]) {
    if let Some(x) = x {
        assert_eq!(x.len(), out.len(), "elements of an operand and the result");
    }
}
