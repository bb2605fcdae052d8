//! Attention by the [shared algorithm](crate::flash): the 32 positions of a step are whole vectors.
//!
//! Scores of `MR` rows and mixtures of as many are added up in half of the registers, whatever their number.

use std::ops::Range;

use super::{Body, Lanes, Square, exp, fill, tanh};
use crate::flash::{Micro, RowScores, ScoreRow, StepMask};
use crate::op::attention::STEP;
use crate::tile::TILE;
use crate::tile::kv::{LINE_SIZE_BYTES, Tile};

/// Attention with an instruction set's vectors of `L` floats, over groups of `MR` rows of Q; see [`Micro`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors<I, const L: usize, const MR: usize, const SCALES: bool>(pub(crate) I);

impl<I: Lanes<L>, const L: usize, const MR: usize, const SCALES: bool> Micro
    for Vectors<I, L, MR, SCALES>
{
    const MR: usize = MR;
    const SCALES: bool = SCALES;

    fn fetch(&self, row: &[u8]) {
        self.0.prefetch(row);
    }

    fn keys(&self, rows: &[&[u8]], half: bool, panel: &mut [[f32; STEP]]) {
        if half {
            self.0.run(Keys::<2> { rows, panel });
        } else {
            self.0.run(Keys::<4> { rows, panel });
        }
    }

    fn key_tiles(&self, tiles: &[Tile], panel: &mut [[f32; STEP]]) {
        self.0.run(KeyTiles { tiles, panel });
    }

    fn values(&self, rows: &[&[u8]], half: bool, panel: &mut [f32], stride: usize) {
        if half {
            self.0.run(Values::<2> {
                rows,
                panel,
                stride,
            });
        } else {
            self.0.run(Values::<4> {
                rows,
                panel,
                stride,
            });
        }
    }

    fn value_tiles(&self, tiles: &[Tile], panel: &mut [f32], stride: usize) {
        self.0.run(ValueTiles {
            tiles,
            panel,
            stride,
        });
    }

    fn scores(&self, q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
        self.0.run(Products::<MR> {
            q,
            panel,
            scores,
            at,
        });
    }

    fn soft_max(
        &self,
        scores: &mut ScoreRow,
        steps: &[StepMask<'_>],
        row: RowScores,
        max: f32,
    ) -> (f32, f32) {
        self.0.run(SoftMax::<SCALES, false> {
            scores,
            steps,
            row,
            max,
        })
    }

    fn scale(&self, x: &mut [f32], factor: f32) {
        self.0.run(Scale { x, factor });
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
        self.0.run(Mix::<MR> {
            scores,
            positions: at..at + n,
            panel,
            acc,
            stride,
        });
    }
}

/// See [`Micro::keys`]; elements have `SIZE` bytes.
struct Keys<'a, const SIZE: usize> {
    rows: &'a [&'a [u8]],
    panel: &'a mut [[f32; STEP]],
}

impl<const L: usize, const SIZE: usize> Body<L> for Keys<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        for side in 0..STEP / L {
            let rows = self.rows.iter().skip(side * L).copied();
            let square = Square::<L, SIZE>::new(rows);
            for (c, lines) in self.panel.chunks_mut(L).enumerate() {
                for (line, v) in lines.iter_mut().zip(square.columns(isa, c)) {
                    isa.store(&mut line.as_chunks_mut().0[side], v);
                }
            }
        }
    }
}

/// See [`Micro::key_tiles`].
struct KeyTiles<'a> {
    tiles: &'a [Tile],
    panel: &'a mut [[f32; STEP]],
}

impl<const L: usize> Body<L> for KeyTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let lines = self.tiles.as_flattened().as_chunks::<LINE_SIZE_BYTES>().0;
        for (line, [even, odd]) in lines.iter().zip(self.panel.as_chunks_mut().0) {
            isa.unzip(line, even, odd);
        }
    }
}

/// See [`Micro::values`]; elements have `SIZE` bytes, and rows end with zeros.
struct Values<'a, const SIZE: usize> {
    rows: &'a [&'a [u8]],
    panel: &'a mut [f32],
    stride: usize,
}

impl<const L: usize, const SIZE: usize> Body<L> for Values<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let outs = self.panel.chunks_exact_mut(self.stride);
        for (row, out) in self.rows.iter().zip(outs) {
            fill::<L, SIZE, I>(isa, row, out);
        }
    }
}

/// See [`Micro::value_tiles`].
struct ValueTiles<'a> {
    tiles: &'a [Tile],
    panel: &'a mut [f32],
    stride: usize,
}

impl<const L: usize> Body<L> for ValueTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let Self {
            tiles,
            panel,
            stride,
        } = self;
        for (strip, tile) in tiles.iter().enumerate() {
            let lines = tile.as_chunks().0;
            for (line, rows) in lines.iter().zip(panel.chunks_exact_mut(2 * stride)) {
                let (even, odd) = rows.split_at_mut(stride);
                let even = even[strip * TILE..].first_chunk_mut();
                let odd = odd[strip * TILE..].first_chunk_mut();
                let (Some(even), Some(odd)) = (even, odd) else {
                    unreachable!("a row has all strips");
                };
                isa.unzip(line, even, odd);
            }
        }
    }
}

/// See [`Micro::scores`].
struct Products<'a, const MR: usize> {
    q: &'a [f32],
    panel: &'a [[f32; STEP]],
    scores: &'a mut [ScoreRow],
    at: usize,
}

impl<const L: usize, const MR: usize> Body<L> for Products<'_, MR> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        match self.scores.len().min(MR) {
            ..=1 => self.rows::<L, 1, I>(isa),
            2 => self.rows::<L, 2, I>(isa),
            3 => self.rows::<L, 3, I>(isa),
            4 => self.rows::<L, 4, I>(isa),
            5 => self.rows::<L, 5, I>(isa),
            6 => self.rows::<L, 6, I>(isa),
            7 => self.rows::<L, 7, I>(isa),
            _ => self.rows::<L, 8, I>(isa),
        }
    }
}

impl<const MR: usize> Products<'_, MR> {
    #[inline(always)]
    fn rows<const L: usize, const N: usize, I: Lanes<L>>(self, isa: I) {
        if I::REGISTERS / 2 < 4 * MR {
            self.vectors::<L, N, 2, I>(isa);
        } else {
            self.vectors::<L, N, 4, I>(isa);
        }
    }

    /// Adds up the scores of `N` rows, `V` vectors of positions at a time.
    #[inline(always)]
    fn vectors<const L: usize, const N: usize, const V: usize, I: Lanes<L>>(self, isa: I) {
        for first in (0..STEP / L).step_by(V) {
            let mut sums = [[isa.splat(0.0); V]; N];
            for (q, k) in self.q.as_chunks::<MR>().0.iter().zip(self.panel) {
                let (q, k) = (q.as_chunks().0, k.as_chunks().0);
                for v in 0..V {
                    let k = isa.load(&k[first + v]);
                    for r in 0..N {
                        sums[r][v] = isa.add_scaled(sums[r][v], k, &q[r / 4], r % 4);
                    }
                }
            }
            for (scores, sums) in self.scores.iter_mut().zip(sums) {
                let out = scores[self.at + first * L..].as_chunks_mut().0;
                for v in 0..V {
                    isa.store(&mut out[v], sums[v]);
                }
            }
        }
    }
}

/// See [`Micro::soft_max`]; exponentials are rounded to half floats if `ROUNDS`.
pub(crate) struct SoftMax<'a, const SCALES: bool, const ROUNDS: bool> {
    pub(crate) scores: &'a mut ScoreRow,
    pub(crate) steps: &'a [StepMask<'a>],
    pub(crate) row: RowScores,
    pub(crate) max: f32,
}

impl<const L: usize, const SCALES: bool, const ROUNDS: bool> Body<L>
    for SoftMax<'_, SCALES, ROUNDS>
{
    type Output = (f32, f32);

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) -> (f32, f32) {
        let row = self.row;
        let (hidden, slope) = (isa.splat(f32::NEG_INFINITY), isa.splat(row.slope));
        let scores = &mut self.scores[..self.steps.len() * STEP];
        let mut greatest = isa.splat(self.max);
        for (step, &mask) in scores.as_chunks_mut::<STEP>().0.iter_mut().zip(self.steps) {
            for (part, vector) in step.as_chunks_mut().0.iter_mut().enumerate() {
                // Positions that are not there are -inf already, and stay so.
                let product = isa.load(vector);
                let mut s = product;
                if SCALES {
                    let scaled = isa.mul(s, isa.splat(row.scale));
                    s = isa.where_differ(product, hidden, scaled, s);
                }
                if row.softcap != 0.0 {
                    let capped = isa.mul(isa.splat(row.softcap), tanh(isa, s));
                    s = isa.where_differ(product, hidden, capped, s);
                }
                if let Some(mask) = mask {
                    let mask = isa.mul(slope, isa.load_halves(&mask.as_chunks().0[part]));
                    s = isa.where_differ(mask, hidden, isa.add(s, mask), hidden);
                }
                isa.store(vector, s);
                greatest = isa.larger(greatest, s);
            }
        }
        let max = isa.greatest(greatest).max(self.max);
        let mut sum = isa.splat(0.0);
        for step in scores.as_chunks_mut::<STEP>().0 {
            for vector in step.as_chunks_mut().0 {
                let s = isa.load(vector);
                let mut p = exp(isa, isa.sub(s, isa.splat(max)));
                if ROUNDS {
                    p = isa.round_to_f16(p);
                }
                let p = isa.where_differ(s, hidden, p, isa.splat(0.0));
                isa.store(vector, p);
                sum = isa.add(sum, p);
            }
        }
        (max, isa.sum(sum))
    }
}

/// See [`Micro::scale`]; `x` is whole vectors.
pub(crate) struct Scale<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) factor: f32,
}

impl<const L: usize> Body<L> for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let factor = isa.splat(self.factor);
        for x in self.x.as_chunks_mut().0 {
            isa.store(x, isa.mul(isa.load(x), factor));
        }
    }
}

/// See [`Micro::mix`].
struct Mix<'a, const MR: usize> {
    scores: &'a [ScoreRow],
    positions: Range<usize>,
    panel: &'a [f32],
    acc: &'a mut [f32],
    stride: usize,
}

impl<const L: usize, const MR: usize> Body<L> for Mix<'_, MR> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        match self.scores.len().min(MR) {
            ..=1 => self.rows::<L, 1, I>(isa),
            2 => self.rows::<L, 2, I>(isa),
            3 => self.rows::<L, 3, I>(isa),
            4 => self.rows::<L, 4, I>(isa),
            5 => self.rows::<L, 5, I>(isa),
            6 => self.rows::<L, 6, I>(isa),
            7 => self.rows::<L, 7, I>(isa),
            _ => self.rows::<L, 8, I>(isa),
        }
    }
}

impl<const MR: usize> Mix<'_, MR> {
    #[inline(always)]
    fn rows<const L: usize, const N: usize, I: Lanes<L>>(self, isa: I) {
        if I::REGISTERS / 2 < 4 * N {
            self.vectors::<L, N, 2, I>(isa);
        } else {
            self.vectors::<L, N, 4, I>(isa);
        }
    }

    /// Adds weighted rows to the mixtures of `N` rows, `V` vectors at a time.
    #[inline(always)]
    fn vectors<const L: usize, const N: usize, const V: usize, I: Lanes<L>>(mut self, isa: I) {
        let mut d = 0;
        while d + V * L <= self.stride {
            self.columns::<L, N, V, I>(isa, d);
            d += V * L;
        }
        while d < self.stride {
            self.columns::<L, N, 1, I>(isa, d);
            d += L;
        }
    }

    #[inline(always)]
    fn columns<const L: usize, const N: usize, const V: usize, I: Lanes<L>>(
        &mut self,
        isa: I,
        d: usize,
    ) {
        let Self {
            scores,
            positions,
            panel,
            acc,
            stride,
        } = self;
        let (n, stride) = (positions.len(), *stride);
        let mut p: [&[f32]; N] = [&[]; N];
        let mut sums = [[isa.splat(0.0); V]; N];
        for r in 0..N {
            p[r] = &scores[r][positions.clone()];
            let acc = acc[r * stride + d..].as_chunks().0;
            for v in 0..V {
                sums[r][v] = isa.load(&acc[v]);
            }
        }
        let fours = p.map(|p| p.as_chunks().0);
        let rows = panel[..n * stride].chunks_exact(4 * stride);
        let last = rows.remainder().chunks_exact(stride);
        for (four, rows) in rows.enumerate() {
            for i in 0..4 {
                let row = rows[i * stride + d..][..V * L].as_chunks().0;
                for v in 0..V {
                    let value = isa.load(&row[v]);
                    for r in 0..N {
                        sums[r][v] = isa.add_scaled(sums[r][v], value, &fours[r][four], i);
                    }
                }
            }
        }
        for (kv, row) in (n / 4 * 4..).zip(last) {
            let row = row[d..][..V * L].as_chunks().0;
            for v in 0..V {
                let value = isa.load(&row[v]);
                for r in 0..N {
                    sums[r][v] = isa.mul_add(isa.splat(p[r][kv]), value, sums[r][v]);
                }
            }
        }
        for r in 0..N {
            let acc = acc[r * stride + d..].as_chunks_mut().0;
            for v in 0..V {
                isa.store(&mut acc[v], sums[r][v]);
            }
        }
    }
}
