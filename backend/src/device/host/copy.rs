//! `CPY`, `CONT` and `DUP`, `GET_ROWS` and `SET_ROWS` on the pool.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::WeightType;
use llada_npu_kernels::op::copy::CopyRow;

use super::disjoint::Disjoint;
use super::pool::Pool;
use super::row_op::check_elements;
use super::rows::{Rows, f32_rows_apart, flattened, for_each_row};
use crate::device::{DeviceError, Layout, OperandError, Source, Spec, Task};

/// Returns the bytes of an element of the types that are copied.
fn element_size(src: usize, type_: Type) -> Result<usize, OperandError> {
    match type_ {
        Type::F32 | Type::I32 => Ok(4),
        Type::F16 | Type::BF16 => Ok(2),
        type_ => Err(OperandError::Type { src, type_ }),
    }
}

/// Brings source and result of a copy to one shape whose rows the result has side by side, if it has any; both have
/// their elements in the same order.
fn same_shape(src: &Layout, dst: &Layout) -> Result<(Layout, Layout), OperandError> {
    let (src_size, dst_size) = (element_size(0, src.type_)?, element_size(0, dst.type_)?);
    if src.n_elements() != dst.n_elements() {
        return Err(OperandError::Dst);
    }
    let (src, dst) = match (flattened(src, src_size), flattened(dst, dst_size)) {
        (Some(src), Some(dst)) => return Ok((src, dst)),
        _ if src.ne == dst.ne => (*src, *dst),
        _ if dst.is_contiguous(dst_size) => (*src, Layout::contiguous(dst.type_, dst_size, src.ne)),
        _ if src.is_contiguous(src_size) => (Layout::contiguous(src.type_, src_size, dst.ne), *dst),
        _ => return Err(OperandError::Dst),
    };
    if dst.nb[0] == dst_size {
        return Ok((src, dst));
    }
    let mut dims = [0, 1, 2, 3];
    dims.sort_by_key(|&dim| (dst.ne[dim] == 1, dst.nb[dim]));
    let ordered = |layout: &Layout| Layout {
        type_: layout.type_,
        ne: dims.map(|dim| layout.ne[dim]),
        nb: dims.map(|dim| layout.nb[dim]),
    };
    Ok((ordered(&src), ordered(&dst)))
}

/// Checks `CPY`, `CONT` and `DUP`.
pub(super) fn check_cpy(spec: &Spec) -> Result<(), OperandError> {
    let (src, dst) = same_shape(spec.src(0)?, &spec.dst)?;
    let floats = |type_| matches!(type_, Type::F32 | Type::F16);
    if src.type_ != dst.type_ && !(floats(src.type_) && floats(dst.type_)) {
        let type_ = src.type_;
        return Err(OperandError::Type { src: 0, type_ });
    }
    let size = element_size(0, dst.type_)?;
    let rows = dst.nb[0] == size && dst.has_disjoint_rows(size * dst.ne[0]);
    if rows { Ok(()) } else { Err(OperandError::Dst) }
}

/// Computes `CPY`, `CONT` and `DUP`.
pub(super) fn cpy(
    pool: &mut Pool,
    kernel: &CopyRow,
    mut task: Task<'_>,
) -> Result<(), DeviceError> {
    let (src, dst) = same_shape(task.spec.src(0)?, &task.spec.dst)?;
    task.spec.srcs[0] = Some(src);
    let size = element_size(0, src.type_)?;
    if src.nb[0] != size && src.ne[0] > 1 {
        return gather(pool, kernel, task, &src, &dst);
    }
    let rows = Rows::apart(&task, 0, size * src.ne[0])?;
    let n = dst.ne[0];
    match (src.type_, dst.type_) {
        (Type::F32, Type::F16) => {
            let rows = rows.aligned::<f32>(0)?;
            for_each_row::<[u8; 2]>(pool, task.dst, &dst, n, |i, out| {
                kernel.narrow(rows.row(i), out.as_flattened_mut());
            })
        }
        (Type::F16, Type::F32) => for_each_row(pool, task.dst, &dst, n, |i, out| {
            kernel.widen(rows.bytes(i), out);
        }),
        _ if size == 4 => for_each_row::<[u8; 4]>(pool, task.dst, &dst, n, |i, out| {
            out.as_flattened_mut().copy_from_slice(rows.bytes(i));
        }),
        _ => for_each_row::<[u8; 2]>(pool, task.dst, &dst, n, |i, out| {
            out.as_flattened_mut().copy_from_slice(rows.bytes(i));
        }),
    }
}

/// Elements that are gathered at a time before their type is changed.
const GATHERED: usize = 256;

/// Copies rows whose elements are apart in the source.
fn gather(
    pool: &mut Pool,
    kernel: &CopyRow,
    task: Task<'_>,
    src: &Layout,
    dst: &Layout,
) -> Result<(), DeviceError> {
    let size = element_size(0, src.type_)?;
    let (n, nb) = (src.ne[0], src.nb[0]);
    let row_size = (n - 1) * nb + size;
    let rows = Rows::apart(&task, 0, row_size)?;
    match (src.type_, dst.type_) {
        (Type::F32, Type::F16) => for_each_row::<[u8; 2]>(pool, task.dst, dst, 4 * n, |i, out| {
            let mut some = [0.0; GATHERED];
            for (chunk, out) in out.chunks_mut(GATHERED).enumerate() {
                let some = &mut some[..out.len()];
                let start = chunk * GATHERED * nb;
                pick::<4>(&rows.bytes(i)[start..], nb, cast_slice_mut(some));
                kernel.narrow(some, out.as_flattened_mut());
            }
        }),
        (Type::F16, Type::F32) => for_each_row::<f32>(pool, task.dst, dst, 4 * n, |i, out| {
            let mut some = [[0; 2]; GATHERED];
            for (chunk, out) in out.chunks_mut(GATHERED).enumerate() {
                let some = &mut some[..out.len()];
                pick(&rows.bytes(i)[chunk * GATHERED * nb..], nb, some);
                kernel.widen(some.as_flattened(), out);
            }
        }),
        _ if size == 4 => for_each_row::<[u8; 4]>(pool, task.dst, dst, 4 * n, |i, out| {
            pick(rows.bytes(i), nb, out);
        }),
        _ => for_each_row::<[u8; 2]>(pool, task.dst, dst, 4 * n, |i, out| {
            pick(rows.bytes(i), nb, out);
        }),
    }
}

/// Copies elements that are `nb` bytes apart.
fn pick<const N: usize>(src: &[u8], nb: usize, out: &mut [[u8; N]]) {
    for (i, out) in out.iter_mut().enumerate() {
        out.copy_from_slice(&src[i * nb..][..N]);
    }
}

/// Checks `GET_ROWS`.
pub(super) fn check_get_rows(spec: &Spec) -> Result<(), OperandError> {
    let (rows, ids) = (spec.src(0)?, spec.src(1)?);
    let type_ = rows.type_;
    let ty = WeightType::from_ggml_type(type_.0).ok_or(OperandError::Type { src: 0, type_ })?;
    if ty.row_size(rows.ne[0]).is_none() {
        return Err(OperandError::PartialBlock { ty, k: rows.ne[0] });
    }
    check_elements(rows, 0, type_, ty.type_size())?;
    check_elements(ids, 1, Type::I32, 4)?;
    if ids.ne[3] != 1 || ids.ne[1] != rows.ne[2] || ids.ne[2] != rows.ne[3] {
        return Err(OperandError::Shape { src: 1 });
    }
    let dst = &spec.dst;
    let expected = [rows.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]];
    let disjoint = dst.nb[0] == 4 && dst.has_disjoint_rows(4 * dst.ne[0]);
    if dst.type_ == Type::F32 && dst.ne == expected && disjoint {
        Ok(())
    } else {
        Err(OperandError::Dst)
    }
}

/// Computes `GET_ROWS`.
pub(super) fn get_rows(
    pool: &mut Pool,
    kernel: &CopyRow,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let (src, ids, dst) = (*task.spec.src(0)?, *task.spec.src(1)?, task.spec.dst);
    let type_ = src.type_;
    let ty = WeightType::from_ggml_type(type_.0).ok_or(OperandError::Type { src: 0, type_ })?;
    let row_size = ty.row_size(src.ne[0]).unwrap_or(usize::MAX);
    let rows = Rows::apart(&task, 0, row_size)?;
    let ids = Rows::apart(&task, 1, 4 * ids.ne[0])?.aligned::<i32>(1)?;
    check_ids(
        &task.spec,
        |i| ids.row::<i32>(i).iter().map(|&id| i64::from(id)),
        src.ne[1],
    )?;
    for_each_row(pool, task.dst, &dst, dst.ne[0], |i, out| {
        let id = ids.row::<i32>([i[1], i[2], 0])[i[0]];
        let row = rows.bytes([row_index(i64::from(id)), i[1], i[2]]);
        if ty == WeightType::F32 {
            cast_slice_mut(out).copy_from_slice(row);
        } else {
            kernel.dequantize(ty, row, out);
        }
    })
}

/// Checks that every index points to one of `n_rows`.
fn check_ids<I: Iterator<Item = i64>>(
    spec: &Spec,
    ids: impl Fn([usize; 3]) -> I,
    n_rows: usize,
) -> Result<(), DeviceError> {
    let ne = spec.src(1)?.ne;
    for (i1, i2) in (0..ne[2]).flat_map(|i2| (0..ne[1]).map(move |i1| (i1, i2))) {
        for index in ids([i1, i2, 0]) {
            if usize::try_from(index).is_ok_and(|index| index < n_rows) {
                continue;
            }
            return Err(DeviceError::Index { index, n_rows });
        }
    }
    Ok(())
}

/// Returns an index that was checked.
fn row_index(id: i64) -> usize {
    usize::try_from(id).expect("indices were checked before the first row")
}

/// Checks `SET_ROWS`.
pub(super) fn check_set_rows(spec: &Spec) -> Result<(), OperandError> {
    let (rows, ids, dst) = (spec.src(0)?, spec.src(1)?, &spec.dst);
    check_elements(rows, 0, Type::F32, 4)?;
    let (type_, size) = match ids.type_ {
        Type::I64 => (Type::I64, 8),
        _ => (Type::I32, 4),
    };
    check_elements(ids, 1, type_, size)?;
    let repeats = |dim: usize| ids.ne[dim - 1] != 0 && rows.ne[dim].is_multiple_of(ids.ne[dim - 1]);
    if ids.ne[0] != rows.ne[1] || ids.ne[3] != 1 || !repeats(2) || !repeats(3) {
        return Err(OperandError::Shape { src: 1 });
    }
    let size = match dst.type_ {
        Type::F32 => 4,
        Type::F16 => 2,
        _ => return Err(OperandError::Dst),
    };
    let [n, _, ne2, ne3] = dst.ne;
    let shape = [n, ne2, ne3] == [rows.ne[0], rows.ne[2], rows.ne[3]];
    if shape && dst.nb[0] == size && dst.has_disjoint_rows(size * n) {
        Ok(())
    } else {
        Err(OperandError::Dst)
    }
}

/// Computes `SET_ROWS`.
pub(super) fn set_rows(
    pool: &mut Pool,
    kernel: &CopyRow,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let rows = f32_rows_apart(&task, 0)?;
    let ids = *task.spec.src(1)?;
    if ids.type_ == Type::I64 {
        let ids = Rows::apart(&task, 1, 8 * ids.ne[0])?.aligned::<i64>(1)?;
        scatter::<i64>(pool, kernel, task, rows, ids)
    } else {
        let ids = Rows::apart(&task, 1, 4 * ids.ne[0])?.aligned::<i32>(1)?;
        scatter::<i32>(pool, kernel, task, rows, ids)
    }
}

/// Columns of a row that a thread writes at a time.
const COLUMNS: usize = 1024;

/// Elements below which one thread writes all of them.
const SCATTER_ALONE: usize = 1 << 16;

/// Writes rows to their places. Threads share out columns, since two rows may have one place: the last one stays.
fn scatter<T: Pod + Into<i64>>(
    pool: &mut Pool,
    kernel: &CopyRow,
    task: Task<'_>,
    rows: Rows<'_>,
    ids: Rows<'_>,
) -> Result<(), DeviceError> {
    let (spec, dst) = (task.spec, task.spec.dst);
    let ne = spec.src(0)?.ne;
    check_ids(
        &spec,
        |i| ids.row::<T>(i).iter().map(|&id| id.into()),
        dst.ne[1],
    )?;
    let n = dst.ne[0];
    let size = element_size(0, dst.type_)?;
    let last: usize = (1..4)
        .map(|dim| dst.ne[dim].saturating_sub(1) * dst.nb[dim])
        .sum();
    if spec.srcs[2].is_some() && task.srcs[2] != Source::InPlace || last + n * size > task.dst.len()
    {
        return Err(OperandError::Dst.into());
    }
    let alone = ne.iter().product::<usize>() < SCATTER_ALONE;
    let columns = if alone { n.max(1) } else { COLUMNS };
    let out = Disjoint::new(task.dst);
    pool.for_each(n.div_ceil(columns), |item| {
        let columns = item * columns..n.min((item + 1) * columns);
        let indices = (0..ne[3]).flat_map(|i3| (0..ne[2]).map(move |i2| (i2, i3)));
        for (i2, i3) in indices {
            let ids = ids.row::<T>([i2, i3, 0]);
            for (i1, &id) in ids.iter().enumerate() {
                let id = row_index(id.into());
                let start = id * dst.nb[1] + i2 * dst.nb[2] + i3 * dst.nb[3] + columns.start * size;
                let x = &rows.row::<f32>([i1, i2, i3])[columns.clone()];
                // SAFETY: rows of the result do not overlap (`check_set_rows`), this thread writes one at a time, and
                // no other has these columns: the pool runs every item once.
                let out = unsafe { out.part(start, columns.len() * size) };
                if size == 4 {
                    out.copy_from_slice(cast_slice(x));
                } else {
                    kernel.narrow(x, out);
                }
            }
        }
    })?;
    Ok(())
}
