//! Normalisation of rows. Squares are added up in f64, as in ggml's `RMS_NORM`: a factor that differs in its last bit changes
//! every element, and with them some of the integers that a product makes of them. ggml's `NORM` adds up f32 sums of vectors.

use super::{Body, Isa, LANES, Vectored, map, sum};
use crate::op::norm::Implementation;

struct RmsNorm<'a>(Option<&'a [f32]>, f32, &'a mut [f32]);

impl Body for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(x, eps, out) = self;
        let scale = factor(squares(x.unwrap_or(out)), out.len(), eps);
        map(x, out, |x| x * scale);
    }
}

struct Norm<'a>(Option<&'a [f32]>, f32, &'a mut [f32]);

impl Body for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(x, eps, out) = self;
        let mean = sum(x.unwrap_or(out), |x| x) / len(out.len());
        map(x, out, |x| x - mean);
        let scale = factor(squares(out), out.len(), eps);
        map(None, out, |x| x * scale);
    }
}

/// Returns the sum of squares, in `LANES` partial sums.
#[inline(always)]
fn squares(x: &[f32]) -> f64 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x * x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail) {
        *sum += f64::from(x * x);
    }
    sums.into_iter().sum()
}

/// Returns what brings a row with this sum of squares to length 1 per element.
#[inline(always)]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "rows are shorter than 2^53, and the mean is rounded to f32"
)]
fn factor(squares: f64, n: usize, eps: f32) -> f32 {
    1.0 / ((squares / n as f64) as f32 + eps).sqrt()
}

#[inline(always)]
#[expect(
    clippy::cast_precision_loss,
    reason = "the count of a mean is rounded to f32"
)]
fn len(n: usize) -> f32 {
    n as f32
}

impl<I: Isa> Implementation for Vectored<I> {
    fn rms_norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        self.0.run(RmsNorm(x, eps, out));
    }

    fn norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        self.0.run(Norm(x, eps, out));
    }
}
