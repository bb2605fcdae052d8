//! Products of f16 with f16: x becomes f32, which is exact, and the product one with f32 x.

use bytemuck::cast_slice;
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::WeightType;
use llada_npu_kernels::op::convert::dequantize_row;

use super::disjoint::Disjoint;
use super::pool::Pool;
use crate::device::{DeviceError, Layout, Op, OperandError, Source, Spec, Task};

/// Elements that are worth claiming an item for.
const ITEM_ELEMENTS: usize = 1 << 14;

/// Returns a product of f16 with f16 as one with f32 x without gaps; `None` for everything else.
pub(super) fn widened(spec: &Spec) -> Option<Spec> {
    let (src0, src1) = (spec.src(0).ok()?, spec.src(1).ok()?);
    let is_half = |layout: &Layout| layout.type_ == Type::F16 && layout.nb[0] == size_of::<u16>();
    if spec.op != Op::MulMat || !is_half(src0) || !is_half(src1) {
        return None;
    }
    let mut wide = *spec;
    wide.srcs[1] = Some(Layout::contiguous(Type::F32, size_of::<f32>(), src1.ne));
    Some(wide)
}

/// Writes the x of a product of f16 with f16 to `out`, and returns the product with it.
///
/// # Errors
///
/// When x does not lie inside its bytes, or memory is short.
pub(super) fn widen<'a>(
    pool: &mut Pool,
    task: Task<'a>,
    spec: Spec,
    out: &'a mut Vec<f32>,
) -> Result<Task<'a>, DeviceError> {
    let x = *task.spec.src(1)?;
    let Source::Data(data) = task.srcs[1] else {
        return Err(OperandError::Missing { src: 1 }.into());
    };
    let row_size = x.ne[0].saturating_mul(size_of::<u16>());
    let available = data.len();
    if x.span_bytes(row_size).is_none_or(|span| span > available) {
        return Err(OperandError::TooShort { src: 1, available }.into());
    }
    // No overflow: unless there is none, every element has bytes of its own or shares those of a row.
    let n_elements = x.n_elements().ok_or(DeviceError::OutOfMemory {
        size_bytes: usize::MAX,
    })?;
    out.clear();
    out.try_reserve(n_elements)
        .map_err(|_refused| DeviceError::OutOfMemory {
            size_bytes: n_elements.saturating_mul(size_of::<f32>()),
        })?;
    out.resize(n_elements, 0.0);
    if n_elements > 0 {
        let (k, n_rows) = (x.ne[0], x.n_rows());
        let per_item = (ITEM_ELEMENTS / k).max(1);
        let rows = Disjoint::new(out.as_mut_slice());
        pool.for_each(n_rows.div_ceil(per_item), |item| {
            for row in item * per_item..n_rows.min((item + 1) * per_item) {
                let (i1, rest) = (row % x.ne[1], row / x.ne[1]);
                let (i2, i3) = (rest % x.ne[2], rest / x.ne[2]);
                let start = i1 * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3];
                // SAFETY: rows are disjoint, and the pool runs every item, and with it every row, once.
                let out = unsafe { rows.part(row * k, k) };
                dequantize_row(WeightType::F16, &data[start..][..row_size], out);
            }
        })?;
    }
    let mut srcs = task.srcs;
    srcs[1] = Source::Data(cast_slice(out.as_slice()));
    Ok(Task { spec, srcs, ..task })
}
