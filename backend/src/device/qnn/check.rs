//! The check of a graph before its first use: some results, compared with products of the dequantised weights.
//!
//! The library may accept a graph and compute wrong numbers. Every graph is therefore run once on a known input; of some
//! rows, some columns of each output are computed anew, in f64, from ggml's blocks. Where a graph has room for additions, some are
//! made up that are as large as the products, so that an error of either shows.

use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::low_rank::Factors;
use super::part::Part;
use super::weight::QnnType;
use crate::device::{DenseKind, DenseWeight};
use crate::knobs::Tier;

/// Rows that are looked at, at most.
const N_ROWS: usize = 3;

/// Columns of an output that are looked at, at most.
const N_COLUMNS: usize = 24;

/// Largest share of the error in the power of the results that passes, by what is computed.
pub(super) fn max_nmse(kind: DenseKind, tier: Tier) -> f64 {
    match (tier, kind) {
        // Half a percent of a step, in 8 bits per row.
        (Tier::Int8, _) => 1e-2,
        (_, DenseKind::Products) => 5e-6,
        // Gate, up and their product are rounded to half floats on the way.
        (_, DenseKind::FeedForward) => 1e-5,
    }
}

/// Makes the input: `n_rows` rows of `k` numbers without a pattern, all half floats.
pub(super) fn input(n_rows: usize, k: usize) -> Vec<f32> {
    noise(n_rows * k, 0)
}

/// Makes numbers between -2 and 2 without a pattern, others for every stream.
pub(super) fn noise(len: usize, stream: u64) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * stream + 1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(state.to_le_bytes()[4].cast_signed()) / 64.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Returns which rows of the results are looked at.
pub(super) fn rows(n_rows: usize) -> Vec<usize> {
    spread(0..n_rows, N_ROWS)
}

/// Returns up to `n` numbers of a range, the first and the last among them.
fn spread(range: Range<usize>, n: usize) -> Vec<usize> {
    let len = range.len();
    let n = n.min(len);
    let at = |i: usize| range.start + if n > 1 { i * (len - 1) / (n - 1) } else { 0 };
    (0..n).map(at).collect()
}

/// Sums of squares: of the results, and of their errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Of the reference.
    pub power: f64,
    /// Of the differences from it.
    pub error: f64,
}

impl Sums {
    /// Adds a result.
    pub fn add(&mut self, result: f64, reference: f64) {
        self.power += reference * reference;
        self.error += (result - reference) * (result - reference);
    }

    /// Returns the share of the error in the power; anything wrong is infinite.
    #[must_use]
    pub fn nmse(&self) -> f64 {
        let share = if self.error == 0.0 {
            0.0
        } else {
            self.error / self.power
        };
        if share.is_finite() {
            share
        } else {
            f64::INFINITY
        }
    }
}

/// Values of weights, row by row.
pub(super) struct Rows<'a> {
    pub(super) weight: &'a DenseWeight,
    pub(super) ty: QnnType,
    /// All rows, in ggml's blocks.
    pub(super) bytes: &'a [u8],
}

impl Rows<'_> {
    fn row(&self, row: usize, values: &mut Vec<f32>) {
        let size = self.bytes.len() / self.weight.n;
        values.resize(self.weight.k, 0.0);
        self.ty
            .dequantize_row(&self.bytes[row * size..][..size], values);
    }
}

fn dot(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(&a, b)| f64::from(a) * b).sum()
}

/// A made-up addition to the product of a weight, of elements that half floats hold.
#[derive(Clone, Debug)]
pub(super) struct Example {
    k: usize,
    rank: usize,
    /// `[k, rank]`.
    a: Vec<f32>,
    /// `[rank, n]`.
    b: Vec<f32>,
}

fn half(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

impl Example {
    /// Makes one for a weight of `n` rows of `k` elements, the `i`th of a segment.
    pub(super) fn new(i: usize, k: usize, n: usize, rank: usize) -> Self {
        // Of its own: what is alike in gate and up makes some of their products huge.
        let stream = 2 * i as u64 + 1;
        #[expect(
            clippy::cast_precision_loss,
            reason = "a factor, of any size about this"
        )]
        let shrink = 1.0 / (k as f32).sqrt();
        Self {
            k,
            rank,
            a: noise(rank * k, stream)
                .iter()
                .map(|a| half(a * shrink))
                .collect(),
            b: noise(n * rank, stream + 1),
        }
    }

    /// Returns it as graphs take it.
    pub(super) fn factors(&self) -> Factors {
        let halves = |values: &[f32]| {
            let halves = values.iter().map(|&x| f16::from_f32(x).to_le_bytes());
            Arc::new(halves.flatten().collect::<Vec<u8>>())
        };
        Factors {
            a: halves(&self.a),
            b: halves(&self.b),
        }
    }

    /// Multiplies with the first factor.
    fn low(&self, x: &[f64]) -> Vec<f64> {
        self.a.chunks_exact(self.k).map(|a| dot(a, x)).collect()
    }

    fn of_column(&self, column: usize, low: &[f64]) -> f64 {
        dot(&self.b[column * self.rank..][..self.rank], low)
    }

    /// Becomes as large as the products that it is added to, and is added to them: `sums` has some columns, by column and row.
    fn add_to(&mut self, inputs: &[Vec<f64>], columns: &[usize], sums: &mut [Vec<f64>]) {
        let lows: Vec<Vec<f64>> = inputs.iter().map(|x| self.low(x)).collect();
        let power = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let of_sums = power(&mut sums.iter().flatten().copied());
        let columns_and_lows = columns
            .iter()
            .flat_map(|&column| lows.iter().map(move |low| (column, low)));
        let own = power(&mut columns_and_lows.map(|(column, low)| self.of_column(column, low)));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a factor, of any size about this"
        )]
        let factor = (of_sums / own).sqrt().clamp(1e-3, 1e3) as f32;
        if factor.is_finite() {
            for b in &mut self.b {
                *b = half(*b * factor);
            }
        }
        for (&column, sums) in columns.iter().zip(sums) {
            for (sum, low) in sums.iter_mut().zip(&lows) {
                *sum += self.of_column(column, low);
            }
        }
    }
}

/// Some results of a part.
pub(super) struct Samples {
    columns: Vec<usize>,
    /// By column, by row that is looked at.
    values: Vec<Vec<f64>>,
}

impl Samples {
    /// Compares with results, from column `start` on: those of the rows that are looked at.
    pub(super) fn compare<'r>(
        &self,
        results: impl Iterator<Item = &'r [f32]>,
        start: usize,
        sums: &mut Sums,
    ) {
        for (row, results) in results.enumerate() {
            for (column, values) in self.columns.iter().zip(&self.values) {
                sums.add(f64::from(results[column - start]), values[row]);
            }
        }
    }
}

/// Reference results of a part, for rows of the input.
pub(super) struct Reference {
    /// By row that is looked at: what the last products multiply.
    inputs: Vec<Vec<f64>>,
}

impl Reference {
    /// Takes the input of products.
    pub(super) fn products(x: &[f32], k: usize, rows: &[usize]) -> Self {
        let row = |&row: &usize| x[row * k..][..k].iter().map(|&x| f64::from(x)).collect();
        Self {
            inputs: rows.iter().map(row).collect(),
        }
    }

    /// Computes what `down` multiplies.
    pub(super) fn feed_forward(
        mut self,
        (gate, to_gate): (&Rows<'_>, Option<&mut Example>),
        (up, to_up): (&Rows<'_>, Option<&mut Example>),
    ) -> Self {
        let columns: Vec<usize> = (0..gate.weight.n).collect();
        let gate = self.sums(gate, &columns, to_gate);
        let up = self.sums(up, &columns, to_up);
        for (row, inner) in self.inputs.iter_mut().enumerate() {
            let silu = |g: f64| g / (1.0 + (-g).exp());
            let gated = gate.iter().zip(&up);
            *inner = gated.map(|(g, u)| silu(g[row]) * u[row]).collect();
        }
        self
    }

    /// Computes some columns, which are rows of the weight.
    fn sums(
        &self,
        weight: &Rows<'_>,
        columns: &[usize],
        addition: Option<&mut Example>,
    ) -> Vec<Vec<f64>> {
        let mut values = Vec::new();
        let column = |&column: &usize| {
            weight.row(column, &mut values);
            self.inputs.iter().map(|x| dot(&values, x)).collect()
        };
        let mut sums: Vec<Vec<f64>> = columns.iter().map(column).collect();
        if let Some(addition) = addition {
            addition.add_to(&self.inputs, columns, &mut sums);
        }
        sums
    }

    /// Computes some of the columns `columns`, which are rows of the weight; an addition becomes as large as they are.
    pub(super) fn samples(
        &self,
        weight: &Rows<'_>,
        columns: &Range<usize>,
        addition: Option<&mut Example>,
    ) -> Samples {
        let columns = spread(columns.clone(), N_COLUMNS);
        let values = self.sums(weight, &columns, addition);
        Samples { columns, values }
    }
}

/// Returns which weight of the segment is the last of output `i` of a part.
pub(super) fn last_weight(part: &Part, i: usize) -> usize {
    match part.kind {
        DenseKind::Products => part.weights[i].index,
        DenseKind::FeedForward => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_both_ends() {
        assert_eq!(spread(3..4, 5), [3]);
        assert_eq!(spread(0..0, 5), []);
        assert_eq!(spread(10..20, 3), [10, 14, 19]);
        assert_eq!(rows(2), [0, 1]);
        let all = spread(0..1000, N_COLUMNS);
        assert_eq!((all[0], all[all.len() - 1], all.len()), (0, 999, N_COLUMNS));
    }

    #[test]
    fn what_is_wrong_does_not_pass() {
        let weight = DenseWeight {
            node: 0,
            address: 0,
            size_bytes: 32,
            ggml_type: 0,
            k: 4,
            n: 2,
        };
        let bytes: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0, 0.0, -1.0, 0.0, 1.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let rows = Rows {
            weight: &weight,
            ty: QnnType::F32,
            bytes: &bytes,
        };
        let x = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 2.0];
        let reference = Reference::products(&x, 4, &[0, 1]);
        let check = |results: [[f32; 2]; 2], addition: Option<&mut Example>| {
            let mut sums = Sums::default();
            let samples = reference.samples(&rows, &(0..2), addition);
            samples.compare(results.iter().map(<[f32; 2]>::as_slice), 0, &mut sums);
            sums.nmse()
        };
        assert_eq!(check([[10.0, 0.0], [9.0, 2.0]], None), 0.0);
        assert!(check([[10.0, 0.1], [9.0, 2.0]], None) > 1e-5);
        assert_eq!(check([[f32::NAN, 0.0], [9.0, 2.0]], None), f64::INFINITY);
        // Down of silu(g) * u, with gate and up the same.
        let inner = Reference::products(&x, 4, &[1]).feed_forward((&rows, None), (&rows, None));
        let silu = |g: f64| g / (1.0 + (-g).exp());
        assert_eq!(inner.inputs, [vec![silu(9.0) * 9.0, silu(2.0) * 2.0]]);
        // What is added makes up half of the power, so that it does not pass without it, and not for nothing.
        let mut example = Example::new(0, 4, 2, 2);
        assert!(check([[10.0, 0.0], [9.0, 2.0]], Some(&mut example)) > 0.1);
        let factors = example.factors();
        let halves = |bytes: &[u8]| -> Vec<f32> {
            let halves = bytes.as_chunks().0.iter();
            halves
                .map(|&half| f16::from_le_bytes(half).to_f32())
                .collect()
        };
        let (a, b) = (halves(&factors.a), halves(&factors.b));
        let mut results = [[10.0, 0.0], [9.0, 2.0]];
        for (results, x) in results.iter_mut().zip(x.chunks_exact(4)) {
            for (result, b) in results.iter_mut().zip(b.chunks_exact(2)) {
                for (b, a) in b.iter().zip(a.chunks_exact(4)) {
                    *result += b * a.iter().zip(x).map(|(a, x)| a * x).sum::<f32>();
                }
            }
        }
        assert!(check(results, Some(&mut example)) < 1e-6);
    }
}
