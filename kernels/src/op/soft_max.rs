//! `SOFT_MAX` of rows: `out = e^(y - m) / s` with `y = scale * x + slope * mask`, `m` the largest of `y` (and of the sink),
//! `s` the sum of the numerators (and of `e^(sink - m)`).
//!
//! Everything is f32; e^ is within 2 ULP, `y` may be rounded once or twice, and the sum is in partial sums of the
//! implementation's own, so that results of two kernels differ by at most `(n / 32 + 16 + 4 max|y|) * 2^-24` of their
//! value, as far as they are normal floats. A row with a NaN, with +infinity, or with -infinity alone is NaN everywhere.

use std::fmt::Debug;

/// What is added to a row.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Nothing.
    None,
    /// Floats, one per element.
    F32(&'a [f32]),
    /// Half floats, little endian.
    F16(&'a [u8]),
}

/// How a row is prepared.
#[derive(Clone, Copy, Debug)]
pub struct SoftMaxRow<'a> {
    /// Factor of x.
    pub scale: f32,
    /// What is added.
    pub mask: Mask<'a>,
    /// Factor of the mask (`ALiBi`'s slope of the head; else 1).
    pub slope: f32,
    /// A logit that takes part in the sum and has no place in the result.
    pub sink: Option<f32>,
}

/// What a family implements; [`SoftMax`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`SoftMax::soft_max`].
    fn soft_max(&self, row: SoftMaxRow<'_>, x: Option<&[f32]>, out: &mut [f32]);
}

/// A kernel. A value of the type proves that this CPU can run it.
#[derive(Debug)]
pub struct SoftMax(pub(crate) Box<dyn Implementation>);

impl SoftMax {
    /// Computes a row; without `x`, of `out` itself.
    ///
    /// # Panics
    ///
    /// When lengths differ.
    pub fn soft_max(&self, row: SoftMaxRow<'_>, x: Option<&[f32]>, out: &mut [f32]) {
        super::check_len(x, out);
        match row.mask {
            Mask::None => {}
            Mask::F32(mask) => super::check_len(Some(mask), out),
            Mask::F16(mask) => {
                assert_eq!(mask.len(), 2 * out.len(), "bytes of the mask");
            }
        }
        self.0.soft_max(row, x, out);
    }
}
