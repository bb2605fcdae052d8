//! Tensors and graphs of the host, borrowed for the time of one call.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

use super::Mark;
use super::delegate::Delegate;
use super::uses;
use crate::ggml::api::Api;
use crate::ggml::backend::Device;
use crate::ggml::sys;
use crate::ggml::types::{Status, Type};

/// Non-owning view of a tensor: an operation, with its operands behind it.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    api: &'static Api,
    raw: NonNull<sys::ggml_tensor>,
    call: PhantomData<&'a sys::ggml_tensor>,
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("op", &self.op_code())
            .field("type", &self.type_())
            .field("ne", &self.ne())
            .finish()
    }
}

impl<'a> Node<'a> {
    /// Borrows a tensor.
    ///
    /// # Safety
    /// `raw` and its operands are live tensors that are not changed during `'a`.
    pub(super) unsafe fn new(api: &'static Api, raw: *const sys::ggml_tensor) -> Self {
        let raw = NonNull::new(raw.cast_mut()).expect("hosts pass tensors, not NULL");
        Self {
            api,
            raw,
            call: PhantomData,
        }
    }

    pub(super) fn raw(self) -> &'a sys::ggml_tensor {
        // SAFETY: `new` was promised a live tensor for `'a`.
        unsafe { self.raw.as_ref() }
    }

    /// Returns the operation code.
    #[must_use]
    pub fn op_code(self) -> u32 {
        self.raw().op
    }

    /// Returns the element type.
    #[must_use]
    pub fn type_(self) -> Type {
        Type(self.raw().type_)
    }

    /// Returns the shape, ggml order (fastest first).
    #[must_use]
    pub fn ne(self) -> [i64; 4] {
        self.raw().ne
    }

    /// Returns the strides in bytes.
    #[must_use]
    pub fn nb(self) -> [usize; 4] {
        self.raw().nb
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn n_elements(self) -> u64 {
        self.ne()
            .iter()
            .fold(1, |n, &ne| n.saturating_mul(u64::try_from(ne).unwrap_or(0)))
    }

    /// Returns the operation's parameters.
    #[must_use]
    pub fn op_params(self) -> &'a [i32; 16] {
        &self.raw().op_params
    }

    /// Returns the host's name of the operation.
    #[must_use]
    pub fn op_name(self) -> String {
        self.api.op_name(self.op_code())
    }

    /// Returns the flags.
    #[must_use]
    pub fn flags(self) -> i32 {
        self.raw().flags
    }

    /// Returns operand `i`.
    #[must_use]
    pub fn src(self, i: usize) -> Option<Node<'a>> {
        let raw = self.raw().src.get(i).copied()?;
        NonNull::new(raw).map(|raw| Node {
            api: self.api,
            raw,
            call: PhantomData,
        })
    }

    /// Returns the operands that are there.
    pub fn srcs(self) -> impl Iterator<Item = Node<'a>> {
        (0..self.raw().src.len()).filter_map(move |i| self.src(i))
    }

    /// Returns the type of the buffer that holds the data, if it has one yet.
    fn buffer_type(self) -> Option<NonNull<sys::ggml_backend_buffer_type>> {
        let buffer = self.buffer()?;
        // SAFETY: the buffer of a live tensor is alive.
        NonNull::new(unsafe { (self.api.ggml_backend_buffer_get_type)(buffer.as_ptr()) })
    }

    fn buffer(self) -> Option<NonNull<sys::ggml_backend_buffer>> {
        let tensor = self.raw();
        NonNull::new(tensor.buffer).or_else(|| {
            let source = NonNull::new(tensor.view_src)?;
            // SAFETY: a live view's source is alive.
            NonNull::new(unsafe { source.as_ref() }.buffer)
        })
    }

    /// Returns the mark of the arrangement that the data lie in; `None` for ggml's layout.
    #[must_use]
    pub fn mark(self) -> Option<Mark> {
        let tensor = self.raw();
        let root = NonNull::new(tensor.view_src).map_or(tensor, |source| {
            // SAFETY: a live view's source is alive.
            unsafe { source.as_ref() }
        });
        Mark::of_address(root.extra as usize)
    }

    /// Returns at which byte of the viewed tensor the data start; 0 where this is no view.
    #[must_use]
    pub fn view_offset_bytes(self) -> usize {
        self.raw().view_offs
    }

    /// Tells whether the tensor is a view of another one's data.
    #[must_use]
    pub fn is_view(self) -> bool {
        !self.raw().view_src.is_null()
    }

    /// Returns the tensor whose data this one shows: itself, where it is no view.
    #[must_use]
    pub fn root(self) -> Self {
        NonNull::new(self.raw().view_src).map_or(self, |raw| Self { raw, ..self })
    }

    /// Returns what tells the tensor from all others of its graph.
    #[must_use]
    pub fn id(self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Returns the name that the host gave the tensor; empty where it gave none.
    #[must_use]
    pub fn name(self) -> String {
        let chars = self.raw().name.iter().map(|&c| c.to_ne_bytes()[0]); // signed on x86-64, unsigned on aarch64
        let bytes: Vec<u8> = chars.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns where the data lie, if all of them lie in the tensor's buffer.
    #[must_use]
    pub fn place(self) -> Option<Place> {
        let (data, size_bytes) = self.data()?;
        let buffer = self.buffer()?;
        // SAFETY: the buffer of a live tensor is alive.
        let usage = unsafe { (self.api.ggml_backend_buffer_get_usage)(buffer.as_ptr()) };
        Some(Place {
            address: data.as_ptr() as usize,
            size_bytes,
            is_scratch: usage == sys::GGML_BACKEND_BUFFER_USAGE_COMPUTE,
        })
    }

    /// Tells whether the data is part of a weight that the host keeps in plain memory, for its CPU to compute with.
    #[must_use]
    pub fn is_weight_of_cpu(self) -> bool {
        let Some((buffer, buft)) = self.buffer().zip(self.buffer_type()) else {
            return false;
        };
        // SAFETY: the buffer of a live tensor is alive.
        let usage = unsafe { (self.api.ggml_backend_buffer_get_usage)(buffer.as_ptr()) };
        // SAFETY: buffer types are static.
        usage == sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS
            && unsafe { (self.api.ggml_backend_buft_is_host)(buft.as_ptr()) }
    }

    /// Tells whether every operand lies in a buffer of `ours`, in plain host memory, or nowhere yet.
    pub(super) fn operands_reachable(self, ours: &[sys::ggml_backend_buffer_type_t]) -> bool {
        self.srcs().all(|src| {
            src.buffer_type().is_none_or(|buft| {
                ours.contains(&buft.as_ptr())
                    // SAFETY: buffer types are static.
                    || unsafe { (self.api.ggml_backend_buft_is_host)(buft.as_ptr()) }
            })
        })
    }

    /// Tells whether type, shape and strides are those of `other`.
    fn same_layout(self, other: Self) -> bool {
        self.type_() == other.type_() && self.ne() == other.ne() && self.nb() == other.nb()
    }

    /// Returns the bytes of the data, if all of them lie in the tensor's buffer.
    fn data(self) -> Option<(NonNull<u8>, usize)> {
        let buffer = self.buffer()?;
        // SAFETY: a live tensor.
        let size = unsafe { (self.api.ggml_nbytes)(self.raw.as_ptr()) };
        // SAFETY: the buffer of a live tensor is alive.
        let base = unsafe { (self.api.ggml_backend_buffer_get_base)(buffer.as_ptr()) };
        // SAFETY: as above.
        let room = unsafe { (self.api.ggml_backend_buffer_get_size)(buffer.as_ptr()) };
        let data = NonNull::new(self.raw().data.cast::<u8>())?;
        let offset = (data.as_ptr() as usize).checked_sub(base as usize)?;
        (offset.checked_add(size)? <= room).then_some((data, size))
    }
}

/// Where the data of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address of the first byte.
    pub address: usize,
    /// Bytes from the first to the last.
    pub size_bytes: usize,
    /// Whether other tensors of a graph may use the same memory before and after this one.
    pub is_scratch: bool,
}

/// Most operands that [`GraphView::operands`] lends.
pub const MAX_OPERANDS: usize = 5;

/// The data of one operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source<'a> {
    /// There is no such operand.
    #[default]
    Missing,
    /// It is the result's memory, type, shape and strides the same: what the result holds before it is written.
    InPlace,
    /// Bytes that the result does not overlap, first element first. Operands may overlap one another.
    Data(&'a [u8]),
}

/// The data of a node: its operands to read, its result to write.
#[derive(Debug)]
pub struct Operands<'a> {
    /// The result, from its first element to its last, gaps of its strides included.
    pub dst: &'a mut [u8],
    /// The operands.
    pub srcs: [Source<'a>; MAX_OPERANDS],
}

/// Non-owning view of a graph that is to be computed.
#[derive(Debug)]
pub struct GraphView<'a> {
    api: &'static Api,
    raw: NonNull<sys::ggml_cgraph>,
    call: PhantomData<&'a mut sys::ggml_cgraph>,
}

impl GraphView<'_> {
    /// Borrows a graph.
    ///
    /// # Safety
    /// `raw` is a live graph; during the lifetime its tensors are not changed, their memory is allocated, and nobody
    /// else writes what the graph reads or touches what it writes.
    pub(super) unsafe fn new(api: &'static Api, raw: *mut sys::ggml_cgraph) -> Self {
        let raw = NonNull::new(raw).expect("hosts pass graphs, not NULL");
        Self {
            api,
            raw,
            call: PhantomData,
        }
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        // SAFETY: a live graph.
        let n = unsafe { (self.api.ggml_graph_n_nodes)(self.raw.as_ptr()) };
        usize::try_from(n).unwrap_or(0)
    }

    /// Returns node `i`.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn node(&self, i: usize) -> Node<'_> {
        assert!(i < self.n_nodes(), "node {i} of {}", self.n_nodes());
        let i = i32::try_from(i).expect("ggml counts nodes in an int");
        // SAFETY: a live graph and an index inside it.
        let raw = unsafe { (self.api.ggml_graph_node)(self.raw.as_ptr(), i) };
        // SAFETY: a live graph's tensors are alive and unchanged, by the contract of `new`.
        unsafe { Node::new(self.api, raw) }
    }

    /// Returns how many operands node `i` is in the whole graph, of which this one may be a part. `None` where the host
    /// does not tell.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn n_uses(&self, i: usize) -> Option<usize> {
        let tensor = self.node(i).raw.as_ptr();
        // SAFETY: a live graph that is not changed while it is borrowed, by the contract of `new`.
        unsafe { uses::n_uses(self.api, self.raw, tensor) }
    }

    /// Borrows the data of node `i`. `None` where an operand overlaps the result without being the same
    /// ([`Source::InPlace`]), where something does not lie in its buffer, or where there are more operands than
    /// [`MAX_OPERANDS`].
    pub fn operands(&mut self, i: usize) -> Option<Operands<'_>> {
        let node = self.node(i);
        let (dst, dst_bytes) = node.data()?;
        if node.src(MAX_OPERANDS).is_some() {
            return None;
        }
        let mut srcs = [Source::Missing; MAX_OPERANDS];
        for (i, source) in srcs.iter_mut().enumerate() {
            let Some(src) = node.src(i) else { continue };
            let (data, bytes) = src.data()?;
            if !overlap((data, bytes), (dst, dst_bytes)) {
                // SAFETY: the bytes lie in the operand's buffer (`data`), are initialised as buffers start zeroed, do
                // not overlap what is lent for writing, and nobody else writes them while the graph is borrowed (`new`).
                *source = Source::Data(unsafe { std::slice::from_raw_parts(data.as_ptr(), bytes) });
            } else if data == dst && src.same_layout(node) {
                *source = Source::InPlace;
            } else {
                return None;
            }
        }
        // SAFETY: the bytes lie in the node's buffer and are initialised, overlap no operand that is lent (checked
        // above), and nobody else touches them while the graph is borrowed (`new`).
        let dst = unsafe { std::slice::from_raw_parts_mut(dst.as_ptr(), dst_bytes) };
        Some(Operands { dst, srcs })
    }

    /// Borrows the result of node `i` for writing: its bytes from the first element to the last, gaps of its strides
    /// included. `None` where it does not lie in its buffer.
    pub fn result(&mut self, i: usize) -> Option<&mut [u8]> {
        let (dst, dst_bytes) = self.node(i).data()?;
        // SAFETY: the bytes lie in the node's buffer and are initialised, as buffers start zeroed; nothing else of the
        // graph is lent, and nobody else touches them while the graph is borrowed (`new`).
        Some(unsafe { std::slice::from_raw_parts_mut(dst.as_ptr(), dst_bytes) })
    }

    /// Computes the nodes of `range` on the host's CPU backend.
    ///
    /// # Errors
    /// The status that it returned.
    ///
    /// # Panics
    /// When the range is not inside the graph.
    pub fn delegate(
        &mut self,
        range: Range<usize>,
        delegate: &mut Delegate,
        n_threads: u32,
    ) -> Result<(), Status> {
        // A view does not give a graph of its own away: the nodes enter one that lives until the next call.
        let nodes = range.map(|i| self.node(i).raw);
        // SAFETY: live tensors whose memory is ours for the time of the call, by the contract of `new`.
        unsafe { delegate.compute(nodes, n_threads) }
    }
}

impl Device {
    /// Tells whether the device computes `op` if all operands lie in memory that it can use: asks with a copy of the
    /// operation that says nothing about buffers.
    #[must_use]
    pub fn supports_op_anywhere(&self, op: Node<'_>) -> bool {
        let mut copy = *op.raw();
        copy.buffer = ptr::null_mut();
        let mut srcs = [copy; sys::GGML_MAX_SRC as usize];
        for (i, slot) in srcs.iter_mut().enumerate() {
            if let Some(src) = op.src(i) {
                *slot = *src.raw();
                slot.buffer = ptr::null_mut();
                copy.src[i] = slot;
            }
        }
        // SAFETY: the device is static; operation and operands live on the stack through the call, and their own
        // operands are those of `op`, which are alive.
        unsafe { (op.api.ggml_backend_dev_supports_op)(self.as_raw(), &raw const copy) }
    }
}

fn overlap(a: (NonNull<u8>, usize), b: (NonNull<u8>, usize)) -> bool {
    let (a_start, b_start) = (a.0.as_ptr() as usize, b.0.as_ptr() as usize);
    a_start < b_start + b.1 && b_start < a_start + a.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ranges_do_not_overlap() {
        let at = |address: usize| NonNull::new(ptr::without_provenance_mut(address)).unwrap();
        assert!(!overlap((at(100), 10), (at(110), 5)));
        assert!(overlap((at(100), 11), (at(110), 5)));
        assert!(overlap((at(100), 50), (at(110), 5)));
    }
}
