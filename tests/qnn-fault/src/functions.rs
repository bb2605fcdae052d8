//! Functions of everything but graphs.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::abi::At;
use crate::state::{Context, Graph, LogCallback, Object, State, enter, lock};

pub(crate) type Status = u64;
pub(crate) type Handle = usize;

/// Version of the common interface, and of the backend's.
pub(crate) const CORE: [u32; 3] = [2, 40, 0];
pub(crate) const BACKEND: [u32; 3] = [5, 51, 0];
const BUILD: &str = "v0.0.0.fault";

pub(crate) const MEM_ALLOC: Status = 1002;
pub(crate) const NOT_SUPPORTED: Status = 1000;
pub(crate) const CONTEXT_BINARY: Status = 5000;
pub(crate) const CONTEXT_INVALID_HANDLE: Status = 5002;
pub(crate) const GRAPH_INVALID_NAME: Status = 6003;
pub(crate) const GRAPH_NOT_FINALIZED: Status = 6023;
pub(crate) const DEVICE_INVALID_CONFIG: Status = 14001;
pub(crate) const BLOB_ZEROS: Status = 30001;
pub(crate) const BLOB_DAMAGED: Status = 30010;

/// Writes a new handle, unless none is to be written.
///
/// # Safety
/// `to` can be written.
pub(crate) unsafe fn create(
    call: &str,
    to: *mut Handle,
    body: impl FnOnce(&mut State) -> Result<Handle, Status>,
) -> Status {
    let null = match enter(call) {
        Ok(enter) => enter.null,
        Err(code) => return code,
    };
    match body(&mut lock()) {
        Ok(handle) => {
            let handle = if null { 0 } else { handle };
            // SAFETY: the caller's promise.
            unsafe { *to = handle };
            0
        }
        Err(code) => code,
    }
}

pub(crate) fn free(call: &str, handle: Handle, invalid: Status) -> Status {
    let freed = lock().free(handle);
    match (enter(call), freed) {
        (Err(code), _) => code,
        (Ok(_), None) => invalid,
        (Ok(_), Some(())) => 0,
    }
}

pub(crate) unsafe extern "C" fn log_create(
    callback: Option<LogCallback>,
    _level: u32,
    to: *mut Handle,
) -> Status {
    let body = |state: &mut State| {
        state.set_log(callback);
        Ok(state.insert(Object::Logger, &[]))
    };
    // SAFETY: the caller can take a handle, as QNN's contract says.
    unsafe { create("logCreate", to, body) }
}

pub(crate) extern "C" fn log_free(handle: Handle) -> Status {
    lock().set_log(None);
    free("logFree", handle, NOT_SUPPORTED)
}

pub(crate) unsafe extern "C" fn backend_create(
    logger: Handle,
    _configs: *const c_void,
    to: *mut Handle,
) -> Status {
    // SAFETY: as in log_create.
    unsafe {
        create("backendCreate", to, |state| {
            Ok(state.insert(Object::Backend, &[logger]))
        })
    }
}

pub(crate) extern "C" fn backend_free(handle: Handle) -> Status {
    free("backendFree", handle, NOT_SUPPORTED)
}

pub(crate) unsafe extern "C" fn backend_get_build_id(to: *mut *const c_char) -> Status {
    if let Err(code) = enter("backendGetBuildId") {
        return code;
    }
    let id = CString::new(lock().faults.build.as_deref().unwrap_or(BUILD)).unwrap_or_default();
    // SAFETY: the caller can take a string, as QNN's contract says. It is never freed.
    unsafe { *to = id.into_raw() };
    0
}

/// Chips that the library knows, at either place where releases read them.
pub(crate) unsafe extern "C" fn device_create(
    logger: Handle,
    configs: *const u8,
    to: *mut Handle,
) -> Status {
    // SAFETY: NULL, or a list of options that lives through the call.
    let configs = unsafe { At::new(configs) };
    let body = |state: &mut State| {
        if !configs.is_null() {
            let custom = configs.follow(0).follow(8);
            let (at_4, at_8) = (custom.u32(4), custom.u32(8));
            if custom.u32(0) != 0
                || at_4 != at_8
                || ![30, 36, 42, 43, 57, 60, 68, 69, 85, 87].contains(&at_8)
            {
                return Err(DEVICE_INVALID_CONFIG);
            }
        }
        Ok(state.insert(Object::Device, &[logger]))
    };
    // SAFETY: as in log_create.
    unsafe { create("deviceCreate", to, body) }
}

pub(crate) extern "C" fn device_free(handle: Handle) -> Status {
    free("deviceFree", handle, DEVICE_INVALID_CONFIG)
}

/// Version 1, one device; a device: version 1, id, type, one core; its extension: 8 MiB, SM8650, v75.
pub(crate) unsafe extern "C" fn device_get_platform_info(
    _logger: Handle,
    to: *mut *const u64,
) -> Status {
    if let Err(code) = enter("deviceGetPlatformInfo") {
        return code;
    }
    let extension: &'static [u64; 4] = Box::leak(Box::new([0, 8, 57, 75]));
    let device: &'static [u64; 5] = Box::leak(Box::new([
        1,
        0,
        1,
        0,
        extension.as_ptr().expose_provenance() as u64,
    ]));
    let info: &'static [u64; 3] =
        Box::leak(Box::new([1, 1, device.as_ptr().expose_provenance() as u64]));
    // SAFETY: the caller can take a pointer, as QNN's contract says. It is never freed.
    unsafe { *to = info.as_ptr() };
    0
}

pub(crate) extern "C" fn device_free_platform_info(
    _logger: Handle,
    _info: *const c_void,
) -> Status {
    enter("deviceFreePlatformInfo").err().unwrap_or(0)
}

pub(crate) unsafe extern "C" fn error_get_message(code: Status, to: *mut *const c_char) -> Status {
    let text = CString::new(format!("fault {}", code & 0xffff)).unwrap_or_default();
    // SAFETY: the caller can take a string, as QNN's contract says. It is never freed.
    unsafe { *to = text.into_raw() };
    0
}

pub(crate) unsafe extern "C" fn context_create(
    backend: Handle,
    device: Handle,
    _configs: *const c_void,
    to: *mut Handle,
) -> Status {
    let body = |state: &mut State| {
        let context = Object::Context(Context {
            next_id: 1,
            size_bytes: 0,
        });
        Ok(state.insert(context, &[backend, device]))
    };
    // SAFETY: as in log_create.
    unsafe { create("contextCreate", to, body) }
}

pub(crate) extern "C" fn context_free(handle: Handle, _profile: Handle) -> Status {
    free("contextFree", handle, CONTEXT_INVALID_HANDLE)
}

/// What a context binary holds.
#[derive(Serialize, Deserialize)]
struct Blob {
    core: [u32; 3],
    next_id: u32,
    graphs: Vec<Graph>,
}

const BLOB_MAGIC: &[u8] = b"QNNFAULT";

fn blob(state: &State, handle: Handle) -> Result<Vec<u8>, Status> {
    let Some(Object::Context(context)) = state.objects.get(&handle).map(|entry| &entry.object)
    else {
        return Err(CONTEXT_INVALID_HANDLE);
    };
    let mut graphs: Vec<Graph> = Vec::new();
    for entry in state.objects.values() {
        if let Object::Graph(graph) = &entry.object
            && entry.parents.contains(&handle)
        {
            if !graph.finalized {
                return Err(GRAPH_NOT_FINALIZED);
            }
            graphs.push(Graph::clone(graph));
        }
    }
    graphs.sort_by(|a, b| a.name.cmp(&b.name));
    let blob = Blob {
        core: state.faults.core.unwrap_or(CORE),
        next_id: context.next_id,
        graphs,
    };
    let mut bytes = BLOB_MAGIC.to_vec();
    bytes.extend(postcard::to_allocvec(&blob).map_err(|_error| MEM_ALLOC)?);
    Ok(bytes)
}

pub(crate) unsafe extern "C" fn context_get_binary_size(context: Handle, to: *mut u64) -> Status {
    if let Err(code) = enter("contextGetBinarySize") {
        return code;
    }
    match blob(&lock(), context) {
        Ok(bytes) => {
            // SAFETY: the caller can take a size, as QNN's contract says.
            unsafe { *to = bytes.len() as u64 };
            0
        }
        Err(code) => code,
    }
}

pub(crate) unsafe extern "C" fn context_get_binary(
    context: Handle,
    data: *mut u8,
    size: u64,
    written: *mut u64,
) -> Status {
    if let Err(code) = enter("contextGetBinary") {
        return code;
    }
    let bytes = match blob(&lock(), context) {
        Ok(bytes) => bytes,
        Err(code) => return code,
    };
    if bytes.len() as u64 > size {
        return MEM_ALLOC;
    }
    // SAFETY: the caller says that its buffer is `size` bytes long.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
    // SAFETY: the caller can take a size, as QNN's contract says.
    unsafe { *written = bytes.len() as u64 };
    0
}

pub(crate) unsafe extern "C" fn context_create_from_binary(
    backend: Handle,
    device: Handle,
    _configs: *const c_void,
    data: *const u8,
    size: u64,
    to: *mut Handle,
    _profile: Handle,
) -> Status {
    let length = usize::try_from(size).unwrap_or(0);
    // SAFETY: the caller says that there are so many bytes.
    let bytes = unsafe { At::new(data) }.bytes(length);
    let body = |state: &mut State| {
        let rest = bytes.strip_prefix(BLOB_MAGIC).ok_or(BLOB_ZEROS)?;
        let blob: Blob = postcard::from_bytes(rest).map_err(|_error| BLOB_DAMAGED)?;
        if blob.core > state.faults.core.unwrap_or(CORE) {
            return Err(CONTEXT_BINARY);
        }
        let formula = state.faults.formula;
        let context = Object::Context(Context {
            next_id: blob.next_id,
            size_bytes: size,
        });
        let context = state.insert(context, &[backend, device]);
        for mut graph in blob.graphs {
            graph.finalize(formula);
            state.insert(Object::Graph(Arc::new(graph)), &[context]);
        }
        Ok(context)
    };
    // SAFETY: as in log_create.
    unsafe { create("contextCreateFromBinary", to, body) }
}

/// The handle of a context's graph.
fn find(state: &State, context: Handle, name: &str) -> Option<Handle> {
    let mut objects = state.objects.iter();
    let found = objects.find(|(_, entry)| {
        matches!(&entry.object, Object::Graph(graph) if graph.name == name)
            && entry.parents.contains(&context)
    });
    found.map(|(handle, _)| *handle)
}

pub(crate) unsafe extern "C" fn graph_create(
    context: Handle,
    name: *const u8,
    _configs: *const c_void,
    to: *mut Handle,
) -> Status {
    // SAFETY: a string that lives through the call.
    let name = unsafe { At::new(name) }.string();
    let body = |state: &mut State| {
        if !matches!(
            state.objects.get(&context).map(|entry| &entry.object),
            Some(Object::Context(_))
        ) {
            return Err(CONTEXT_INVALID_HANDLE);
        }
        if name.is_empty() || find(state, context, &name).is_some() {
            return Err(GRAPH_INVALID_NAME);
        }
        let graph = Graph {
            name,
            ..Graph::default()
        };
        Ok(state.insert(Object::Graph(Arc::new(graph)), &[context]))
    };
    // SAFETY: as in log_create.
    unsafe { create("graphCreate", to, body) }
}

pub(crate) unsafe extern "C" fn graph_retrieve(
    context: Handle,
    name: *const u8,
    to: *mut Handle,
) -> Status {
    // SAFETY: a string that lives through the call.
    let name = unsafe { At::new(name) }.string();
    let body = |state: &mut State| find(state, context, &name).ok_or(GRAPH_INVALID_NAME);
    // SAFETY: as in log_create.
    unsafe { create("graphRetrieve", to, body) }
}
