//! `Q8_0` and `Q4_0` weights, x quantised to `Q8_0`.
//!
//! A packed block of a group is `LANES` f32 scales, then for each of its 32 elements the signed byte of every lane.
//! A row by itself is in ggml's own `Q8_0` format.

use super::{LANES, MR};
use crate::block::{self, QK, f16_to_f32};
use crate::panel::{DOT_ROWS, Micro};
use crate::reference::convert::{quantize_block_q8_0, quantize_row_q8_0};
use crate::rows::f32s;
use crate::{F32Rows, WeightType};

const KC: usize = 512;

/// Bytes of a packed block.
const BLOCK: usize = (4 + QK) * LANES;

/// A tile of decoded weights.
pub(crate) struct Tile {
    q: [[[i8; QK]; KC / QK]; MR],
    d: [[f32; KC / QK]; MR],
}

/// `Q8_0` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q8_0;

/// `Q4_0` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Q4_0;

macro_rules! micro {
    ($name:ident) => {
        impl Micro for $name {
            const TYPE: WeightType = WeightType::$name;
            const LANES: usize = LANES;
            const MR: usize = MR;
            const GROUPS: usize = 1;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 2;
            type Tile = Tile;

            fn new_tile() -> Tile {
                Tile {
                    q: [[[0; QK]; KC / QK]; MR],
                    d: [[0.0; KC / QK]; MR],
                }
            }

            fn group_size_bytes(k: usize) -> usize {
                k / QK * BLOCK
            }

            fn row_size_bytes(k: usize) -> usize {
                k / QK * block::Q8_0::SIZE_BYTES
            }

            fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
                prepare_group(x, group);
            }

            fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
                for (x, out) in x
                    .as_chunks::<{ 4 * QK }>()
                    .0
                    .iter()
                    .zip(out.as_chunks_mut::<34>().0)
                {
                    quantize_row_q8_0(&floats(x), out);
                }
            }

            fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile) {
                let blocks = weights.as_chunks().0.iter().map(block::$name);
                for ((w, q), d) in blocks.zip(&mut tile.q[r]).zip(&mut tile.d[r]) {
                    *q = std::array::from_fn(|i| w.q(i));
                    *d = w.d();
                }
            }

            fn tile<const G: usize>(
                &self,
                tile: &Tile,
                kc: usize,
                x: [&[u8]; G],
                acc: [&mut [f32]; G],
            ) {
                for (x, acc) in x.into_iter().zip(acc) {
                    multiply(tile, kc / QK, x, acc);
                }
            }

            fn dot(&self, _k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                weights.map(|w| {
                    let blocks = w.as_chunks().0.iter().map(block::$name);
                    blocks
                        .zip(x.as_chunks().0)
                        .map(|(w, x)| dot(|i| w.q(i), w.d(), block::Q8_0(x)))
                        .sum()
                })
            }
        }
    };
}

micro!(Q8_0);
micro!(Q4_0);

fn floats(x: &[u8; 4 * QK]) -> [f32; QK] {
    let mut floats = [0.0; QK];
    for (x, out) in f32s(x).zip(&mut floats) {
        *out = x;
    }
    floats
}

fn prepare_group(x: &F32Rows<'_>, group: &mut [u8]) {
    if x.n_rows() < LANES {
        group.fill(0);
    }
    for lane in 0..x.n_rows() {
        let blocks = x.row(lane).as_chunks::<{ 4 * QK }>().0;
        for (x, out) in blocks.iter().zip(group.as_chunks_mut::<BLOCK>().0) {
            let (d, q) = quantize_block_q8_0(&floats(x));
            let (scales, bytes) = out.split_at_mut(4 * LANES);
            scales[4 * lane..][..4].copy_from_slice(&f16_to_f32(d).to_ne_bytes());
            for (q, line) in q.iter().zip(bytes.as_chunks_mut::<LANES>().0) {
                line[lane] = q.cast_unsigned();
            }
        }
    }
}

fn multiply(tile: &Tile, n_blocks: usize, x: &[u8], acc: &mut [f32]) {
    let (acc, _) = acc.as_chunks_mut::<LANES>();
    for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate().take(n_blocks) {
        let (scales, bytes) = x.split_at(4 * LANES);
        let lines = bytes.as_chunks::<LANES>().0;
        for r in 0..MR {
            let mut dots = [0i32; LANES];
            for (w, line) in tile.q[r][b].iter().zip(lines) {
                for lane in 0..LANES {
                    dots[lane] += i32::from(*w) * i32::from(line[lane].cast_signed());
                }
            }
            for ((acc, dot), d) in acc[r].iter_mut().zip(dots).zip(f32s(scales)) {
                *acc += scaled(dot, tile.d[r][b] * d);
            }
        }
    }
}

fn dot(q: impl Fn(usize) -> i8, d: f32, x: block::Q8_0<'_>) -> f32 {
    let dot = (0..QK).map(|i| i32::from(q(i)) * i32::from(x.q(i))).sum();
    scaled(dot, d * x.d())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the dot of a block is at most 32 * 128 * 127, exact in f32"
)]
fn scaled(dot: i32, d: f32) -> f32 {
    dot as f32 * d
}
