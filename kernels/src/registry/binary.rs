//! Operations on two rows.

use super::{Kernel, row_kernels};
use crate::op::binary::Binary;

/// Returns the kernels of [`crate::op::binary`]: best first, the reference last.
pub fn binary() -> &'static [Kernel<Binary>] {
    row_kernels!("binary", Binary)
}
