//! The check of a graph before its first use: some results, compared with products of the dequantised weights.
//!
//! The library may accept a graph and compute wrong numbers. Every graph is therefore run once on a known input; of some
//! rows, some columns of each output are computed anew, in f64, from ggml's blocks.

use std::ops::Range;

use super::part::Part;
use super::weight::{QnnType, Tier};
use crate::device::{DenseKind, DenseWeight};

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
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(state.to_le_bytes()[4].cast_signed()) / 64.0
    };
    (0..n_rows * k).map(|_| next()).collect()
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
    pub(super) fn feed_forward(mut self, gate: &Rows<'_>, up: &Rows<'_>) -> Self {
        let mut values = Vec::new();
        let mut inner = vec![Vec::with_capacity(gate.weight.n); self.inputs.len()];
        for n in 0..gate.weight.n {
            gate.row(n, &mut values);
            for (x, inner) in self.inputs.iter().zip(&mut inner) {
                let g = dot(&values, x);
                inner.push(g / (1.0 + (-g).exp()));
            }
            up.row(n, &mut values);
            for (x, inner) in self.inputs.iter().zip(&mut inner) {
                inner[n] *= dot(&values, x);
            }
        }
        self.inputs = inner;
        self
    }

    /// Compares some columns, which are rows `columns` of the weight. `results` gives a row that is looked at, by its
    /// number among those.
    pub(super) fn compare(
        &self,
        weight: &Rows<'_>,
        columns: &Range<usize>,
        results: &[Vec<f32>],
        sums: &mut Sums,
    ) {
        let mut values = Vec::new();
        for column in spread(columns.clone(), N_COLUMNS) {
            weight.row(column, &mut values);
            for (x, results) in self.inputs.iter().zip(results) {
                let result = results[column - columns.start];
                sums.add(f64::from(result), dot(&values, x));
            }
        }
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
        let check = |results: &[Vec<f32>]| {
            let mut sums = Sums::default();
            reference.compare(&rows, &(0..2), results, &mut sums);
            sums.nmse()
        };
        assert_eq!(check(&[vec![10.0, 0.0], vec![9.0, 2.0]]), 0.0);
        assert!(check(&[vec![10.0, 0.1], vec![9.0, 2.0]]) > 1e-5);
        assert_eq!(check(&[vec![f32::NAN, 0.0], vec![9.0, 2.0]]), f64::INFINITY);
        // Down of silu(g) * u, with gate and up the same.
        let inner = Reference::products(&x, 4, &[1]).feed_forward(&rows, &rows);
        let silu = |g: f64| g / (1.0 + (-g).exp());
        assert_eq!(inner.inputs, [vec![silu(9.0) * 9.0, silu(2.0) * 2.0]]);
    }
}
