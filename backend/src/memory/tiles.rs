//! The bytes of repacked weights: memory of our own, or a mapped file of the repack cache.

use memmap2::{Mmap, MmapMut};

use super::shape::TileShape;

/// Owning: the tiles of one weight. Never changed once they are made.
#[derive(Debug)]
pub struct Tiles {
    shape: TileShape,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Memory(MmapMut),
    /// A whole file, tiles from `start` on.
    File {
        map: Mmap,
        start: usize,
    },
}

impl Tiles {
    /// Makes tiles in memory, zeros at first; `None` where there is none.
    pub(super) fn in_memory(shape: &TileShape) -> Option<Self> {
        let map = MmapMut::map_anon(shape.size_bytes()).ok()?;
        // Fewer page faults and misses of the translation cache, where the system has such pages.
        #[cfg(target_os = "linux")]
        let _refused = map.advise(memmap2::Advice::HugePage);
        Some(Self {
            shape: *shape,
            bytes: Bytes::Memory(map),
        })
    }

    /// Takes the tiles that start at byte `start` of a mapped file.
    ///
    /// # Panics
    /// When the file does not end where they do.
    pub(super) fn in_file(shape: &TileShape, map: Mmap, start: usize) -> Self {
        assert_eq!(map.len(), start + shape.size_bytes(), "bytes of the file");
        Self {
            shape: *shape,
            bytes: Bytes::File { map, start },
        }
    }

    /// Lends the bytes for writing; `None` for those of a file.
    pub(super) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.bytes {
            Bytes::Memory(map) => Some(map),
            Bytes::File { .. } => None,
        }
    }

    /// Returns type and shape.
    #[must_use]
    pub fn shape(&self) -> &TileShape {
        &self.shape
    }

    /// Returns all tiles, plane by plane.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Memory(map) => map,
            Bytes::File { map, start } => &map[*start..],
        }
    }

    /// Returns the tiles of a plane.
    ///
    /// # Panics
    /// When there is no such plane.
    #[must_use]
    pub fn plane(&self, plane: usize) -> &[u8] {
        let size = self.shape.plane_size_bytes();
        &self.bytes()[plane * size..][..size]
    }

    /// Tells whether the bytes are those of a file, shared with other processes.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::File { .. })
    }
}
