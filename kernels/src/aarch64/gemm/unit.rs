//! Units of the panel: 32 elements of up to `N` rows at a time, quantised.
//!
//! A piece of a unit has the integers of its rows in an order that the family wants, then the f32 scales of its rows, then
//! their products with the sums of the integers. Rows that are missing from the last piece are zeros.

use std::ops::Range;

use crate::F32Rows;
use crate::aarch64::quantize::{block_bytes, quantize, scale_q8_0, scale_q8_k};
use crate::block::{QK, Scale};
use crate::op::gemm::GROUP_ROWS;
use crate::tile::block::QK_K;

/// Bytes per row.
const ROW: usize = QK + 4 + 4;

/// Non-owning view of a piece of a unit.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    /// Integers.
    pub(super) q: &'a [u8],
    /// Scales, as bytes.
    pub(super) d: &'a [u8],
    /// Scales times sums, as bytes.
    pub(super) s: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Reads a piece of `n` rows.
    pub(super) fn new(bytes: &'a [u8], n: usize) -> Self {
        let (q, rest) = bytes.split_at(n * QK);
        let (d, s) = rest.split_at(4 * n);
        Self { q, d, s }
    }
}

/// Returns the bytes of a unit of `n_rows` rows whose last piece is filled up to a multiple of `granule` rows.
pub(super) fn size_bytes(n_rows: usize, granule: usize) -> usize {
    n_rows.next_multiple_of(granule) * ROW
}

/// Yields the pieces of a unit of `n_rows` rows, up to `n` rows to each, with the first row and the number of rows.
pub(super) fn pieces(
    unit: &[u8],
    n_rows: usize,
    n: usize,
    granule: usize,
) -> impl Iterator<Item = (Range<usize>, Piece<'_>)> {
    let pieces = unit.chunks(n * ROW).enumerate();
    pieces.map(move |(i, bytes)| {
        let rows = i * n..n_rows.min((i + 1) * n);
        let n = rows.len().next_multiple_of(granule);
        (rows, Piece::new(bytes, n))
    })
}

/// Packs units `k_tiles` of rows, `n` to a piece; `RUN` elements of one row follow each other, then comes the next row.
/// Scales are those of `Q8_0` or, if `K`, of `Q8_K`.
#[target_feature(enable = "neon")]
pub(super) fn prepare<const RUN: usize, const K: bool>(
    x: &F32Rows<'_>,
    k_tiles: Range<usize>,
    n: usize,
    granule: usize,
    units: &mut [u8],
) {
    let unit_size_bytes = size_bytes(x.n_rows(), granule);
    let first = k_tiles.start;
    let mut scales = [Scale::q8_k(0.0); GROUP_ROWS];
    for (k_tile, unit) in k_tiles.zip(units.chunks_exact_mut(unit_size_bytes)) {
        if K && (k_tile == first || (k_tile * QK).is_multiple_of(QK_K)) {
            let start = 4 * (k_tile * QK / QK_K * QK_K);
            for (row, scale) in (0..x.n_rows()).zip(&mut scales) {
                *scale = scale_q8_k(&x.row(row)[start..start + 4 * QK_K]);
            }
        }
        for (i, piece) in unit.chunks_mut(n * ROW).enumerate() {
            let rows = i * n..x.n_rows().min((i + 1) * n);
            let n = rows.len().next_multiple_of(granule);
            if rows.len() < n {
                piece.fill(0);
            }
            let (q, rest) = piece.split_at_mut(n * QK);
            let (d, s) = rest.split_at_mut(4 * n);
            for (lane, row) in rows.enumerate() {
                let block = block_bytes(x.row(row), k_tile * QK);
                let block = if K {
                    quantize::<true>(&block, scales[row])
                } else {
                    quantize::<false>(&block, scale_q8_0(&block))
                };
                let runs = q.as_chunks_mut::<RUN>().0;
                for (i, run) in block.q.as_chunks::<RUN>().0.iter().enumerate() {
                    runs[i * n + lane] = *run;
                }
                #[expect(clippy::cast_precision_loss, reason = "at most 32 * 127, exact in f32")]
                let sum = block.d * block.sum as f32;
                d[4 * lane..][..4].copy_from_slice(&block.d.to_ne_bytes());
                s[4 * lane..][..4].copy_from_slice(&sum.to_ne_bytes());
            }
        }
    }
}
