//! Shared buffers: registered for real, by mapping their file, where the fault `memory` says that this library knows them.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::abi::{At, buffer, handle};
use crate::functions::{Handle, NOT_SUPPORTED, Status, create, free};
use crate::number;
use crate::state::{Object, State, lock};

const MEM_INVALID_DESCRIPTOR: Status = 8000;
const ION: u32 = 1;

/// A buffer that is registered.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    map: Arc<MmapRaw>,
    /// Bytes of the tensor.
    size_bytes: usize,
}

impl Memory {
    /// Maps the file of a descriptor: shape, data type, kind, file.
    fn map(descriptor: At) -> Option<Self> {
        let rank = descriptor.u32(0) as usize;
        let dims = descriptor.follow(8).numbers(rank);
        let element = number::size(descriptor.u32(24))?;
        let size_bytes = dims.iter().map(|&dim| dim as usize).product::<usize>() * element;
        if descriptor.u32(28) != ION || size_bytes == 0 {
            return None;
        }
        let fd = i32::try_from(descriptor.u32(32)).ok()?;
        // SAFETY: the caller's file, which is open through the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let file = File::from(fd.try_clone_to_owned().ok()?);
        if file.metadata().ok()?.len() < size_bytes as u64 {
            return None;
        }
        let map = MmapOptions::new().len(size_bytes).map_raw(&file);
        Some(Self {
            map: Arc::new(map.ok()?),
            size_bytes,
        })
    }
}

pub(crate) unsafe extern "C" fn mem_register(
    context: Handle,
    descriptors: *const u8,
    n: u32,
    to: *mut Handle,
) -> Status {
    // SAFETY: a descriptor that, with all that it points to, lives through the call.
    let descriptor = unsafe { At::new(descriptors) };
    let body = |state: &mut State| {
        if !state.faults.memory || n != 1 {
            return Err(NOT_SUPPORTED);
        }
        let memory = Memory::map(descriptor).ok_or(MEM_INVALID_DESCRIPTOR)?;
        Ok(state.insert(Object::Memory(memory), &[context]))
    };
    // SAFETY: the caller can take a handle, as QNN's contract says.
    unsafe { create("memRegister", to, body) }
}

pub(crate) unsafe extern "C" fn mem_de_register(handles: *const Handle, n: u32) -> Status {
    if n != 1 {
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller has one handle there, as QNN's contract says.
    free("memDeRegister", unsafe { *handles }, NOT_SUPPORTED)
}

/// The memory of a tensor in an execution of a graph of `context`, and its size in bytes: plain, or registered with that context. What keeps it
/// mapped comes with it.
pub(crate) fn of(tensor: At, context: Handle) -> Option<(At, usize, Option<Memory>)> {
    if let Some((data, size_bytes)) = buffer(tensor) {
        return Some((data, size_bytes, None));
    }
    let handle = handle(tensor)?;
    let mut state = lock();
    let entry = state.objects.get(&handle)?;
    let Object::Memory(memory) = &entry.object else {
        return None;
    };
    if !entry.parents.contains(&context) {
        // The real library's answer is not known.
        state.violations += 1;
        return None;
    }
    let memory = memory.clone();
    state.n_shared += 1;
    // SAFETY: so many bytes are mapped as long as the memory is held, which the caller does.
    let data = unsafe { At::new(memory.map.as_ptr()) };
    Some((data, memory.size_bytes, Some(memory)))
}
