//! AVX-512: groups of 16 rows of x.

pub(crate) mod float;
pub(crate) mod quant;

/// Rows of x in a group: 32-bit lanes of a vector.
const LANES: usize = 16;

/// Bytes of a vector.
const LINE: usize = 64;
