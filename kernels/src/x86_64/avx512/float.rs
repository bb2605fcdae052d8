//! `F32` and `F16` weights: both are multiplied as f32.
//!
//! A packed group is one vector of 16 rows per element of k; a row by itself is padded with zeros to whole vectors.

use std::arch::x86_64::*;

use super::lanes::transpose;
use super::{LANES, LINE, store_transposed};
use crate::panel::{DOT_ROWS, Micro};
use crate::x86_64::mem::*;
use crate::{F32Rows, WeightType};

const MR: usize = 8;
const KC: usize = 256;

/// A tile of decoded weights.
pub(crate) type Tile = [[f32; KC]; MR];

/// The CPU has what every function here is compiled with: `avx512f` (with what it implies).
#[derive(Clone, Copy, Debug)]
struct Cpu(());

impl Cpu {
    fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

/// `F32` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32(Cpu);

/// `F16` weights; x is rounded to f16 when packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16(Cpu);

macro_rules! micro {
    ($name:ident, $half:literal) => {
        impl $name {
            /// Returns the implementation if this CPU can run it.
            pub(crate) fn detect() -> Option<Self> {
                Cpu::detect().map(Self)
            }
        }

        impl Micro for $name {
            const TYPE: WeightType = WeightType::$name;
            const LANES: usize = LANES;
            const MR: usize = MR;
            const GROUPS: usize = 2;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 7;
            type Tile = Tile;

            fn new_tile() -> Tile {
                [[0.0; KC]; MR]
            }

            fn group_size_bytes(k: usize) -> usize {
                k * LINE
            }

            fn row_size_bytes(k: usize) -> usize {
                k.div_ceil(LANES) * LINE
            }

            fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { prepare_group::<$half>(x, group) }
            }

            fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { prepare_row::<$half>(x, out) }
            }

            fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { decode::<$half>(weights, &mut tile[r]) }
            }

            fn tile<const G: usize>(
                &self,
                tile: &Tile,
                kc: usize,
                x: [&[u8]; G],
                acc: [&mut [f32]; G],
            ) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { multiply(tile, kc, x, acc) }
            }

            fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { store_transposed(acc, n_lanes, out, stride) }
            }

            fn dot(&self, _k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { dot::<$half>(weights, x) }
            }
        }
    };
}

micro!(F32, false);
micro!(F16, true);

/// Loads 16 floats, rounded to f16 if `HALF`.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_x<const HALF: bool>(x: &[u8; LINE]) -> __m512 {
    let v = _mm512_castsi512_ps(load_512(x));
    if HALF {
        _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v))
    } else {
        v
    }
}

#[target_feature(enable = "avx512f")]
fn prepare_row<const HALF: bool>(x: &[u8], out: &mut [u8]) {
    let (whole, tail) = x.as_chunks::<LINE>();
    let (out, _) = out.as_chunks_mut::<LINE>();
    for (x, out) in whole.iter().zip(out.iter_mut()) {
        store_512(out, _mm512_castps_si512(load_x::<HALF>(x)));
    }
    if !tail.is_empty() {
        store_512(
            &mut out[whole.len()],
            _mm512_castps_si512(load_x::<HALF>(&padded(tail))),
        );
    }
}

#[target_feature(enable = "avx512f")]
fn prepare_group<const HALF: bool>(x: &F32Rows<'_>, group: &mut [u8]) {
    let rows: [&[u8]; LANES] = std::array::from_fn(|i| if i < x.n_rows() { x.row(i) } else { &[] });
    for (c, lines) in group.chunks_mut(LANES * LINE).enumerate() {
        let mut m = [_mm512_setzero_ps(); LANES];
        for (v, row) in m.iter_mut().zip(&rows) {
            // A missing row is shorter than any offset.
            let rest = row.get(c * LINE..).unwrap_or(&[]);
            *v = match rest.first_chunk() {
                Some(chunk) => load_x::<HALF>(chunk),
                None => load_x::<HALF>(&padded(rest)),
            };
        }
        for (line, v) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(transpose(m)) {
            store_512(line, _mm512_castps_si512(v));
        }
    }
}

/// Loads 16 weights from the bytes at element `i` of a row that has them.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_w<const HALF: bool>(row: &[u8], i: usize) -> __m512 {
    if HALF {
        _mm512_cvtph_ps(load_256(row[2 * i..][..32].as_array().expect("32 bytes")))
    } else {
        _mm512_castsi512_ps(load_512(row[4 * i..][..64].as_array().expect("64 bytes")))
    }
}

/// Loads the up to 15 weights at the end of a row, followed by zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_w_tail<const HALF: bool>(tail: &[u8]) -> __m512 {
    if HALF {
        _mm512_cvtph_ps(load_256(&padded(tail)))
    } else {
        _mm512_castsi512_ps(load_512(&padded(tail)))
    }
}

#[target_feature(enable = "avx512f")]
fn decode<const HALF: bool>(weights: &[u8], out: &mut [f32; KC]) {
    let size = if HALF { 2 } else { 4 };
    let n = weights.len() / size;
    let (out, _) = out.as_chunks_mut::<LANES>();
    for c in 0..n / LANES {
        store_f32x16(&mut out[c], load_w::<HALF>(weights, c * LANES));
    }
    let done = n / LANES * LANES;
    if done < n {
        store_f32x16(
            &mut out[done / LANES],
            load_w_tail::<HALF>(&weights[done * size..]),
        );
    }
}

#[target_feature(enable = "avx512f")]
fn multiply<const G: usize>(tile: &Tile, kc: usize, x: [&[u8]; G], acc: [&mut [f32]; G]) {
    let kc = kc.min(KC);
    let x: [&[[u8; LINE]]; G] = x.map(|x| &x.as_chunks().0[..kc]);
    let acc = acc.map(|acc| acc.as_chunks_mut::<LANES>().0);
    let mut sums = [[_mm512_setzero_ps(); MR]; G];
    for g in 0..G {
        for r in 0..MR {
            sums[g][r] = load_f32x16(&acc[g][r]);
        }
    }
    for i in 0..kc {
        let mut lines = [_mm512_setzero_ps(); G];
        for g in 0..G {
            lines[g] = _mm512_castsi512_ps(load_512(&x[g][i]));
        }
        for r in 0..MR {
            let w = _mm512_set1_ps(tile[r][i]);
            for g in 0..G {
                sums[g][r] = _mm512_fmadd_ps(w, lines[g], sums[g][r]);
            }
        }
    }
    for g in 0..G {
        for r in 0..MR {
            store_f32x16(&mut acc[g][r], sums[g][r]);
        }
    }
}

#[target_feature(enable = "avx512f")]
fn dot<const HALF: bool>(weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
    let size = if HALF { 2 } else { 4 };
    let n = weights[0].len() / size;
    let (x, _) = x.as_chunks::<LINE>();
    let mut sums = [_mm512_setzero_ps(); DOT_ROWS];
    for c in 0..n / LANES {
        let x = _mm512_castsi512_ps(load_512(&x[c]));
        for r in 0..DOT_ROWS {
            sums[r] = _mm512_fmadd_ps(load_w::<HALF>(weights[r], c * LANES), x, sums[r]);
        }
    }
    let done = n / LANES * LANES;
    if done < n {
        let x = _mm512_castsi512_ps(load_512(&x[done / LANES]));
        for r in 0..DOT_ROWS {
            sums[r] = _mm512_fmadd_ps(load_w_tail::<HALF>(&weights[r][done * size..]), x, sums[r]);
        }
    }
    let mut dots = [0.0; DOT_ROWS];
    for r in 0..DOT_ROWS {
        dots[r] = _mm512_reduce_add_ps(sums[r]);
    }
    dots
}
