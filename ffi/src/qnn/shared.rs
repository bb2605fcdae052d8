//! Memory that the host and an NPU share: where it comes from, and who may touch it when.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use libloading::os::unix;

/// `libcdsprpc`'s heap of the system, and its usual flags.
const HEAP_SYSTEM: c_int = 25;
const DEFAULT_FLAGS: u32 = 1;

type RpcmemAlloc = unsafe extern "C" fn(c_int, u32, c_int) -> *mut c_void;
type RpcmemFree = unsafe extern "C" fn(*mut c_void);
type RpcmemToFd = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Owning handle of the library that hands out memory which Qualcomm's DSPs see.
struct Rpcmem {
    alloc: RpcmemAlloc,
    free: RpcmemFree,
    to_fd: RpcmemToFd,
    /// What keeps the functions in memory; the last field, dropped last.
    _guard: unix::Library,
}

impl fmt::Debug for Rpcmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rpcmem")
    }
}

impl Rpcmem {
    /// Opens the system's library; `None` where there is none: no Snapdragon, or not on its Android or Linux.
    fn open() -> Option<Self> {
        let flags = unix::RTLD_NOW | unix::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: initialisers of a library of the system, which QNN's own libraries load as well.
        let guard = unsafe { unix::Library::open(Some("libcdsprpc.so"), flags) }.ok()?;
        // SAFETY: the symbol has this signature in every release of FastRPC (rpcmem.h).
        let alloc = *unsafe { guard.get::<RpcmemAlloc>(b"rpcmem_alloc") }.ok()?;
        // SAFETY: as above.
        let free = *unsafe { guard.get::<RpcmemFree>(b"rpcmem_free") }.ok()?;
        // SAFETY: as above.
        let to_fd = *unsafe { guard.get::<RpcmemToFd>(b"rpcmem_to_fd") }.ok()?;
        Some(Self {
            alloc,
            free,
            to_fd,
            _guard: guard,
        })
    }
}

#[derive(Clone, Debug)]
enum Source {
    Rpcmem(Arc<Rpcmem>),
    Memfd,
}

/// Where memory to share comes from.
///
/// On a phone it is `FastRPC`'s `rpcmem` (`libcdsprpc.so`, looked for when the program runs; never tried on one yet). Elsewhere it is
/// a file in memory, which a library may register or refuse.
#[derive(Clone, Debug)]
pub struct SharedAllocator(Source);

impl SharedAllocator {
    /// Takes what the machine has.
    #[must_use]
    pub fn find() -> Self {
        let rpcmem = Rpcmem::open().map(|rpcmem| Source::Rpcmem(Arc::new(rpcmem)));
        Self(rpcmem.unwrap_or(Source::Memfd))
    }

    /// Takes files in memory.
    #[must_use]
    pub fn memfd() -> Self {
        Self(Source::Memfd)
    }

    /// Returns what it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.0 {
            Source::Rpcmem(_) => "rpcmem",
            Source::Memfd => "memfd",
        }
    }

    /// Allocates `size_bytes` (at least 1) bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn allocate(&self, size_bytes: usize) -> io::Result<SharedBuffer> {
        let size_bytes = size_bytes.max(1);
        match &self.0 {
            Source::Rpcmem(rpcmem) => from_rpcmem(rpcmem, size_bytes),
            Source::Memfd => from_memfd(size_bytes),
        }
    }
}

fn from_rpcmem(rpcmem: &Arc<Rpcmem>, size_bytes: usize) -> io::Result<SharedBuffer> {
    let size = c_int::try_from(size_bytes).map_err(|_too_large| io::ErrorKind::OutOfMemory)?;
    // SAFETY: FastRPC's own function; it answers with NULL or so many bytes that are ours.
    let memory = unsafe { (rpcmem.alloc)(HEAP_SYSTEM, DEFAULT_FLAGS, size) };
    let base = NonNull::new(memory.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: memory of `rpcmem_alloc`.
    let fd = unsafe { (rpcmem.to_fd)(memory) };
    let buffer = SharedBuffer {
        base,
        size_bytes,
        owner: Owner::Rpcmem {
            rpcmem: Arc::clone(rpcmem),
            fd,
        },
        lock: Mutex::new(()),
    };
    if fd < 0 {
        return Err(io::Error::other("rpcmem_to_fd has no file for its memory"));
    }
    Ok(buffer)
}

fn from_memfd(size_bytes: usize) -> io::Result<SharedBuffer> {
    let name = c"llada-npu";
    // SAFETY: a system call with a name that lives through it and a flag. Old systems' libraries have no function for it.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0);
    let fd = fd.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: a file that was just opened, which nobody else closes.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let length =
        libc::off_t::try_from(size_bytes).map_err(|_too_large| io::ErrorKind::OutOfMemory)?;
    // SAFETY: a file of our own.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file of our own at an address of the system's choice.
    let base = unsafe {
        let (at, flags) = (ptr::null_mut(), libc::MAP_SHARED);
        libc::mmap(at, size_bytes, protection, flags, fd.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(SharedBuffer {
        base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
        size_bytes,
        owner: Owner::Memfd(fd),
        lock: Mutex::new(()),
    })
}

enum Owner {
    /// The file is part of the memory.
    Rpcmem {
        rpcmem: Arc<Rpcmem>,
        fd: RawFd,
    },
    Memfd(OwnedFd),
}

/// Owning handle of memory that an NPU may see as well. Its bytes are touched under a lock, which an execution holds that uses them
/// ([`Graph::execute`](super::Graph::execute)).
pub struct SharedBuffer {
    base: NonNull<u8>,
    size_bytes: usize,
    owner: Owner,
    lock: Mutex<()>,
}

// SAFETY: plain memory without thread affinity; who touches it holds the lock.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above.
unsafe impl Sync for SharedBuffer {}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

impl SharedBuffer {
    /// Returns the size.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Lends the bytes, exclusively; an execution that uses them is waited for.
    pub fn with<R>(&self, body: impl FnOnce(&mut [u8]) -> R) -> R {
        let _held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: so many bytes of our own, zeroed by the system or written since. All that touches them holds the lock: callers
        // of this, and executions of graphs, whose libraries are done with them when they return.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.size_bytes) };
        body(bytes)
    }

    /// Keeps others from the bytes; `None` where somebody has them.
    pub(super) fn hold(&self) -> Option<MutexGuard<'_, ()>> {
        match self.lock.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The file, open as long as this lives.
    pub(super) fn fd(&self) -> RawFd {
        match &self.owner {
            Owner::Rpcmem { fd, .. } => *fd,
            Owner::Memfd(fd) => fd.as_raw_fd(),
        }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Rpcmem { rpcmem, .. } => {
                // SAFETY: memory of `rpcmem_alloc`, freed once; registrations hold this, for good where one was not given back, so that none is left.
                unsafe { (rpcmem.free)(self.base.as_ptr().cast()) };
            }
            Owner::Memfd(_) => {
                // SAFETY: base and size are those of the one mmap; as above.
                unsafe { libc::munmap(self.base.as_ptr().cast(), self.size_bytes) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_hold_what_was_written_and_are_lent_to_one() {
        let buffer = SharedAllocator::memfd().allocate(5000).unwrap();
        assert_eq!(buffer.size_bytes(), 5000);
        buffer.with(|bytes| {
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
            assert!(buffer.hold().is_none());
        });
        let held = buffer.hold();
        assert!(held.is_some() && buffer.hold().is_none());
        drop(held);
        // Another mapping of the file sees the bytes.
        // SAFETY: a new mapping of a file that is as long.
        let other = unsafe {
            let (at, protection, flags) = (ptr::null_mut(), libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(at, 5000, protection, flags, buffer.fd(), 0)
        };
        assert_ne!(other, libc::MAP_FAILED);
        // SAFETY: inside that mapping, which nobody writes to now.
        assert_eq!(unsafe { *other.cast::<u8>().wrapping_add(4999) }, 7);
        // SAFETY: the mapping that was just made.
        unsafe { libc::munmap(other, 5000) };
        assert!(SharedAllocator::memfd().allocate(usize::MAX / 2).is_err());
    }

    #[test]
    fn a_machine_without_rpcmem_shares_files() {
        let found = SharedAllocator::find();
        if Rpcmem::open().is_none() {
            assert_eq!(found.name(), "memfd");
        }
        assert!(found.allocate(1).is_ok());
    }
}
