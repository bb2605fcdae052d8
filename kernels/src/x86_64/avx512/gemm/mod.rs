//! Products with tiled weights.
//!
//! The lanes of a vector are weight rows: a strip is two vectors wide. A tile is decoded once per group and stays in
//! registers (integers) or the first-level cache (floats), while one row of x after another is broadcast against it and
//! adds to its 32 results.

mod float;
mod quant;
mod quant_k;

pub(crate) use float::F16;
pub(crate) use quant::{Q4_0, Q4_1, Q8_0};
pub(crate) use quant_k::{Q4K, Q6K};
