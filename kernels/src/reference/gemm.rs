//! Products with tiled weights as their contract reads: x in ggml's own format, one element at a time.

use std::ops::Range;

use crate::F32Rows;
use crate::block::{Q8_0, QK, exact, f16_to_f32, f32_to_f16};
use crate::op::gemm::Implementation;
use crate::reference::convert::quantize_block_q8_0;
use crate::rows::f32s;
use crate::tile::{TILE, TileType, quant};

/// The reference for weights of one type. A unit has, for each row, 32 halves or a `Q8_0` block.
#[derive(Debug)]
pub(crate) struct Reference(pub(crate) TileType);

impl Reference {
    fn block_size_bytes(&self) -> usize {
        match self.0 {
            TileType::F16 => 2 * QK,
            _ => Q8_0::SIZE_BYTES,
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
                let mut floats = [0.0; QK];
                let part = f32s(x.row(row)).skip(k_tile * QK);
                floats.iter_mut().zip(part).for_each(|(to, x)| *to = x);
                if self.0 == TileType::F16 {
                    let halves = floats.map(f32_to_f16);
                    block.copy_from_slice(halves.as_flattened());
                } else {
                    let (d, q) = quantize_block_q8_0(&floats);
                    block[..2].copy_from_slice(&d);
                    block[2..].copy_from_slice(&q.map(i8::cast_unsigned));
                }
            }
        }
    }

    fn strip(&self, tiles: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
        out.fill([0.0; TILE]);
        let mut blocks = group.chunks_exact(self.block_size_bytes());
        for tile in tiles.chunks_exact(self.0.tile_size_bytes()) {
            for (sums, block) in out.iter_mut().zip(&mut blocks) {
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum += self.dot(tile, row, block);
                }
            }
        }
    }
}

impl Reference {
    /// Returns the product of one row of a tile with one block of x.
    fn dot(&self, tile: &[u8], row: usize, block: &[u8]) -> f32 {
        let ty = self.0;
        if ty == TileType::F16 {
            let x = block.as_chunks().0.iter().map(|b| f16_to_f32(*b));
            return x
                .enumerate()
                .map(|(kk, x)| quant::value(ty, tile, row, kk) * x)
                .sum();
        }
        let x = Q8_0(block.as_array().expect("a block of the panel"));
        // Scales of weights hold for 16 elements or for 32.
        let halves = (0..QK).step_by(QK / 2).map(|start| {
            let part = start..start + QK / 2;
            let dot: i32 = part
                .map(|kk| quant::q(ty, tile, row, kk) * i32::from(x.q(kk)))
                .sum();
            (dot, quant::scale(ty, tile, row, start))
        });
        let [(dot0, d0), (dot1, d1)] =
            <[_; 2]>::try_from(halves.collect::<Vec<_>>()).expect("two halves");
        let product = if ty == TileType::Q6K {
            exact(dot0) * (d0 * x.d()) + exact(dot1) * (d1 * x.d())
        } else {
            exact(dot0 + dot1) * (d0 * x.d())
        };
        match ty {
            TileType::Q4_1 | TileType::Q4K => {
                let sum: i32 = (0..QK).map(|kk| i32::from(x.q(kk))).sum();
                product + quant::min(ty, tile, row) * (x.d() * exact(sum))
            }
            _ => product,
        }
    }
}
