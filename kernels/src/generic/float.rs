//! `F32` and `F16` weights: both are multiplied as f32.

use super::{LANES, MR};
use crate::block::{f16_to_f32, round_to_f16};
use crate::panel::{DOT_ROWS, Micro};
use crate::rows::f32s;
use crate::{F32Rows, WeightType};

const KC: usize = 256;

/// Bytes of one element of k in a group: an f32 for each lane.
const LINE: usize = 4 * LANES;

/// A tile of decoded weights.
pub(crate) type Tile = [[f32; KC]; MR];

/// `F32` weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32;

/// `F16` weights; x is rounded to f16 when packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16;

macro_rules! micro {
    ($name:ident, $round:expr, $weight:expr) => {
        impl Micro for $name {
            const TYPE: WeightType = WeightType::$name;
            const LANES: usize = LANES;
            const MR: usize = MR;
            const GROUPS: usize = 1;
            const KC: usize = KC;
            const ROW_LIMIT: usize = 2;
            type Tile = Tile;

            fn new_tile() -> Tile {
                [[0.0; KC]; MR]
            }

            fn group_size_bytes(k: usize) -> usize {
                k * LINE
            }

            fn row_size_bytes(k: usize) -> usize {
                k * 4
            }

            fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
                prepare_group(x, group, $round);
            }

            fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
                for (x, out) in f32s(x).zip(out.as_chunks_mut().0) {
                    *out = $round(x).to_ne_bytes();
                }
            }

            fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile) {
                for (w, out) in weights.as_chunks().0.iter().zip(&mut tile[r]) {
                    *out = $weight(*w);
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
                    multiply(tile, kc, x, acc);
                }
            }

            fn dot(&self, _k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
                weights.map(|w| dot(w.as_chunks().0.iter().map(|w| $weight(*w)), f32s(x)))
            }
        }
    };
}

micro!(F32, std::convert::identity, f32::from_ne_bytes);
micro!(F16, round_to_f16, f16_to_f32);

fn prepare_group(x: &F32Rows<'_>, group: &mut [u8], round: impl Fn(f32) -> f32) {
    if x.n_rows() < LANES {
        group.fill(0);
    }
    for lane in 0..x.n_rows() {
        for (x, line) in f32s(x.row(lane)).zip(group.as_chunks_mut::<LINE>().0) {
            line[4 * lane..][..4].copy_from_slice(&round(x).to_ne_bytes());
        }
    }
}

fn multiply(tile: &Tile, kc: usize, x: &[u8], acc: &mut [f32]) {
    let (acc, _) = acc.as_chunks_mut::<LANES>();
    let mut sums: [[f32; LANES]; MR] = std::array::from_fn(|r| acc[r]);
    for (i, line) in x.as_chunks::<LINE>().0.iter().enumerate().take(kc.min(KC)) {
        let lanes = line.as_chunks().0;
        let x: [f32; LANES] = std::array::from_fn(|lane| f32::from_ne_bytes(lanes[lane]));
        for r in 0..MR {
            for lane in 0..LANES {
                sums[r][lane] += tile[r][i] * x[lane];
            }
        }
    }
    acc[..MR].copy_from_slice(&sums);
}

/// Adds in eight strands, which a compiler may keep in one vector.
fn dot(w: impl Iterator<Item = f32>, x: impl Iterator<Item = f32>) -> f32 {
    let mut sums = [0.0; LANES];
    for (i, (w, x)) in w.zip(x).enumerate() {
        sums[i % LANES] += w * x;
    }
    sums.iter().sum()
}
