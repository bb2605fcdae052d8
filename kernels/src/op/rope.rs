//! `ROPE`: pairs of elements of a row are rotated by angles that grow with the row's position.
//!
//! Pair `j` of the first `n_dims` elements is turned by `theta_j`: `(a, b) -> (a cos - b sin, a sin + b cos)`; elements
//! from `n_dims` on are copied. `theta_j = pos * freq_base^(-2 j / n_dims) / factors[j]`, powers multiplied up one by one
//! in f32 as ggml does, then stretched by `freq_scale` or, with `YaRN` (`ext_factor` not 0), by a mix of both that depends
//! on how often the pair turns within `n_ctx_orig` positions.
//!
//! Cosines and sines of a position go into a table ([`RopeParams::fill_table`]) that serves every head, and every layer
//! of a graph. Rotation is f32; results of two kernels differ by at most `2^-22 * (|a| + |b|)` times the magnitude
//! factor.

use std::fmt::Debug;

/// Which elements make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `2 j` and `2 j + 1`: ggml's mode 0.
    Normal,
    /// `j` and `j + n_dims / 2`: ggml's mode 2.
    Neox,
}

/// Parameters of the angles, named as in ggml.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "ggml's names; the formula is in the module's documentation"
)]
pub struct RopeParams {
    pub pairing: Pairing,
    /// Elements that are rotated: even, and at most the row's.
    pub n_dims: usize,
    pub n_ctx_orig: i32,
    pub freq_base: f32,
    pub freq_scale: f32,
    pub ext_factor: f32,
    pub attn_factor: f32,
    pub beta_fast: f32,
    pub beta_slow: f32,
}

impl RopeParams {
    /// Returns the floats of a position's table.
    pub fn table_len(&self) -> usize {
        2 * self.n_dims
    }

    /// Writes the table of position `pos`: for each of the `n_dims` elements what it is multiplied with, then for each
    /// what its partner is multiplied with.
    ///
    /// # Panics
    ///
    /// When the table is not [`Self::table_len`] floats, `n_dims` is odd, or there is no factor for each pair.
    pub fn fill_table(&self, pos: i32, factors: Option<&[f32]>, table: &mut [f32]) {
        assert_eq!(table.len(), self.table_len(), "floats of a table");
        assert!(
            self.n_dims.is_multiple_of(2),
            "{} dimensions make no pairs",
            self.n_dims
        );
        let half = self.n_dims / 2;
        let factors = factors.map(|factors| &factors[..half]);
        let (cos, sin) = table.split_at_mut(self.n_dims);
        let theta_scale = self.freq_base.powf(-2.0 / float(self.n_dims));
        let (low, high) = self.yarn_range();
        #[expect(
            clippy::cast_precision_loss,
            reason = "ggml's angles are f32 from the start"
        )]
        let mut theta = pos as f32;
        for j in 0..half {
            let extrapolated = theta / factors.map_or(1.0, |factors| factors[j]);
            let interpolated = self.freq_scale * extrapolated;
            let (mut angle, mut magnitude) = (interpolated, self.attn_factor);
            if self.ext_factor != 0.0 {
                let along = (float(j) - low) / (high - low).max(0.001);
                let mix = (1.0 - along.clamp(0.0, 1.0)) * self.ext_factor;
                angle = interpolated * (1.0 - mix) + extrapolated * mix;
                magnitude *= 1.0 + 0.1 * (1.0 / self.freq_scale).ln();
            }
            let (s, c) = (angle.sin() * magnitude, angle.cos() * magnitude);
            let (a, b) = match self.pairing {
                Pairing::Normal => (2 * j, 2 * j + 1),
                Pairing::Neox => (j, j + half),
            };
            (cos[a], cos[b]) = (c, c);
            (sin[a], sin[b]) = (-s, s);
            theta *= theta_scale;
        }
    }

    /// Returns the pairs between which `YaRN` goes over from extrapolation to interpolation: those that turn `beta_fast`
    /// and `beta_slow` times within the original context.
    fn yarn_range(&self) -> (f32, f32) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "as in ggml; contexts are shorter than 2^24"
        )]
        let n_ctx = self.n_ctx_orig as f32;
        let pair = |turns: f32| {
            let wavelength = n_ctx / (turns * std::f32::consts::TAU);
            float(self.n_dims) * wavelength.ln() / (2.0 * self.freq_base.ln())
        };
        let last = float(self.n_dims.saturating_sub(1));
        (
            pair(self.beta_fast).floor().max(0.0),
            pair(self.beta_slow).ceil().min(last),
        )
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "dimensions of a head are below 2^24"
)]
fn float(n: usize) -> f32 {
    n as f32
}

/// Most elements of a row of half floats.
pub const MAX_F16_ROW: usize = 1024;

/// What a family implements; [`Rope`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Rope::rotate`].
    fn rotate(&self, pairing: Pairing, table: &[f32], x: Option<&[f32]>, out: &mut [f32]);
    /// See [`Rope::rotate_f16`].
    fn rotate_f16(&self, pairing: Pairing, table: &[f32], x: Option<&[u8]>, out: &mut [u8]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct Rope(pub(crate) Box<dyn Implementation>);

impl Rope {
    /// Rotates a row by a table of [`RopeParams::fill_table`] for the same pairing; without `x`, `out` itself.
    ///
    /// # Panics
    ///
    /// When lengths differ or the table is for more elements than the row has.
    pub fn rotate(&self, pairing: Pairing, table: &[f32], x: Option<&[f32]>, out: &mut [f32]) {
        super::check_len(x, out);
        check_table(table, out.len());
        self.0.rotate(pairing, table, x, out);
    }

    /// Rotates a row of half floats, little endian: computed in f32, rounded once.
    ///
    /// # Panics
    ///
    /// As [`Self::rotate`], and when the row has more than [`MAX_F16_ROW`] elements.
    pub fn rotate_f16(&self, pairing: Pairing, table: &[f32], x: Option<&[u8]>, out: &mut [u8]) {
        super::check_len(x, out);
        check_table(table, out.len() / 2);
        assert!(
            out.len() <= 2 * MAX_F16_ROW && out.len().is_multiple_of(2),
            "row of {} bytes",
            out.len()
        );
        self.0.rotate_f16(pairing, table, x, out);
    }
}

fn check_table(table: &[f32], n: usize) {
    assert!(
        table.len().is_multiple_of(4) && table.len() / 2 <= n,
        "table of {} floats for a row of {n}",
        table.len()
    );
}
