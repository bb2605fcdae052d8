//! Functions of every element.

use super::{Kernel, row_kernels};
use crate::op::unary::Unary;

/// Returns the kernels of [`crate::op::unary`]: best first, the reference last.
pub fn unary() -> &'static [Kernel<Unary>] {
    row_kernels!("unary", Unary)
}
