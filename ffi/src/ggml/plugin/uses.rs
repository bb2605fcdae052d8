//! How often the tensors of a graph are read, views of the graph included.
//!
//! A host hands us parts of its graphs: who else reads a result is not in them. ggml counts the readers over the whole
//! graph and lets parts share the counts, but exports no function that tells them, and its graph is no part of its
//! interface. So the struct is written down here, and believed only after a graph of ours, in memory of ours, has given
//! the right counts: every pointer is compared with the bounds of that memory before it is followed.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use crate::ggml::api::Api;
use crate::ggml::sys;

/// ggml's set of the tensors of a graph: open addressing, linear probing.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::ggml) struct HashSet {
    pub(in crate::ggml) size: usize,
    /// A bit for each slot.
    pub(in crate::ggml) used: *const u32,
    pub(in crate::ggml) keys: *const *const sys::ggml_tensor,
}

/// ggml's graph.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::ggml) struct CGraph {
    pub(in crate::ggml) size: c_int,
    pub(in crate::ggml) n_nodes: c_int,
    pub(in crate::ggml) n_leafs: c_int,
    pub(in crate::ggml) nodes: *const *const sys::ggml_tensor,
    pub(in crate::ggml) grads: *const *const sys::ggml_tensor,
    pub(in crate::ggml) grad_accs: *const *const sys::ggml_tensor,
    pub(in crate::ggml) leafs: *const *const sys::ggml_tensor,
    /// By slot of the set.
    pub(in crate::ggml) use_counts: *const i32,
    pub(in crate::ggml) visited_hash_set: HashSet,
    pub(in crate::ggml) order: u32,
    pub(in crate::ggml) uid: u64,
}

/// Tells whether graphs of the host's ggml are laid out like this.
pub(super) fn is_known(api: &'static Api) -> bool {
    static IS_KNOWN: OnceLock<bool> = OnceLock::new();
    *IS_KNOWN.get_or_init(|| {
        let is_known = prove(api).is_some();
        if !is_known {
            log::warn!("the host's graphs are laid out differently: nothing is fused");
        }
        is_known
    })
}

/// Bits of a word of [`HashSet::used`].
const WORD: usize = u32::BITS as usize;

/// Nodes that the graph of the proof has room for.
const SIZE: usize = 16;

/// Returns how many operands of the whole graph a tensor is; `None` where the host's graphs are not laid out as we know
/// them, or the tensor is not in the graph's set.
///
/// # Safety
/// `graph` is a live graph of the host's ggml that is not changed during the call.
pub(super) unsafe fn n_uses(
    api: &'static Api,
    graph: NonNull<sys::ggml_cgraph>,
    tensor: *const sys::ggml_tensor,
) -> Option<usize> {
    if !is_known(api) {
        return None;
    }
    // SAFETY: a live graph (the caller), laid out like this (`prove`).
    let graph = unsafe { graph.cast::<CGraph>().read() };
    // SAFETY: a live graph has arrays as long as its set says; a view shares them with its graph.
    unsafe { find(&graph, tensor) }
}

/// Looks a tensor up.
///
/// # Safety
/// `used`, `keys` and `use_counts` are null, or arrays of the set's size; counts of used slots are written.
unsafe fn find(graph: &CGraph, tensor: *const sys::ggml_tensor) -> Option<usize> {
    let HashSet { size, used, keys } = graph.visited_hash_set;
    if size == 0 || used.is_null() || keys.is_null() || graph.use_counts.is_null() {
        return None;
    }
    let start = (tensor as usize >> 4) % size;
    for slot in (start..size).chain(0..start) {
        // SAFETY: a word inside the array, as `slot` is below `size`.
        let word = unsafe { at(used, slot / WORD) };
        if word >> (slot % WORD) & 1 == 0 {
            return None;
        }
        // SAFETY: a slot inside the array, and one in use.
        let key = unsafe { at(keys, slot) };
        if key == tensor {
            // SAFETY: as above.
            let count = unsafe { at(graph.use_counts, slot) };
            return usize::try_from(count).ok();
        }
    }
    None
}

/// Reads an element of an array.
///
/// # Safety
/// Element `i` is there, and written.
unsafe fn at<T: Copy>(array: *const T, i: usize) -> T {
    // SAFETY: the caller's promise.
    let element = unsafe { array.add(i) };
    // SAFETY: as above.
    unsafe { element.read() }
}

/// Tells whether an array lies in memory at these addresses.
fn contains<T>(memory: &Range<usize>, array: *const T, len: usize) -> bool {
    let start = array as usize;
    let size_bytes = len.checked_mul(size_of::<T>());
    let end = size_bytes.and_then(|size_bytes| start.checked_add(size_bytes));
    array.is_aligned() && start >= memory.start && end.is_some_and(|end| end <= memory.end)
}

/// Builds a graph with known counts and compares; `None` where anything is different.
fn prove(api: &'static Api) -> Option<()> {
    const N_TENSORS: usize = 8;
    // SAFETY: a pure function.
    let tensor = unsafe { (api.ggml_tensor_overhead)() };
    // SAFETY: a pure function of its arguments.
    let graph = unsafe { (api.ggml_graph_overhead_custom)(SIZE, false) };
    // Zeroed, so that all of it can be read; aligned as ggml wants it.
    let n_words = (N_TENSORS * tensor + graph).div_ceil(size_of::<u128>()) + 64;
    let mut memory = vec![0_u128; n_words];
    let range = memory.as_mut_ptr_range();
    let params = sys::ggml_init_params {
        mem_size: n_words * size_of::<u128>(),
        mem_buffer: range.start.cast(),
        no_alloc: true,
    };
    let addresses = range.start as usize..range.end as usize;
    // SAFETY: memory of that size, which outlives the context.
    let ctx = NonNull::new(unsafe { (api.ggml_init)(params) })?;
    let proof = prove_in(api, ctx.as_ptr(), &addresses);
    // SAFETY: the context came from ggml_init and is freed once; the memory stays ours.
    unsafe { (api.ggml_free)(ctx.as_ptr()) };
    drop(memory);
    proof
}

fn prove_in(api: &'static Api, ctx: *mut sys::ggml_context, memory: &Range<usize>) -> Option<()> {
    let leaf = || {
        // SAFETY: a live context with room; one dimension.
        unsafe { (api.ggml_new_tensor)(ctx, sys::GGML_TYPE_F32, 1, [4].as_ptr()) }
    };
    // SAFETY: live tensors of one shape, in a live context with room.
    let add = |a, b| unsafe { (api.ggml_add)(ctx, a, b) };
    // SAFETY: as above.
    let mul = |a, b| unsafe { (api.ggml_mul)(ctx, a, b) };
    let (a, b, stranger) = (leaf(), leaf(), leaf());
    let sum = add(a, b);
    let square = mul(sum, sum);
    let more = add(sum, square);
    let last = mul(more, a);
    // SAFETY: a live context with room.
    let raw = unsafe { (api.ggml_new_graph_custom)(ctx, SIZE, false) };
    // SAFETY: a live graph and tensor of one context.
    unsafe { (api.ggml_build_forward_expand)(raw, last) };
    let graph = raw.cast::<CGraph>().cast_const();
    if !contains(memory, graph, 1) {
        return None;
    }
    // SAFETY: inside the memory, every byte of which is initialised; any bits are numbers and pointers.
    let graph = unsafe { graph.read() };
    let set = graph.visited_hash_set;
    let n_words = set.size.div_ceil(WORD);
    let lies_there = contains(memory, graph.nodes, SIZE)
        && contains(memory, set.used, n_words)
        && contains(memory, set.keys, set.size)
        && contains(memory, graph.use_counts, set.size);
    // Room for all that a graph has: nodes and leafs.
    let fits = lies_there && set.size >= 2 * SIZE;
    if !fits || [graph.size, graph.n_nodes, graph.n_leafs] != [16, 4, 2] {
        return None;
    }
    for (i, node) in [sum, square, more, last].into_iter().enumerate() {
        // SAFETY: inside the memory, checked above.
        let found = unsafe { at(graph.nodes, i) };
        if !ptr::eq(found, node) {
            return None;
        }
    }
    let uses = [(a, 2), (b, 1), (sum, 3), (square, 1), (more, 1), (last, 0)];
    let is_right = uses.into_iter().all(|(tensor, n)| {
        // SAFETY: arrays inside the memory, checked above.
        unsafe { find(&graph, tensor) == Some(n) }
    });
    // SAFETY: as above.
    let is_strange = unsafe { find(&graph, stranger) }.is_none();
    (is_right && is_strange).then_some(())
}
