//! Buffers.

use std::sync::Arc;

use llada_npu_ffi::ggml::Buffer;
use llada_npu_ffi::ggml::plugin::BufferImpl;
use llada_npu_ffi::{Region, StableBytes};

use super::InitError;

/// A buffer in ggml's plain layout.
#[derive(Debug)]
pub struct NpuBuffer {
    region: Region,
}

impl NpuBuffer {
    pub(super) fn new(region: Region) -> Self {
        Self { region }
    }
}

impl BufferImpl for NpuBuffer {
    fn region(&self) -> &Region {
        &self.region
    }
}

/// Makes a read-only buffer of our type over bytes that are in memory already, such as a mapped model file. Tensors
/// may be placed at any offset. Writing to one fails with one line in the log.
///
/// # Errors
/// As for [`registry`](super::registry).
pub fn from_mapped<T: StableBytes>(bytes: &Arc<T>) -> Result<Buffer, InitError> {
    let buffer = NpuBuffer::new(Region::shared(Arc::clone(bytes) as Arc<dyn StableBytes>));
    Ok(super::registry()?.adopt(buffer))
}
