//! Softmax of rows, in f64.

use super::Reference;
use crate::block::f16_to_f32;
use crate::op::soft_max::{Implementation, Mask, SoftMaxRow};

impl Implementation for Reference {
    fn soft_max(&self, row: SoftMaxRow<'_>, x: Option<&[f32]>, out: &mut [f32]) {
        let x = x.map_or_else(|| out.to_vec(), <[f32]>::to_vec);
        let mask = |i: usize| match row.mask {
            Mask::None => 0.0,
            Mask::F32(mask) => mask[i],
            Mask::F16(mask) => f16_to_f32([mask[2 * i], mask[2 * i + 1]]),
        };
        let y: Vec<f64> = (0..x.len())
            .map(|i| f64::from(x[i] * row.scale + row.slope * mask(i)))
            .collect();
        let sink = row.sink.map_or(f64::NEG_INFINITY, f64::from);
        let most = y.iter().fold(sink, |a, b| a.max(*b));
        let mut sum: f64 = y.iter().map(|y| (y - most).exp()).sum();
        if row.sink.is_some() {
            sum += (sink - most).exp();
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the rounding of the result"
        )]
        for (out, y) in out.iter_mut().zip(y) {
            *out = ((y - most).exp() / sum) as f32;
        }
    }
}
