//! The functions of the table, and the entry symbol.

use std::ffi::{CString, c_char, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::abi::{self, APP_READ, APP_WRITE, At, Encoding, STATIC, Tensor};
use crate::compute::{self, Values};
use crate::fault::Wrong;
use crate::number;
use crate::state::{Context, Graph, LogCallback, Object, State, enter, lock};

type Status = u64;
type Handle = usize;

/// Version of the common interface, and of the backend's.
const CORE: [u32; 3] = [2, 40, 0];
const BACKEND: [u32; 3] = [5, 51, 0];
const BUILD: &str = "v0.0.0.fault";

const MEM_ALLOC: Status = 1002;
const NOT_SUPPORTED: Status = 1000;
const OP_PACKAGE_VALIDATION: Status = 3110;
const CONTEXT_BINARY: Status = 5000;
const CONTEXT_INVALID_HANDLE: Status = 5002;
const GRAPH_INVALID_HANDLE: Status = 6001;
const GRAPH_INVALID_NAME: Status = 6003;
const GRAPH_INVALID_TENSOR: Status = 6004;
const GRAPH_NOT_FINALIZED: Status = 6023;
const GRAPH_FINALIZED: Status = 6024;
const TENSOR_EXISTS: Status = 7003;
const TENSOR_INVALID_PARAM: Status = 7004;
const DEVICE_INVALID_CONFIG: Status = 14001;
const BLOB_ZEROS: Status = 30001;
const BLOB_DAMAGED: Status = 30010;

/// An operation by value: 80 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Op([u64; 10]);

extern "C" fn not_supported() -> Status {
    NOT_SUPPORTED
}

/// A place whose function is not there; it answers so.
type Other = Option<extern "C" fn() -> Status>;

/// The table of functions: 71 places, and who stands where.
#[repr(C)]
struct Table {
    other_0: [Other; 1],
    backend_create: Option<unsafe extern "C" fn(Handle, *const c_void, *mut Handle) -> Status>,
    other_2: [Other; 2],
    backend_get_build_id: Option<unsafe extern "C" fn(*mut *const c_char) -> Status>,
    other_5: [Other; 2],
    backend_validate_op_config: Option<extern "C" fn(Handle, Op) -> Status>,
    backend_free: Option<extern "C" fn(Handle) -> Status>,
    context_create:
        Option<unsafe extern "C" fn(Handle, Handle, *const c_void, *mut Handle) -> Status>,
    other_10: [Other; 1],
    context_get_binary_size: Option<unsafe extern "C" fn(Handle, *mut u64) -> Status>,
    context_get_binary: Option<unsafe extern "C" fn(Handle, *mut u8, u64, *mut u64) -> Status>,
    context_create_from_binary: Option<
        unsafe extern "C" fn(
            Handle,
            Handle,
            *const c_void,
            *const u8,
            u64,
            *mut Handle,
            Handle,
        ) -> Status,
    >,
    context_free: Option<extern "C" fn(Handle, Handle) -> Status>,
    graph_create:
        Option<unsafe extern "C" fn(Handle, *const u8, *const c_void, *mut Handle) -> Status>,
    other_16: [Other; 2],
    graph_add_node: Option<extern "C" fn(Handle, Op) -> Status>,
    graph_finalize: Option<extern "C" fn(Handle, Handle, Handle) -> Status>,
    graph_retrieve: Option<unsafe extern "C" fn(Handle, *const u8, *mut Handle) -> Status>,
    graph_execute: Option<
        unsafe extern "C" fn(Handle, *const u8, u32, *mut u8, u32, Handle, Handle) -> Status,
    >,
    other_22: [Other; 2],
    tensor_create_graph_tensor: Option<unsafe extern "C" fn(Handle, *mut u8) -> Status>,
    log_create: Option<unsafe extern "C" fn(Option<LogCallback>, u32, *mut Handle) -> Status>,
    other_26: [Other; 1],
    log_free: Option<extern "C" fn(Handle) -> Status>,
    other_28: [Other; 9],
    device_get_platform_info: Option<unsafe extern "C" fn(Handle, *mut *const u64) -> Status>,
    device_free_platform_info: Option<extern "C" fn(Handle, *const c_void) -> Status>,
    other_39: [Other; 1],
    device_create: Option<unsafe extern "C" fn(Handle, *const u8, *mut Handle) -> Status>,
    other_41: [Other; 2],
    device_free: Option<extern "C" fn(Handle) -> Status>,
    other_44: [Other; 4],
    error_get_message: Option<unsafe extern "C" fn(Status, *mut *const c_char) -> Status>,
    other_49: [Other; 22],
}

const _: () = {
    assert!(offset_of!(Table, backend_create) == 8);
    assert!(offset_of!(Table, backend_get_build_id) == 8 * 4);
    assert!(offset_of!(Table, backend_validate_op_config) == 8 * 7);
    assert!(offset_of!(Table, backend_free) == 8 * 8);
    assert!(offset_of!(Table, context_create) == 8 * 9);
    assert!(offset_of!(Table, context_get_binary_size) == 8 * 11);
    assert!(offset_of!(Table, context_get_binary) == 8 * 12);
    assert!(offset_of!(Table, context_create_from_binary) == 8 * 13);
    assert!(offset_of!(Table, context_free) == 8 * 14);
    assert!(offset_of!(Table, graph_create) == 8 * 15);
    assert!(offset_of!(Table, graph_add_node) == 8 * 18);
    assert!(offset_of!(Table, graph_finalize) == 8 * 19);
    assert!(offset_of!(Table, graph_retrieve) == 8 * 20);
    assert!(offset_of!(Table, graph_execute) == 8 * 21);
    assert!(offset_of!(Table, tensor_create_graph_tensor) == 8 * 24);
    assert!(offset_of!(Table, log_create) == 8 * 25);
    assert!(offset_of!(Table, log_free) == 8 * 27);
    assert!(offset_of!(Table, device_get_platform_info) == 8 * 37);
    assert!(offset_of!(Table, device_free_platform_info) == 8 * 38);
    assert!(offset_of!(Table, device_create) == 8 * 40);
    assert!(offset_of!(Table, device_free) == 8 * 43);
    assert!(offset_of!(Table, error_get_message) == 8 * 48);
    assert!(size_of::<Table>() == 8 * 71);
    assert!(offset_of!(Interface, table) == 40);
};

impl Table {
    fn new(missing: &[String]) -> Self {
        let there = |name: &str| !missing.iter().any(|missing| missing == name);
        Self {
            other_0: [Some(not_supported); 1],
            backend_create: there("backendCreate").then_some(backend_create),
            other_2: [Some(not_supported); 2],
            backend_get_build_id: there("backendGetBuildId").then_some(backend_get_build_id),
            other_5: [Some(not_supported); 2],
            backend_validate_op_config: there("backendValidateOpConfig")
                .then_some(backend_validate_op_config),
            backend_free: there("backendFree").then_some(backend_free),
            context_create: there("contextCreate").then_some(context_create),
            other_10: [Some(not_supported); 1],
            context_get_binary_size: there("contextGetBinarySize")
                .then_some(context_get_binary_size),
            context_get_binary: there("contextGetBinary").then_some(context_get_binary),
            context_create_from_binary: there("contextCreateFromBinary")
                .then_some(context_create_from_binary),
            context_free: there("contextFree").then_some(context_free),
            graph_create: there("graphCreate").then_some(graph_create),
            other_16: [Some(not_supported); 2],
            graph_add_node: there("graphAddNode").then_some(graph_add_node),
            graph_finalize: there("graphFinalize").then_some(graph_finalize),
            graph_retrieve: there("graphRetrieve").then_some(graph_retrieve),
            graph_execute: there("graphExecute").then_some(graph_execute),
            other_22: [Some(not_supported); 2],
            tensor_create_graph_tensor: there("tensorCreateGraphTensor")
                .then_some(tensor_create_graph_tensor),
            log_create: there("logCreate").then_some(log_create),
            other_26: [Some(not_supported); 1],
            log_free: there("logFree").then_some(log_free),
            other_28: [Some(not_supported); 9],
            device_get_platform_info: there("deviceGetPlatformInfo")
                .then_some(device_get_platform_info),
            device_free_platform_info: there("deviceFreePlatformInfo")
                .then_some(device_free_platform_info),
            other_39: [Some(not_supported); 1],
            device_create: there("deviceCreate").then_some(device_create),
            other_41: [Some(not_supported); 2],
            device_free: there("deviceFree").then_some(device_free),
            other_44: [Some(not_supported); 4],
            error_get_message: there("errorGetMessage").then_some(error_get_message),
            other_49: [Some(not_supported); 22],
        }
    }
}

/// The interface in memory: a head, then the table.
#[repr(C)]
struct Interface {
    backend_id: u32,
    name: *const c_char,
    core: [u32; 3],
    backend: [u32; 3],
    table: Table,
}

/// Hands out the one provider.
///
/// # Safety
/// Both results can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn QnnInterface_getProviders(
    list: *mut *const *const c_void,
    n: *mut u32,
) -> Status {
    let faults = lock().faults.clone();
    let name = faults.provider.as_deref().unwrap_or("HTP_QTI_AISW");
    let interface = Interface {
        backend_id: 6,
        name: CString::new(name).unwrap_or_default().into_raw(),
        core: faults.core.unwrap_or(CORE),
        backend: faults.backend.unwrap_or(BACKEND),
        table: Table::new(&faults.missing),
    };
    // Never freed: callers may keep it for as long as the library is loaded.
    let interface: *const Interface = Box::leak(Box::new(interface));
    let providers: &'static [*const c_void; 1] = Box::leak(Box::new([interface.cast()]));
    let count = u32::from(!faults.no_providers);
    // SAFETY: the caller's promise.
    unsafe { *list = providers.as_ptr() };
    // SAFETY: the caller's promise.
    unsafe { *n = count };
    0
}

/// Writes a new handle, unless none is to be written.
///
/// # Safety
/// `to` can be written.
unsafe fn create(
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

fn free(call: &str, handle: Handle, invalid: Status) -> Status {
    let freed = lock().free(handle);
    match (enter(call), freed) {
        (Err(code), _) => code,
        (Ok(_), None) => invalid,
        (Ok(_), Some(())) => 0,
    }
}

unsafe extern "C" fn log_create(
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

extern "C" fn log_free(handle: Handle) -> Status {
    lock().set_log(None);
    free("logFree", handle, NOT_SUPPORTED)
}

unsafe extern "C" fn backend_create(
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

extern "C" fn backend_free(handle: Handle) -> Status {
    free("backendFree", handle, NOT_SUPPORTED)
}

unsafe extern "C" fn backend_get_build_id(to: *mut *const c_char) -> Status {
    if let Err(code) = enter("backendGetBuildId") {
        return code;
    }
    let id = CString::new(lock().faults.build.as_deref().unwrap_or(BUILD)).unwrap_or_default();
    // SAFETY: the caller can take a string, as QNN's contract says. It is never freed.
    unsafe { *to = id.into_raw() };
    0
}

/// Chips that the library knows, at either place where releases read them.
unsafe extern "C" fn device_create(logger: Handle, configs: *const u8, to: *mut Handle) -> Status {
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

extern "C" fn device_free(handle: Handle) -> Status {
    free("deviceFree", handle, DEVICE_INVALID_CONFIG)
}

/// Version 1, one device; a device: version 1, id, type, one core; its extension: 8 MiB, SM8650, v75.
unsafe extern "C" fn device_get_platform_info(_logger: Handle, to: *mut *const u64) -> Status {
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

extern "C" fn device_free_platform_info(_logger: Handle, _info: *const c_void) -> Status {
    enter("deviceFreePlatformInfo").err().unwrap_or(0)
}

unsafe extern "C" fn error_get_message(code: Status, to: *mut *const c_char) -> Status {
    let text = CString::new(format!("fault {}", code & 0xffff)).unwrap_or_default();
    // SAFETY: the caller can take a string, as QNN's contract says. It is never freed.
    unsafe { *to = text.into_raw() };
    0
}

unsafe extern "C" fn context_create(
    backend: Handle,
    device: Handle,
    _configs: *const c_void,
    to: *mut Handle,
) -> Status {
    let body = |state: &mut State| {
        let context = Object::Context(Context { next_id: 1 });
        Ok(state.insert(context, &[backend, device]))
    };
    // SAFETY: as in log_create.
    unsafe { create("contextCreate", to, body) }
}

extern "C" fn context_free(handle: Handle, _profile: Handle) -> Status {
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

unsafe extern "C" fn context_get_binary_size(context: Handle, to: *mut u64) -> Status {
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

unsafe extern "C" fn context_get_binary(
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

unsafe extern "C" fn context_create_from_binary(
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

unsafe extern "C" fn graph_create(
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

unsafe extern "C" fn graph_retrieve(context: Handle, name: *const u8, to: *mut Handle) -> Status {
    // SAFETY: a string that lives through the call.
    let name = unsafe { At::new(name) }.string();
    let body = |state: &mut State| find(state, context, &name).ok_or(GRAPH_INVALID_NAME);
    // SAFETY: as in log_create.
    unsafe { create("graphRetrieve", to, body) }
}

/// A graph that is being built, and its context's next tensor id.
fn building(state: &mut State, handle: Handle) -> Result<(&mut Graph, usize), Status> {
    let entry = state.objects.get_mut(&handle).ok_or(GRAPH_INVALID_HANDLE)?;
    let context = entry.parents.first().copied().unwrap_or(0);
    let Object::Graph(graph) = &mut entry.object else {
        return Err(GRAPH_INVALID_HANDLE);
    };
    let graph = Arc::make_mut(graph);
    if graph.finalized {
        return Err(GRAPH_FINALIZED);
    }
    Ok((graph, context))
}

unsafe extern "C" fn tensor_create_graph_tensor(handle: Handle, tensor: *mut u8) -> Status {
    // SAFETY: a tensor that, with all that it points to, lives through the call.
    let at = unsafe { At::new(tensor) };
    let id = match enter("tensorCreateGraphTensor").and_then(|_| add_tensor(handle, at)) {
        Ok(id) => id,
        Err(code) => return code,
    };
    // SAFETY: the id of the tensor, which the caller gave to be written; its place is version 1's.
    unsafe { at.inside(8).write(&id.to_le_bytes()) };
    0
}

fn add_tensor(handle: Handle, at: At) -> Result<u32, Status> {
    let mut tensor = abi::tensor(at).ok_or(TENSOR_INVALID_PARAM)?;
    let size = number::size(tensor.data_type).ok_or(TENSOR_INVALID_PARAM)?;
    if tensor.dims.is_empty()
        || tensor.dims.contains(&0)
        || matches!(tensor.encoding, Encoding::Other(_))
    {
        return Err(TENSOR_INVALID_PARAM);
    }
    let mut state = lock();
    if tensor.kind == STATIC && tensor.data.len() != size * tensor.n_elements() {
        // The real library would read beyond.
        state.violations += 1;
        return Err(TENSOR_INVALID_PARAM);
    }
    let (graph, context) = building(&mut state, handle)?;
    if graph.tensors.iter().any(|other| other.name == tensor.name) {
        return Err(TENSOR_EXISTS);
    }
    let Some(Object::Context(context)) = state
        .objects
        .get_mut(&context)
        .map(|entry| &mut entry.object)
    else {
        return Err(CONTEXT_INVALID_HANDLE);
    };
    tensor.id = context.next_id;
    context.next_id += 1;
    let id = tensor.id;
    building(&mut state, handle)?.0.tensors.push(tensor);
    Ok(id)
}

extern "C" fn backend_validate_op_config(_backend: Handle, op: Op) -> Status {
    if let Err(code) = enter("backendValidateOpConfig") {
        return code;
    }
    // SAFETY: a node whose parts live through the call.
    let node = abi::node(unsafe { At::new(op.0.as_ptr().cast()) });
    if node.is_some_and(|node| compute::supports(&node)) {
        0
    } else {
        OP_PACKAGE_VALIDATION
    }
}

extern "C" fn graph_add_node(handle: Handle, op: Op) -> Status {
    if let Err(code) = enter("graphAddNode") {
        return code;
    }
    // SAFETY: a node whose parts live through the call.
    let node = abi::node(unsafe { At::new(op.0.as_ptr().cast()) });
    let mut state = lock();
    let Some(mut node) = node else {
        return GRAPH_INVALID_TENSOR;
    };
    for tensor in node.inputs.iter_mut().chain(&mut node.outputs) {
        tensor.data.clear();
    }
    match building(&mut state, handle) {
        Ok((graph, _)) => {
            graph.nodes.push(node);
            0
        }
        Err(code) => code,
    }
}

/// Constants are decoded here, so that a caller that frees them earlier is not noticed; what it may change afterwards, is not
/// read again.
extern "C" fn graph_finalize(handle: Handle, _profile: Handle, _signal: Handle) -> Status {
    if let Err(code) = enter("graphFinalize") {
        return code;
    }
    let mut state = lock();
    let formula = state.faults.formula;
    match building(&mut state, handle) {
        Ok((graph, _)) => {
            let known = |tensor: &Tensor| graph.tensors.iter().any(|other| other.id == tensor.id);
            let fits = graph.nodes.iter().all(|node| {
                compute::supports(node) && node.inputs.iter().chain(&node.outputs).all(known)
            });
            if !fits {
                return MEM_ALLOC;
            }
            graph.finalize(formula);
            0
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn graph_execute(
    handle: Handle,
    inputs: *const u8,
    n_inputs: u32,
    outputs: *mut u8,
    n_outputs: u32,
    _profile: Handle,
    _signal: Handle,
) -> Status {
    if let Err(code) = enter("graphExecute") {
        return code;
    }
    let (graph, wrong, formula) = {
        let mut state = lock();
        let Some(Object::Graph(graph)) = state.objects.get(&handle).map(|entry| &entry.object)
        else {
            return GRAPH_INVALID_HANDLE;
        };
        let graph = Arc::clone(graph);
        if !graph.finalized {
            return GRAPH_NOT_FINALIZED;
        }
        let n = state.executions;
        state.executions += 1;
        let due = state.faults.wrong.filter(|(_, after)| n >= *after);
        (graph, due.map(|(wrong, _)| wrong), state.faults.formula)
    };
    // SAFETY: tensors that live through the call, as many as said.
    let inputs = unsafe { At::new(inputs) };
    let mut values = Values::new();
    for at in (0..n_inputs as usize).map(|i| inputs.inside(144 * i)) {
        match matching(&graph, APP_WRITE, at) {
            Ok((tensor, data, size)) => {
                values.insert(
                    tensor.id,
                    number::decode(tensor, &data.bytes(size), formula),
                );
            }
            Err(code) => return code,
        }
    }
    if values.len() != graph.of_kind(APP_WRITE).count() {
        return GRAPH_INVALID_TENSOR;
    }
    for node in &graph.nodes {
        compute::run(node, &graph.constants, &mut values);
    }
    // SAFETY: as above.
    let outputs = unsafe { At::new(outputs) };
    for at in (0..n_outputs as usize).map(|i| outputs.inside(144 * i)) {
        let (tensor, data, size) = match matching(&graph, APP_READ, at) {
            Ok(found) => found,
            Err(code) => return code,
        };
        let result = spoil(values.remove(&tensor.id).unwrap_or_default(), tensor, wrong);
        let bytes = number::encode(tensor, &result);
        // SAFETY: the caller's buffer for this output is `size` bytes long.
        unsafe { data.write(&bytes[..size.min(bytes.len())]) };
    }
    0
}

/// The graph's own tensor for one of an execution, and its memory. A wrong size is a misuse: the real library would go on.
fn matching(graph: &Graph, kind: u32, at: At) -> Result<(&Tensor, At, usize), Status> {
    let given = abi::tensor(at).ok_or(GRAPH_INVALID_TENSOR)?;
    let own = graph.of_kind(kind).find(|tensor| tensor.id == given.id);
    let (own, (data, size)) = own.zip(abi::buffer(at)).ok_or(GRAPH_INVALID_TENSOR)?;
    let needed = number::size(own.data_type).unwrap_or(0) * own.n_elements();
    if size != needed || given.dims != own.dims || given.data_type != own.data_type {
        lock().violations += 1;
        return Err(GRAPH_INVALID_TENSOR);
    }
    Ok((own, data, size))
}

fn spoil(mut values: Vec<f32>, tensor: &Tensor, wrong: Option<Wrong>) -> Vec<f32> {
    match wrong {
        None => {}
        Some(Wrong::Scale) => values.iter_mut().for_each(|value| *value *= 1.5),
        Some(Wrong::Row) => {
            let row = tensor.dims.last().map_or(1, |&dim| dim as usize);
            let start = values.len().saturating_sub(row);
            values[start..].fill(0.0);
        }
        Some(Wrong::Nan) => values[..1].fill(f32::NAN),
    }
    values
}
