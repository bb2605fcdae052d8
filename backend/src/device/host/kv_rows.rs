//! `SET_ROWS` into K or V in tiles: strips of 32 elements are shared out, so that no two threads write one tile.

use bytemuck::{Pod, try_cast_slice};
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::op::copy::CopyRow;
use llada_npu_kernels::tile::TILE;
use llada_npu_kernels::tile::kv::{Tile, tile_offset_bytes, write_rows};
use llada_npu_kernels::{F32Rows, WeightRows, WeightType};

use super::disjoint::Disjoint;
use super::pool::Pool;
use crate::device::{DeviceError, OperandError, Source, Spec, Task};
use crate::memory::KvTiles;

/// Strips that are converted at a time.
const STRIPS: usize = 4;

/// Elements that are worth claiming an item for.
const ITEM_ELEMENTS: usize = 1 << 14;

/// Bytes of the half floats that a thread has at a time.
const HALVES: usize = 2 * TILE * STRIPS * TILE;

/// Checks that rows can be written.
///
/// # Errors
///
/// The first thing that is wrong.
pub(super) fn check(spec: &Spec) -> Result<(), OperandError> {
    let (x, ids, dst) = (spec.src(0)?, spec.src(1)?, &spec.dst);
    if x.type_ != Type::F32 || x.nb[0] != 4 {
        let type_ = x.type_;
        return Err(OperandError::Type { src: 0, type_ });
    }
    let size = match ids.type_ {
        Type::I64 => 8,
        Type::I32 => 4,
        type_ => return Err(OperandError::Type { src: 1, type_ }),
    };
    if x.ne[0] != dst.ne[0] || x.ne[2..] != [1, 1] {
        return Err(OperandError::Shape { src: 0 });
    }
    if ids.ne != [x.ne[1], 1, 1, 1] || !ids.is_contiguous(size) {
        return Err(OperandError::Shape { src: 1 });
    }
    let [n_embd, n_rows, n2, n3] = dst.ne;
    let is_whole = n_embd.is_multiple_of(TILE) && n_rows.is_multiple_of(TILE) && n2 * n3 == 1;
    if dst.type_ != Type::F16 || !is_whole || !dst.is_contiguous(2) {
        return Err(OperandError::Dst);
    }
    Ok(())
}

/// Writes the rows; `rows` is memory that is kept from operation to operation.
///
/// # Errors
///
/// As for [`check`], and for an index that is no row; nothing is written then.
pub(super) fn run(
    pool: &mut Pool,
    kernel: &CopyRow,
    rows: &mut Vec<usize>,
    tiles: KvTiles,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    check(&task.spec)?;
    let (x, ids) = (task.spec.src(0)?, task.spec.src(1)?);
    let (bytes, ids_bytes) = (data(&task, 0)?, data(&task, 1)?);
    let available = bytes.len();
    let short = |_outside| OperandError::TooShort { src: 0, available };
    let x = F32Rows::new(x.ne[0], x.ne[1], x.nb[1], bytes).map_err(short)?;
    let n_rows = task.spec.dst.ne[1];
    if task.dst.len() != 2 * x.k() * n_rows {
        return Err(OperandError::Dst.into());
    }
    if ids.type_ == Type::I64 {
        row_numbers::<i64>(ids_bytes, x.n_rows(), n_rows, rows)?;
    } else {
        row_numbers::<i32>(ids_bytes, x.n_rows(), n_rows, rows)?;
    }
    let writer = Writer {
        kernel,
        tiles,
        x,
        rows,
        dst: Disjoint::new(task.dst),
    };
    let n_groups = x.k().div_ceil(TILE * STRIPS);
    let groups = (ITEM_ELEMENTS / (rows.len() * TILE * STRIPS).max(1)).max(1);
    pool.for_each(n_groups.div_ceil(groups), |item| {
        for group in item * groups..n_groups.min((item + 1) * groups) {
            // SAFETY: groups have different strips, and the pool runs every item, and with it every group, once.
            unsafe { writer.write(group * STRIPS) };
        }
    })?;
    Ok(())
}

/// One operation.
struct Writer<'a> {
    kernel: &'a CopyRow,
    tiles: KvTiles,
    x: F32Rows<'a>,
    /// Where its rows go.
    rows: &'a [usize],
    dst: Disjoint<'a, u8>,
}

impl Writer<'_> {
    /// Writes up to [`STRIPS`] strips of all rows.
    ///
    /// # Safety
    ///
    /// - Nobody else uses the tiles of these strips.
    unsafe fn write(&self, first_strip: usize) {
        let n_embd = self.x.k();
        let n = STRIPS.min(n_embd / TILE - first_strip);
        let mut first = 0;
        // Rows of one block that follow each other, at most a block of them.
        let blocks = self.rows.chunk_by(|a, b| a / TILE == b / TILE);
        for run in blocks.flat_map(|run| run.chunks(TILE)) {
            let halves = self.halves(&self.x.slice(first, run.len()), first_strip, n);
            for i in 0..n {
                let start = tile_offset_bytes(n_embd, run[0], first_strip + i);
                // SAFETY: the caller promises that nobody else uses the tile, and it is lent once at a time here.
                let tile = unsafe { self.dst.part(start, size_of::<Tile>()) };
                let (ty, nb1) = (WeightType::F16, 2 * TILE * n);
                let part = WeightRows::new(ty, TILE, run.len(), nb1, &halves[2 * TILE * i..]);
                let part = part.expect("the strip's part of every row was just written");
                let tile = tile.first_chunk_mut().expect("the part is a tile");
                write_rows(self.tiles.role(), tile, &part, run);
            }
            first += run.len();
        }
    }

    /// Returns `n` strips of rows as half floats.
    fn halves(&self, x: &F32Rows<'_>, first_strip: usize, n: usize) -> [u8; HALVES] {
        let mut halves = [0; HALVES];
        let mut floats = [0.0; STRIPS * TILE];
        let outs = halves.chunks_exact_mut(2 * TILE * n).take(x.n_rows());
        for (i, out) in outs.enumerate() {
            let row = &x.row(i)[4 * TILE * first_strip..][..4 * TILE * n];
            for (float, bytes) in floats.iter_mut().zip(row.as_chunks().0) {
                *float = f32::from_ne_bytes(*bytes);
            }
            self.kernel.narrow(&floats[..TILE * n], out);
        }
        halves
    }
}

fn data<'a>(task: &Task<'a>, src: usize) -> Result<&'a [u8], OperandError> {
    match task.srcs[src] {
        Source::Data(data) => Ok(data),
        Source::InPlace => Err(OperandError::InPlace { src }),
        Source::Missing => Err(OperandError::Missing { src }),
    }
}

/// Reads `n` indices of rows into `rows`.
fn row_numbers<T: Pod>(
    bytes: &[u8],
    n: usize,
    n_rows: usize,
    rows: &mut Vec<usize>,
) -> Result<(), OperandError>
where
    usize: TryFrom<T>,
{
    let available = bytes.len();
    let short = OperandError::TooShort { src: 1, available };
    let numbers: &[T] = try_cast_slice(bytes).map_err(|_unaligned| short)?;
    rows.clear();
    for number in numbers.get(..n).ok_or(short)? {
        let row = usize::try_from(*number).ok().filter(|row| *row < n_rows);
        rows.push(row.ok_or(OperandError::Shape { src: 1 })?);
    }
    Ok(())
}
