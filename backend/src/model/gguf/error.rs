//! What can be wrong with a GGUF file.

use thiserror::Error;

use super::{
    MAX_ALIGNMENT, MAX_ARRAY_LEN, MAX_DIMS, MAX_KEY_LEN, MAX_N_KV, MAX_N_TENSORS, MAX_STRING_LEN,
    MAX_TENSOR_NAME_LEN,
};

/// Why bytes are not a GGUF file that can be used.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum GgufError {
    /// No bytes at all.
    #[error("file is empty")]
    Empty,
    /// The file ends inside a field of the header.
    #[error("file of {file_len} bytes ends inside {what}: {need} bytes needed at offset {offset}")]
    Truncated {
        /// Field that was being read.
        what: &'static str,
        /// Offset of the field, in bytes.
        offset: usize,
        /// Length of the field, in bytes.
        need: u64,
        /// Length of the file, in bytes.
        file_len: usize,
    },
    /// The first four bytes are not `GGUF`.
    #[error("magic is {actual:02x?}, expected \"GGUF\"")]
    Magic {
        /// The four bytes found.
        actual: [u8; 4],
    },
    /// The version reads correctly only in the other byte order.
    #[error("file is big-endian (version field {version:#010x}), expected little-endian")]
    BigEndian {
        /// Version field as read.
        version: u32,
    },
    /// Neither version 2 nor 3.
    #[error("version {version} of the format, expected 2 or 3")]
    Version {
        /// Version found.
        version: u32,
    },
    /// More key-value pairs than allowed, or than fit into the file.
    #[error("{n} key-value pairs in a file of {file_len} bytes, at most {MAX_N_KV}")]
    KvCount {
        /// Number in the header.
        n: u64,
        /// Length of the file, in bytes.
        file_len: usize,
    },
    /// More tensors than allowed, or than fit into the file.
    #[error("{n} tensors in a file of {file_len} bytes, at most {MAX_N_TENSORS}")]
    TensorCount {
        /// Number in the header.
        n: u64,
        /// Length of the file, in bytes.
        file_len: usize,
    },
    /// A key of length zero, or too long.
    #[error("key {index}: {len} bytes long, expected 1 to {MAX_KEY_LEN}")]
    KeyLen {
        /// Number of the key, from 0.
        index: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// A key that is not UTF-8, or has control characters.
    #[error("key {index}: not UTF-8 without control characters")]
    KeyText {
        /// Number of the key, from 0.
        index: u64,
    },
    /// The same key twice.
    #[error("key `{key}`: given twice")]
    KeyDuplicate {
        /// The key.
        key: String,
    },
    /// A value type that the format does not have.
    #[error("key `{key}`: unknown value type {id}")]
    ValueType {
        /// The key.
        key: String,
        /// Type id found.
        id: u32,
    },
    /// An array of arrays.
    #[error("key `{key}`: array of arrays")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A string value that is too long.
    #[error("key `{key}`: string of {len} bytes, at most {MAX_STRING_LEN}")]
    StringLen {
        /// The key.
        key: String,
        /// Length found, in bytes.
        len: u64,
    },
    /// An array value that is too long.
    #[error("key `{key}`: array of {len} elements, at most {MAX_ARRAY_LEN}")]
    ArrayLen {
        /// The key.
        key: String,
        /// Length found, in elements.
        len: u64,
    },
    /// `general.alignment` is not of type u32.
    #[error("key `general.alignment`: value of type {actual}, expected u32")]
    AlignmentType {
        /// Type found.
        actual: &'static str,
    },
    /// `general.alignment` is not a power of two, or too large.
    #[error(
        "key `general.alignment`: {alignment} bytes, expected a power of two up to {MAX_ALIGNMENT}"
    )]
    Alignment {
        /// Value found, in bytes.
        alignment: u32,
    },
    /// A tensor name of length zero, or too long.
    #[error("tensor {index}: name of {len} bytes, expected 1 to {MAX_TENSOR_NAME_LEN}")]
    NameLen {
        /// Number of the tensor, from 0.
        index: u64,
        /// Length of its name, in bytes.
        len: u64,
    },
    /// A tensor name that is not UTF-8, or has control characters.
    #[error("tensor {index}: name is not UTF-8 without control characters")]
    NameText {
        /// Number of the tensor, from 0.
        index: u64,
    },
    /// The same tensor name twice.
    #[error("tensor `{name}`: given twice")]
    NameDuplicate {
        /// Name of the tensor.
        name: String,
    },
    /// No dimension, or too many.
    #[error("tensor `{name}`: {n_dims} dimensions, expected 1 to {MAX_DIMS}")]
    DimCount {
        /// Name of the tensor.
        name: String,
        /// Number found.
        n_dims: u32,
    },
    /// A dimension that is zero or negative.
    #[error("tensor `{name}`: dimension {dim} has {ne} elements, expected at least 1")]
    Dim {
        /// Name of the tensor.
        name: String,
        /// Which dimension, from 0.
        dim: usize,
        /// Its length as a signed number.
        ne: i64,
    },
    /// More elements or bytes than 63 bits can count.
    #[error("tensor `{name}`: shape {ne:?} overflows the number of bytes")]
    ShapeOverflow {
        /// Name of the tensor.
        name: String,
        /// Shape as read.
        ne: Vec<u64>,
    },
    /// A type id that ggml does not have, or no longer has.
    #[error("tensor `{name}`: unknown type id {id}")]
    TensorType {
        /// Name of the tensor.
        name: String,
        /// Type id found.
        id: u32,
    },
    /// Rows that are not whole blocks.
    #[error(
        "tensor `{name}`: rows of {ne0} elements, expected a multiple of {blck_size} for type {type_name}"
    )]
    RowBlock {
        /// Name of the tensor.
        name: String,
        /// Length of a row, in elements.
        ne0: u64,
        /// Elements of a block.
        blck_size: u64,
        /// Name of the type.
        type_name: &'static str,
    },
    /// Data that do not start at a multiple of the alignment.
    #[error(
        "tensor `{name}`: data offset {offset} is not a multiple of the alignment of {alignment} bytes"
    )]
    OffsetAlignment {
        /// Name of the tensor.
        name: String,
        /// Offset in the data section, in bytes.
        offset: u64,
        /// Alignment of the file, in bytes.
        alignment: u32,
    },
    /// Data that reach past the end of the file.
    #[error(
        "tensor `{name}`: {size_bytes} bytes at offset {offset} exceed file of {file_len} bytes"
    )]
    Range {
        /// Name of the tensor.
        name: String,
        /// Length of the data, in bytes.
        size_bytes: u64,
        /// Offset from the start of the file, in bytes.
        offset: u64,
        /// Length of the file, in bytes.
        file_len: usize,
    },
    /// Two tensors that share bytes.
    #[error("tensor `{name}`: data overlap those of tensor `{other}`")]
    Overlap {
        /// Name of the tensor that starts later.
        name: String,
        /// Name of the tensor that starts earlier.
        other: String,
    },
}
