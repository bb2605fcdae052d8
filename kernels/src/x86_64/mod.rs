//! AVX2 and AVX-512 implementations.
//!
//! The bodies are safe functions with `#[target_feature]`. Unsafe are only the loads and stores of [`mem`], which take
//! arrays of the width they touch, and the calls into the bodies, made by types that exist only after detection.

pub(crate) mod avx2;
pub(crate) mod avx512;
mod block;
mod mem;
pub(crate) mod row;
