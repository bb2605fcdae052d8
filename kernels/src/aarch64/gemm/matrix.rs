//! Matrix products of 2 x 8 bytes with 8 x 2.

use std::arch::aarch64::*;
use std::ops::Range;

use super::decode::{self, Quant, Tile};
use super::unit::{self, Piece};
use crate::F32Rows;
use crate::aarch64::I8mm;
use crate::aarch64::mem::*;
use crate::aarch64::products::matrix;
use crate::block::QK;
use crate::op::gemm::Implementation;
use crate::tile::{TILE, TileType};

/// Rows of x at a time.
const ROWS: usize = 8;

/// Vectors of weight rows at a time, two rows each.
const VECTORS: usize = 4;

/// Weights of one type.
#[derive(Debug)]
pub(crate) struct Matrix {
    ty: TileType,
    _cpu: I8mm,
}

impl Matrix {
    /// Returns the implementation if this CPU can run it.
    ///
    /// # Panics
    ///
    /// When the type is not quantised.
    pub(crate) fn detect(ty: TileType) -> Option<Self> {
        assert_ne!(ty, TileType::F16, "quantised types");
        I8mm::detect().map(|cpu| Self { ty, _cpu: cpu })
    }
}

impl Implementation for Matrix {
    fn ty(&self) -> TileType {
        self.ty
    }

    fn unit_size_bytes(&self, n_rows: usize) -> usize {
        unit::size_bytes(n_rows, 2)
    }

    fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
        // SAFETY: `self` holds an `I8mm`, made only where the features of the callee were detected.
        unsafe { unit::prepare::<8>(x, k_tiles, ROWS, 2, units) }
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
        // SAFETY: `self` holds an `I8mm`, made only where the features of the callee were detected.
        unsafe { strip(tiles, group, out) }
    }
}

#[target_feature(enable = "neon,i8mm")]
fn strip<T: Quant>(tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let n_rows = out.len();
    let mut decoded = Tile::new();
    let units = group.chunks_exact(unit::size_bytes(n_rows, 2));
    for (tile, unit) in tiles.chunks_exact(T::TYPE.tile_size_bytes()).zip(units) {
        decode::octets::<T>(tile, &mut decoded);
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

/// Adds the products of a tile with `N` rows, which are `P` pairs.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn multiply<T: Quant, const P: usize, const N: usize>(
    tile: &Tile,
    x: Piece<'_>,
    out: &mut [[f32; TILE]],
) {
    let octets = tile.q.as_chunks::<{ TILE / 2 }>().0;
    let xs = x.q.as_chunks::<16>().0.as_chunks::<P>().0;
    let d: &[[u8; 8]; P] = x.d.as_chunks().0.as_array().expect("scales of P pairs");
    let s: &[[u8; 8]; P] = x.s.as_chunks().0.as_array().expect("sums of P pairs");
    let out: &mut [[f32; TILE]; N] = out.as_mut_array().expect("N rows");
    for first in (0..TILE / 2).step_by(VECTORS) {
        for part in 0..T::PARTS {
            let mut dots = [[vdupq_n_s32(0); VECTORS]; P];
            for o in part * QK / 8 / T::PARTS..(part + 1) * QK / 8 / T::PARTS {
                let mut x = [vdupq_n_s8(0); P];
                for p in 0..P {
                    x[p] = load_s8(&xs[o][p]);
                }
                for v in 0..VECTORS {
                    let w = load_s8(&octets[o][first + v]);
                    for p in 0..P {
                        dots[p][v] = matrix(dots[p][v], x[p], w);
                    }
                }
            }
            let is_last = part + 1 == T::PARTS;
            for four in 0..VECTORS / 2 {
                let at = first / 2 + four;
                let w = load_f32(&tile.d[part].as_chunks().0[at]);
                let m = load_f32(&tile.m.as_chunks().0[at]);
                for p in 0..P {
                    let (d, s) = (load_f32x2_bytes(&d[p]), load_f32x2_bytes(&s[p]));
                    // Two rows of x with two weight rows each become one row of x with four.
                    let a = vreinterpretq_s64_s32(dots[p][2 * four]);
                    let b = vreinterpretq_s64_s32(dots[p][2 * four + 1]);
                    let rows = [vzip1q_s64(a, b), vzip2q_s64(a, b)];
                    for i in 0..2 {
                        let row = 2 * p + i;
                        if row < N {
                            let dots = vcvtq_f32_s32(vreinterpretq_s32_s64(rows[i]));
                            let sums = &mut out[row].as_chunks_mut().0[at];
                            let mut sum = add_scaled_2(load_f32(sums), vmulq_f32(dots, w), d, i);
                            if T::MIN && is_last {
                                sum = add_scaled_2(sum, m, s, i);
                            }
                            store_f32(sums, sum);
                        }
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
