//! Matrix products of 2 x 8 bytes with 8 x 2.

use std::arch::aarch64::*;

use super::decode::{self, Quant, Tile};
use super::unit::{self, Piece};
use crate::aarch64::I8mm;
use crate::aarch64::mem::*;
use crate::aarch64::products::matrix;
use crate::block::QK;
use crate::tile::quant::bases_of;
use crate::tile::{TILE, TileType};

/// Rows of x at a time.
const ROWS: usize = 8;

/// Vectors of weight rows at a time, two rows each.
const VECTORS: usize = 4;

family!(
    /// Weights of one type.
    Matrix: I8mm, 8, ROWS, 2
);

#[target_feature(enable = "neon,i8mm")]
fn strip<T: Quant>(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let n_rows = out.len();
    let mut decoded = Tile::new();
    let units = group.chunks_exact(unit::size_bytes(n_rows, 2));
    let tiles = tiles.chunks_exact(T::TYPE.tile_size_bytes());
    for (kt, (tile, unit)) in tiles.zip(units).enumerate() {
        decode::octets::<T>(tile, bases_of(T::TYPE, bases, kt), &mut decoded);
        for (rows, piece) in unit::pieces(unit, n_rows, ROWS, 2) {
            let out = &mut out[rows];
            match out.len() {
                1 => multiply::<T, 1, 1>(&decoded, piece, out),
                2 => multiply::<T, 1, 2>(&decoded, piece, out),
                3 => multiply::<T, 2, 3>(&decoded, piece, out),
                4 => multiply::<T, 2, 4>(&decoded, piece, out),
                5 => multiply::<T, 3, 5>(&decoded, piece, out),
                6 => multiply::<T, 3, 6>(&decoded, piece, out),
                7 => multiply::<T, 4, 7>(&decoded, piece, out),
                _ => multiply::<T, 4, ROWS>(&decoded, piece, out),
            }
        }
    }
}

/// Products of `P` pairs of rows of x with pairs of weight rows.
type Dots<const P: usize> = [[int32x4_t; VECTORS]; P];

/// Adds the products of eight elements.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn octet<const P: usize>(
    mut dots: Dots<P>,
    w: &[[u8; 16]; TILE / 2],
    first: usize,
    x: &[[u8; 16]; P],
) -> Dots<P> {
    let mut xs = [vdupq_n_s8(0); P];
    for p in 0..P {
        xs[p] = load_s8(&x[p]);
    }
    for v in 0..VECTORS {
        let w = load_s8(&w[first + v]);
        for p in 0..P {
            dots[p][v] = matrix(dots[p][v], xs[p], w);
        }
    }
    dots
}

/// Adds the products of a tile with `N` rows, which are `P` pairs.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn multiply<T: Quant, const P: usize, const N: usize>(
    tile: &Tile,
    x: Piece<'_>,
    out: &mut [[f32; TILE]],
) {
    let w = tile.q.as_chunks::<{ TILE / 2 }>().0;
    let xs = x.q.as_chunks::<16>().0.as_chunks::<P>().0;
    let xs: &[[[u8; 16]; P]; QK / 8] = xs.as_array().expect("32 elements");
    let d: &[[u8; 8]; P] = x.d.as_chunks().0.as_array().expect("scales of P pairs");
    let s: &[[u8; 8]; P] = x.s.as_chunks().0.as_array().expect("sums of P pairs");
    let out: &mut [[f32; TILE]; N] = out.as_mut_array().expect("N rows");
    for first in (0..TILE / 2).step_by(VECTORS) {
        for part in 0..T::PARTS {
            // Written out, so that all sums of products stay in registers from the first to the last.
            let o = part * QK / 8 / T::PARTS;
            let mut dots = [[vdupq_n_s32(0); VECTORS]; P];
            dots = octet(dots, &w[o], first, &xs[o]);
            dots = octet(dots, &w[o + 1], first, &xs[o + 1]);
            if T::PARTS == 1 {
                dots = octet(dots, &w[o + 2], first, &xs[o + 2]);
                dots = octet(dots, &w[o + 3], first, &xs[o + 3]);
            }
            let has_min = T::MIN && part + 1 == T::PARTS;
            let scales: &[[f32; 4]] = tile.d[part].as_chunks().0;
            let minima: &[[f32; 4]] = tile.m.as_chunks().0;
            let scales = [0, 1].map(|i| load_f32(&scales[first / 2 + i]));
            let minima = [0, 1].map(|i| load_f32(&minima[first / 2 + i]));
            for p in 0..P {
                let (d, s) = (load_f32x2_bytes(&d[p]), load_f32x2_bytes(&s[p]));
                // Two rows of x with two weight rows each become one row of x with four.
                let v = dots[p].map(|v| vreinterpretq_s64_s32(v));
                let even = [vzip1q_s64(v[0], v[1]), vzip1q_s64(v[2], v[3])];
                let odd = [vzip2q_s64(v[0], v[1]), vzip2q_s64(v[2], v[3])];
                for (i, dots) in [even, odd].into_iter().enumerate() {
                    if 2 * p + i < N {
                        let out: &mut [[f32; 4]] = out[2 * p + i].as_chunks_mut().0;
                        let mut sums = [0, 1].map(|j| load_f32(&out[first / 2 + j]));
                        for j in 0..2 {
                            let dots = vcvtq_f32_s32(vreinterpretq_s32_s64(dots[j]));
                            sums[j] = add_scaled_2(sums[j], vmulq_f32(dots, scales[j]), d, i);
                            if has_min {
                                sums[j] = add_scaled_2(sums[j], minima[j], s, i);
                            }
                        }
                        store_f32(&mut out[first / 2], sums[0]);
                        store_f32(&mut out[first / 2 + 1], sums[1]);
                    }
                }
            }
        }
    }
}

/// Adds `v` times lane `lane` of `scales`.
#[inline]
#[target_feature(enable = "neon")]
fn add_scaled_2(sum: float32x4_t, v: float32x4_t, scales: float32x2_t, lane: usize) -> float32x4_t {
    if lane == 0 {
        vfmaq_lane_f32::<0>(sum, v, scales)
    } else {
        vfmaq_lane_f32::<1>(sum, v, scales)
    }
}

/// Loads 2 floats from their bytes.
#[inline]
#[target_feature(enable = "neon")]
fn load_f32x2_bytes(p: &[u8; 8]) -> float32x2_t {
    vreinterpret_f32_u8(vcreate_u8(u64::from_ne_bytes(*p)))
}
