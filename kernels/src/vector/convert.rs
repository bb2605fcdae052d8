//! Copies of rows that change the type.

use super::{Body, Isa, LANES, Vectored};
use crate::WeightType;
use crate::block::{Q4_0, Q8_0, QK};
use crate::op::copy::Implementation;
use crate::reference::convert;

/// Writes the values of half floats.
#[inline(always)]
pub(super) fn widen_row<I: Isa>(isa: I, x: &[u8], out: &mut [f32]) {
    let (chunks, tail) = x.as_chunks::<{ 2 * LANES }>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in chunks.iter().zip(out_chunks) {
        *out = isa.widen(x);
    }
    if !tail.is_empty() {
        let mut padded = [0; 2 * LANES];
        padded[..tail.len()].copy_from_slice(tail);
        out_tail.copy_from_slice(&isa.widen(&padded)[..out_tail.len()]);
    }
}

/// Rounds to half floats.
#[inline(always)]
pub(super) fn narrow_row<I: Isa>(isa: I, x: &[f32], out: &mut [u8]) {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<{ 2 * LANES }>();
    for (x, out) in chunks.iter().zip(out_chunks) {
        *out = isa.narrow(x);
    }
    if !tail.is_empty() {
        let mut padded = [0.0; LANES];
        padded[..tail.len()].copy_from_slice(tail);
        out_tail.copy_from_slice(&isa.narrow(&padded)[..out_tail.len()]);
    }
}

struct Widen<'a>(&'a [u8], &'a mut [f32]);

impl Body for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        widen_row(isa, self.0, self.1);
    }
}

struct Narrow<'a>(&'a [f32], &'a mut [u8]);

impl Body for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        narrow_row(isa, self.0, self.1);
    }
}

struct DequantizeQ8_0<'a>(&'a [u8], &'a mut [f32]);

impl Body for DequantizeQ8_0<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let blocks = self.0.as_chunks::<{ Q8_0::SIZE_BYTES }>().0;
        for (block, out) in blocks.iter().zip(self.1.as_chunks_mut::<QK>().0) {
            let d = scale(isa, [block[0], block[1]]);
            let qs = Q8_0(block).qs();
            for i in 0..QK {
                out[i] = d * f32::from(qs[i].cast_signed());
            }
        }
    }
}

struct DequantizeQ4_0<'a>(&'a [u8], &'a mut [f32]);

impl Body for DequantizeQ4_0<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let blocks = self.0.as_chunks::<{ Q4_0::SIZE_BYTES }>().0;
        for (block, out) in blocks.iter().zip(self.1.as_chunks_mut::<QK>().0) {
            let d = scale(isa, [block[0], block[1]]);
            let qs = Q4_0(block).qs();
            for i in 0..QK / 2 {
                out[i] = d * f32::from((qs[i] & 15).cast_signed() - 8);
                out[QK / 2 + i] = d * f32::from((qs[i] >> 4).cast_signed() - 8);
            }
        }
    }
}

/// Returns the value of the half float at the start of a block.
#[inline(always)]
fn scale<I: Isa>(isa: I, d: [u8; 2]) -> f32 {
    let mut halves = [0; 2 * LANES];
    halves[..2].copy_from_slice(&d);
    isa.widen(&halves)[0]
}

impl<I: Isa> Implementation for Vectored<I> {
    fn widen(&self, x: &[u8], out: &mut [f32]) {
        self.0.run(Widen(x, out));
    }

    fn narrow(&self, x: &[f32], out: &mut [u8]) {
        self.0.run(Narrow(x, out));
    }

    fn dequantize(&self, ty: WeightType, row: &[u8], out: &mut [f32]) {
        match ty {
            WeightType::F16 => self.0.run(Widen(row, out)),
            WeightType::Q8_0 => self.0.run(DequantizeQ8_0(row, out)),
            WeightType::Q4_0 => self.0.run(DequantizeQ4_0(row, out)),
            _ => convert::dequantize_row(ty, row, out),
        }
    }
}
