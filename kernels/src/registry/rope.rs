//! Rotary embeddings.

use super::{Kernel, row_kernels};
use crate::op::rope::Rope;

/// Returns the kernels of [`crate::op::rope`]: best first, the reference last.
pub fn rope() -> &'static [Kernel<Rope>] {
    row_kernels!("rope", Rope)
}
