//! Reading a ggml graph: what each node is, what it costs, and who computes it.
//!
//! A graph is cut into [`Segment`]s: single nodes that we compute, and runs of nodes that the host's CPU backend
//! computes in one call. An accelerator may take [`DensePlan`]s, whole parts around weights. Planning is pure; [`describe`] and [`classify`] are the only parts that look at a graph.

#![deny(unsafe_code)]

mod dense;
mod facts;
mod low_rank;
mod objects;
mod params;
mod segment;
mod weights;

pub use dense::{DensePlan, Role, find};
pub use facts::{Fact, facts};
pub use objects::{GraphObjects, ObjectSource, Server, objects, signature};
pub use segment::{Segment, Work, cut, n_threads_for};
pub use weights::{is_weight, settle};

use llada_npu_ffi::ggml::Type;
use llada_npu_ffi::ggml::op::{self, OpCodes};
use llada_npu_ffi::ggml::plugin::view::Node;

use llada_npu_ffi::ggml::plugin::Arrangement;
use llada_npu_kernels::tile::TILE;

use crate::device::{FlashAttnParams, Layout, Op, Spec};
use crate::memory::KvTiles;
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
        op::Op::FlashAttnExt if is_kv_tiles(node) => Op::FlashAttnTiles(flash_attn(params)?),
        op::Op::SetRows if node.mark().is_some() => Op::SetKvRows(KvTiles::of_mark(node.mark()?)?),
        // Nothing else reads or writes tiles.
        _ if touches_tiles(node) => return None,
        op::Op::MulMat if is_plain_product(node) => Op::MulMat,
        op::Op::FlashAttnExt => Op::FlashAttnExt(flash_attn(params)?),
        op::Op::MulMatId if is_plain_product(node) => Op::MulMatId,
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

/// Place of the wish for precise sums among a product's parameters, and of that for precise rows of x.
const PRECISION: [usize; 2] = [0, 3];

/// Tells whether a host wishes for more precision than half floats have.
fn wishes_precision(node: Node<'_>) -> bool {
    PRECISION.iter().any(|&i| node.op_params()[i] != 0)
}

/// Tells whether a product has no parameters but wishes for precision, others changing what is computed or how. Sums are f32.
/// Quantised weights meet quantised rows of x, here as in ggml's CPU backend; half floats might not hold them.
fn is_plain_product(node: Node<'_>) -> bool {
    let params = node.op_params();
    let holds_x = params[PRECISION[1]] == 0 || node.src(0).is_some_and(|w| w.type_() != Type::F16);
    let others = |(i, &param): (usize, &i32)| param == 0 || PRECISION.contains(&i);
    holds_x && params.iter().enumerate().all(others)
}

/// Tells whether an operand or the result lies in tiles: nobody but us computes such an operation.
#[must_use]
pub fn touches_tiles(node: Node<'_>) -> bool {
    node.mark().is_some() || node.srcs().any(|src| src.mark().is_some())
}

/// Tells whether K and V of attention, and nothing else of it, lie in tiles, from the first position of a block on.
fn is_kv_tiles(node: Node<'_>) -> bool {
    let is = |i: usize, tiles: KvTiles| {
        node.src(i).is_some_and(|src| {
            let block = src.nb()[1].saturating_mul(TILE);
            src.mark() == Some(tiles.mark())
                && block > 0
                && src.view_offset_bytes().is_multiple_of(block)
        })
    };
    let others = [Some(node), node.src(0), node.src(3), node.src(4)];
    let is_plain = |node: Node<'_>| node.mark().is_none();
    is(1, KvTiles::K) && is(2, KvTiles::V) && others.into_iter().flatten().all(is_plain)
}

/// Reads the parameters of attention: scale, bias and bound, then a wish for precision and a bound of the positions that
/// a row sees, which change nothing; others might.
fn flash_attn(params: &[i32; 16]) -> Option<FlashAttnParams> {
    let known = params[5..].iter().all(|&param| param == 0);
    known.then(|| FlashAttnParams {
        scale: float(params[0]),
        max_bias: float(params[1]),
        softcap: float(params[2]),
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
