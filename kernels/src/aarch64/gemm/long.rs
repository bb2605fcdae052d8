//! Products of bytes in 16 bits, for CPUs without dot products.
//!
//! Two products of a weight and an x are at most 2 * 128 * 127, which 16 bits hold; pairs of such sums are added up in 32.

use std::arch::aarch64::*;

use super::decode::{self, Quant, Tile};
use super::unit::{self, Piece};
use crate::aarch64::Neon;
use crate::aarch64::mem::*;
use crate::block::QK;
use crate::tile::quant::bases_of;
use crate::tile::{TILE, TileType};

/// Vectors of weight rows at a time.
const VECTORS: usize = 4;

family!(
    /// Weights of one type.
    Long: Neon, 4, 1, 1
);

#[target_feature(enable = "neon")]
fn strip<T: Quant>(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let n_rows = out.len();
    let mut decoded = Tile::new();
    let units = group.chunks_exact(unit::size_bytes(n_rows, 1));
    let tiles = tiles.chunks_exact(T::TYPE.tile_size_bytes());
    for (kt, (tile, unit)) in tiles.zip(units).enumerate() {
        decode::quads::<T>(tile, bases_of(T::TYPE, bases, kt), &mut decoded);
        for (row, piece) in unit::pieces(unit, n_rows, 1, 1) {
            multiply::<T>(&decoded, piece, &mut out[row.start]);
        }
    }
}

/// Adds the products of a tile with one row.
#[inline]
#[target_feature(enable = "neon")]
fn multiply<T: Quant>(tile: &Tile, x: Piece<'_>, out: &mut [f32; TILE]) {
    let quads = tile.q.as_chunks::<{ TILE / 4 }>().0;
    let xs = x.q.as_chunks().0;
    let d = f32::from_ne_bytes(*x.d.as_array().expect("the scale of one row"));
    let s = f32::from_ne_bytes(*x.s.as_array().expect("the sum of one row"));
    let out = out.as_chunks_mut().0;
    for first in (0..TILE / 4).step_by(VECTORS) {
        for part in 0..T::PARTS {
            // Per vector of four rows two sums for each, of rows 0 and 1, and of 2 and 3.
            let mut dots = [[vdupq_n_s32(0); 2]; VECTORS];
            for g in (part * QK / 4 / T::PARTS..(part + 1) * QK / 4 / T::PARTS).step_by(2) {
                let x0 = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_ne_bytes(xs[g])));
                let x1 = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_ne_bytes(xs[g + 1])));
                for v in 0..VECTORS {
                    let w0 = load_s8(&quads[g][first + v]);
                    let w1 = load_s8(&quads[g + 1][first + v]);
                    let low = vmull_s8(vget_low_s8(w0), vget_low_s8(x0));
                    let low = vmlal_s8(low, vget_low_s8(w1), vget_low_s8(x1));
                    let high = vmlal_high_s8(vmull_high_s8(w0, x0), w1, x1);
                    dots[v] = [vpadalq_s16(dots[v][0], low), vpadalq_s16(dots[v][1], high)];
                }
            }
            for v in 0..VECTORS {
                let at = first + v;
                let dots = vcvtq_f32_s32(vpaddq_s32(dots[v][0], dots[v][1]));
                let w = load_f32(&tile.d[part].as_chunks().0[at]);
                let mut sum = vfmaq_n_f32(load_f32(&out[at]), vmulq_f32(dots, w), d);
                if T::MIN && part + 1 == T::PARTS {
                    sum = vfmaq_n_f32(sum, load_f32(&tile.m.as_chunks().0[at]), s);
                }
                store_f32(&mut out[at], sum);
            }
        }
    }
}
