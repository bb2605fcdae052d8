//! An example of attention with its results, in f64.

use half::f16;

use super::{AttentionForm, HIDDEN};
use crate::device::qnn::check::{self, Sums};

/// Numbers for all inputs of a graph: scores of about 1, a third of the positions hidden from each row, some from all.
pub(in super::super) struct Example {
    form: AttentionForm,
    /// Q, K, V and mask, as half floats hold them.
    values: [Vec<f32>; 4],
}

fn half(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

impl Example {
    /// Makes one for a graph.
    pub(in super::super) fn new(form: &AttentionForm) -> Self {
        let [q, k, v, mask] = form.input_lens();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a factor, of any size about this"
        )]
        let shrink = 1.0 / (form.d_k as f32).sqrt();
        let mut mask = check::noise(mask, 3);
        for (i, x) in mask.iter_mut().enumerate() {
            let (row, position) = (i / form.n_kv, i % form.n_kv);
            // One is seen by every row.
            *x = match position {
                p if p == row % (form.n_kv / 2) => 0.0,
                p if p >= form.n_kv - form.n_kv / 8 || *x > 0.7 => HIDDEN,
                _ => x.min(0.0),
            };
        }
        let q = check::noise(q, 0)
            .iter()
            .map(|x| half(x * shrink))
            .collect();
        Self {
            form: *form,
            values: [q, check::noise(k, 1), check::noise(v, 2), mask],
        }
    }

    /// Returns the inputs as the graph takes them.
    pub(in super::super) fn inputs(&self) -> Vec<Vec<u8>> {
        let halves = |values: &Vec<f32>| {
            let halves = values.iter().map(|&x| f16::from_f32(x).to_le_bytes());
            halves.flatten().collect()
        };
        self.values.iter().map(halves).collect()
    }

    /// Compares all heads of some rows of an output; the share of the error in the power.
    pub(in super::super) fn nmse(&self, output: &[u8]) -> f64 {
        let AttentionForm {
            n_rows,
            n_head,
            d_v,
            ..
        } = self.form;
        let mut sums = Sums::default();
        if output.len() != 2 * n_rows * n_head * d_v {
            return f64::INFINITY;
        }
        for row in check::rows(n_rows) {
            for head in 0..n_head {
                let at = 2 * (row * n_head + head) * d_v;
                let found = output[at..][..2 * d_v].as_chunks().0;
                for (&found, expected) in found.iter().zip(self.result(row, head)) {
                    sums.add(f16::from_le_bytes(found).to_f64(), expected);
                }
            }
        }
        sums.nmse()
    }

    /// Computes one head of a row.
    fn result(&self, row: usize, head: usize) -> Vec<f64> {
        let AttentionForm {
            n_kv,
            n_head,
            n_head_kv,
            d_k,
            d_v,
            ..
        } = self.form;
        let [q, k, v, mask] = &self.values;
        let head_kv = head / (n_head / n_head_kv);
        let q = &q[(row * n_head + head) * d_k..][..d_k];
        let score = |position: usize| -> f64 {
            let k = &k[(position * n_head_kv + head_kv) * d_k..][..d_k];
            let products = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k));
            products.sum::<f64>() + f64::from(mask[row * n_kv + position])
        };
        let scores: Vec<f64> = (0..n_kv).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = shares.iter().sum();
        let mut result = vec![0.0; d_v];
        for (position, share) in shares.iter().enumerate() {
            let v = &v[(position * n_head_kv + head_kv) * d_v..][..d_v];
            for (sum, &v) in result.iter_mut().zip(v) {
                *sum += share / total * f64::from(v);
            }
        }
        result
    }
}
