//! The GGUF container: bytes in, a header whose every offset is proven, out.
//!
//! Parsing trusts nothing: each length is compared with the bytes that are left before anything is allocated, sums and
//! products are `checked_*`, and limits are the named constants below. What comes out cannot be wrong: a
//! [`TensorInfo`] exists only when its byte range lies inside the file. Versions 2 and 3, little-endian.
//!
//! ```
//! use ggml_llada_npu::model::gguf::{GgufError, Header};
//! assert!(matches!(Header::parse(b""), Err(GgufError::Empty)));
//! ```

#![deny(unsafe_code)]

mod error;
mod ggml_type;
mod header;
mod reader;
mod value;

pub use error::GgufError;
pub use ggml_type::{GgmlType, Scale};
pub use header::{Header, Shape, TensorInfo};
pub use value::{Array, Value, ValueType};

/// Most key-value pairs a header may hold.
pub const MAX_N_KV: u64 = 1 << 16;
/// Most tensors a file may hold.
pub const MAX_N_TENSORS: u64 = 1 << 16;
/// Longest key, in bytes (the format's own limit).
pub const MAX_KEY_LEN: u64 = (1 << 16) - 1;
/// Longest string value, in bytes.
pub const MAX_STRING_LEN: u64 = 1 << 26;
/// Longest array value, in elements.
pub const MAX_ARRAY_LEN: u64 = 1 << 26;
/// Longest tensor name, in bytes (`GGML_MAX_NAME` without the terminator).
pub const MAX_TENSOR_NAME_LEN: u64 = 63;
/// Most dimensions of a tensor (`GGML_MAX_DIMS`).
pub const MAX_DIMS: usize = 4;
/// Largest alignment of the data section, in bytes.
pub const MAX_ALIGNMENT: u32 = 1 << 20;
/// Alignment when `general.alignment` is absent, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

#[cfg(test)]
pub(crate) mod builder;
#[cfg(test)]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
