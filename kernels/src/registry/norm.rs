//! Normalisation of rows.

use super::{Kernel, row_kernels};
use crate::op::norm::Norm;

/// Returns the kernels of [`crate::op::norm`]: best first, the reference last.
pub fn norm() -> &'static [Kernel<Norm>] {
    row_kernels!("norm", Norm)
}
