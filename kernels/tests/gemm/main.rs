//! Every kernel of every list of products with tiled weights against exact sums, computed here in f64 from ggml's blocks.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

#[path = "../common/mod.rs"]
mod common;

mod case;
mod half_floats;
mod integers;
mod shapes;
