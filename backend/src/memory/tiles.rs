//! The bytes of repacked weights: memory of our own, or a mapped file of the repack cache.

use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use llada_npu_ffi::set_readable;
use memmap2::{Mmap, MmapMut, UncheckedAdvice};

use super::shape::TileShape;

/// Owning: the tiles of one weight. Never changed once they are made.
#[derive(Debug)]
pub struct Tiles {
    shape: TileShape,
    bytes: Bytes,
    /// Whether the bytes can be read. Held by those that read them, so that nobody closes them meanwhile.
    is_open: RwLock<bool>,
}

/// Tiles that stay open as long as this lives.
#[derive(Debug)]
pub struct Reading<'a> {
    _is_open: RwLockReadGuard<'a, bool>,
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
            is_open: RwLock::new(true),
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
            is_open: RwLock::new(true),
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

    /// Returns all tiles, plane by plane. Only while they are open can they be read: where sessions of the
    /// memory runtime may close them, while there is a [`Reading`], or while the store shows them.
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

    /// Tells whether the bytes can be read now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.read()
    }

    /// Keeps the bytes open; `None` where they are closed. Whoever wants to close them waits for its end; the thread that
    /// has one takes no other of the same tiles.
    #[must_use]
    pub fn reading(&self) -> Option<Reading<'_>> {
        let is_open = self.read();
        is_open.then_some(Reading { _is_open: is_open })
    }

    /// As [`Self::reading`], opening the bytes first where they are closed: for those who run without a budget. They stay open
    /// until they are hidden the next time. `None` where the system refuses.
    #[must_use]
    pub fn reading_opened(&self) -> Option<Reading<'_>> {
        loop {
            if let Some(reading) = self.reading() {
                return Some(reading);
            }
            // Another session may close them before they are asked for again.
            if !self.open() {
                return None;
            }
        }
    }

    /// Lets nobody read the bytes from now on: whoever tries is killed. Memory is given back where a file has them.
    pub(super) fn close(&self) {
        let mut is_open = self.write();
        if *is_open && self.protect(false) {
            *is_open = false;
        }
    }

    /// Lets the bytes be read again; tells whether they can.
    pub(super) fn open(&self) -> bool {
        if self.is_open() {
            return true;
        }
        let mut is_open = self.write();
        *is_open = *is_open || self.protect(true);
        *is_open
    }

    fn read(&self) -> RwLockReadGuard<'_, bool> {
        self.is_open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, bool> {
        self.is_open.write().unwrap_or_else(PoisonError::into_inner)
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
        // SAFETY: a whole mapping of our own, from its first page on, that nobody writes to once tiles are shared. Products
        // hold a `Reading`, for whose end `close` waits; the store reads while it holds the lock under which it closes.
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
