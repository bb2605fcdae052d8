//! ggml backend plug-in and decoding engine for diffusion language models.
//!
//! Arrows go one way: `abi → engine → {decode, model, graph} → device → memory → {kernels, ffi}`.

pub mod decode;
pub mod device;
pub mod engine;
pub mod knobs;
pub mod model;
