//! Normalisation of rows.

use super::{Body, Isa, Vectored, map, sum};
use crate::op::norm::Implementation;

struct RmsNorm<'a>(Option<&'a [f32]>, f32, &'a mut [f32]);

impl Body for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let Self(x, eps, out) = self;
        let scale = factor(sum(x.unwrap_or(out), |x| x * x), out.len(), eps);
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
        let scale = factor(sum(out, |x| x * x), out.len(), eps);
        map(None, out, |x| x * scale);
    }
}

/// Returns what brings a row with this sum of squares to length 1 per element.
#[inline(always)]
fn factor(squares: f32, n: usize, eps: f32) -> f32 {
    1.0 / (squares / len(n) + eps).sqrt()
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
