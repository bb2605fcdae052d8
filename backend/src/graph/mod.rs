//! Reading a ggml graph: what each node is, what it costs, and who computes it.
//!
//! A graph is cut into [`Segment`]s: single nodes that we compute, and runs of nodes that the host's CPU backend
//! computes in one call. Planning is pure; [`describe`] is the only part that looks at a graph.

#![deny(unsafe_code)]

mod segment;

pub use segment::{Segment, Work, n_threads_for, segments};

use llada_npu_ffi::ggml::Type;
use llada_npu_ffi::ggml::plugin::view::Node;
use llada_npu_ffi::ggml::types::{Op, OpCodes};
use llada_npu_kernels::WeightType;

use crate::device::MulMatShape;

/// Says what a node is, given which products are computed by us.
#[must_use]
pub fn describe(
    codes: &OpCodes,
    node: Node<'_>,
    is_native: impl FnOnce(&MulMatShape) -> bool,
) -> Work {
    let op = codes.classify(node.op_code());
    if !codes.is_computed(node.flags()) || matches!(op, Op::None | Op::View) {
        return Work::Nothing;
    }
    if op == Op::MulMat && mul_mat_shape(node).is_some_and(|shape| is_native(&shape)) {
        return Work::Native;
    }
    Work::Delegated {
        cost: cost(op, node),
    }
}

/// Returns the shape of a `MUL_MAT` node whose types are those of our kernels: f32 activations and result, and weights
/// of a [`WeightType`].
#[must_use]
pub fn mul_mat_shape(node: Node<'_>) -> Option<MulMatShape> {
    let (src0, src1) = (node.src(0)?, node.src(1)?);
    if src1.type_() != Type::F32 || node.type_() != Type::F32 {
        return None;
    }
    // The first parameter is a wish for precision, which we meet; others change what is computed or how.
    if node.op_params()[1..].iter().any(|&param| param != 0) {
        return None;
    }
    Some(MulMatShape {
        ty: WeightType::from_ggml_type(src0.type_().0)?,
        ne0: sizes(src0.ne())?,
        nb0: src0.nb(),
        ne1: sizes(src1.ne())?,
        nb1: src1.nb(),
    })
}

fn sizes(ne: [i64; 4]) -> Option<[usize; 4]> {
    let [a, b, c, d] = ne.map(usize::try_from);
    Some([a.ok()?, b.ok()?, c.ok()?, d.ok()?])
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
