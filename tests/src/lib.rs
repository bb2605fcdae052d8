//! Harness of the host tests: independent oracles and the files they need.

pub mod host;
pub mod llama;
