//! Products with tiled weights: a tile is decoded once, then each row of x takes its turn.
//!
//! A decoded tile has the 32 weights of each element of k side by side, so that the inner loops run along a strip. A unit
//! of the panel has one block per row: 32 floats rounded through f16; or, for quantised weights, the f32 scale and 32
//! signed bytes.

use std::ops::Range;

use crate::F32Rows;
use crate::block::{QK, exact, f16_to_f32, round_to_f16};
use crate::op::gemm::Implementation;
use crate::reference::convert::quantize_unit;
use crate::rows::f32s;
use crate::tile::{TILE, TileType, quant};

/// Weights of one type.
#[derive(Debug)]
pub(crate) struct Generic(pub(crate) TileType);

/// Integers of a tile, `[kk][row]`, with the scales of its two halves along k, and what is added per unit of x.
struct Decoded {
    q: [[i8; TILE]; QK],
    d: [[f32; TILE]; 2],
    m: [f32; TILE],
}

/// Bytes of a quantised block of x.
const BLOCK: usize = 4 + QK;

impl Generic {
    fn block_size_bytes(&self) -> usize {
        match self.0 {
            TileType::F16 => 4 * QK,
            _ => BLOCK,
        }
    }

    fn decode(&self, tile: &[u8], bases: &[u8]) -> Decoded {
        let ty = self.0;
        Decoded {
            q: std::array::from_fn(|kk| {
                std::array::from_fn(|row| {
                    i8::try_from(quant::q(ty, tile, row, kk)).expect("at most eight bits")
                })
            }),
            d: [0, QK / 2]
                .map(|kk| std::array::from_fn(|row| quant::scale(ty, tile, bases, row, kk))),
            m: std::array::from_fn(|row| quant::min(ty, tile, bases, row)),
        }
    }
}

impl Implementation for Generic {
    fn ty(&self) -> TileType {
        self.0
    }

    fn unit_size_bytes(&self, n_rows: usize) -> usize {
        n_rows * self.block_size_bytes()
    }

    fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
        let mut blocks = units.chunks_exact_mut(self.block_size_bytes());
        for k_tile in k_tiles {
            for (row, block) in (0..x.n_rows()).zip(&mut blocks) {
                let row = x.row(row);
                if self.0 == TileType::F16 {
                    block.fill(0);
                    let part = f32s(&row[row.len().min(4 * QK * k_tile)..]);
                    for (x, out) in part.zip(block.as_chunks_mut().0) {
                        *out = round_to_f16(x).to_ne_bytes();
                    }
                } else {
                    let (d, q) = quantize_unit(self.0, row, k_tile);
                    block[..4].copy_from_slice(&d.to_ne_bytes());
                    block[4..].copy_from_slice(&q.map(i8::cast_unsigned));
                }
            }
        }
    }

    fn strip(&self, tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        out.fill([0.0; TILE]);
        let unit = out.len() * self.block_size_bytes();
        let tiles = tiles.chunks_exact(self.0.tile_size_bytes());
        for (kt, (tile, unit)) in tiles.zip(group.chunks_exact(unit)).enumerate() {
            let bases = quant::bases_of(self.0, bases, kt);
            match self.0 {
                TileType::F16 => multiply_f16(tile, unit, out),
                TileType::Q6K => multiply::<2, false>(&self.decode(tile, bases), unit, out),
                TileType::Q4_1 | TileType::Q4K => {
                    multiply::<1, true>(&self.decode(tile, bases), unit, out);
                }
                TileType::Q4_0 | TileType::Q8_0 => {
                    multiply::<1, false>(&self.decode(tile, bases), unit, out);
                }
            }
        }
    }
}

fn multiply_f16(tile: &[u8], unit: &[u8], out: &mut [[f32; TILE]]) {
    // Pairs of elements of k lie side by side.
    let halves = tile.as_chunks::<2>().0.as_chunks::<{ 2 * TILE }>().0;
    let mut w = [[0.0; TILE]; QK];
    for (cp, pairs) in halves.iter().enumerate() {
        for row in 0..TILE {
            w[2 * cp][row] = f16_to_f32(pairs[2 * row]);
            w[2 * cp + 1][row] = f16_to_f32(pairs[2 * row + 1]);
        }
    }
    for (block, sums) in unit.chunks_exact(4 * QK).zip(out) {
        for (x, w) in f32s(block).zip(&w) {
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum += w * x;
            }
        }
    }
}

/// Adds the products of a tile with scales for `QK / PARTS` elements, and `MIN` if something is added to each.
fn multiply<const PARTS: usize, const MIN: bool>(
    tile: &Decoded,
    unit: &[u8],
    out: &mut [[f32; TILE]],
) {
    for (block, sums) in unit.as_chunks::<BLOCK>().0.iter().zip(out) {
        let (d, q) = block.split_first_chunk().expect("a block has a scale");
        let (d, q) = (
            f32::from_ne_bytes(*d),
            q.as_array::<QK>().expect("32 bytes"),
        );
        for part in 0..PARTS {
            let mut dots = [0i32; TILE];
            for kk in part * QK / PARTS..(part + 1) * QK / PARTS {
                for (dot, w) in dots.iter_mut().zip(&tile.q[kk]) {
                    *dot += i32::from(*w) * i32::from(q[kk].cast_signed());
                }
            }
            for row in 0..TILE {
                sums[row] += exact(dots[row]) * (tile.d[part][row] * d);
            }
        }
        if MIN {
            let x = d * exact(q.iter().map(|q| i32::from(q.cast_signed())).sum());
            for (sum, m) in sums.iter_mut().zip(tile.m) {
                *sum += m * x;
            }
        }
    }
}
