//! Operations by row or by element: which are supported, and how they run on the pool.

use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::op::binary::{Binary, BinaryOp};
use llada_npu_kernels::op::glu::{Glu, GluOp};
use llada_npu_kernels::op::soft_max::{Mask, SoftMax, SoftMaxRow};

use super::pool::Pool;
use super::rows::{Rows, f32_rows, f32_rows_apart, flattened, for_each_row, numbers};
use crate::device::{DeviceError, Layout, OperandError, Source, Spec, Task};

const F32_SIZE: usize = size_of::<f32>();

/// Checks that an operand is f32 with elements side by side.
fn check_f32(spec: &Spec, src: usize) -> Result<&Layout, OperandError> {
    let layout = spec.src(src)?;
    check_elements(layout, src, Type::F32, F32_SIZE)?;
    Ok(layout)
}

/// Checks that an operand has elements of a type side by side.
pub(super) fn check_elements(
    layout: &Layout,
    src: usize,
    type_: Type,
    type_size: usize,
) -> Result<(), OperandError> {
    if layout.type_ != type_ {
        let type_ = layout.type_;
        return Err(OperandError::Type { src, type_ });
    }
    if layout.ne[0] != 1 && layout.nb[0] != type_size {
        let (nb, expected) = (layout.nb[0], type_size);
        return Err(OperandError::RowStride { src, nb, expected });
    }
    Ok(())
}

/// Checks that the result has f32 rows of its own, of a shape.
fn check_dst(spec: &Spec, ne: [usize; 4]) -> Result<(), OperandError> {
    let dst = &spec.dst;
    let rows = dst.nb[0] == F32_SIZE && dst.has_disjoint_rows(F32_SIZE * ne[0]);
    if dst.type_ == Type::F32 && dst.ne == ne && rows {
        Ok(())
    } else {
        Err(OperandError::Dst)
    }
}

/// Checks an operation whose result is as its one operand.
pub(super) fn check_map(spec: &Spec) -> Result<(), OperandError> {
    check_dst(spec, check_f32(spec, 0)?.ne)
}

/// Computes an operation row by row.
pub(super) fn map(
    pool: &mut Pool,
    task: Task<'_>,
    row: impl Fn(Option<&[f32]>, &mut [f32]) + Sync,
) -> Result<(), DeviceError> {
    let src = f32_rows(&task, 0)?;
    let dst = task.spec.dst;
    for_each_row(pool, task.dst, &dst, dst.ne[0], |i, out| {
        row(src.map(|src| src.row(i)), out);
    })
}

/// Computes an operation element by element: rows may be cut anywhere where there are no gaps.
pub(super) fn map_elements(
    pool: &mut Pool,
    mut task: Task<'_>,
    row: impl Fn(Option<&[f32]>, &mut [f32]) + Sync,
) -> Result<(), DeviceError> {
    let flat = (
        flattened(&task.spec.dst, F32_SIZE),
        flattened(task.spec.src(0)?, F32_SIZE),
    );
    if let (Some(dst), Some(src)) = flat {
        task.spec.dst = dst;
        task.spec.srcs[0] = Some(src);
    }
    map(pool, task, row)
}

/// Checks `ADD`, `SUB`, `MUL` and `DIV`.
pub(super) fn check_binary(spec: &Spec) -> Result<(), OperandError> {
    let (a, b) = (check_f32(spec, 0)?, check_f32(spec, 1)?);
    let repeats = |dim: usize| b.ne[dim] != 0 && a.ne[dim].is_multiple_of(b.ne[dim]);
    if !(0..4).all(repeats) {
        return Err(OperandError::Shape { src: 1 });
    }
    check_dst(spec, a.ne)
}

/// Computes `ADD`, `SUB`, `MUL` and `DIV`.
pub(super) fn binary(
    pool: &mut Pool,
    kernel: &Binary,
    op: BinaryOp,
    mut task: Task<'_>,
) -> Result<(), DeviceError> {
    let spec = &mut task.spec;
    let flat = (
        flattened(&spec.dst, F32_SIZE),
        flattened(spec.src(0)?, F32_SIZE),
        flattened(spec.src(1)?, F32_SIZE),
    );
    if let (Some(dst), Some(a), Some(b)) = flat
        && a == b
    {
        (spec.dst, spec.srcs[0], spec.srcs[1]) = (dst, Some(a), Some(b));
    }
    let (a, b) = (f32_rows(&task, 0)?, f32_rows(&task, 1)?);
    let (dst, n) = (task.spec.dst, task.spec.src(1)?.ne[0]);
    for_each_row(pool, task.dst, &dst, dst.ne[0], |i, out| {
        let a = a.map(|a| a.row(i));
        match b.map(|b| b.row(i)) {
            Some(&[b]) => kernel.binary_scalar(op, a, b, out),
            Some(b) if n < out.len() => {
                for start in (0..out.len()).step_by(n) {
                    let a = a.map(|a| &a[start..][..n]);
                    kernel.binary(op, a, Some(b), &mut out[start..][..n]);
                }
            }
            b => kernel.binary(op, a, b, out),
        }
    })
}

/// Checks `GLU`.
pub(super) fn check_glu(spec: &Spec) -> Result<(), OperandError> {
    let a = check_f32(spec, 0)?;
    let mut ne = a.ne;
    if spec.srcs[1].is_none() {
        ne[0] /= 2;
    } else if check_f32(spec, 1)?.ne != ne {
        return Err(OperandError::Shape { src: 1 });
    }
    check_dst(spec, ne)
}

/// Computes `GLU`.
pub(super) fn glu(
    pool: &mut Pool,
    kernel: &Glu,
    op: GluOp,
    swapped: bool,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let dst = task.spec.dst;
    let n = dst.ne[0];
    let a = f32_rows_apart(&task, 0)?;
    let b = match task.srcs[1] {
        Source::Missing => None,
        _ => Some(f32_rows_apart(&task, 1)?),
    };
    for_each_row(pool, task.dst, &dst, 4 * n, |i, out| match b {
        Some(b) => kernel.glu(op, a.row(i), b.row(i), out),
        None => {
            let (first, second) = a.row(i).split_at(n);
            let second = &second[..n];
            let (gate, other) = if swapped {
                (second, first)
            } else {
                (first, second)
            };
            kernel.glu(op, gate, other, out);
        }
    })
}

/// Checks `SOFT_MAX`.
pub(super) fn check_soft_max(spec: &Spec) -> Result<(), OperandError> {
    let ne = check_f32(spec, 0)?.ne;
    if let Some(mask) = &spec.srcs[1] {
        let type_size = mask_type_size(mask)?;
        check_elements(mask, 1, mask.type_, type_size)?;
        let repeats = |dim: usize| mask.ne[dim] != 0 && ne[dim].is_multiple_of(mask.ne[dim]);
        if mask.ne[0] != ne[0] || mask.ne[1] < ne[1] || !repeats(2) || !repeats(3) {
            return Err(OperandError::Shape { src: 1 });
        }
    }
    if let Some(sinks) = &spec.srcs[2] {
        check_elements(sinks, 2, Type::F32, F32_SIZE)?;
        if sinks.ne != [ne[2], 1, 1, 1] {
            return Err(OperandError::Shape { src: 2 });
        }
    }
    check_dst(spec, ne)
}

fn mask_type_size(mask: &Layout) -> Result<usize, OperandError> {
    match mask.type_ {
        Type::F32 => Ok(4),
        Type::F16 => Ok(2),
        type_ => Err(OperandError::Type { src: 1, type_ }),
    }
}

/// Computes `SOFT_MAX`.
pub(super) fn soft_max(
    pool: &mut Pool,
    kernel: &SoftMax,
    scale: f32,
    max_bias: f32,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let dst = task.spec.dst;
    let x = f32_rows(&task, 0)?;
    let mask = match &task.spec.srcs[1] {
        None => None,
        Some(mask) if mask.type_ == Type::F32 => Some((Type::F32, f32_rows_apart(&task, 1)?)),
        Some(mask) => Some((Type::F16, Rows::apart(&task, 1, 2 * mask.ne[0])?)),
    };
    let sinks: Option<&[f32]> = match task.srcs[2] {
        Source::Missing => None,
        Source::InPlace => return Err(OperandError::InPlace { src: 2 }.into()),
        Source::Data(bytes) => Some(numbers(bytes, 2)?),
    };
    let n_heads = dst.ne[2];
    for_each_row(pool, task.dst, &dst, 8 * dst.ne[0], |i, out| {
        let mask = match mask {
            None => Mask::None,
            Some((Type::F32, mask)) => Mask::F32(mask.row(i)),
            Some((_, mask)) => Mask::F16(mask.bytes(i)),
        };
        let row = SoftMaxRow {
            scale,
            mask,
            slope: alibi_slope(max_bias, n_heads, i[1]),
            sink: sinks.map(|sinks| sinks[i[1]]),
        };
        kernel.soft_max(row, x.map(|x| x.row(i)), out);
    })
}

/// Returns the slope of a head's mask: `2^(-max_bias (head + 1) / n)` for the first `n` heads, `n` the largest power of
/// two that there are, then the odd half steps between.
pub(super) fn alibi_slope(max_bias: f32, n_heads: usize, head: usize) -> f32 {
    if max_bias <= 0.0 {
        return 1.0;
    }
    let n = 1 << n_heads.max(1).ilog2();
    #[expect(clippy::cast_precision_loss, reason = "heads are few")]
    let (n_float, steps) = if head < n {
        (n as f32, (head + 1) as f32)
    } else {
        (2.0 * n as f32, (2 * (head - n) + 1) as f32)
    };
    (-max_bias / n_float).exp2().powf(steps)
}

#[cfg(test)]
mod tests {
    use super::alibi_slope;

    #[test]
    fn slopes_are_those_of_alibi() {
        assert_eq!(alibi_slope(0.0, 8, 3), 1.0);
        assert_eq!(alibi_slope(8.0, 8, 0), 0.5);
        assert_eq!(alibi_slope(8.0, 8, 7), 2f32.powi(-8));
        // 12 heads: 8 as above, then the odd half steps.
        assert_eq!(alibi_slope(8.0, 12, 7), 2f32.powi(-8));
        assert_eq!(alibi_slope(8.0, 12, 8), 2f32.powf(-0.5));
        assert!((alibi_slope(8.0, 12, 9) - 2f32.powf(-1.5)).abs() < 1e-7);
    }
}
