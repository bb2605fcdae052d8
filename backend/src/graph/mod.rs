//! Reading a ggml graph: what each node is, what it costs, and who computes it.
//!
//! A graph is cut into [`Segment`]s: single nodes that we compute, and runs of nodes that the host's CPU backend
//! computes in one call. Planning is pure; [`describe`] is the only part that looks at a graph.

#![deny(unsafe_code)]

mod segment;

pub use segment::{Segment, Work, n_threads_for, segments};

use llada_npu_ffi::ggml::plugin::view::Node;
use llada_npu_ffi::ggml::types::{Op, OpCodes};

/// Says what a node is, given whether a kernel of ours could compute it.
#[must_use]
pub fn describe(codes: &OpCodes, node: Node<'_>, is_native: impl FnOnce(Node<'_>) -> bool) -> Work {
    let op = codes.classify(node.op_code());
    if !codes.is_computed(node.flags()) || matches!(op, Op::None | Op::View) {
        return Work::Nothing;
    }
    if op == Op::MulMat && is_native(node) {
        return Work::Native;
    }
    Work::Delegated {
        cost: cost(op, node),
    }
}

/// Estimates the work of a delegated node in element operations.
fn cost(op: Op, node: Node<'_>) -> u64 {
    let elements = |i: usize| node.src(i).map_or(0, Node::n_elements);
    let ne = |i: usize, dim: usize| {
        node.src(i)
            .map_or(0, |src| u64::try_from(src.ne()[dim]).unwrap_or(0))
    };
    match op {
        // Every element of the result is a sum over the rows of the weights.
        Op::MulMat | Op::MulMatId => node.n_elements().saturating_mul(ne(0, 0)),
        // Every element of the queries meets every key, and their weight every value.
        Op::FlashAttnExt => elements(0).saturating_mul(ne(1, 1)).saturating_mul(2),
        _ => node.n_elements().max(elements(0)).max(elements(1)),
    }
}
