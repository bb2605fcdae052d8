//! The buffer type.

use std::ffi::CStr;
use std::sync::Arc;

use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::plugin::BufferTypeImpl;

use super::NAME;
use super::buffer::NpuBuffer;
use crate::memory::WeightStore;
use crate::memory::store::Source;

/// Alignment of tensors: a cache line, and the widest vector register.
const ALIGNMENT_BYTES: usize = 64;

/// The buffer type: plain layout in lazily committed memory.
#[derive(Debug)]
pub struct NpuBufferType {
    store: Arc<WeightStore>,
}

impl NpuBufferType {
    pub(super) fn new(store: Arc<WeightStore>) -> Self {
        Self { store }
    }
}

impl BufferTypeImpl for NpuBufferType {
    type Buffer = NpuBuffer;

    fn name(&self) -> &'static CStr {
        NAME
    }

    fn alloc_buffer(&self, size_bytes: usize) -> Option<NpuBuffer> {
        match Region::anonymous(size_bytes) {
            Ok(region) => Some(NpuBuffer::new(region, Source::Written, &self.store)),
            Err(error) => {
                log::error!("cannot reserve a buffer of {size_bytes} bytes: {error}");
                None
            }
        }
    }

    fn alignment_bytes(&self) -> usize {
        ALIGNMENT_BYTES
    }

    fn max_size_bytes(&self) -> usize {
        usize::MAX
    }
}
