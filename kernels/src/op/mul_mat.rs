//! `MUL_MAT`: `dst[i1][i0] = sum over k of weights[i0][k] * x[i1][k]`.
//!
//! Arithmetic, as ggml's CPU backend has it:
//!
//! | weights | x | products and sums |
//! |---|---|---|
//! | `F32` | as it is | f32 |
//! | `F16` | rounded to f16, ties to even | f32 |
//! | `Q8_0`, `Q4_0` | quantised to `Q8_0` ([`crate::op::convert::quantize_row_q8_0`]) | integer dot of a block, times `d_w * d_x`, added in f32 |
//!
//! The order of additions is not part of the contract: with `S = sum |weights * x|` over the values actually
//! multiplied, results of two implementations differ by at most `k * 2^-22 * S` for floats and `k / 32 * 2^-21 * S`
//! for quantised types, `S` then summed over the 32 products of a block without cancellation. Integer parts are exact.
//! An infinity or NaN in the operands makes the results it takes part in non-finite, and no others.
//!
//! x is prepared once into a *panel* in a form private to the kernel; any number of threads may then multiply disjoint
//! parts of the weights with it.

use std::fmt::Debug;

use crate::{F32Rows, WeightRows, WeightType};

/// How a kernel wants the rows of x of one product to lie: groups of `lanes` rows, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelLayout {
    pub(crate) k: usize,
    pub(crate) n_rows: usize,
    pub(crate) lanes: usize,
    pub(crate) group_size_bytes: usize,
}

impl PanelLayout {
    /// Returns the elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the rows of x.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the rows of a group; the last group may have fewer.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Returns the bytes of a group.
    pub fn group_size_bytes(&self) -> usize {
        self.group_size_bytes
    }

    /// Returns the number of groups.
    pub fn n_groups(&self) -> usize {
        self.n_rows.div_ceil(self.lanes)
    }

    /// Returns the bytes of all groups.
    pub fn panel_size_bytes(&self) -> usize {
        self.n_groups() * self.group_size_bytes
    }
}

/// What a kernel family implements; [`MulMat`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// Type of the weights.
    fn ty(&self) -> WeightType;
    /// See [`MulMat::layout`].
    fn layout(&self, k: usize, n_rows: usize) -> PanelLayout;
    /// Packs one group: `x` has 1 to `lanes` rows of `k`, `group` is `group_size_bytes` long and is written entirely.
    fn prepare_group(&self, layout: &PanelLayout, x: &F32Rows<'_>, group: &mut [u8]);
    /// See [`MulMat::mul_mat`]; `panel` holds the groups of exactly `n_rows` rows, at least one.
    fn mul_mat(
        &self,
        layout: &PanelLayout,
        weights: &WeightRows<'_>,
        panel: &[u8],
        n_rows: usize,
        out: &mut [f32],
        out_stride: usize,
    );
}

/// Owning: one implementation of `MUL_MAT` for one weight type. Holding it proves that this CPU can run it.
#[derive(Debug)]
pub struct MulMat(pub(crate) Box<dyn Implementation>);

impl MulMat {
    /// Returns the type of the weights.
    pub fn ty(&self) -> WeightType {
        self.0.ty()
    }

    /// Returns the panel layout for `n_rows` rows of x with `k` elements.
    ///
    /// The same `(k, n_rows)` always gives the same layout and, with it, the same rounding of every result.
    ///
    /// # Panics
    ///
    /// When `k` is not whole blocks of the type.
    pub fn layout(&self, k: usize, n_rows: usize) -> PanelLayout {
        assert!(
            k.is_multiple_of(self.ty().blck_size()),
            "{k} elements are not whole blocks of {}",
            self.ty().name()
        );
        self.0.layout(k, n_rows)
    }

    /// Packs rows of x into groups of the panel.
    ///
    /// `x`: `[k, n]`, with `n` any number of rows that starts at a group; `groups`: as many groups as they fill,
    /// written entirely. Threads may prepare disjoint groups of one panel.
    ///
    /// # Panics
    ///
    /// When row length, row count and bytes do not match the layout.
    pub fn prepare(&self, layout: &PanelLayout, x: &F32Rows<'_>, groups: &mut [u8]) {
        assert_eq!(x.k(), layout.k, "elements of an x row");
        let n_groups = x.n_rows().div_ceil(layout.lanes);
        assert_eq!(
            groups.len(),
            n_groups * layout.group_size_bytes,
            "bytes of the groups of {} rows",
            x.n_rows()
        );
        for g in 0..n_groups {
            let start = g * layout.lanes;
            let rows = x.slice(start, layout.lanes.min(x.n_rows() - start));
            self.0.prepare_group(
                layout,
                &rows,
                &mut groups[g * layout.group_size_bytes..][..layout.group_size_bytes],
            );
        }
    }

    /// Multiplies weight rows with x rows.
    ///
    /// `weights`: `[k, n]`; `panel`: the prepared groups of `n_rows` rows, from any group on; result for weight row
    /// `i0` and x row `i1` goes to `out[i1 * out_stride + i0]`, nothing else of `out` is written. Weights are read once
    /// per 32 or more rows of x.
    ///
    /// # Panics
    ///
    /// When type, shapes and lengths do not match.
    pub fn mul_mat(
        &self,
        layout: &PanelLayout,
        weights: &WeightRows<'_>,
        panel: &[u8],
        n_rows: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        assert_eq!(weights.ty(), self.ty(), "type of the weights");
        assert_eq!(weights.k(), layout.k, "elements of a weight row");
        assert_eq!(
            panel.len(),
            n_rows.div_ceil(layout.lanes) * layout.group_size_bytes,
            "bytes of {n_rows} rows"
        );
        if n_rows == 0 || weights.n_rows() == 0 {
            return;
        }
        assert!(
            weights.n_rows() <= out_stride || n_rows == 1,
            "result rows of {out_stride} overlap"
        );
        assert!(
            (n_rows - 1) * out_stride + weights.n_rows() <= out.len(),
            "results exceed the output"
        );
        self.0
            .mul_mat(layout, weights, panel, n_rows, out, out_stride);
    }
}
