//! Attention as its contract reads: one row, one position at a time.

use crate::WeightType;
use crate::block::f16_to_f32;
use crate::op::attention::{Attend, HeadRows, Implementation, State};
use crate::reference::convert::dequantize_row;
use crate::rows::f32s;
use crate::tile::TILE;
use crate::tile::kv::read_row;

/// The reference.
#[derive(Debug)]
pub(crate) struct Reference;

impl Implementation for Reference {
    fn scratch_len(&self, _n_rows: usize, d_k: usize, d_v: usize) -> usize {
        d_k.max(d_v)
    }

    fn attend(&self, op: &Attend<'_>, state: State<'_>, stride: usize, scratch: &mut [f32]) {
        for r in 0..op.n_rows() {
            let acc = &mut state.acc[r * stride..][..op.v.d()];
            for j in 0..op.k.n_kv() {
                let mask = op.mask_row(r, j);
                let mask = mask.map_or(0.0, |(row, slope)| slope * f16_to_f32(row[0]));
                if mask == f32::NEG_INFINITY {
                    continue;
                }
                let row = &mut scratch[..op.k.d()];
                read(&op.k, j, row);
                let dot: f32 = f32s(op.q_row(r)).zip(&*row).map(|(q, k)| q * k).sum();
                let mut score = dot * op.scores.scale;
                if op.scores.softcap != 0.0 {
                    score = op.scores.softcap * (score / op.scores.softcap).tanh();
                }
                score += mask;
                if score == f32::NEG_INFINITY {
                    continue;
                }
                // Of two NaN-free scores the greater; once NaN, always NaN.
                let old = state.max[r];
                let new = if score <= old { old } else { score };
                let share = if old == new { 1.0 } else { (old - new).exp() };
                let p = (score - new).exp();
                state.max[r] = new;
                state.sum[r] = state.sum[r] * share + p;
                let row = &mut scratch[..op.v.d()];
                read(&op.v, j, row);
                for (acc, v) in acc.iter_mut().zip(row) {
                    *acc = *acc * share + p * *v;
                }
            }
        }
    }
}

/// Writes the values of position `j`.
fn read(rows: &HeadRows<'_>, j: usize, out: &mut [f32]) {
    match rows {
        HeadRows::Plain(rows) => dequantize_row(rows.ty(), rows.row(j), out),
        HeadRows::Tiles(tiles) => {
            let strips = out.as_chunks_mut::<TILE>().0;
            for (tile, out) in tiles.block(j).iter().zip(strips) {
                let mut halves = [0; 2 * TILE];
                read_row(tiles.role(), tile, j % TILE, &mut halves);
                dequantize_row(WeightType::F16, &halves, out);
            }
        }
    }
}
