//! Rotation of rows.

use super::convert::{narrow_row, widen_row};
use super::{Body, Isa, LANES, Vectored, mul_add};
use crate::op::rope::{Implementation, MAX_F16_ROW, Pairing};

struct Rotate<'a>(Pairing, &'a [f32], Option<&'a [f32]>, &'a mut [f32]);

impl Body for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self(pairing, table, x, out) = self;
        rotate(isa, pairing, table, x, out);
    }
}

#[inline(always)]
fn rotate<I: Isa>(isa: I, pairing: Pairing, table: &[f32], x: Option<&[f32]>, out: &mut [f32]) {
    let n_dims = table.len() / 2;
    let (out, rest) = out.split_at_mut(n_dims);
    let x = x.map(|x| x.split_at(n_dims));
    if let Some((_, x_rest)) = x {
        rest.copy_from_slice(x_rest);
    }
    let (cos, sin) = table.split_at(n_dims);
    match pairing {
        Pairing::Normal => normal(isa, cos, sin, x.map(|x| x.0), out),
        Pairing::Neox => neox::<I>(cos, sin, x.map(|x| x.0), out),
    }
}

/// Partners are neighbours.
#[inline(always)]
fn normal<I: Isa>(isa: I, cos: &[f32], sin: &[f32], x: Option<&[f32]>, out: &mut [f32]) {
    if let Some(x) = x {
        out.copy_from_slice(x);
    }
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    let (cos_chunks, cos_tail) = cos.as_chunks::<LANES>();
    let (sin_chunks, sin_tail) = sin.as_chunks::<LANES>();
    for ((out, cos), sin) in chunks.iter_mut().zip(cos_chunks).zip(sin_chunks) {
        *out = isa.rotate_pairs(out, cos, sin);
    }
    let tables = cos_tail
        .as_chunks::<2>()
        .0
        .iter()
        .zip(sin_tail.as_chunks::<2>().0);
    for (pair, (cos, sin)) in tail.as_chunks_mut::<2>().0.iter_mut().zip(tables) {
        let [a, b] = *pair;
        *pair = [
            mul_add::<I>(a, cos[0], b * sin[0]),
            mul_add::<I>(b, cos[1], a * sin[1]),
        ];
    }
}

/// Partners are in the other half.
#[inline(always)]
fn neox<I: Isa>(cos: &[f32], sin: &[f32], x: Option<&[f32]>, out: &mut [f32]) {
    let half = out.len() / 2;
    if let Some(x) = x {
        out.copy_from_slice(x);
    }
    let (low, high) = out.split_at_mut(half);
    let (cos, sin) = (&cos[half..][..low.len()], &sin[half..][..low.len()]);
    let high = &mut high[..low.len()];
    for i in 0..low.len() {
        let (a, b) = (low[i], high[i]);
        low[i] = mul_add::<I>(a, cos[i], -(b * sin[i]));
        high[i] = mul_add::<I>(b, cos[i], a * sin[i]);
    }
}

struct RotateF16<'a>(Pairing, &'a [f32], Option<&'a [u8]>, &'a mut [u8]);

impl Body for RotateF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self(pairing, table, x, out) = self;
        let mut row = [0.0; MAX_F16_ROW];
        let row = &mut row[..out.len() / 2];
        widen_row(isa, x.unwrap_or(out), row);
        rotate(isa, pairing, table, None, row);
        narrow_row(isa, row, out);
    }
}

impl<I: Isa> Implementation for Vectored<I> {
    fn rotate(&self, pairing: Pairing, table: &[f32], x: Option<&[f32]>, out: &mut [f32]) {
        self.0.run(Rotate(pairing, table, x, out));
    }

    fn rotate_f16(&self, pairing: Pairing, table: &[f32], x: Option<&[u8]>, out: &mut [u8]) {
        self.0.run(RotateF16(pairing, table, x, out));
    }
}
