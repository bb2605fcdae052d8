//! Softmax of rows.

use super::{Body, Isa, LANES, Vectored, map, math, max, mul_add, sum};
use crate::op::soft_max::{Implementation, Mask, SoftMaxRow};

struct SoftMax<'a>(SoftMaxRow<'a>, Option<&'a [f32]>, &'a mut [f32]);

impl Body for SoftMax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self(row, x, out) = self;
        let (scale, slope) = (row.scale, row.slope);
        map(x, out, |x| x * scale);
        match row.mask {
            Mask::None => {}
            Mask::F32(mask) => {
                for (out, mask) in out.iter_mut().zip(mask) {
                    *out = mul_add::<I>(slope, *mask, *out);
                }
            }
            Mask::F16(mask) => add_f16(isa, slope, mask, out),
        }
        let most = max(out).max(row.sink.unwrap_or(f32::NEG_INFINITY));
        map(None, out, |y| math::exp::<I>(y - most));
        let sink = row.sink.map_or(0.0, |sink| (sink - most).exp());
        let share = 1.0 / (sum(out, |e| e) + sink);
        map(None, out, |e| e * share);
    }
}

#[inline(always)]
fn add_f16<I: Isa>(isa: I, slope: f32, mask: &[u8], out: &mut [f32]) {
    let (mask_chunks, mask_tail) = mask.as_chunks::<{ 2 * LANES }>();
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    for (out, mask) in chunks.iter_mut().zip(mask_chunks) {
        let mask = isa.widen(mask);
        for i in 0..LANES {
            out[i] = mul_add::<I>(slope, mask[i], out[i]);
        }
    }
    let mut padded = [0; 2 * LANES];
    padded[..mask_tail.len()].copy_from_slice(mask_tail);
    for (out, mask) in tail.iter_mut().zip(isa.widen(&padded)) {
        *out = mul_add::<I>(slope, mask, *out);
    }
}

impl<I: Isa> Implementation for Vectored<I> {
    fn soft_max(&self, row: SoftMaxRow<'_>, x: Option<&[f32]>, out: &mut [f32]) {
        self.0.run(SoftMax(row, x, out));
    }
}
