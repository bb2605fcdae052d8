//! Attention for every target, by the [shared algorithm](crate::flash).

use crate::block::f16_to_f32;
use crate::flash::{Micro, RowScores, ScoreRow, StepMask};
use crate::op::attention::STEP;
use crate::rows::f32s;
use crate::tile::TILE;
use crate::tile::kv::{LINE_SIZE_BYTES, Tile};

/// Rows of Q in a group.
const MR: usize = 4;

/// The functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generic;

impl Micro for Generic {
    const MR: usize = MR;

    fn keys(&self, rows: &[&[u8]], half: bool, panel: &mut [[f32; STEP]]) {
        if rows.len() < STEP {
            panel.as_flattened_mut().fill(0.0);
        }
        for (kv, row) in rows.iter().enumerate() {
            if half {
                for (k, out) in row.as_chunks().0.iter().zip(&mut *panel) {
                    out[kv] = f16_to_f32(*k);
                }
            } else {
                for (k, out) in f32s(row).zip(&mut *panel) {
                    out[kv] = k;
                }
            }
        }
    }

    fn key_tiles(&self, tiles: &[Tile], panel: &mut [[f32; STEP]]) {
        let lines = tiles
            .iter()
            .flat_map(|tile| tile.as_chunks::<LINE_SIZE_BYTES>().0);
        for (line, out) in lines.zip(panel.as_chunks_mut::<2>().0) {
            for (kv, pair) in line.as_chunks::<4>().0.iter().enumerate() {
                out[0][kv] = f16_to_f32([pair[0], pair[1]]);
                out[1][kv] = f16_to_f32([pair[2], pair[3]]);
            }
        }
    }

    fn values(&self, rows: &[&[u8]], half: bool, panel: &mut [f32], stride: usize) {
        for (row, out) in rows.iter().zip(panel.chunks_exact_mut(stride)) {
            if half {
                for (v, out) in row.as_chunks().0.iter().zip(out) {
                    *out = f16_to_f32(*v);
                }
            } else {
                for (v, out) in f32s(row).zip(out) {
                    *out = v;
                }
            }
        }
    }

    fn value_tiles(&self, tiles: &[Tile], panel: &mut [f32], stride: usize) {
        for (strip, tile) in tiles.iter().enumerate() {
            let lines = tile.as_chunks::<LINE_SIZE_BYTES>().0;
            for (line, rows) in lines.iter().zip(panel.chunks_exact_mut(2 * stride)) {
                let (even, odd) = rows.split_at_mut(stride);
                for (i, pair) in line.as_chunks::<4>().0.iter().enumerate() {
                    even[strip * TILE + i] = f16_to_f32([pair[0], pair[1]]);
                    odd[strip * TILE + i] = f16_to_f32([pair[2], pair[3]]);
                }
            }
        }
    }

    fn scores(&self, q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
        for (r, scores) in scores.iter_mut().enumerate() {
            let mut sums = [0.0; STEP];
            for (q, k) in q.as_chunks::<MR>().0.iter().zip(panel) {
                for (sum, k) in sums.iter_mut().zip(k) {
                    *sum += q[r] * k;
                }
            }
            scores[at..at + STEP].copy_from_slice(&sums);
        }
    }

    fn soft_max(
        &self,
        scores: &mut ScoreRow,
        steps: &[StepMask<'_>],
        row: RowScores,
        max: f32,
    ) -> (f32, f32) {
        let scores = &mut scores[..steps.len() * STEP];
        let mut new = max;
        for (scores, mask) in scores.as_chunks_mut::<STEP>().0.iter_mut().zip(steps) {
            for (i, s) in scores.iter_mut().enumerate() {
                // Positions that are not there are -inf already: a bound must leave them so.
                if row.softcap != 0.0 && *s != f32::NEG_INFINITY {
                    *s = row.softcap * s.tanh();
                }
                if let Some(mask) = mask {
                    let mask = row.slope * f16_to_f32(mask[i]);
                    *s = if mask == f32::NEG_INFINITY {
                        mask
                    } else {
                        *s + mask
                    };
                }
                new = new.max(*s);
            }
        }
        let mut sum = 0.0;
        for s in scores {
            *s = if *s == f32::NEG_INFINITY {
                0.0
            } else {
                (*s - new).exp()
            };
            sum += *s;
        }
        (new, sum)
    }

    fn scale(&self, x: &mut [f32], factor: f32) {
        x.iter_mut().for_each(|x| *x *= factor);
    }

    fn mix(
        &self,
        scores: &[ScoreRow],
        at: usize,
        n: usize,
        panel: &[f32],
        acc: &mut [f32],
        stride: usize,
    ) {
        for (scores, acc) in scores.iter().zip(acc.chunks_exact_mut(stride)) {
            for (p, v) in scores[at..at + n].iter().zip(panel.chunks_exact(stride)) {
                for (acc, v) in acc.iter_mut().zip(v) {
                    *acc += p * v;
                }
            }
        }
    }
}
