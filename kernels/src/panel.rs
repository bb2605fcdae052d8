//! The `MUL_MAT` algorithm of the tuned families: one generic driver over a few small functions per instruction set.
//!
//! # Many rows of x
//!
//! x is packed into groups of `LANES` rows, transposed: the lanes of a vector are rows of x, so that a weight is
//! broadcast and one instruction multiplies it with `LANES` rows, without any horizontal sum. For quantised types the
//! unit of transposition is four consecutive elements (what a byte dot instruction adds up in one lane).
//!
//! ```text
//! for a block of groups that fits the L2 cache
//!     for MR weight rows
//!         clear acc [group][MR][LANES]
//!         for KC elements of k
//!             decode the MR x KC weights once: f32 values, or bytes and scales
//!             for GROUPS groups at a time: acc += decoded weights x panel     (all in registers)
//!         write acc, transposed, to out
//! ```
//!
//! # Few rows of x
//!
//! Up to `ROW_LIMIT` rows are packed one by one and each is multiplied by dot products along k, four weight rows at a
//! time, decoded in registers: then reading the weights is what takes the time.

use std::fmt::Debug;

use crate::op::mul_mat::{Implementation, PanelLayout};
use crate::{F32Rows, WeightRows, WeightType};

/// Weight rows of one [`Micro::dot`].
pub(crate) const DOT_ROWS: usize = 4;

/// Floats of the accumulators of one block of groups.
const ACC_LEN: usize = 1024;

/// Bytes of packed x that should stay in a core's second-level cache while weights pass by.
const X_BLOCK_BYTES: usize = 512 << 10;

/// What an instruction set contributes. A value of the type proves that the CPU has the instructions.
pub(crate) trait Micro: Copy + Debug + Send + Sync + 'static {
    /// Type of the weights.
    const TYPE: WeightType;
    /// Rows of x in a group.
    const LANES: usize;
    /// Weight rows of a tile.
    const MR: usize;
    /// Most groups [`Self::tile`] takes at once, 1 or 2.
    const GROUPS: usize;
    /// Elements of k decoded at a time, whole blocks.
    const KC: usize;
    /// Most rows of x that are packed one by one.
    const ROW_LIMIT: usize;
    /// `MR` rows of `KC` decoded weights.
    type Tile;

    /// Returns a tile to decode into.
    fn new_tile() -> Self::Tile;

    /// Returns the bytes of a packed group of rows with `k` elements; linear in `k`.
    fn group_size_bytes(k: usize) -> usize;

    /// Returns the bytes of a row with `k` elements packed by itself.
    fn row_size_bytes(k: usize) -> usize;

    /// Packs 1 to `LANES` rows; missing ones are zeros.
    fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]);

    /// Packs one row by itself.
    fn prepare_row(&self, x: &[u8], out: &mut [u8]);

    /// Decodes up to `KC` weights, `weights` being their bytes, into row `r` of the tile.
    fn decode(&self, weights: &[u8], r: usize, tile: &mut Self::Tile);

    /// Adds to `acc[g][r][lane]` the products of the first `kc` weights of each row of the tile with `x[g]`, which
    /// starts at the packed element of the first.
    fn tile<const G: usize>(
        &self,
        tile: &Self::Tile,
        kc: usize,
        x: [&[u8]; G],
        acc: [&mut [f32]; G],
    );

    /// Writes `acc[r][lane]` to `out[lane * stride + r]`, for 4 values of `r` and up to `LANES` lanes that `out` has.
    fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
        store(acc, Self::LANES, 4, n_lanes, out, stride);
    }

    /// Returns the dot products of weight rows with a row packed by itself.
    fn dot(&self, k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS];
}

/// `MUL_MAT` by the [algorithm](self) with one instruction set's functions.
#[derive(Debug)]
pub(crate) struct Panel<M>(pub(crate) M);

impl<M: Micro> Implementation for Panel<M> {
    fn ty(&self) -> WeightType {
        M::TYPE
    }

    fn layout(&self, k: usize, n_rows: usize) -> PanelLayout {
        let (lanes, group_size_bytes) = if n_rows <= M::ROW_LIMIT {
            (1, M::row_size_bytes(k))
        } else {
            (M::LANES, M::group_size_bytes(k))
        };
        PanelLayout {
            k,
            n_rows,
            lanes,
            group_size_bytes,
        }
    }

    fn prepare_group(&self, layout: &PanelLayout, x: &F32Rows<'_>, group: &mut [u8]) {
        if layout.lanes == 1 {
            self.0.prepare_row(x.row(0), group);
        } else {
            self.0.prepare_group(x, group);
        }
    }

    fn mul_mat(
        &self,
        layout: &PanelLayout,
        weights: &WeightRows<'_>,
        panel: &[u8],
        n_rows: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        if layout.lanes == 1 {
            rows(&self.0, layout, weights, panel, n_rows, out, out_stride);
        } else {
            groups(&self.0, layout, weights, panel, n_rows, out, out_stride);
        }
    }
}

/// The product with rows packed one by one.
fn rows<M: Micro>(
    micro: &M,
    layout: &PanelLayout,
    weights: &WeightRows<'_>,
    panel: &[u8],
    n_rows: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let n = weights.n_rows();
    for w0 in (0..n).step_by(DOT_ROWS) {
        // A last tile that is not full repeats its last row.
        let w: [&[u8]; DOT_ROWS] = std::array::from_fn(|r| weights.row((w0 + r).min(n - 1)));
        let used = DOT_ROWS.min(n - w0);
        for i1 in 0..n_rows {
            let x = &panel[i1 * layout.group_size_bytes..][..layout.group_size_bytes];
            let sums = micro.dot(layout.k, w, x);
            out[i1 * out_stride + w0..][..used].copy_from_slice(&sums[..used]);
        }
    }
}

/// The product with groups of `LANES` rows.
fn groups<M: Micro>(
    micro: &M,
    layout: &PanelLayout,
    weights: &WeightRows<'_>,
    panel: &[u8],
    n_rows: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let group_acc = M::MR * M::LANES;
    let fitting = X_BLOCK_BYTES / layout.group_size_bytes.max(1);
    let block = fitting.clamp(M::GROUPS, ACC_LEN / group_acc);
    let mut tile = M::new_tile();
    let mut acc = [0.0; ACC_LEN];
    let n_groups = n_rows.div_ceil(M::LANES);
    for g0 in (0..n_groups).step_by(block) {
        let n_block = block.min(n_groups - g0);
        let x = &panel[g0 * layout.group_size_bytes..][..n_block * layout.group_size_bytes];
        for w0 in (0..weights.n_rows()).step_by(M::MR) {
            let w = weights.slice(w0, M::MR.min(weights.n_rows() - w0));
            let acc = &mut acc[..n_block * group_acc];
            acc.fill(0.0);
            multiply_tile(micro, layout, &w, x, &mut tile, acc);
            for (g, acc) in acc.chunks_exact(group_acc).enumerate() {
                let first = g0 * M::LANES + g * M::LANES;
                let n_lanes = M::LANES.min(n_rows - first);
                let out = &mut out[first * out_stride + w0..];
                for r in (0..w.n_rows()).step_by(4) {
                    let (acc, out) = (&acc[r * M::LANES..], &mut out[r..]);
                    match w.n_rows() - r {
                        4.. => micro.store(acc, n_lanes, out, out_stride),
                        n => store(acc, M::LANES, n, n_lanes, out, out_stride),
                    }
                }
            }
        }
    }
}

/// Writes `acc[r][lane]` to `out[lane * stride + r]`, for `n` values of `r` and `n_lanes` lanes.
fn store(acc: &[f32], lanes: usize, n: usize, n_lanes: usize, out: &mut [f32], stride: usize) {
    for lane in 0..n_lanes {
        for r in 0..n {
            out[lane * stride + r] = acc[r * lanes + lane];
        }
    }
}

/// Adds the products of up to `MR` weight rows with the groups `x` to `acc`.
fn multiply_tile<M: Micro>(
    micro: &M,
    layout: &PanelLayout,
    weights: &WeightRows<'_>,
    x: &[u8],
    tile: &mut M::Tile,
    acc: &mut [f32],
) {
    let group_acc = M::MR * M::LANES;
    let bytes = |k: usize| k / M::TYPE.blck_size() * M::TYPE.type_size();
    for k0 in (0..layout.k).step_by(M::KC) {
        let kc = M::KC.min(layout.k - k0);
        for r in 0..weights.n_rows() {
            // Rows the weights do not fill keep old values; their results are not read.
            micro.decode(&weights.row(r)[bytes(k0)..bytes(k0 + kc)], r, tile);
        }
        let part = M::group_size_bytes(k0)..M::group_size_bytes(k0 + kc);
        let mut xs = x
            .chunks_exact(layout.group_size_bytes)
            .map(|group| &group[part.clone()]);
        let mut accs = acc.chunks_exact_mut(group_acc);
        while let (Some(x0), Some(acc0)) = (xs.next(), accs.next()) {
            if M::GROUPS == 2 && xs.len() > 0 {
                let (x1, acc1) = (
                    xs.next().expect("one is left"),
                    accs.next().expect("one per group"),
                );
                micro.tile(tile, kc, [x0, x1], [acc0, acc1]);
            } else {
                micro.tile(tile, kc, [x0], [acc0]);
            }
        }
    }
}
