//! Products with plain rows of `F32` and `F16` weights by the [shared algorithm](crate::panel): both are multiplied as f32.
//!
//! A packed group is `V` vectors, a lane for each row, for every element of k; a row by itself is padded with zeros to whole
//! `V` vectors.

use super::{Body, Lanes, Square, fill, load_elements, padded};
use crate::panel::{DOT_ROWS, Micro};
use crate::{F32Rows, WeightType};

const KC: usize = 256;

/// A tile of decoded weights.
pub(crate) type Tile<const MR: usize> = [[f32; KC]; MR];

/// Weights of `SIZE` bytes: `F32`, or `F16`, where x is rounded to f16 when packed. With an instruction set's vectors of `L`
/// floats, `V` of them for a group of rows of x; sums of `MR` weight rows with two vectors fill half of the registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<
    I,
    const L: usize,
    const SIZE: usize,
    const MR: usize,
    const V: usize,
    const ROW_LIMIT: usize,
>(pub(crate) I);

impl<
    I: Lanes<L>,
    const L: usize,
    const SIZE: usize,
    const MR: usize,
    const V: usize,
    const ROW_LIMIT: usize,
> Micro for Rows<I, L, SIZE, MR, V, ROW_LIMIT>
{
    const TYPE: WeightType = if SIZE == 2 {
        WeightType::F16
    } else {
        WeightType::F32
    };
    const LANES: usize = V * L;
    const MR: usize = MR;
    const GROUPS: usize = 2 / V;
    const KC: usize = KC;
    const ROW_LIMIT: usize = ROW_LIMIT;
    type Tile = Tile<MR>;

    fn new_tile() -> Tile<MR> {
        [[0.0; KC]; MR]
    }

    fn group_size_bytes(k: usize) -> usize {
        k * 4 * V * L
    }

    fn row_size_bytes(k: usize) -> usize {
        k.next_multiple_of(V * L) * 4
    }

    fn prepare_group(&self, x: &F32Rows<'_>, group: &mut [u8]) {
        self.0.run(PrepareGroup::<SIZE, V> { x, group });
    }

    fn prepare_row(&self, x: &[u8], out: &mut [u8]) {
        self.0.run(PrepareRow::<SIZE> { x, out });
    }

    fn decode(&self, weights: &[u8], r: usize, tile: &mut Tile<MR>) {
        let n = (weights.len() / SIZE).next_multiple_of(L);
        let out = &mut tile[r][..n];
        self.0.run(Decode::<SIZE> { weights, out });
    }

    fn tile<const G: usize>(
        &self,
        tile: &Tile<MR>,
        kc: usize,
        x: [&[u8]; G],
        acc: [&mut [f32]; G],
    ) {
        self.0.run(Multiply::<G, V, MR> { tile, kc, x, acc });
    }

    fn store(&self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
        self.0.store_transposed(acc, n_lanes, out, stride);
    }

    fn dot(&self, _k: usize, weights: [&[u8]; DOT_ROWS], x: &[u8]) -> [f32; DOT_ROWS] {
        self.0.run(Dot::<SIZE, V> { weights, x })
    }
}

/// See [`Micro::prepare_group`].
struct PrepareGroup<'a, const SIZE: usize, const V: usize> {
    x: &'a F32Rows<'a>,
    group: &'a mut [u8],
}

impl<const L: usize, const SIZE: usize, const V: usize> Body<L> for PrepareGroup<'_, SIZE, V> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let Self { x, group } = self;
        for v in 0..V {
            let rows = (v * L..x.n_rows()).map(|i| x.row(i));
            let square = Square::<L, 4>::new(rows);
            for (c, lines) in group.chunks_mut(4 * V * L * L).enumerate() {
                let lines = lines.as_chunks_mut().0.as_chunks_mut().0;
                let lines = lines.iter_mut().skip(v).step_by(V);
                for (line, x) in lines.zip(square.columns(isa, c)) {
                    isa.store_bytes(line, rounded::<L, SIZE, I>(isa, x));
                }
            }
        }
    }
}

/// Returns elements of x as they multiply weights of `SIZE` bytes.
#[inline(always)]
fn rounded<const L: usize, const SIZE: usize, I: Lanes<L>>(isa: I, x: I::Floats) -> I::Floats {
    if SIZE == 2 { isa.round_to_f16(x) } else { x }
}

/// See [`Micro::prepare_row`].
struct PrepareRow<'a, const SIZE: usize> {
    x: &'a [u8],
    out: &'a mut [u8],
}

impl<const L: usize, const SIZE: usize> Body<L> for PrepareRow<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let (whole, mut tail) = self.x.as_chunks::<4>().0.as_chunks();
        let out = self.out.as_chunks_mut().0.as_chunks_mut().0;
        let (out, rest) = out.split_at_mut(whole.len());
        for (out, x) in out.iter_mut().zip(whole) {
            isa.store_bytes(out, rounded::<L, SIZE, I>(isa, isa.load_bytes(x)));
        }
        for out in rest {
            let x = isa.load_bytes(&padded(tail));
            isa.store_bytes(out, rounded::<L, SIZE, I>(isa, x));
            tail = &[];
        }
    }
}

/// See [`Micro::decode`].
struct Decode<'a, const SIZE: usize> {
    weights: &'a [u8],
    out: &'a mut [f32],
}

impl<const L: usize, const SIZE: usize> Body<L> for Decode<'_, SIZE> {
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        fill::<L, SIZE, I>(isa, self.weights, self.out);
    }
}

/// See [`Micro::tile`].
struct Multiply<'a, const G: usize, const V: usize, const MR: usize> {
    tile: &'a Tile<MR>,
    kc: usize,
    x: [&'a [u8]; G],
    acc: [&'a mut [f32]; G],
}

impl<const L: usize, const G: usize, const V: usize, const MR: usize> Body<L>
    for Multiply<'_, G, V, MR>
{
    type Output = ();

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) {
        let kc = self.kc.min(KC);
        let mut x: [&[[[[u8; 4]; L]; V]]; G] = [&[]; G];
        let mut sums = [[[isa.splat(0.0); MR]; V]; G];
        for g in 0..G {
            x[g] = &self.x[g].as_chunks().0.as_chunks().0.as_chunks().0[..kc];
            let acc = self.acc[g].as_chunks().0.as_chunks::<V>().0;
            for r in 0..MR {
                for v in 0..V {
                    sums[g][v][r] = isa.load(&acc[r][v]);
                }
            }
        }
        let fours = self.tile.each_ref().map(|row| &row.as_chunks().0[..kc / 4]);
        let x_fours = x.map(|x| &x.as_chunks::<4>().0[..kc / 4]);
        for four in 0..kc / 4 {
            for i in 0..4 {
                let lines = x_fours.map(|x| &x[four][i]);
                let mut x = [[isa.splat(0.0); V]; G];
                for g in 0..G {
                    for v in 0..V {
                        x[g][v] = isa.load_bytes(&lines[g][v]);
                    }
                }
                for r in 0..MR {
                    for g in 0..G {
                        for v in 0..V {
                            let sum = sums[g][v][r];
                            sums[g][v][r] = isa.add_scaled(sum, x[g][v], &fours[r][four], i);
                        }
                    }
                }
            }
        }
        for i in kc / 4 * 4..kc {
            for g in 0..G {
                for v in 0..V {
                    let x = isa.load_bytes(&x[g][i][v]);
                    for r in 0..MR {
                        let w = isa.splat(self.tile[r][i]);
                        sums[g][v][r] = isa.mul_add(w, x, sums[g][v][r]);
                    }
                }
            }
        }
        for (acc, sums) in self.acc.into_iter().zip(sums) {
            let acc = acc.as_chunks_mut().0.as_chunks_mut::<V>().0;
            for r in 0..MR {
                for v in 0..V {
                    isa.store(&mut acc[r][v], sums[v][r]);
                }
            }
        }
    }
}

/// See [`Micro::dot`].
struct Dot<'a, const SIZE: usize, const V: usize> {
    weights: [&'a [u8]; DOT_ROWS],
    x: &'a [u8],
}

impl<const L: usize, const SIZE: usize, const V: usize> Body<L> for Dot<'_, SIZE, V> {
    type Output = [f32; DOT_ROWS];

    #[inline(always)]
    fn run<I: Lanes<L>>(self, isa: I) -> [f32; DOT_ROWS] {
        let weights = self.weights.map(|row| row.as_chunks::<SIZE>().0);
        let n = weights[0].len() / (V * L);
        let (x, last) = self.x.as_chunks().0.as_chunks().0.split_at(n * V);
        let x = x.as_chunks::<V>().0;
        let wholes = weights.map(|row| &row.as_chunks().0.as_chunks::<V>().0[..n]);
        let mut sums = [[isa.splat(0.0); V]; DOT_ROWS];
        for c in 0..n {
            for v in 0..V {
                let x = isa.load_bytes(&x[c][v]);
                for r in 0..DOT_ROWS {
                    let w = load_elements(isa, &wholes[r][c][v]);
                    sums[r][v] = isa.mul_add(w, x, sums[r][v]);
                }
            }
        }
        for (v, x) in last.iter().enumerate().take(V) {
            let x = isa.load_bytes(x);
            for r in 0..DOT_ROWS {
                let rest = weights[r].get((n * V + v) * L..).unwrap_or(&[]);
                let w = load_elements(isa, &padded(rest));
                sums[r][v] = isa.mul_add(w, x, sums[r][v]);
            }
        }
        let mut dots = [0.0; DOT_ROWS];
        for r in 0..DOT_ROWS {
            let mut sum = sums[r][0];
            for v in 1..V {
                sum = isa.add(sum, sums[r][v]);
            }
            dots[r] = isa.sum(sum);
        }
        dots
    }
}
