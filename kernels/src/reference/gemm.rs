//! Products with tiled weights as their contract reads: x in ggml's own format, one element at a time.

use std::ops::Range;

use crate::F32Rows;
use crate::block::{QK, exact, f16_to_f32, f32_to_f16};
use crate::op::gemm::Implementation;
use crate::reference::convert::quantize_unit;
use crate::rows::f32s;
use crate::tile::{TILE, TileType, quant};

/// The reference for weights of one type. A unit has, for each row, 32 halves, or an f32 scale and 32 signed bytes.
#[derive(Debug)]
pub(crate) struct Reference(pub(crate) TileType);

impl Reference {
    fn block_size_bytes(&self) -> usize {
        match self.0 {
            TileType::F16 => 2 * QK,
            _ => size_of::<f32>() + QK,
        }
    }
}

impl Implementation for Reference {
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
                if self.0 == TileType::F16 {
                    let mut floats = [0.0; QK];
                    let part = f32s(x.row(row)).skip(k_tile * QK);
                    floats.iter_mut().zip(part).for_each(|(to, x)| *to = x);
                    let halves = floats.map(f32_to_f16);
                    block.copy_from_slice(halves.as_flattened());
                } else {
                    let (d, q) = quantize_unit(self.0, x.row(row), k_tile);
                    block[..4].copy_from_slice(&d.to_ne_bytes());
                    block[4..].copy_from_slice(&q.map(i8::cast_unsigned));
                }
            }
        }
    }

    fn strip(&self, tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        out.fill([0.0; TILE]);
        let mut blocks = group.chunks_exact(self.block_size_bytes());
        for (kt, tile) in tiles.chunks_exact(self.0.tile_size_bytes()).enumerate() {
            let bases = quant::bases_of(self.0, bases, kt);
            for (sums, block) in out.iter_mut().zip(&mut blocks) {
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum += self.dot(tile, bases, row, block);
                }
            }
        }
    }
}

impl Reference {
    /// Returns the product of one row of a tile with one block of x.
    fn dot(&self, tile: &[u8], bases: &[u8], row: usize, block: &[u8]) -> f32 {
        let ty = self.0;
        if ty == TileType::F16 {
            let x = block.as_chunks().0.iter().map(|b| f16_to_f32(*b));
            return x
                .enumerate()
                .map(|(kk, x)| quant::value(ty, tile, bases, row, kk) * x)
                .sum();
        }
        let (x_d, x) = block.split_first_chunk().expect("a block has a scale");
        let x_d = f32::from_ne_bytes(*x_d);
        let x_q = |kk: usize| i32::from(x[kk].cast_signed());
        // Scales of weights hold for 16 elements or for 32.
        let halves = (0..QK).step_by(QK / 2).map(|start| {
            let part = start..start + QK / 2;
            let dot: i32 = part.map(|kk| quant::q(ty, tile, row, kk) * x_q(kk)).sum();
            (dot, quant::scale(ty, tile, bases, row, start))
        });
        let [(dot0, d0), (dot1, d1)] =
            <[_; 2]>::try_from(halves.collect::<Vec<_>>()).expect("two halves");
        let product = if ty == TileType::Q6K {
            exact(dot0) * (d0 * x_d) + exact(dot1) * (d1 * x_d)
        } else {
            exact(dot0 + dot1) * (d0 * x_d)
        };
        match ty {
            TileType::Q4_1 | TileType::Q4K => {
                let sum: i32 = (0..QK).map(x_q).sum();
                product + quant::min(ty, tile, bases, row) * (x_d * exact(sum))
            }
            _ => product,
        }
    }
}
