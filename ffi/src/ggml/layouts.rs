//! Sizes, offsets and numbers that we share with ggml, by the C expressions that must give the same.
//!
//! The test of the ABI hands the expressions to a C compiler with the pinned headers of each API version.

use std::mem::offset_of;

use super::plugin::layout::{BufferTypeIV2, BufferTypeV2};
use super::plugin::uses::{CGraph, HashSet};
use super::sys::*;

/// A C expression and the value that we compiled in.
pub type Entry = (&'static str, i64);

/// Entries for the size of a struct and the offsets of its fields; fields are given with their C spelling.
macro_rules! layout {
    ($out:ident, $rust:ty as $c:literal: $($field:ident = $c_field:literal),* $(,)?) => {
        $out.push((concat!("sizeof(struct ", $c, ")"), number(size_of::<$rust>())));
        $($out.push((
            concat!("offsetof(struct ", $c, ", ", $c_field, ")"),
            number(offset_of!($rust, $field)),
        ));)*
    };
}

/// Entries for constants of the same name.
macro_rules! constants {
    ($out:ident, $($name:ident),* $(,)?) => {
        $($out.push((stringify!($name), i64::from($name)));)*
    };
}

fn number(value: usize) -> i64 {
    i64::try_from(value).expect("sizes of structs are small")
}

/// Returns everything that must be the same in a host of backend API `api_version` (2 or 3).
#[must_use]
pub fn entries(api_version: i32) -> Vec<Entry> {
    let mut out = Vec::new();
    out.push(("GGML_BACKEND_API_VERSION", i64::from(api_version)));
    tensors(&mut out);
    if api_version >= 3 {
        layout!(out, ggml_backend_buffer_type_i as "ggml_backend_buffer_type_i":
            get_name = "get_name", alloc_buffer = "alloc_buffer", alloc_buffer_n = "alloc_buffer_n",
            get_alignment = "get_alignment", get_max_size = "get_max_size", get_alloc_size = "get_alloc_size",
            get_alloc_size_n = "get_alloc_size_n", is_host = "is_host");
        layout!(out, ggml_backend_buffer_type as "ggml_backend_buffer_type":
            iface = "iface", device = "device", context = "context");
    } else {
        layout!(out, BufferTypeIV2 as "ggml_backend_buffer_type_i":
            get_name = "get_name", alloc_buffer = "alloc_buffer", get_alignment = "get_alignment",
            get_max_size = "get_max_size", get_alloc_size = "get_alloc_size", is_host = "is_host");
        layout!(out, BufferTypeV2 as "ggml_backend_buffer_type":
            iface = "iface", device = "device", context = "context");
    }
    buffers(&mut out);
    backends(&mut out);
    devices(&mut out);
    graphs(&mut out);
    out
}

fn graphs(out: &mut Vec<Entry>) {
    layout!(out, CGraph as "ggml_cgraph":
        size = "size", n_nodes = "n_nodes", n_leafs = "n_leafs", nodes = "nodes", grads = "grads",
        grad_accs = "grad_accs", leafs = "leafs", use_counts = "use_counts",
        visited_hash_set = "visited_hash_set", order = "order", uid = "uid");
    layout!(out, HashSet as "ggml_hash_set":
        size = "size", used = "used", keys = "keys");
}

fn tensors(out: &mut Vec<Entry>) {
    layout!(out, ggml_tensor as "ggml_tensor":
        type_ = "type", buffer = "buffer", ne = "ne", nb = "nb", op = "op", op_params = "op_params", flags = "flags",
        src = "src", view_src = "view_src", view_offs = "view_offs", data = "data", name = "name", extra = "extra",
        padding = "padding");
    layout!(out, ggml_init_params as "ggml_init_params":
        mem_size = "mem_size", mem_buffer = "mem_buffer", no_alloc = "no_alloc");
    constants!(
        out,
        GGML_MAX_DIMS,
        GGML_MAX_SRC,
        GGML_MAX_OP_PARAMS,
        GGML_MAX_NAME,
        GGML_TYPE_F32,
        GGML_TYPE_F16,
        GGML_TYPE_Q4_0,
        GGML_TYPE_Q8_0,
        GGML_TYPE_I32,
        GGML_TYPE_I64,
        GGML_TYPE_BF16,
        GGML_STATUS_ALLOC_FAILED,
        GGML_STATUS_FAILED,
        GGML_STATUS_SUCCESS,
        GGML_STATUS_ABORTED,
        GGML_LOG_LEVEL_DEBUG,
        GGML_LOG_LEVEL_INFO,
        GGML_LOG_LEVEL_WARN,
        GGML_LOG_LEVEL_ERROR,
    );
}

fn buffers(out: &mut Vec<Entry>) {
    layout!(out, ggml_backend_buffer_i as "ggml_backend_buffer_i":
        free_buffer = "free_buffer", get_base = "get_base", init_tensor = "init_tensor",
        memset_tensor = "memset_tensor", set_tensor = "set_tensor", get_tensor = "get_tensor",
        set_tensor_2d = "set_tensor_2d", get_tensor_2d = "get_tensor_2d", cpy_tensor = "cpy_tensor",
        clear = "clear", reset = "reset");
    layout!(out, ggml_backend_buffer as "ggml_backend_buffer":
        iface = "iface", buft = "buft", context = "context", size = "size", usage = "usage");
}

fn backends(out: &mut Vec<Entry>) {
    layout!(out, ggml_backend_i as "ggml_backend_i":
        get_name = "get_name", free = "free", set_tensor_async = "set_tensor_async",
        get_tensor_async = "get_tensor_async", set_tensor_2d_async = "set_tensor_2d_async",
        get_tensor_2d_async = "get_tensor_2d_async", cpy_tensor_async = "cpy_tensor_async",
        synchronize = "synchronize", graph_plan_create = "graph_plan_create",
        graph_plan_free = "graph_plan_free", graph_plan_update = "graph_plan_update",
        graph_plan_compute = "graph_plan_compute", graph_compute = "graph_compute",
        event_record = "event_record", event_wait = "event_wait", graph_optimize = "graph_optimize");
    layout!(out, ggml_backend as "ggml_backend":
        guid = "guid", iface = "iface", device = "device", context = "context");
}

fn devices(out: &mut Vec<Entry>) {
    layout!(out, ggml_backend_device_i as "ggml_backend_device_i":
        get_name = "get_name", get_description = "get_description", get_memory = "get_memory",
        get_type = "get_type", get_props = "get_props", init_backend = "init_backend",
        get_buffer_type = "get_buffer_type", get_host_buffer_type = "get_host_buffer_type",
        buffer_from_host_ptr = "buffer_from_host_ptr", supports_op = "supports_op",
        supports_buft = "supports_buft", offload_op = "offload_op", event_new = "event_new",
        event_free = "event_free", event_synchronize = "event_synchronize");
    layout!(out, ggml_backend_device as "ggml_backend_device":
        iface = "iface", reg = "reg", context = "context");
    layout!(out, ggml_backend_dev_caps as "ggml_backend_dev_caps":
        async_ = "async", host_buffer = "host_buffer", buffer_from_host_ptr = "buffer_from_host_ptr",
        events = "events", mmap_support = "mmap_support");
    layout!(out, ggml_backend_dev_props as "ggml_backend_dev_props":
        name = "name", description = "description", memory_free = "memory_free",
        memory_total = "memory_total", type_ = "type", device_id = "device_id", caps = "caps");
    layout!(out, ggml_backend_reg_i as "ggml_backend_reg_i":
        get_name = "get_name", get_device_count = "get_device_count", get_device = "get_device",
        get_proc_address = "get_proc_address");
    layout!(out, ggml_backend_reg as "ggml_backend_reg":
        api_version = "api_version", iface = "iface", context = "context");
    constants!(
        out,
        GGML_BACKEND_DEVICE_TYPE_CPU,
        GGML_BACKEND_DEVICE_TYPE_GPU,
        GGML_BACKEND_DEVICE_TYPE_IGPU,
    );
}
