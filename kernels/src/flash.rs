//! Attention with online softmax, the algorithm shared by the tuned families.
//!
//! Rows of Q are packed once, `MR` to a group with their elements interleaved. Positions are taken in batches of
//! [`BATCH`] steps of 32, counted from the first one; steps that no row sees are left out. A step that a row does not see
//! changes none of its numbers, so that its result does not depend on the rows beside it.
//!
//! ```text
//! for each batch
//!     for each step    panel[d_k][32] = K of the step, decoded, a column per position
//!                      scores[row][step] = Q panel                                      (Micro::scores)
//!     for each row     mask, new maximum, exponentials in place, rescaled mixture       (Micro::soft_max)
//!     for each step    panel[32][d_v] = V of the step, decoded, a row per position
//!                      mixture[row] += scores[row][step] panel                          (Micro::mix)
//! ```
//!
//! The panel of a step stays in the first-level cache while all rows pass over it, and the lanes of a vector are
//! positions (scores) or elements of V (mixtures), so that neither depends on the number of rows.

use std::fmt::Debug;

use crate::op::attention::{Attend, HIDDEN, HeadRows, Implementation, STEP, Scores, State};
use crate::rows::f32s;
use crate::tile::kv::Tile;
use crate::{WeightRows, WeightType};

/// Steps of a batch.
pub(crate) const BATCH: usize = 4;

/// Floats from the scores of one row to those of the next.
pub(crate) const SCORES: usize = BATCH * STEP;

/// Floats that a panel's row is padded to: the widest vector.
const PAD: usize = 16;

/// Scores of one row: those of whole steps.
pub(crate) type ScoreRow = [f32; SCORES];

/// Mask of one step: half floats, positions that are not there being hidden; `None` where all are seen.
pub(crate) type StepMask<'a> = Option<&'a [[u8; 2]; STEP]>;

/// Numbers of a row's softmax.
#[derive(Clone, Copy)]
pub(crate) struct RowScores {
    /// Factor of the products, where rows of Q are not packed with it; see [`Micro::SCALES`].
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "kernels of other targets pack Q with it")
    )]
    pub(crate) scale: f32,
    /// Factor of the mask.
    pub(crate) slope: f32,
    /// Bound of the scores; 0 for none.
    pub(crate) softcap: f32,
}

/// The functions of one instruction set.
pub(crate) trait Micro: Debug + Send + Sync {
    /// Rows of Q in a group, at most 8.
    const MR: usize;

    /// Whether `soft_max` multiplies products by their factor: then they are rounded as in ggml, where a score that
    /// differs in the last bit becomes another integer in the product that follows. Else rows of Q are packed with it.
    const SCALES: bool = false;

    /// Floats behind the elements of a packed group.
    const GROUP_TAIL: usize = 0;

    /// Converts a group, packed as f32, and writes what is behind it.
    fn pack(&self, _group: &mut [f32]) {}

    /// Asks for the bytes of a row to come to a cache: a hint.
    fn fetch(&self, _row: &[u8]) {}

    /// Decodes K of up to 32 positions: `panel[d][kv]`; missing positions are zeros.
    fn keys(&self, rows: &[&[u8]], half: bool, panel: &mut [[f32; STEP]]);

    /// Decodes K of a block of tiles.
    fn key_tiles(&self, tiles: &[Tile], panel: &mut [[f32; STEP]]);

    /// Decodes V of up to 32 positions: `panel[kv * stride + d]`; missing positions are not written.
    fn values(&self, rows: &[&[u8]], half: bool, panel: &mut [f32], stride: usize);

    /// Decodes V of a block of tiles.
    fn value_tiles(&self, tiles: &[Tile], panel: &mut [f32], stride: usize);

    /// Writes the products of the first `scores.len()` rows, at most `MR`, of a packed group with the panel:
    /// `scores[r][at + kv]` = sum over `d` of `q[d * MR + r] * panel[d][kv]`, if `q` and `panel` are still f32.
    fn scores(&self, q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize);

    /// Scales the scores of the steps ([`Self::SCALES`]), adds the masks, and turns them into exponentials less the greatest of them and `max`.
    /// Returns that greatest and the sum of the exponentials, which is NaN where a score is. Scores of `-inf`, and of
    /// positions whose mask is `-inf`, become 0.
    fn soft_max(
        &self,
        scores: &mut ScoreRow,
        steps: &[StepMask<'_>],
        row: RowScores,
        max: f32,
    ) -> (f32, f32);

    /// Multiplies by a factor.
    fn scale(&self, x: &mut [f32], factor: f32);

    /// Adds the first `n` rows of the panel, weighted: `acc[r * stride + d] += scores[r][at + kv] * panel[kv * stride + d]`
    /// for the rows of `scores`, at most `MR`.
    fn mix(
        &self,
        scores: &[ScoreRow],
        at: usize,
        n: usize,
        panel: &[f32],
        acc: &mut [f32],
        stride: usize,
    );
}

/// Attention by the [algorithm](self) with one instruction set's functions.
#[derive(Debug)]
pub(crate) struct Flash<M>(pub(crate) M);

/// Parts of the scratch memory, each at an aligned address.
struct Scratch<'a> {
    q: &'a mut [f32],
    panel: &'a mut [f32],
    scores: &'a mut [ScoreRow],
}

fn group_len<M: Micro>(d_k: usize) -> usize {
    M::MR * d_k + M::GROUP_TAIL
}

fn q_len<M: Micro>(n_rows: usize, d_k: usize) -> usize {
    (n_rows.div_ceil(M::MR) * group_len::<M>(d_k)).next_multiple_of(PAD)
}

fn panel_len(d_k: usize, d_v: usize) -> usize {
    STEP * d_k.max(d_v.next_multiple_of(PAD))
}

impl<M: Micro> Implementation for Flash<M> {
    fn scratch_len(&self, n_rows: usize, d_k: usize, d_v: usize) -> usize {
        PAD + q_len::<M>(n_rows, d_k) + panel_len(d_k, d_v) + n_rows * SCORES
    }

    fn attend(&self, op: &Attend<'_>, state: State<'_>, stride: usize, scratch: &mut [f32]) {
        let (n_rows, d_k) = (op.n_rows(), op.k.d());
        let start = scratch.as_ptr().align_offset(4 * PAD).min(PAD);
        let (q, rest) = scratch[start..].split_at_mut(q_len::<M>(n_rows, d_k));
        let (panel, rest) = rest.split_at_mut(panel_len(d_k, op.v.d()));
        let scratch = Scratch {
            q,
            panel,
            scores: &mut rest.as_chunks_mut().0[..n_rows],
        };
        let scale = if M::SCALES { 1.0 } else { factor(&op.scores) };
        pack(&self.0, op, scale, scratch.q);
        let mut pass = Pass {
            micro: &self.0,
            op,
            state,
            stride,
            scratch,
        };
        let n_kv = op.k.n_kv();
        for batch in (0..n_kv).step_by(SCORES) {
            let mut starts = [0; BATCH];
            let mut n_steps = 0;
            for start in (batch..n_kv.min(batch + SCORES)).step_by(STEP) {
                if op.sees(start, STEP.min(n_kv - start)) {
                    starts[n_steps] = start;
                    n_steps += 1;
                }
            }
            pass.batch(&starts[..n_steps]);
        }
    }
}

/// Returns the factor of a product of q and k. A bound is applied to a multiple of it.
fn factor(scores: &Scores<'_>) -> f32 {
    match scores.softcap {
        0.0 => scores.scale,
        softcap => scores.scale / softcap,
    }
}

/// Packs rows of Q, times `scale`, into groups of `MR` with their elements interleaved; missing rows are zeros.
fn pack<M: Micro>(micro: &M, op: &Attend<'_>, scale: f32, q: &mut [f32]) {
    let (n_rows, d_k, mr) = (op.n_rows(), op.k.d(), M::MR);
    if group_len::<M>(d_k) == 0 {
        return;
    }
    for (g, whole) in q.chunks_exact_mut(group_len::<M>(d_k)).enumerate() {
        let group = &mut whole[..mr * d_k];
        for i in 0..mr {
            let r = g * mr + i;
            if r < n_rows {
                for (x, out) in f32s(op.q_row(r)).zip(group.chunks_exact_mut(mr)) {
                    out[i] = x * scale;
                }
            } else {
                group.chunks_exact_mut(mr).for_each(|out| out[i] = 0.0);
            }
        }
        micro.pack(whole);
    }
}

/// Positions of plain rows, and whether they are half floats.
fn plain<'a>(rows: &WeightRows<'a>, start: usize, n: usize) -> ([&'a [u8]; STEP], bool) {
    let row = |i| if i < n { rows.row(start + i) } else { &[] };
    (std::array::from_fn(row), rows.ty() == WeightType::F16)
}

/// One call.
struct Pass<'a, M> {
    micro: &'a M,
    op: &'a Attend<'a>,
    state: State<'a>,
    stride: usize,
    scratch: Scratch<'a>,
}

impl<M: Micro> Pass<'_, M> {
    /// Lets all rows see the steps that start at these positions.
    fn batch(&mut self, starts: &[usize]) {
        if starts.is_empty() {
            return;
        }
        for (i, &start) in starts.iter().enumerate() {
            // Rows of one head are far apart in memory: nobody else sees which will be next.
            if let Some(&next) = starts.get(i + 1) {
                self.fetch(&self.op.k, next);
            }
            self.fetch(&self.op.v, start);
            self.scores(start, i * STEP);
        }
        for r in 0..self.op.n_rows() {
            self.soft_max(r, starts);
        }
        for (i, &start) in starts.iter().enumerate() {
            self.mix(start, i * STEP);
        }
    }

    fn fetch(&self, rows: &HeadRows<'_>, start: usize) {
        if let HeadRows::Plain(rows) = rows {
            let n = self.step_len(start);
            (start..start + n).for_each(|i| self.micro.fetch(rows.row(i)));
        }
    }

    /// Positions of the step at `start`.
    fn step_len(&self, start: usize) -> usize {
        STEP.min(self.op.k.n_kv() - start)
    }

    fn scores(&mut self, start: usize, at: usize) {
        let (d_k, n) = (self.op.k.d(), self.step_len(start));
        let Scratch { q, panel, scores } = &mut self.scratch;
        let panel = &mut panel.as_chunks_mut().0[..d_k];
        match &self.op.k {
            HeadRows::Plain(rows) => {
                let (rows, half) = plain(rows, start, n);
                self.micro.keys(&rows[..n], half, panel);
            }
            HeadRows::Tiles(tiles) => self.micro.key_tiles(tiles.block(start), panel),
        }
        for (g, scores) in scores.chunks_mut(M::MR).enumerate() {
            let q = &q[g * group_len::<M>(d_k)..][..group_len::<M>(d_k)];
            self.micro.scores(q, panel, scores, at);
        }
    }

    fn soft_max(&mut self, r: usize, starts: &[usize]) {
        let mut slope = 1.0;
        let mut steps: [StepMask<'_>; BATCH] = [None; BATCH];
        let mut padded = [HIDDEN; STEP];
        let scores = &mut self.scratch.scores[r];
        // Only the last step of all may be short of positions.
        for (step, &start) in steps.iter_mut().zip(starts) {
            if let Some((mask, s)) = self.op.mask_row(r, start) {
                (*step, slope) = (mask.first_chunk(), s);
            }
        }
        let last = starts.len() - 1;
        let n = STEP.min(self.op.k.n_kv() - starts[last]);
        if n < STEP {
            scores[last * STEP + n..(last + 1) * STEP].fill(f32::NEG_INFINITY);
            if let Some((mask, _)) = self.op.mask_row(r, starts[last]) {
                padded[..n].copy_from_slice(&mask[..n]);
                steps[last] = Some(&padded);
            }
        }
        let softcap = self.op.scores.softcap;
        let row = RowScores {
            scale: factor(&self.op.scores),
            slope,
            softcap,
        };
        let old = self.state.max[r];
        let (max, sum) = self.micro.soft_max(scores, &steps[..=last], row, old);
        let mut share = 1.0;
        if max != old {
            share = (old - max).exp();
            let acc = &mut self.state.acc[r * self.stride..][..self.stride];
            self.micro.scale(acc, share);
        }
        self.state.max[r] = max;
        self.state.sum[r] = self.state.sum[r] * share + sum;
    }

    fn mix(&mut self, start: usize, at: usize) {
        let (n, stride) = (self.step_len(start), self.stride);
        let Scratch { panel, scores, .. } = &mut self.scratch;
        let panel = &mut panel[..STEP * stride];
        match &self.op.v {
            HeadRows::Plain(rows) => {
                let (rows, half) = plain(rows, start, n);
                self.micro.values(&rows[..n], half, panel, stride);
            }
            HeadRows::Tiles(tiles) => self.micro.value_tiles(tiles.block(start), panel, stride),
        }
        let accs = self.state.acc.chunks_mut(M::MR * stride);
        for (scores, acc) in scores.chunks(M::MR).zip(accs) {
            self.micro.mix(scores, at, n, panel, acc, stride);
        }
    }
}
