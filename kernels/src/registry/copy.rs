//! Copies of rows that change the type.

use super::{Kernel, row_kernels};
use crate::op::copy::CopyRow;

/// Returns the kernels of [`crate::op::copy`]: best first, the reference last.
pub fn copy() -> &'static [Kernel<CopyRow>] {
    row_kernels!("copy", CopyRow)
}
