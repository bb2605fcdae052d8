//! Reading a ggml graph: what each node is, what it costs, and who computes it.
//!
//! A graph is cut into [`Segment`]s: single nodes that we compute, and runs of nodes that the host's CPU backend
//! computes in one call. Planning is pure; [`describe`] and [`classify`] are the only parts that look at a graph.

#![deny(unsafe_code)]

mod params;
mod segment;
mod weights;

pub use segment::{Segment, Work, cut, n_threads_for};
pub use weights::{is_weight, settle};

use llada_npu_ffi::ggml::op::{self, OpCodes};
use llada_npu_ffi::ggml::plugin::view::Node;

use crate::device::{FlashAttnParams, Layout, Op, Spec};
use params::{binary_op, float, glu_op, rope_params, unary_op};

/// Says what a node is, given which operations are computed by us.
#[must_use]
pub fn classify(codes: &OpCodes, node: Node<'_>, is_native: impl FnOnce(&Spec) -> bool) -> Work {
    let op = codes.classify(node.op_code());
    if !codes.is_computed(node.flags()) || matches!(op, op::Op::None | op::Op::View) {
        return Work::Nothing;
    }
    if describe(codes, node).is_some_and(|spec| is_native(&spec)) {
        return Work::Native;
    }
    Work::Delegated {
        cost: cost(op, node),
    }
}

/// Reads an operation that we may have a kernel for; `None` for all others.
#[must_use]
pub fn describe(codes: &OpCodes, node: Node<'_>) -> Option<Spec> {
    let params = node.op_params();
    let op = match codes.classify(node.op_code()) {
        // The first parameter is a wish for precision, which we meet; others change what is computed or how.
        op::Op::MulMat if params[1..].iter().all(|&param| param == 0) => Op::MulMat,
        op::Op::FlashAttnExt => Op::FlashAttnExt(flash_attn(params)?),
        op::Op::MulMatId if params[1..].iter().all(|&param| param == 0) => Op::MulMatId,
        op::Op::Binary(op) => Op::Binary(binary_op(op)),
        op::Op::Cpy => Op::Cpy,
        op::Op::GetRows => Op::GetRows,
        op::Op::Glu => Op::Glu {
            op: glu_op(codes.glu(params[0])?, float(params[2]), float(params[3]))?,
            swapped: params[1] != 0,
        },
        op::Op::Norm => Op::Norm {
            eps: float(params[0]),
        },
        op::Op::RmsNorm => Op::RmsNorm {
            eps: float(params[0]),
        },
        op::Op::Rope => Op::Rope(rope_params(params)?),
        op::Op::Scale => Op::Scale {
            scale: float(params[0]),
            bias: float(params[1]),
        },
        op::Op::SetRows => Op::SetRows,
        op::Op::SoftMax => Op::SoftMax {
            scale: float(params[0]),
            max_bias: float(params[1]),
        },
        op::Op::Unary => Op::Unary(unary_op(codes.unary(params[0])?)?),
        _ => return None,
    };
    let mut srcs = [None; _];
    for (i, src) in srcs.iter_mut().enumerate() {
        *src = match node.src(i) {
            Some(node) => Some(layout(node)?),
            None => None,
        };
    }
    let dst = layout(node)?;
    Some(Spec { op, dst, srcs })
}

/// Reads the parameters of attention: scale, bias and bound, then a wish for precision and a bound of the positions that
/// a row sees, which change nothing; others might.
fn flash_attn(params: &[i32; 16]) -> Option<FlashAttnParams> {
    let float = |i: usize| f32::from_bits(params[i].cast_unsigned());
    let known = params[5..].iter().all(|&param| param == 0);
    known.then(|| FlashAttnParams {
        scale: float(0),
        max_bias: float(1),
        softcap: float(2),
    })
}

fn layout(node: Node<'_>) -> Option<Layout> {
    let mut ne = [0; 4];
    for (size, ne) in ne.iter_mut().zip(node.ne()) {
        *size = usize::try_from(ne).ok()?;
    }
    Some(Layout {
        type_: node.type_(),
        ne,
        nb: node.nb(),
    })
}

/// Estimates the work of a delegated node in element operations.
fn cost(op: op::Op, node: Node<'_>) -> u64 {
    let elements = |i: usize| node.src(i).map_or(0, Node::n_elements);
    let ne = |i: usize, dim: usize| {
        node.src(i)
            .map_or(0, |src| u64::try_from(src.ne()[dim]).unwrap_or(0))
    };
    match op {
        // Every element of the result is a sum over the rows of the weights.
        op::Op::MulMat | op::Op::MulMatId => node.n_elements().saturating_mul(ne(0, 0)),
        // Every element of the queries meets every key, and their weight every value.
        op::Op::FlashAttnExt => elements(0).saturating_mul(ne(1, 1)).saturating_mul(2),
        _ => node.n_elements().max(elements(0)).max(elements(1)),
    }
}
