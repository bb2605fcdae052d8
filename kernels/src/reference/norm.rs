//! Normalisation of rows, summed in f64.

use super::Reference;
use crate::op::norm::Implementation;

impl Implementation for Reference {
    fn rms_norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        let x = x.map_or_else(|| out.to_vec(), <[f32]>::to_vec);
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = factor(squares, x.len(), eps);
        for (out, x) in out.iter_mut().zip(x) {
            *out = round(f64::from(x) * scale);
        }
    }

    fn norm(&self, x: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        let x = x.map_or_else(|| out.to_vec(), <[f32]>::to_vec);
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / len(x.len());
        let squares: f64 = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
        let scale = factor(squares, x.len(), eps);
        for (out, x) in out.iter_mut().zip(x) {
            *out = round((f64::from(x) - mean) * scale);
        }
    }
}

fn factor(squares: f64, n: usize, eps: f32) -> f64 {
    1.0 / (squares / len(n) + f64::from(eps)).sqrt()
}

#[expect(clippy::cast_precision_loss, reason = "rows are shorter than 2^53")]
fn len(n: usize) -> f64 {
    n as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the rounding of the result"
)]
fn round(x: f64) -> f32 {
    x as f32
}
