//! Buffers.

use std::sync::Arc;

use llada_npu_ffi::Region;
use llada_npu_ffi::StableBytes;
use llada_npu_ffi::ggml::Buffer;
use llada_npu_ffi::ggml::plugin::{Arrangement, BufferImpl, RegImpl};

use super::InitError;
use crate::memory::store::Source;
use crate::memory::{FileIdentity, KvTiles, WeightStore};
use crate::model::mapped_file::MappedFile;

/// Bytes at the start of a file that are part of its identity.
const START_BYTES: usize = 64 << 10;

/// A buffer in ggml's plain layout, as far as the host can see: weights that were used by products may lie in the store
/// alone. Or one of K or V in tiles, which has no weights.
#[derive(Debug)]
pub struct NpuBuffer {
    region: Arc<Region>,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Plain(Arc<WeightStore>),
    Tiles(KvTiles),
}

impl NpuBuffer {
    pub(super) fn new(region: Region, source: Source, store: &Arc<WeightStore>) -> Self {
        let (region, store) = (Arc::new(region), Arc::clone(store));
        store.add_buffer(Arc::clone(&region), source);
        Self {
            region,
            contents: Contents::Plain(store),
        }
    }

    /// Makes a buffer of K or V in tiles.
    pub(super) fn tiles(region: Region, tiles: KvTiles) -> Self {
        Self {
            region: Arc::new(region),
            contents: Contents::Tiles(tiles),
        }
    }
}

impl Drop for NpuBuffer {
    fn drop(&mut self) {
        if let Contents::Plain(store) = &self.contents {
            store.remove_buffer(&self.region);
        }
    }
}

impl BufferImpl for NpuBuffer {
    fn region(&self) -> &Region {
        &self.region
    }

    fn reading<R>(&self, address: usize, size_bytes: usize, copy: impl FnOnce() -> R) -> R {
        match &self.contents {
            Contents::Plain(store) => store.reading(address, size_bytes, copy),
            Contents::Tiles(_) => copy(),
        }
    }

    fn writing<R>(&self, address: usize, size_bytes: usize, copy: impl FnOnce() -> R) -> R {
        match &self.contents {
            Contents::Plain(store) => store.writing(address, size_bytes, copy),
            Contents::Tiles(_) => copy(),
        }
    }

    fn arrangement(&self) -> Option<&dyn Arrangement> {
        match &self.contents {
            Contents::Plain(_) => None,
            Contents::Tiles(tiles) => Some(tiles),
        }
    }
}

/// Makes a read-only buffer of our type over a mapped model file. Tensors may be placed at any offset. Writing to one
/// fails with one line in the log.
///
/// # Errors
/// As for [`registry`](super::registry).
pub fn from_mapped(file: &Arc<MappedFile>) -> Result<Buffer, InitError> {
    let registry = super::registry()?;
    let region = Region::shared(Arc::clone(file) as Arc<dyn StableBytes>);
    let start = &file.bytes()[..file.bytes().len().min(START_BYTES)];
    let pages = Arc::clone(file);
    let source = Source::File {
        identity: FileIdentity::new(file.metadata(), start),
        drop_pages: Box::new(move |range| pages.drop_pages(range)),
    };
    let store = registry.implementation().device().store();
    Ok(registry.adopt(NpuBuffer::new(region, source, store)))
}
