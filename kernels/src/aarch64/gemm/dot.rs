//! Dot products of four bytes per lane.

use std::arch::aarch64::*;

use super::decode::{self, Quant, Tile};
use super::unit::{self, Piece};
use crate::aarch64::Dotprod;
use crate::aarch64::mem::*;
use crate::aarch64::products::dot_lane;
use crate::block::QK;
use crate::tile::quant::bases_of;
use crate::tile::{TILE, TileType};

/// Rows of x at a time: lanes of a vector.
const ROWS: usize = 4;

/// Vectors of weight rows at a time.
const VECTORS: usize = 4;

family!(
    /// Weights of one type.
    Dot: Dotprod, 4, ROWS, ROWS
);

#[target_feature(enable = "neon,dotprod")]
fn strip<T: Quant>(tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let n_rows = out.len();
    let mut decoded = Tile::new();
    let units = group.chunks_exact(unit::size_bytes(n_rows, ROWS));
    let tiles = tiles.chunks_exact(T::TYPE.tile_size_bytes());
    for (kt, (tile, unit)) in tiles.zip(units).enumerate() {
        decode::quads::<T>(tile, bases_of(T::TYPE, bases, kt), &mut decoded);
        for (rows, piece) in unit::pieces(unit, n_rows, ROWS, ROWS) {
            let out = &mut out[rows];
            match out.len() {
                1 => multiply::<T, 1>(&decoded, piece, out),
                2 => multiply::<T, 2>(&decoded, piece, out),
                3 => multiply::<T, 3>(&decoded, piece, out),
                _ => multiply::<T, ROWS>(&decoded, piece, out),
            }
        }
    }
}

/// Products of `N` rows of x with weight rows.
type Dots<const N: usize> = [[int32x4_t; VECTORS]; N];

/// Adds the products of four elements.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn quad<const N: usize>(
    mut dots: Dots<N>,
    w: &[[u8; 16]; TILE / 4],
    first: usize,
    x: &[u8; 16],
) -> Dots<N> {
    let x = load_s8(x);
    for v in 0..VECTORS {
        let w = load_s8(&w[first + v]);
        for r in 0..N {
            dots[r][v] = match r {
                0 => dot_lane::<0>(dots[r][v], w, x),
                1 => dot_lane::<1>(dots[r][v], w, x),
                2 => dot_lane::<2>(dots[r][v], w, x),
                _ => dot_lane::<3>(dots[r][v], w, x),
            };
        }
    }
    dots
}

/// Adds the products of a tile with the first `N` rows of a piece.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn multiply<T: Quant, const N: usize>(tile: &Tile, x: Piece<'_>, out: &mut [[f32; TILE]]) {
    let w = tile.q.as_chunks::<{ TILE / 4 }>().0;
    let xs: &[[u8; 16]; QK / 4] = x.q.as_chunks().0.as_array().expect("32 elements");
    let d = load_f32_bytes(x.d.as_array().expect("scales of four rows"));
    let s = load_f32_bytes(x.s.as_array().expect("sums of four rows"));
    let out: &mut [[f32; TILE]; N] = out.as_mut_array().expect("N rows");
    for first in (0..TILE / 4).step_by(VECTORS) {
        for part in 0..T::PARTS {
            // Written out, so that all sums of products stay in registers from the first to the last.
            let g = part * QK / 4 / T::PARTS;
            let mut dots = [[vdupq_n_s32(0); VECTORS]; N];
            dots = quad(dots, &w[g], first, &xs[g]);
            dots = quad(dots, &w[g + 1], first, &xs[g + 1]);
            dots = quad(dots, &w[g + 2], first, &xs[g + 2]);
            dots = quad(dots, &w[g + 3], first, &xs[g + 3]);
            if T::PARTS == 1 {
                dots = quad(dots, &w[g + 4], first, &xs[g + 4]);
                dots = quad(dots, &w[g + 5], first, &xs[g + 5]);
                dots = quad(dots, &w[g + 6], first, &xs[g + 6]);
                dots = quad(dots, &w[g + 7], first, &xs[g + 7]);
            }
            let has_min = T::MIN && part + 1 == T::PARTS;
            let mut scales = [vdupq_n_f32(0.0); VECTORS];
            let mut minima = [vdupq_n_f32(0.0); VECTORS];
            for v in 0..VECTORS {
                scales[v] = load_f32(&tile.d[part].as_chunks().0[first + v]);
                minima[v] = load_f32(&tile.m.as_chunks().0[first + v]);
            }
            for r in 0..N {
                let out: &mut [[f32; 4]] = out[r].as_chunks_mut().0;
                let out: &mut [[f32; 4]; VECTORS] = out[first..first + VECTORS]
                    .as_mut_array()
                    .expect("as many vectors");
                let mut sums = [vdupq_n_f32(0.0); VECTORS];
                for v in 0..VECTORS {
                    let dots = vmulq_f32(vcvtq_f32_s32(dots[r][v]), scales[v]);
                    sums[v] = add_scaled(load_f32(&out[v]), dots, d, r);
                    if has_min {
                        sums[v] = add_scaled(sums[v], minima[v], s, r);
                    }
                }
                for v in 0..VECTORS {
                    store_f32(&mut out[v], sums[v]);
                }
            }
        }
    }
}
