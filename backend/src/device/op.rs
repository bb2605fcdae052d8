//! An operation as devices see it: what is asked, how operands lie, and their bytes.
//!
//! [`Spec`] is all that decides whether an operation is native: kind and parameters ([`Op`]), types, shapes and strides
//! ([`Layout`]). [`Task`] adds the data. Shapes and strides are ggml's: fastest dimension first, strides in bytes.

use llada_npu_ffi::ggml::Type;
use llada_npu_ffi::ggml::plugin::view::MAX_OPERANDS;
pub use llada_npu_ffi::ggml::plugin::view::Source;

use llada_npu_kernels::op::binary::BinaryOp;
use llada_npu_kernels::op::glu::GluOp;
use llada_npu_kernels::op::rope::RopeParams;
use llada_npu_kernels::op::unary::UnaryOp;

use super::{FlashAttnParams, OperandError};
use crate::memory::KvTiles;
use crate::memory::PlainGuard;

/// An operation and its parameters. `src0`… are the operands in ggml's order.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Matrix product of `src0` and `src1`.
    MulMat,
    /// Attention of `src0` over the keys `src1` and the values `src2`, with the mask `src3` if it is there.
    FlashAttnExt(FlashAttnParams),
    /// An operation by element on `src0` and `src1`, which repeats to the shape of `src0`.
    Binary(BinaryOp),
    /// Copy of `src0` into the result, whose type and shape are its own; elements in order.
    Cpy,
    /// Rows of `src0` `[n, rows, …]` at the i32 indices `src1` `[n_ids, …]`, as f32.
    GetRows,
    /// A gated linear unit of the rows of `src0` and `src1`, or of the halves of those of `src0`.
    Glu {
        /// Which one.
        op: GluOp,
        /// Whether the gate is the second half.
        swapped: bool,
    },
    /// Normalisation of rows to mean 0 and variance 1.
    Norm {
        /// Added to the variance.
        eps: f32,
    },
    /// Normalisation of rows by their root mean square.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// Rotary embedding of `src0` `[n, heads, positions, …]` at the i32 positions `src1`, frequencies divided by `src2`
    /// if it is there.
    Rope(RopeParams),
    /// `src0 * scale + bias`.
    Scale {
        /// Factor.
        scale: f32,
        /// Summand.
        bias: f32,
    },
    /// Writes the rows of `src0` at the i32 or i64 indices `src1` of the result, which `src2` shows before.
    SetRows,
    /// Softmax of the rows of `src0`, the mask `src1` and one sink per head in `src2` if they are there.
    SoftMax {
        /// Factor of `src0`.
        scale: f32,
        /// `ALiBi`: steepest slope of the mask is 2 to minus 8 times this share; 0 is none.
        max_bias: f32,
    },
    /// A function of every element.
    Unary(UnaryOp),
    /// Matrix product of rows of `src1` with the planes of `src0` that `src2` says.
    MulMatId,
    /// The same with `src1` and `src2` in tiles, from the first position of a block on.
    FlashAttnTiles(FlashAttnParams),
    /// Writes the f32 rows `src0` at the i64 or i32 indices `src1` of the result, in tiles, which `src2` shows before.
    SetKvRows(KvTiles),
}

/// Type, shape and strides of a tensor in plain memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Element type.
    pub type_: Type,
    /// Shape.
    pub ne: [usize; 4],
    /// Strides in bytes.
    pub nb: [usize; 4],
}

impl Layout {
    /// Returns the layout of a tensor without gaps whose elements have `type_size` bytes each.
    #[must_use]
    pub fn contiguous(type_: Type, type_size: usize, ne: [usize; 4]) -> Self {
        let mut nb = [type_size; 4];
        for dim in 1..4 {
            nb[dim] = nb[dim - 1].saturating_mul(ne[dim - 1]);
        }
        Self { type_, ne, nb }
    }

    /// Tells whether there are no gaps between elements of `type_size` bytes; strides of dimensions of one element have
    /// no say.
    #[must_use]
    pub fn is_contiguous(&self, type_size: usize) -> bool {
        let mut expected = type_size;
        for (ne, nb) in self.ne.into_iter().zip(self.nb) {
            if ne != 1 && nb != expected {
                return false;
            }
            expected = expected.saturating_mul(ne);
        }
        true
    }

    /// Tells whether no two rows of `row_size` bytes overlap, whatever the order of the dimensions in memory.
    #[must_use]
    pub fn has_disjoint_rows(&self, row_size: usize) -> bool {
        let mut dims = [1, 2, 3];
        dims.sort_unstable_by_key(|&dim| self.nb[dim]);
        let mut span = row_size;
        for dim in dims.into_iter().filter(|&dim| self.ne[dim] > 1) {
            if self.nb[dim] < span {
                return false;
            }
            let Some(larger) = (self.ne[dim] - 1).checked_mul(self.nb[dim]) else {
                return false;
            };
            span = larger.saturating_add(span);
        }
        true
    }

    /// Returns the number of elements, or `None` when that overflows.
    #[must_use]
    pub fn n_elements(&self) -> Option<usize> {
        self.ne.iter().try_fold(1usize, |n, &ne| n.checked_mul(ne))
    }

    /// Returns the bytes from the first to the end of the last row of `row_size` bytes, or `None` when that overflows.
    #[must_use]
    pub fn span_bytes(&self, row_size: usize) -> Option<usize> {
        if self.ne.contains(&0) {
            return Some(0);
        }
        (1..4).try_fold(row_size, |span, dim| {
            (self.ne[dim] - 1)
                .checked_mul(self.nb[dim])?
                .checked_add(span)
        })
    }

    /// Returns the number of rows: of all dimensions but the first.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.ne[1..].iter().product()
    }
}

/// An operation without its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// What is asked.
    pub op: Op,
    /// The result.
    pub dst: Layout,
    /// The operands that are there.
    pub srcs: [Option<Layout>; MAX_OPERANDS],
}

impl Spec {
    /// Returns the layout of operand `i`.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn src(&self, i: usize) -> Result<&Layout, OperandError> {
        let src = self.srcs.get(i).and_then(Option::as_ref);
        src.ok_or(OperandError::Missing { src: i })
    }
}

/// An operation with its data.
#[derive(Debug)]
pub struct Task<'a> {
    /// What is asked, and how everything lies.
    pub spec: Spec,
    /// The result, from its first to its last element.
    pub dst: &'a mut [u8],
    /// The operands.
    pub srcs: [Source<'a>; MAX_OPERANDS],
    /// Where the tiles of `src0` are found, if it is a weight: a tensor whose memory is its own from graph to graph.
    pub weights: Option<&'a PlainGuard<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguity_ignores_strides_of_single_elements() {
        let contiguous = |ne, nb| {
            let type_ = Type::F32;
            Layout { type_, ne, nb }.is_contiguous(4)
        };
        assert!(contiguous([3, 2, 1, 1], [4, 12, 24, 24]));
        assert!(contiguous([3, 1, 2, 1], [4, 999, 12, 1]));
        assert!(!contiguous([3, 2, 1, 1], [4, 16, 32, 32]));
        assert!(!contiguous([3, 2, 1, 1], [8, 24, 48, 48]));
        let layout = Layout::contiguous(Type::F16, 2, [3, 2, 5, 1]);
        assert_eq!(layout.nb, [2, 6, 12, 60]);
        assert!(layout.is_contiguous(2));
        assert_eq!((layout.n_elements(), layout.n_rows()), (Some(30), 10));
    }

    #[test]
    fn rows_that_overlap_are_found_in_any_order_of_dimensions() {
        let disjoint = |ne, nb, row_size| {
            let type_ = Type::F32;
            Layout { type_, ne, nb }.has_disjoint_rows(row_size)
        };
        assert!(disjoint([2, 3, 4, 5], [4, 8, 24, 96], 8));
        assert!(disjoint([2, 3, 4, 5], [4, 160, 8, 32], 8));
        assert!(!disjoint([2, 3, 4, 5], [4, 8, 16, 96], 8));
        assert!(!disjoint([2, 3, 1, 1], [4, 4, 0, 0], 8));
        assert!(!disjoint([2, 3, 1, 1], [4, 0, 0, 0], 8));
        assert!(disjoint([2, 1, 1, 1], [4, 0, 0, 0], 8));
    }
}
