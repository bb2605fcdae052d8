//! The buffer types: the one that hosts use, and one each for K and V in tiles.

use std::ffi::CStr;
use std::sync::Arc;

use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::plugin::BufferTypeImpl;
use llada_npu_kernels::tile::kv::Role;

use super::NAME;
use super::buffer::NpuBuffer;
use crate::memory::store::Source;
use crate::memory::{KvTiles, WeightStore};

/// Alignment of tensors: a cache line, and the widest vector register.
const ALIGNMENT_BYTES: usize = 64;

/// A buffer type, in lazily committed memory.
#[derive(Debug)]
pub enum NpuBufferType {
    /// Plain layout; weights go to the store when they are used.
    Plain(Arc<WeightStore>),
    /// K or V in tiles ([`llada_npu_kernels::tile::kv`]), half floats alone.
    Tiles(KvTiles),
}

impl BufferTypeImpl for NpuBufferType {
    type Buffer = NpuBuffer;

    fn name(&self) -> &'static CStr {
        match self {
            Self::Plain(_) => NAME,
            Self::Tiles(tiles) => match tiles.role() {
                Role::K => c"llada-npu-k-tiles",
                Role::V => c"llada-npu-v-tiles",
            },
        }
    }

    fn alloc_buffer(&self, size_bytes: usize) -> Option<NpuBuffer> {
        match Region::anonymous(size_bytes) {
            Ok(region) => Some(match self {
                Self::Plain(store) => NpuBuffer::new(region, Source::Written, store),
                Self::Tiles(tiles) => NpuBuffer::tiles(region, *tiles),
            }),
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
