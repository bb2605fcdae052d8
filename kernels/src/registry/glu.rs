//! Gated linear units.

use super::{Kernel, row_kernels};
use crate::op::glu::Glu;

/// Returns the kernels of [`crate::op::glu`]: best first, the reference last.
pub fn glu() -> &'static [Kernel<Glu>] {
    row_kernels!("glu", Glu)
}
