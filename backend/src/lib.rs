//! ggml backend plug-in and decoding engine for diffusion language models.
//!
//! Arrows go one way: `abi → engine → {decode, model, graph} → device → memory → {kernels, ffi}`; `knobs` and
//! `sync` are at the bottom. This file holds the symbols that the plug-in exports, and nothing else.

pub mod abi;
pub mod decode;
pub mod device;
pub mod engine;
pub mod graph;
pub mod knobs;
pub mod memory;
pub mod model;
pub mod simulate;
mod sync;

use llada_npu_ffi::ggml::plugin::RegPtr;
use llada_npu_ffi::guard;

/// Called by ggml's loader: the registry, or NULL where the host cannot be served
/// (`ggml_backend_init_t` of ggml-backend-impl.h).
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_init() -> RegPtr {
    guard("ggml_backend_init", RegPtr::NULL, abi::init)
}

/// Called by ggml's loader before the registry is made: 0 keeps us out (`ggml_backend_score_t` of
/// ggml-backend-impl.h).
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_score() -> i32 {
    guard("ggml_backend_score", 0, abi::score)
}
