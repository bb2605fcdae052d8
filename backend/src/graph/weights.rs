//! What a node means for repacked weights: whose plain bytes it reads, and what it overwrites.

use llada_npu_ffi::ggml::op::{Op, OpCodes};
use llada_npu_ffi::ggml::plugin::view::{Node, Place};
use llada_npu_kernels::tile::TileType;

use crate::memory::PlainGuard;

/// Returns where a tensor lies, if it is a weight that may have tiles: not the result of an operation, not a part of another tensor, in memory
/// that no other tensor of a graph uses.
#[must_use]
pub fn is_weight(codes: &OpCodes, tensor: Node<'_>) -> Option<Place> {
    let may_have_tiles = TileType::from_ggml_type(tensor.type_().0).is_some();
    may_have_tiles.then(|| leaf(codes, tensor)).flatten()
}

/// Returns where a tensor of any type lies, if it is a weight.
#[must_use]
pub(super) fn leaf(codes: &OpCodes, tensor: Node<'_>) -> Option<Place> {
    let is_leaf = codes.classify(tensor.op_code()) == Op::None && !tensor.is_view();
    let place = is_leaf.then(|| tensor.place()).flatten()?;
    (!place.is_scratch).then_some(place)
}

/// Prepares weights for a node that is about to be computed: the plain bytes that it reads are there, and tiles of what it
/// overwrites are forgotten. `has_weight`: its first operand is looked for among the tiles.
pub fn settle(codes: &OpCodes, weights: &PlainGuard<'_>, node: Node<'_>, has_weight: bool) {
    if !weights.repacks() && !weights.is_watched() {
        return;
    }
    for src in node.srcs().skip(usize::from(has_weight)) {
        if let Some(place) = src.place()
            && !place.is_scratch
        {
            let is_weight = is_weight(codes, src).is_some();
            weights.use_plain(place.address, place.size_bytes, is_weight);
        }
    }
    if let Some(place) = node.place()
        && !place.is_scratch
    {
        weights.written(place.address, place.size_bytes);
    }
}
