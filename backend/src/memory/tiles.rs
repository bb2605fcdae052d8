//! The bytes of repacked weights: memory of our own, or a mapped file of the repack cache.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use llada_npu_ffi::set_readable;
use memmap2::{Mmap, MmapMut, UncheckedAdvice};

use super::shape::TileShape;

/// Owning: the tiles of one weight. Never changed once they are made.
#[derive(Debug)]
pub struct Tiles {
    shape: TileShape,
    bytes: Bytes,
    is_open: AtomicBool,
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
            is_open: AtomicBool::new(true),
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
            is_open: AtomicBool::new(true),
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

    /// Returns all tiles, plane by plane. Only while they are open can they be read.
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

    /// Tells whether the bytes can be read.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Lets nobody read the bytes from now on: whoever tries is killed. Memory is given back where a file has them.
    pub(super) fn close(&self) {
        if self.is_open.swap(false, Ordering::AcqRel) && !self.protect(false) {
            self.is_open.store(true, Ordering::Release);
        }
    }

    /// Lets the bytes be read again.
    pub(super) fn open(&self) {
        if !self.is_open() && self.protect(true) {
            self.is_open.store(true, Ordering::Release);
        }
    }

    #[expect(unsafe_code, reason = "pages that cannot be read")]
    fn protect(&self, is_open: bool) -> bool {
        let all: &[u8] = match &self.bytes {
            Bytes::Memory(map) => map,
            Bytes::File { map, .. } => map,
        };
        let (start, size_bytes) = (NonNull::from(all).cast(), all.len());
        if let Bytes::File { map, .. } = &self.bytes
            && !is_open
        {
            // SAFETY: pages of a file that is mapped read-only and never changes come back as they were (madvise(2)).
            let _refused = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
        // SAFETY: a whole mapping of our own, from its first page on, that nobody writes to once tiles are shared; who reads
        // them asks `is_open` before.
        let result = unsafe { set_readable(start, size_bytes, is_open) };
        if let Err(error) = &result {
            log::warn!("tiles of {size_bytes} bytes: {error}");
        }
        result.is_ok()
    }

    /// Tells whether the bytes are those of a file, shared with other processes.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::File { .. })
    }
}
