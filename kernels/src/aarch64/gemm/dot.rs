//! Dot products of four bytes per lane.

use std::arch::aarch64::*;
use std::ops::Range;

use super::decode::{self, Quant, Tile};
use super::unit::{self, Piece};
use crate::F32Rows;
use crate::aarch64::Dotprod;
use crate::aarch64::mem::*;
use crate::aarch64::products::dot_lane;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::{TILE, TileType};

/// Rows of x at a time: lanes of a vector.
const ROWS: usize = 4;

/// Vectors of weight rows at a time.
const VECTORS: usize = 4;

/// Weights of one type.
#[derive(Debug)]
pub(crate) struct Dot {
    ty: TileType,
    _cpu: Dotprod,
}

impl Dot {
    /// Returns the implementation if this CPU can run it.
    ///
    /// # Panics
    ///
    /// When the type is not quantised.
    pub(crate) fn detect(ty: TileType) -> Option<Self> {
        assert_ne!(ty, TileType::F16, "quantised types");
        Dotprod::detect().map(|cpu| Self { ty, _cpu: cpu })
    }
}

impl Implementation for Dot {
    fn ty(&self) -> TileType {
        self.ty
    }

    fn unit_size_bytes(&self, n_rows: usize) -> usize {
        unit::size_bytes(n_rows, ROWS)
    }

    fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
        // SAFETY: `self` holds a `Dotprod`, made only where the features of the callee were detected.
        unsafe { unit::prepare::<4>(x, k_tiles, ROWS, ROWS, units) }
    }

    fn strip(&self, tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        let strip = match self.ty {
            TileType::Q4_0 => strip::<decode::Q4_0>,
            TileType::Q4_1 => strip::<decode::Q4_1>,
            TileType::Q8_0 => strip::<decode::Q8_0>,
            TileType::Q4K => strip::<decode::Q4K>,
            TileType::Q6K => strip::<decode::Q6K>,
            TileType::F16 => unreachable!("refused when the kernel was made"),
        };
        // SAFETY: `self` holds a `Dotprod`, made only where the features of the callee were detected.
        unsafe { strip(tiles, group, out) }
    }
}

#[target_feature(enable = "neon,dotprod")]
fn strip<T: Quant>(tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let n_rows = out.len();
    let mut decoded = Tile::new();
    let units = group.chunks_exact(unit::size_bytes(n_rows, ROWS));
    for (tile, unit) in tiles.chunks_exact(T::TYPE.tile_size_bytes()).zip(units) {
        decode::quads::<T>(tile, &mut decoded);
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

/// Adds the products of a tile with the first `N` rows of a piece.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn multiply<T: Quant, const N: usize>(tile: &Tile, x: Piece<'_>, out: &mut [[f32; TILE]]) {
    let quads = tile.q.as_chunks::<{ TILE / 4 }>().0;
    let xs = x.q.as_chunks().0;
    let d = load_f32_bytes(x.d.as_array().expect("scales of four rows"));
    let s = load_f32_bytes(x.s.as_array().expect("sums of four rows"));
    let out: &mut [[f32; TILE]; N] = out.as_mut_array().expect("N rows");
    for first in (0..TILE / 4).step_by(VECTORS) {
        let mut sums = [[vdupq_n_f32(0.0); VECTORS]; N];
        for r in 0..N {
            for v in 0..VECTORS {
                sums[r][v] = load_f32(&out[r].as_chunks().0[first + v]);
            }
        }
        for part in 0..T::PARTS {
            let mut dots = [[vdupq_n_s32(0); VECTORS]; N];
            for g in part * QK / 4 / T::PARTS..(part + 1) * QK / 4 / T::PARTS {
                let x = load_s8(&xs[g]);
                for v in 0..VECTORS {
                    let w = load_s8(&quads[g][first + v]);
                    for (r, dots) in dots.iter_mut().enumerate() {
                        dots[v] = match r {
                            0 => dot_lane::<0>(dots[v], w, x),
                            1 => dot_lane::<1>(dots[v], w, x),
                            2 => dot_lane::<2>(dots[v], w, x),
                            _ => dot_lane::<3>(dots[v], w, x),
                        };
                    }
                }
            }
            let scales = tile.d[part].as_chunks().0;
            for v in 0..VECTORS {
                let w = load_f32(&scales[first + v]);
                for r in 0..N {
                    let dots = vmulq_f32(vcvtq_f32_s32(dots[r][v]), w);
                    sums[r][v] = add_scaled(sums[r][v], dots, d, r);
                }
            }
        }
        for v in 0..VECTORS {
            if T::MIN {
                let m = load_f32(&tile.m.as_chunks().0[first + v]);
                for r in 0..N {
                    sums[r][v] = add_scaled(sums[r][v], m, s, r);
                }
            }
        }
        for r in 0..N {
            for v in 0..VECTORS {
                store_f32(&mut out[r].as_chunks_mut().0[first + v], sums[r][v]);
            }
        }
    }
}
