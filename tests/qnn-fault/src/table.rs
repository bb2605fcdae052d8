//! The table of functions, and the entry symbol.

use std::ffi::{CString, c_char, c_void};
use std::mem::offset_of;

use crate::functions::{
    BACKEND, CORE, Handle, NOT_SUPPORTED, Status, backend_create, backend_free,
    backend_get_build_id, context_create, context_create_from_binary, context_free,
    context_get_binary, context_get_binary_size, device_create, device_free,
    device_free_platform_info, device_get_platform_info, error_get_message, graph_create,
    graph_retrieve, log_create, log_free,
};
use crate::graphs::{
    Op, backend_validate_op_config, graph_add_node, graph_execute, graph_finalize,
    tensor_create_graph_tensor,
};
use crate::memory::{mem_de_register, mem_register};
use crate::state::{LogCallback, lock};

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
    other_28: [Other; 7],
    mem_register: Option<unsafe extern "C" fn(Handle, *const u8, u32, *mut Handle) -> Status>,
    mem_de_register: Option<unsafe extern "C" fn(*const Handle, u32) -> Status>,
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
    assert!(offset_of!(Table, mem_register) == 8 * 35);
    assert!(offset_of!(Table, mem_de_register) == 8 * 36);
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
            other_28: [Some(not_supported); 7],
            mem_register: there("memRegister").then_some(mem_register),
            mem_de_register: there("memDeRegister").then_some(mem_de_register),
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
