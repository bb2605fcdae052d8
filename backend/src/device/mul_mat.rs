//! The operands of ggml's `MUL_MAT`, with every extent checked before anything is read.

use bytemuck::try_cast_slice_mut;
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::WeightType;

use super::{Layout, OperandError, Source, Spec, Task};

/// Bytes of a tensor and how they are laid out.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The data, first element first.
    pub data: &'a [u8],
    /// Shape, ggml order (fastest first).
    pub ne: [usize; 4],
    /// Strides in bytes.
    pub nb: [usize; 4],
}

/// A product: `dst[i3][i2][i1][i0] = sum over k of src0[i3 / r3][i2 / r2][i0][k] * src1[i3][i2][i1][k]`, where `r2` and
/// `r3` are how often `src1` repeats the outer dimensions of `src0`. Arithmetic: [`llada_npu_kernels::op::mul_mat`].
///
/// No operand needs alignment. Rows must be contiguous, everything else may have any stride.
#[derive(Debug)]
pub struct MulMat<'a> {
    /// Element type of `src0`.
    pub ty: WeightType,
    /// The weights: `[k, n, n2, n3]`.
    pub src0: Operand<'a>,
    /// The activations: f32 `[k, m, r2 * n2, r3 * n3]`.
    pub src1: Operand<'a>,
    /// The product: contiguous `[n, m, r2 * n2, r3 * n3]`.
    pub dst: &'a mut [f32],
}

/// Shapes and strides of a product, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulMatShape {
    /// Element type of `src0`.
    pub ty: WeightType,
    /// Shape of `src0`.
    pub ne0: [usize; 4],
    /// Strides of `src0` in bytes.
    pub nb0: [usize; 4],
    /// Shape of `src1`.
    pub ne1: [usize; 4],
    /// Strides of `src1` in bytes.
    pub nb1: [usize; 4],
}

impl MulMatShape {
    /// Reads the shape of a product: f32 `src1` and contiguous f32 result, `src0` of a type with kernels.
    ///
    /// # Errors
    ///
    /// When it is another.
    pub fn of(spec: &Spec) -> Result<Self, OperandError> {
        let (src0, src1) = (spec.src(0)?, spec.src(1)?);
        let type_ = src0.type_;
        let ty = WeightType::from_ggml_type(type_.0).ok_or(OperandError::Type { src: 0, type_ })?;
        if src1.type_ != Type::F32 {
            let type_ = src1.type_;
            return Err(OperandError::Type { src: 1, type_ });
        }
        let [_, m, ne2, ne3] = src1.ne;
        let is_product = |dst: &Layout| {
            dst.type_ == Type::F32 && dst.ne == [src0.ne[1], m, ne2, ne3] && dst.is_contiguous(4)
        };
        if !is_product(&spec.dst) {
            return Err(OperandError::Dst);
        }
        Ok(Self {
            ty,
            ne0: src0.ne,
            nb0: src0.nb,
            ne1: src1.ne,
            nb1: src1.nb,
        })
    }

    /// Checks that this is a product the kernels can compute.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), OperandError> {
        let (k0, k1) = (self.ne0[0], self.ne1[0]);
        if k0 != k1 {
            return Err(OperandError::RowLength { k0, k1 });
        }
        if self.ty.row_size(k0).is_none() {
            return Err(OperandError::PartialBlock { ty: self.ty, k: k0 });
        }
        for dim in [2, 3] {
            let (ne0, ne1) = (self.ne0[dim], self.ne1[dim]);
            // 0 is a multiple of everything, but only of 0 where nothing repeats.
            if ne0 == 0 && ne1 != 0 || ne0 != 0 && !ne1.is_multiple_of(ne0) {
                return Err(OperandError::Broadcast { dim, ne0, ne1 });
            }
        }
        let strides = [
            (0, self.nb0[0], self.ty.type_size()),
            (1, self.nb1[0], size_of::<f32>()),
        ];
        for (src, nb, expected) in strides {
            if nb != expected {
                return Err(OperandError::RowStride { src, nb, expected });
            }
        }
        Ok(())
    }

    /// Returns the bytes from the first to the last of `src0`, or `None` when that overflows.
    #[must_use]
    pub fn src0_span_bytes(&self) -> Option<usize> {
        span_bytes(self.ty, self.ne0, self.nb0)
    }

    /// Returns the bytes from the first to the last of `src1`, or `None` when that overflows.
    #[must_use]
    pub fn src1_span_bytes(&self) -> Option<usize> {
        span_bytes(WeightType::F32, self.ne1, self.nb1)
    }

    /// Returns the elements of the product, or `None` when that overflows.
    #[must_use]
    pub fn dst_len(&self) -> Option<usize> {
        self.ne1[1..]
            .iter()
            .try_fold(self.ne0[1], |n, &ne| n.checked_mul(ne))
    }
}

fn span_bytes(ty: WeightType, ne: [usize; 4], nb: [usize; 4]) -> Option<usize> {
    if ne.contains(&0) {
        return Some(0);
    }
    (1..4).try_fold(ty.row_size(ne[0])?, |span, dim| {
        (ne[dim] - 1).checked_mul(nb[dim])?.checked_add(span)
    })
}

impl<'a> MulMat<'a> {
    /// Takes the operands of a product.
    ///
    /// # Errors
    ///
    /// When they are not those of a product; their extents are not checked yet ([`Self::check`]).
    pub fn new(task: Task<'a>) -> Result<Self, OperandError> {
        let shape = MulMatShape::of(&task.spec)?;
        let data = |src: usize| match task.srcs[src] {
            Source::Data(data) => Ok(data),
            Source::InPlace => Err(OperandError::InPlace { src }),
            Source::Missing => Err(OperandError::Missing { src }),
        };
        Ok(Self {
            ty: shape.ty,
            src0: Operand {
                data: data(0)?,
                ne: shape.ne0,
                nb: shape.nb0,
            },
            src1: Operand {
                data: data(1)?,
                ne: shape.ne1,
                nb: shape.nb1,
            },
            dst: try_cast_slice_mut(task.dst).map_err(|_unaligned| OperandError::Dst)?,
        })
    }

    /// Returns shapes and strides.
    #[must_use]
    pub fn shape(&self) -> MulMatShape {
        MulMatShape {
            ty: self.ty,
            ne0: self.src0.ne,
            nb0: self.src0.nb,
            ne1: self.src1.ne,
            nb1: self.src1.nb,
        }
    }

    /// Checks that this is a product the kernels can compute, and that all of it lies inside its slices.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<MulMatShape, OperandError> {
        let shape = self.shape();
        shape.check()?;
        let operands = [
            (0, shape.src0_span_bytes(), self.src0.data.len()),
            (1, shape.src1_span_bytes(), self.src1.data.len()),
        ];
        for (src, span, available) in operands {
            if span.is_none_or(|span| span > available) {
                return Err(OperandError::TooShort { src, available });
            }
        }
        let (len, expected) = (self.dst.len(), shape.dst_len().unwrap_or(usize::MAX));
        if len != expected {
            return Err(OperandError::OutputLength { len, expected });
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MulMatShape = MulMatShape {
        ty: WeightType::Q8_0,
        ne0: [64, 5, 2, 1],
        nb0: [34, 68, 340, 680],
        ne1: [64, 3, 4, 3],
        nb1: [4, 256, 768, 3072],
    };

    #[test]
    fn what_is_not_a_product_is_refused() {
        use OperandError::*;
        let with = |change: fn(&mut MulMatShape)| {
            let mut shape = SHAPE;
            change(&mut shape);
            shape.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|s| s.ne1[0] = 32), Err(RowLength { k0: 64, k1: 32 }));
        let partial = PartialBlock {
            ty: WeightType::Q8_0,
            k: 33,
        };
        assert_eq!(with(|s| (s.ne0[0], s.ne1[0]) = (33, 33)), Err(partial));
        let broadcast = |dim, ne0, ne1| Err(Broadcast { dim, ne0, ne1 });
        assert_eq!(with(|s| s.ne0[2] = 3), broadcast(2, 3, 4));
        assert_eq!(with(|s| s.ne0[3] = 2), broadcast(3, 2, 3));
        assert_eq!(with(|s| s.ne0[3] = 0), broadcast(3, 0, 3));
        assert_eq!(with(|s| (s.ne0[3], s.ne1[3]) = (0, 0)), Ok(()));
        assert_eq!(with(|s| s.ne1[3] = 0), Ok(()));
        let stride = |src, nb, expected| Err(RowStride { src, nb, expected });
        assert_eq!(with(|s| s.nb0[0] = 68), stride(0, 68, 34));
        assert_eq!(with(|s| s.nb1[0] = 8), stride(1, 8, 4));
    }

    #[test]
    fn slices_must_hold_the_whole_product() {
        let (mut dst, src0, src1) = (vec![0.0; 5 * 3 * 4 * 3], vec![0; 680], vec![0; 9216]);
        assert_eq!(SHAPE.src0_span_bytes(), Some(680));
        assert_eq!(SHAPE.src1_span_bytes(), Some(9216));
        let mut check = |n0: usize, n1: usize, n: usize, nb03: usize| {
            let (ne0, ne1, nb1) = (SHAPE.ne0, SHAPE.ne1, SHAPE.nb1);
            let src0 = Operand {
                data: &src0[..n0],
                ne: ne0,
                nb: [34, 68, 340, nb03],
            };
            let src1 = Operand {
                data: &src1[..n1],
                ne: ne1,
                nb: nb1,
            };
            let dst = &mut dst[..n];
            let ty = SHAPE.ty;
            #[rustfmt::skip]
            let op = MulMat { ty, src0, src1, dst };
            op.check().map(|_| ())
        };
        // The stride of a dimension of size 1 does not count.
        assert_eq!(check(680, 9216, 180, usize::MAX), Ok(()));
        let short = |src, available| Err(OperandError::TooShort { src, available });
        assert_eq!(check(679, 9216, 180, 680), short(0, 679));
        assert_eq!(check(680, 9215, 180, 680), short(1, 9215));
        let len = Err(OperandError::OutputLength {
            len: 179,
            expected: 180,
        });
        assert_eq!(check(680, 9216, 179, 680), len);
    }

    #[test]
    fn sizes_that_overflow_are_no_size() {
        let mut shape = SHAPE;
        shape.nb0[1] = usize::MAX / 2;
        assert_eq!(shape.src0_span_bytes(), None);
        shape.ne1 = [64, usize::MAX / 2, 4, 3];
        assert_eq!(shape.dst_len(), None);
    }
}
