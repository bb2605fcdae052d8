//! Operations row by row: where rows lie, and who computes which.
//!
//! A tensor's rows are its first dimension; the others index them. Rows of a result are disjoint ([`Layout`] checks
//! it), so that threads may write different ones.

use bytemuck::{Pod, try_cast_slice, try_cast_slice_mut};

use super::disjoint::Disjoint;
use super::pool::Pool;
use crate::device::{DeviceError, Layout, OperandError, Source, Task};

/// Elements that are worth claiming an item of a loop for: some microseconds.
const ITEM_ELEMENTS: usize = 1 << 14;

/// Indices of a row in dimensions 1, 2 and 3.
pub(super) type Index = [usize; 3];

/// Non-owning: a tensor to read, its elements `T` adjacent within rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    data: &'a [u8],
    layout: Layout,
    row_size: usize,
}

impl<'a> Rows<'a> {
    /// Takes operand `src` of a task, rows of `row_size` bytes; `None` where it is the result's memory.
    ///
    /// # Errors
    ///
    /// When there is no such operand, or it does not hold its rows.
    pub(super) fn new(
        task: &Task<'a>,
        src: usize,
        row_size: usize,
    ) -> Result<Option<Self>, OperandError> {
        let layout = *task.spec.src(src)?;
        let data = match task.srcs[src] {
            Source::Missing => return Err(OperandError::Missing { src }),
            Source::InPlace => return Ok(None),
            Source::Data(data) => data,
        };
        if span(&layout, row_size).is_none_or(|span| span > data.len()) {
            let available = data.len();
            return Err(OperandError::TooShort { src, available });
        }
        Ok(Some(Self {
            data,
            layout,
            row_size,
        }))
    }

    /// As [`Self::new`], where the operand may not be the result's memory.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and when it is.
    pub(super) fn apart(
        task: &Task<'a>,
        src: usize,
        row_size: usize,
    ) -> Result<Self, OperandError> {
        Self::new(task, src, row_size)?.ok_or(OperandError::InPlace { src })
    }

    /// Returns the bytes of a row; indices beyond a dimension start over.
    pub(super) fn bytes(&self, index: Index) -> &'a [u8] {
        let Layout { ne, nb, .. } = self.layout;
        // A division takes longer than a short row.
        let wrapped = |i: usize, ne: usize| if i < ne { i } else { i % ne };
        let start: usize = (0..3)
            .map(|dim| wrapped(index[dim], ne[dim + 1]) * nb[dim + 1])
            .sum();
        &self.data[start..][..self.row_size]
    }

    /// Returns a row as numbers.
    pub(super) fn row<T: Pod>(&self, index: Index) -> &'a [T] {
        if self.row_size == 0 {
            // Whatever the index, and at no address.
            return &[];
        }
        bytemuck::cast_slice(self.bytes(index))
    }

    /// Checks that every row is aligned for `T`.
    ///
    /// # Errors
    ///
    /// When one is not.
    pub(super) fn aligned<T: Pod>(self, src: usize) -> Result<Self, OperandError> {
        let strides = self.layout.nb[1..].iter().chain([&self.row_size]);
        let aligned = strides
            .into_iter()
            .all(|nb| nb.is_multiple_of(align_of::<T>()))
            && self.data.as_ptr().addr().is_multiple_of(align_of::<T>());
        if aligned {
            Ok(self)
        } else {
            Err(OperandError::Alignment { src })
        }
    }
}

/// Takes an f32 operand; `None` where it is the result's memory.
pub(super) fn f32_rows<'a>(task: &Task<'a>, src: usize) -> Result<Option<Rows<'a>>, OperandError> {
    let row_size = 4 * task.spec.src(src)?.ne[0];
    Rows::new(task, src, row_size)?
        .map(|rows| rows.aligned::<f32>(src))
        .transpose()
}

/// Takes an f32 operand that may not be the result's memory.
pub(super) fn f32_rows_apart<'a>(task: &Task<'a>, src: usize) -> Result<Rows<'a>, OperandError> {
    f32_rows(task, src)?.ok_or(OperandError::InPlace { src })
}

/// Returns the bytes from the first to the end of the last row, or `None` when that overflows.
fn span(layout: &Layout, row_size: usize) -> Option<usize> {
    if layout.ne.contains(&0) {
        return Some(0);
    }
    (1..4).try_fold(row_size, |span, dim| {
        (layout.ne[dim] - 1)
            .checked_mul(layout.nb[dim])?
            .checked_add(span)
    })
}

/// Computes every row of a result of elements `T` on the pool. `body` gets the row's indices and the row, which holds
/// what the result's memory held before; `elements` is the work of a row, in elements.
///
/// # Errors
///
/// When the result does not hold its rows or is not aligned, or `body` panics.
pub(super) fn for_each_row<T: Pod + Send>(
    pool: &mut Pool,
    dst: &mut [u8],
    layout: &Layout,
    elements: usize,
    body: impl Fn(Index, &mut [T]) + Sync,
) -> Result<(), DeviceError> {
    let row_size = size_of::<T>() * layout.ne[0];
    let fits = layout.has_disjoint_rows(row_size)
        && layout.nb[1..]
            .iter()
            .all(|nb| nb.is_multiple_of(size_of::<T>()))
        && span(layout, row_size).is_some_and(|span| span <= dst.len());
    let whole = dst.len() / size_of::<T>() * size_of::<T>();
    let (true, Ok(dst)) = (fits, try_cast_slice_mut::<u8, T>(&mut dst[..whole])) else {
        return Err(OperandError::Dst.into());
    };
    let n_rows = layout.n_rows();
    if layout.ne[0] == 0 || n_rows == 0 {
        return Ok(());
    }
    let per_item = per_item(elements, n_rows, pool.n_threads());
    let [n0, n1, n2, _] = layout.ne;
    let nb = layout.nb.map(|nb| nb / size_of::<T>());
    let dst = Disjoint::new(dst);
    pool.for_each(n_rows.div_ceil(per_item), |item| {
        let first = item * per_item;
        let mut index = [first % n1, first / n1 % n2, first / n1 / n2];
        for _ in first..n_rows.min(first + per_item) {
            let start = index[0] * nb[1] + index[1] * nb[2] + index[2] * nb[3];
            // SAFETY: rows do not overlap (`has_disjoint_rows`), and the pool runs every item, and with it every row, once.
            let out = unsafe { dst.part(start, n0) };
            body(index, out);
            index[0] += 1;
            for dim in 0..2 {
                if index[dim] == layout.ne[dim + 1] {
                    index[dim] = 0;
                    index[dim + 1] += 1;
                }
            }
        }
    })?;
    Ok(())
}

/// Returns how many of `n` equal pieces of work to claim at a time: enough to be worth it, few enough for every thread
/// to have some.
pub(super) fn per_item(elements: usize, n: usize, n_threads: usize) -> usize {
    let worth = ITEM_ELEMENTS.div_ceil(elements.max(1));
    worth.max(n.div_ceil(4 * n_threads)).max(1)
}

/// Returns a layout of the same elements whose rows are of a good length to share out, if there are no gaps: operations
/// that look at one element at a time do not mind.
pub(super) fn flattened(layout: &Layout, type_size: usize) -> Option<Layout> {
    const ROW: usize = 4096;
    let n = layout.n_elements()?;
    if !layout.is_contiguous(type_size) || n < ROW || !n.is_multiple_of(ROW) {
        return None;
    }
    Some(Layout::contiguous(
        layout.type_,
        type_size,
        [ROW, n / ROW, 1, 1],
    ))
}

/// Reads a list of numbers.
///
/// # Errors
///
/// When the bytes are not aligned whole numbers.
pub(super) fn numbers<T: Pod>(bytes: &[u8], src: usize) -> Result<&[T], OperandError> {
    try_cast_slice(bytes).map_err(|_not_numbers| OperandError::Alignment { src })
}
