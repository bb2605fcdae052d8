//! Products with tiled weights.
//!
//! The lanes of a vector are weight rows: a strip is four vectors wide. A tile is decoded once per group, into the
//! first-level cache; for each quarter of the strip one row of x after another is broadcast against it.

mod float;
mod quant;
mod quant_k;

pub(crate) use float::F16;
pub(crate) use quant::{Q4_0, Q4_1, Q8_0};
pub(crate) use quant_k::{Q4K, Q6K};
