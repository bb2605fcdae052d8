//! Softmax of rows.

use super::{Kernel, row_kernels};
use crate::op::soft_max::SoftMax;

/// Returns the kernels of [`crate::op::soft_max`]: best first, the reference last.
pub fn soft_max() -> &'static [Kernel<SoftMax>] {
    row_kernels!("soft_max", SoftMax)
}
