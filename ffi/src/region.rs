//! Memory of buffers: reserved address space that is committed when it is touched, or a shared read-only mapping.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that stay at one address.
///
/// # Safety
/// `bytes` returns the same address and length at every call, however often the value itself is moved, until it is
/// dropped.
pub unsafe trait StableBytes: Send + Sync + 'static {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];
}

/// Owning handle of a range of memory.
///
/// Its bytes are reached through the C interface of ggml, whose callers promise not to write where others read, and by
/// functions here that ask for the same promise.
pub struct Region {
    base: NonNull<u8>,
    size_bytes: usize,
    owner: Owner,
}

enum Owner {
    /// From `mmap`, unmapped on drop.
    Anonymous,
    /// Never written; held so that the bytes stay alive.
    Shared {
        #[expect(dead_code, reason = "held, not read: the address was taken from it")]
        bytes: Arc<dyn StableBytes>,
    },
}

// SAFETY: plain memory has no thread affinity; who may write it when is the contract of ggml's callers.
unsafe impl Send for Region {}
// SAFETY: as for Send: shared references give the address and the size only.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base)
            .field("size_bytes", &self.size_bytes)
            .field("writable", &self.is_writable())
            .finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Anonymous) {
            // SAFETY: base and size are those of the one mmap in `anonymous`; the region is gone after this.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.size_bytes) };
        }
    }
}

impl Region {
    /// Reserves `size_bytes` (at least 1) of zeroed memory, page-aligned. Pages are committed when they are first
    /// written, so that a region may be larger than the memory of the machine.
    ///
    /// # Errors
    /// What `mmap` reports, when the address space has no room.
    pub fn anonymous(size_bytes: usize) -> io::Result<Self> {
        let size_bytes = size_bytes.max(1);
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            size_bytes,
            owner: Owner::Anonymous,
        })
    }

    /// Shares read-only bytes, such as a mapped file.
    #[must_use]
    pub fn shared(owner: Arc<dyn StableBytes>) -> Self {
        let bytes = owner.bytes();
        let base = NonNull::from(bytes).cast();
        let size_bytes = bytes.len();
        Self {
            base,
            size_bytes,
            owner: Owner::Shared { bytes: owner },
        }
    }

    /// Returns the size.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Tells whether the bytes may be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        match &self.owner {
            Owner::Anonymous => true,
            Owner::Shared { .. } => false,
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of the range that starts at address `start`, if it lies inside the region.
    pub(crate) fn locate(&self, start: usize, size_bytes: usize) -> Option<NonNull<u8>> {
        let offset = start.checked_sub(self.base.as_ptr() as usize)?;
        let end = offset.checked_add(size_bytes)?;
        (end <= self.size_bytes)
            .then(|| NonNull::new(self.base.as_ptr().wrapping_add(offset)))
            .flatten()
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Lends `size_bytes` bytes at `address` for writing; `None` where they are not all inside a writable region.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes while they are lent.
    #[expect(clippy::mut_from_ref, reason = "the caller promises to be alone")]
    pub unsafe fn bytes_mut(&self, address: usize, size_bytes: usize) -> Option<&mut [u8]> {
        if !self.is_writable() {
            return None;
        }
        let start = self.locate(address, size_bytes)?;
        // SAFETY: the bytes lie inside the region, zeroed or written since; the caller promises to be alone with them.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), size_bytes) })
    }

    /// Gives back the whole pages among `size_bytes` bytes at `address`, which read as zero afterwards; bytes of pages that
    /// reach beyond the range stay. Returns the bytes given back, 0 where that cannot be done.
    ///
    /// # Safety
    /// Nobody reads these bytes, or relies on their contents, until they are written anew.
    pub unsafe fn release(&self, address: usize, size_bytes: usize) -> usize {
        let page = page_size();
        let Some(end) = address.checked_add(size_bytes) else {
            return 0;
        };
        let (first, last) = (address.next_multiple_of(page), end / page * page);
        if !self.is_writable() || first >= last || self.locate(address, size_bytes).is_none() {
            return 0;
        }
        let start = self.base.as_ptr().wrapping_add(first - self.address());
        // SAFETY: whole pages of the region's own anonymous private mapping, which then read as zero (madvise(2)); the
        // caller promises that nobody needs what they hold.
        let status = unsafe { libc::madvise(start.cast(), last - first, libc::MADV_DONTNEED) };
        if status == 0 { last - first } else { 0 }
    }

    /// Gives committed pages back: the whole region reads as zero afterwards. False where that cannot be done.
    pub(crate) fn discard(&self) -> bool {
        if !self.is_writable() {
            return false;
        }
        // SAFETY: the range is the region's own anonymous private mapping, whose discarded pages read as zero
        // (madvise(2)); the caller of the C interface promises that nobody uses the bytes now.
        let status = unsafe {
            libc::madvise(
                self.base.as_ptr().cast(),
                self.size_bytes,
                libc::MADV_DONTNEED,
            )
        };
        status == 0
    }
}

/// Returns the size of a page.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: a question without arguments in memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).map_or(4096, |size| size.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_regions_are_reserved_and_impossible_ones_refused() {
        let region = Region::anonymous(1 << 40).unwrap();
        assert_eq!(region.size_bytes(), 1 << 40);
        assert!(Region::anonymous(usize::MAX / 2).is_err());
    }

    #[test]
    fn locate_stays_inside() {
        let region = Region::anonymous(100).unwrap();
        let base = region.base().as_ptr() as usize;
        assert!(region.locate(base, 100).is_some());
        assert!(region.locate(base + 100, 0).is_some());
        assert!(region.locate(base + 1, 100).is_none());
        assert!(region.locate(base - 1, 1).is_none());
        assert!(region.locate(base + 1, usize::MAX).is_none());
    }

    #[test]
    fn discarded_pages_read_as_zero() {
        let region = Region::anonymous(10_000).unwrap();
        // SAFETY: nobody else knows the region.
        unsafe { region.base().as_ptr().write_bytes(7, 10_000) };
        assert!(region.discard());
        // SAFETY: as above.
        assert_eq!(unsafe { *region.base().as_ptr().wrapping_add(9_999) }, 0);
    }

    #[test]
    fn only_whole_pages_inside_the_range_are_released() {
        let page = page_size();
        let region = Region::anonymous(4 * page).unwrap();
        let base = region.address();
        // SAFETY: nobody else knows the region, here and below.
        unsafe { region.bytes_mut(base, 4 * page) }.unwrap().fill(7);
        // SAFETY: as above.
        let released = unsafe { region.release(base + 1, 3 * page) };
        assert_eq!(released, 2 * page);
        // SAFETY: as above.
        let bytes = unsafe { region.bytes_mut(base, 4 * page) }.unwrap();
        for (i, &byte) in bytes.iter().enumerate() {
            let inside = (page..3 * page).contains(&i);
            assert_eq!(byte, if inside { 0 } else { 7 }, "{i}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { region.release(base + 1, page) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { region.release(base + page, 4 * page) }, 0);
    }

    #[test]
    fn shared_bytes_are_neither_lent_for_writing_nor_released() {
        struct Heap(Vec<u8>);
        // SAFETY: a vector that nobody changes stays where it is.
        unsafe impl StableBytes for Heap {
            fn bytes(&self) -> &[u8] {
                &self.0
            }
        }
        let region = Region::shared(Arc::new(Heap(vec![1; 3 * page_size()])));
        // SAFETY: nobody else knows the region.
        assert!(unsafe { region.bytes_mut(region.address(), 1) }.is_none());
        // SAFETY: as above.
        let released = unsafe { region.release(region.address(), region.size_bytes()) };
        assert_eq!(released, 0);
    }
}
