//! What the suites of products share: operands, how they lie, and how results are compared.

use llada_npu_kernels::F32Rows;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};

use super::Rng;

/// Exact results, `[row of x][row of weights]`, and for each the sum of the magnitudes of what is added up.
pub(crate) struct Exact {
    pub(crate) values: Vec<Vec<f64>>,
    pub(crate) magnitudes: Vec<Vec<f64>>,
}

impl Exact {
    /// Checks results, `tolerance` being a function of the row of x, that of weights, and the magnitude; returns the largest
    /// share of the tolerance that was used.
    pub(crate) fn check(
        &self,
        what: &str,
        results: &[Vec<f32>],
        tolerance: impl Fn(usize, usize, f64) -> f64,
    ) -> f64 {
        let mut worst: f64 = 0.0;
        for (i1, row) in results.iter().enumerate() {
            for (i0, got) in row.iter().enumerate() {
                let want = self.values[i1][i0];
                let tolerance = tolerance(i1, i0, self.magnitudes[i1][i0]);
                let error = (f64::from(*got) - want).abs();
                assert!(
                    error <= tolerance,
                    "{what} [{i1}][{i0}]: {got}, exact {want}, tolerance {tolerance:e}"
                );
                if tolerance > 0.0 {
                    worst = worst.max(error / tolerance);
                }
            }
        }
        worst
    }

    /// Checks results of weights that pick one element of x each: its quantised value. The scale of row 4 overflows f16.
    pub(crate) fn check_picked(&self, name: &str, results: &[Vec<f32>]) {
        for (i, (got, want)) in results.iter().zip(&self.values).enumerate() {
            if i == 4 {
                assert!(got.iter().all(|v| !v.is_finite()), "{name}: {got:?}");
                continue;
            }
            let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
            assert_eq!(got, &want, "{name}, row {i} of {}", results.len());
        }
    }
}

/// Rows of floats.
pub(crate) fn random_rows(rng: &mut Rng, n_rows: usize, k: usize) -> Vec<Vec<f32>> {
    let mut row = || (0..k).map(|_| rng.float()).collect();
    (0..n_rows).map(|_| row()).collect()
}

/// Halves on both sides of zero, and the floats next to them.
pub(crate) fn fill_with_halves(x: &mut [f32]) {
    for (i, x) in x.iter_mut().enumerate() {
        let half = (i / 3) as f32 + 0.5;
        *x = [half, half.next_down(), -half][i % 3];
    }
}

/// Rows of one block whose quantisation is not plain; `n_rows` is 1 or at least 8.
pub(crate) fn rows_of_edges(rng: &mut Rng, n_rows: usize) -> Vec<Vec<f32>> {
    let mut x = random_rows(rng, n_rows, 32);
    fill_with_halves(&mut x[0]);
    x[0][31] = 127.0;
    if n_rows > 1 {
        x[1].fill(0.0);
        // Too small for a scale in f16; a scale that is subnormal; and what is subnormal itself.
        x[2].fill(1e-9);
        x[3].fill(4e-6);
        x[4].fill(-3e38);
        x[5].iter_mut().for_each(|x| *x *= 1e-3);
        x[6].iter_mut().for_each(|x| *x *= 1e5);
        x[7].fill(-1e-40);
    }
    x
}

/// Lays rows `nb1` bytes apart from an odd address on.
pub(crate) fn lay(rows: impl Iterator<Item = Vec<u8>>, nb1: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; 1];
    for mut row in rows {
        row.resize(nb1, 0xee);
        bytes.extend(row);
    }
    bytes
}

/// Calls `test` with a view of rows with `k` elements that lie at odd addresses.
pub(crate) fn with_rows<T>(x: &[Vec<f32>], k: usize, test: impl FnOnce(&F32Rows<'_>) -> T) -> T {
    let nb1 = 4 * k + 1;
    let rows = x.iter();
    let bytes = lay(
        rows.map(|x| x.iter().flat_map(|v| v.to_ne_bytes()).collect()),
        nb1,
    );
    test(&F32Rows::new(k, x.len(), nb1, &bytes[1..]).unwrap())
}

/// Returns what `write` writes to rows of `n_weights` results, which get a stride; it must leave what is between them.
pub(crate) fn results(
    n_rows: usize,
    n_weights: usize,
    write: impl FnOnce(&mut [f32], usize),
) -> Vec<Vec<f32>> {
    let stride = n_weights + 2;
    let mut out = vec![7.25; n_rows * stride];
    write(&mut out, stride);
    let row = |row: &[f32]| {
        assert_eq!(row[n_weights..], [7.25; 2], "written beside the results");
        row[..n_weights].to_vec()
    };
    out.chunks(stride).map(row).collect()
}

/// Keeps seeds that failed beside the sources.
pub(crate) fn regressions() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}
