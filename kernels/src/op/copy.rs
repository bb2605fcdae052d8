//! Copies of rows that change the type: the arithmetic of `CPY`, `CONT`, `GET_ROWS` and `SET_ROWS`.
//!
//! Exact, but for rounding to half floats: to nearest, ties to even, overflow to infinity, NaN stays NaN. Half floats
//! and blocks are bytes, little endian. Kernels agree bit for bit, NaN payloads apart.

use std::fmt::Debug;

use crate::WeightType;

/// What a family implements; [`CopyRow`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`CopyRow::widen`].
    fn widen(&self, x: &[u8], out: &mut [f32]);
    /// See [`CopyRow::narrow`].
    fn narrow(&self, x: &[f32], out: &mut [u8]);
    /// See [`CopyRow::dequantize`].
    fn dequantize(&self, ty: WeightType, row: &[u8], out: &mut [f32]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct CopyRow(pub(crate) Box<dyn Implementation>);

impl CopyRow {
    /// Writes the values of half floats.
    ///
    /// # Panics
    ///
    /// When `x` is not two bytes per element.
    pub fn widen(&self, x: &[u8], out: &mut [f32]) {
        assert_eq!(x.len(), 2 * out.len(), "bytes of {} half floats", out.len());
        self.0.widen(x, out);
    }

    /// Rounds to half floats.
    ///
    /// # Panics
    ///
    /// When `out` is not two bytes per element.
    pub fn narrow(&self, x: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), 2 * x.len(), "bytes of {} half floats", x.len());
        self.0.narrow(x, out);
    }

    /// Writes the values of a row of weights.
    ///
    /// # Panics
    ///
    /// When `row` is not `out.len()` elements of the type.
    pub fn dequantize(&self, ty: WeightType, row: &[u8], out: &mut [f32]) {
        assert_eq!(
            Some(row.len()),
            ty.row_size(out.len()),
            "bytes of {} elements of {}",
            out.len(),
            ty.name()
        );
        self.0.dequantize(ty, row, out);
    }
}
