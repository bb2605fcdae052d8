//! `RMS_NORM` and `NORM` of rows.
//!
//! `rms_norm`: `out[i] = x[i] / sqrt(sum(x^2) / n + eps)`. `norm`: `out[i] = (x[i] - m) / sqrt(sum((x - m)^2) / n + eps)`
//! with `m = sum(x) / n`. Sums are f32 or f64 in an order of the implementation's own: with `S` the sum of the magnitudes of
//! the terms, each is within `(n / 32 + 6) * 2^-24 * S`, and results of `rms_norm` differ by at most the relative error
//! that this leaves, and 4 ULP. A NaN or infinity makes what it takes part in non-finite or zero, as the formulas say.

use std::fmt::Debug;

/// What a family implements; [`Norm`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Norm::rms_norm`].
    fn rms_norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]);
    /// See [`Norm::norm`].
    fn norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct Norm(pub(crate) Box<dyn Implementation>);

impl Norm {
    /// Normalises a row by its root mean square; without `x`, `out` itself.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn rms_norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        super::check_len(x, out);
        self.0.rms_norm(x, eps, out);
    }

    /// Normalises a row to mean 0 and variance 1; without `x`, `out` itself.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        super::check_len(x, out);
        self.0.norm(x, eps, out);
    }
}
