//! Matrix products with tiled weights: `out[i1][i0] = sum over k of weights[i0][k] * x[i1][k]`.
//!
//! Weights are [tiles](crate::tile); x is prepared once into a *panel* in a form private to the kernel; then any number
//! of threads multiply strips of 32 weight rows with groups of x rows, each pair into a block of the output of its own.
//!
//! ```text
//! layout  = gemm.layout(k, n_rows)             x rows are cut into groups; a unit is 32 elements of each row of a group
//! threads : gemm.prepare(units a..b)           contiguous pieces of the panel
//! threads : gemm.strip(strip, group) -> 32 results for each row of the group
//! ```
//!
//! A strip is decoded once per group, so that one kernel serves one row (where reading weights takes the time) and many
//! (where multiplying does).
//!
//! # Arithmetic
//!
//! | weights | x | products and sums |
//! |---|---|---|
//! | `F16` | rounded to f16, ties to even | f32 |
//! | `Q4_0`, `Q8_0` | quantised to `Q8_0` ([`crate::op::convert::quantize_row_q8_0`]) | integer dot of 32 elements, times `d_w * d_x`, added in f32 |
//! | `Q4_1` | as above | as above, plus `m_w * (d_x * sum of the integers of x)` |
//! | `Q4_K` | quantised as ggml's `Q8_K` | as above; or the dots times their integer scales first, over 256 elements |
//! | `Q6_K` | as `Q4_K` | integer dots of 16 elements, each times its `d_w * d_x`; or as above |
//!
//! `Q8_K` has one f32 scale for 256 elements: with `id = 127 / amax`, `amax` being the largest magnitude among them,
//! `d_x = 1 / id` and `q = round(x * id)`, halves to even. Where `id` is not finite everything is 0; where `amax` is not,
//! `d_x` is `amax` and the integers are 0, so that every product is NaN. An element of x is off by at most `amax / 254`: more
//! than with `Q8_0`, whose `amax` is the largest among 32; it is what ggml's CPU backend computes.
//!
//! The order of additions is not part of the contract. With `S` the sum of the magnitudes of everything that is added up
//! (`|w * x|` of the values actually multiplied, and `|m_w| * d_x * sum |x|`), results of two implementations differ by at
//! most `k * 2^-22 * S` for `F16` and `k / 32 * 2^-21 * S` for the others; their integer parts are exact. An infinity
//! or NaN in the operands makes the results it takes part in non-finite, and no others.
//!
//! `aarch64-tile_f16-fp16` adds the products of 32 elements as half floats, x being scaled so that they neither overflow nor
//! vanish: up to `10 * 2^-11 * S + max |x| * (k * 2^-31 + 2^-33 * sum |w|)` come on top of that. The last term is of elements
//! so far below the largest of their 32 that scaling rounds them; it counts where their weights are large and its own is not.
//! Rounding x alone changes results by up to `2^-11 * S`; in both, errors of either sign cancel, so that the usual error is a
//! small fraction of these. It comes behind `aarch64-tile_f16-fhm`, whose products are exact and whose sums are f32.

use std::fmt::Debug;
use std::ops::Range;

use crate::F32Rows;
use crate::tile::{TILE, TileMatrix, TileType};

/// Most rows of a group of most kernels: their results stay in a first-level cache.
pub(crate) const GROUP_ROWS: usize = 128;

/// How a kernel wants the rows of x of one product to lie.
///
/// The panel is a sequence of *units*: for each group of rows, for each 32 elements of k, those elements of all rows of
/// the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmLayout {
    k: usize,
    n_rows: usize,
    group_rows: usize,
    /// Bytes of a unit of a full group, and of the last group.
    unit_size_bytes: [usize; 2],
}

impl GemmLayout {
    /// Returns the elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the rows of x.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the number of groups; they are of nearly equal size.
    pub fn n_groups(&self) -> usize {
        self.n_rows.div_ceil(self.group_rows.max(1))
    }

    /// Returns the rows of group `group`.
    pub fn rows(&self, group: usize) -> Range<usize> {
        let start = group * self.group_rows;
        start..self.n_rows.min(start + self.group_rows)
    }

    /// Returns the units of a group.
    pub fn n_k_tiles(&self) -> usize {
        self.k.div_ceil(TILE)
    }

    /// Returns the units of all groups.
    pub fn n_units(&self) -> usize {
        self.n_groups() * self.n_k_tiles()
    }

    /// Returns the bytes of one unit of group `group`.
    pub fn unit_size_bytes(&self, group: usize) -> usize {
        self.unit_size_bytes[usize::from(group + 1 >= self.n_groups())]
    }

    /// Returns where in the panel unit `unit` starts; with [`Self::n_units`], the bytes of the panel.
    pub fn unit_offset(&self, unit: usize) -> usize {
        if self.n_units() == 0 {
            return 0;
        }
        let (group, k_tile) = (unit / self.n_k_tiles(), unit % self.n_k_tiles());
        let full = group * self.n_k_tiles() * self.unit_size_bytes[0];
        if group == self.n_groups() {
            full - self.n_k_tiles() * (self.unit_size_bytes[0] - self.unit_size_bytes[1])
        } else {
            full + k_tile * self.unit_size_bytes(group)
        }
    }

    /// Returns the bytes of the panel that hold units.
    pub fn unit_bytes(&self, units: Range<usize>) -> Range<usize> {
        self.unit_offset(units.start)..self.unit_offset(units.end)
    }

    /// Returns the bytes of the panel that hold a group.
    pub fn group_bytes(&self, group: usize) -> Range<usize> {
        self.unit_bytes(group * self.n_k_tiles()..(group + 1) * self.n_k_tiles())
    }

    /// Returns the bytes of the panel.
    pub fn panel_size_bytes(&self) -> usize {
        self.unit_offset(self.n_units())
    }
}

/// What a kernel family implements; [`Gemm`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// Type of the weights.
    fn ty(&self) -> TileType;

    /// Most rows of a group, at least 1.
    fn group_rows(&self) -> usize {
        GROUP_ROWS
    }

    /// Bytes of a unit with `n_rows` rows, at least 1.
    fn unit_size_bytes(&self, n_rows: usize) -> usize;

    /// Packs units `k_tiles` of one group; `x` has the rows of the group, `units` is written entirely. The last unit of a
    /// row whose length is not a multiple of 32 is filled up with zeros.
    fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]);

    /// Multiplies a strip with a group: `out[row]` are the results of the strip's 32 weight rows, one for each row of the
    /// group. Old contents of `out` do not matter. There is at least one row, `tiles` has one tile per unit, and `bases`
    /// those of the strip.
    fn strip(&self, tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]);
}

/// Owning: one implementation of products with tiled weights of one type. Holding it proves that this CPU can run it.
#[derive(Debug)]
pub struct Gemm(pub(crate) Box<dyn Implementation>);

impl Gemm {
    /// Returns the type of the weights.
    pub fn ty(&self) -> TileType {
        self.0.ty()
    }

    /// Returns the panel layout for `n_rows` rows of x with `k` elements.
    ///
    /// The same `(k, n_rows)` always gives the same layout and, with it, the same rounding of every result.
    ///
    /// # Panics
    ///
    /// When `k` is not whole blocks of the type.
    pub fn layout(&self, k: usize, n_rows: usize) -> GemmLayout {
        assert!(
            k.is_multiple_of(self.ty().blck_size()),
            "{k} elements are not whole blocks of {}",
            self.ty().name()
        );
        let n_groups = n_rows.div_ceil(self.0.group_rows());
        let group_rows = n_rows.div_ceil(n_groups.max(1));
        // Rounding up may leave the last group with few rows, or need one group less.
        let last = n_rows - n_rows.saturating_sub(1) / group_rows.max(1) * group_rows;
        let size = |n: usize| if n == 0 { 0 } else { self.0.unit_size_bytes(n) };
        GemmLayout {
            k,
            n_rows,
            group_rows,
            unit_size_bytes: [size(group_rows), size(last)],
        }
    }

    /// Packs units of the panel; threads may prepare disjoint ones.
    ///
    /// `x`: `[k, n_rows]`, all rows of the product; `out`: [`GemmLayout::unit_bytes`] of `units`, written entirely.
    ///
    /// # Panics
    ///
    /// When shapes and lengths do not match the layout.
    pub fn prepare(
        &self,
        layout: &GemmLayout,
        x: &F32Rows<'_>,
        units: Range<usize>,
        out: &mut [u8],
    ) {
        assert_eq!((x.k(), x.n_rows()), (layout.k, layout.n_rows), "shape of x");
        assert!(units.end <= layout.n_units(), "units of the panel");
        let bytes = layout.unit_bytes(units.clone());
        assert_eq!(out.len(), bytes.len(), "bytes of {units:?}");
        let n = layout.n_k_tiles();
        let mut unit = units.start;
        while unit < units.end {
            let (group, k_tile) = (unit / n, unit % n);
            let end = units.end.min((group + 1) * n);
            let rows = layout.rows(group);
            let part =
                layout.unit_offset(unit) - bytes.start..layout.unit_offset(end) - bytes.start;
            let x = x.slice(rows.start, rows.len());
            self.0
                .prepare(&x, k_tile..k_tile + end - unit, &mut out[part]);
            unit = end;
        }
    }

    /// Multiplies one strip of weights with one group of rows.
    ///
    /// `tiles`: the strip ([`TileMatrix::strip_size_bytes`]); `group`: its [`GemmLayout::group_bytes`] of the panel;
    /// `out`: for each row of the group, the results of the 32 weight rows of the strip, written entirely.
    ///
    /// # Panics
    ///
    /// When lengths do not match.
    pub fn strip(&self, layout: &GemmLayout, tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        let strip_size_bytes = self.ty().strip_size_bytes(layout.k);
        assert_eq!(Some(tiles.len()), strip_size_bytes, "bytes of a strip");
        let (tiles, bases) = tiles.split_at(layout.n_k_tiles() * self.ty().tile_size_bytes());
        assert!(
            out.len() == layout.group_rows || out.len() == layout.rows(layout.n_groups() - 1).len(),
            "{} rows are no group",
            out.len()
        );
        let unit = if out.is_empty() {
            0
        } else {
            self.0.unit_size_bytes(out.len())
        };
        assert_eq!(group.len(), layout.n_k_tiles() * unit, "bytes of a group");
        if tiles.is_empty() || out.is_empty() {
            out.as_flattened_mut().fill(0.0);
            return;
        }
        self.0.strip(tiles, bases, group, out);
    }

    /// Multiplies a whole matrix with all rows, on this thread.
    ///
    /// `tiles`: all of `matrix`; `panel`: all of it; result for weight row `i0` and x row `i1` goes to
    /// `out[i1 * out_stride + i0]`, nothing else of `out` is written.
    ///
    /// # Panics
    ///
    /// When type, shapes and lengths do not match.
    pub fn gemm(
        &self,
        layout: &GemmLayout,
        matrix: &TileMatrix,
        tiles: &[u8],
        panel: &[u8],
        out: &mut [f32],
        out_stride: usize,
    ) {
        assert_eq!(matrix.ty(), self.ty(), "type of the weights");
        assert_eq!(matrix.k(), layout.k, "elements of a weight row");
        assert_eq!(tiles.len(), matrix.size_bytes(), "bytes of the tiles");
        assert_eq!(panel.len(), layout.panel_size_bytes(), "bytes of the panel");
        assert!(
            matrix.n() <= out_stride || layout.n_rows < 2,
            "results overlap"
        );
        let strip_size_bytes = matrix.strip_size_bytes();
        let mut results = vec![[0.0; TILE]; layout.group_rows];
        for strip in 0..matrix.n_strips() {
            let tiles = &tiles[strip * strip_size_bytes..][..strip_size_bytes];
            let n = matrix.strip_rows(strip);
            for group in 0..layout.n_groups() {
                let rows = layout.rows(group);
                let results = &mut results[..rows.len()];
                self.strip(layout, tiles, &panel[layout.group_bytes(group)], results);
                for (row, results) in rows.zip(results) {
                    out[row * out_stride + strip * TILE..][..n].copy_from_slice(&results[..n]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units of three bytes per row and one more; groups of at most 5.
    #[derive(Debug)]
    struct Fake;

    impl Implementation for Fake {
        fn ty(&self) -> TileType {
            TileType::F16
        }

        fn group_rows(&self) -> usize {
            5
        }

        fn unit_size_bytes(&self, n_rows: usize) -> usize {
            3 * n_rows + 1
        }

        fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
            assert_eq!(
                units.len(),
                k_tiles.len() * self.unit_size_bytes(x.n_rows())
            );
            units.fill(u8::try_from(x.n_rows()).expect("few rows"));
        }

        fn strip(&self, _: &[u8], _: &[u8], _: &[u8], _: &mut [[f32; TILE]]) {}
    }

    #[test]
    fn units_fill_the_panel_without_gaps() {
        let gemm = Gemm(Box::new(Fake));
        for n_rows in 0..40 {
            for k in [0, 1, 32, 70] {
                let layout = gemm.layout(k, n_rows);
                let covered: usize = (0..layout.n_groups()).map(|g| layout.rows(g).len()).sum();
                assert_eq!(covered, n_rows);
                assert!((0..layout.n_groups()).all(|g| (1..=5).contains(&layout.rows(g).len())));
                let mut at = 0;
                for unit in 0..layout.n_units() {
                    let group = unit / layout.n_k_tiles();
                    assert_eq!(layout.unit_offset(unit), at, "{n_rows} {k} {unit}");
                    assert_eq!(
                        layout.unit_size_bytes(group),
                        3 * layout.rows(group).len() + 1
                    );
                    at += layout.unit_size_bytes(group);
                }
                assert_eq!(layout.panel_size_bytes(), at, "{n_rows} {k}");
                let bytes = vec![0; 4 * n_rows * k];
                let x = F32Rows::new(k, n_rows, 4 * k, &bytes).expect("the bytes fit");
                let mut panel = vec![0; at];
                gemm.prepare(&layout, &x, 0..layout.n_units(), &mut panel);
                assert!(panel.iter().all(|b| *b != 0));
            }
        }
    }
}
