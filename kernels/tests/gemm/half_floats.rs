//! Weights and x that are half floats.

use half::f16;
use llada_npu_kernels::tile::TileType;

use crate::case::{Case, check, each_kernel, run};
use crate::common::Rng;

/// F16 weights and x, with errors of either sign: far below what the worst of them could add up to.
#[test]
fn usual_errors_of_half_floats_cancel() {
    for n_rows in [1, 2, 4, 7, 8] {
        let case = Case::random(TileType::F16, 1000, 40, n_rows, 9);
        let (exact, tiles) = (case.exact().values.concat(), case.tiles());
        each_kernel(TileType::F16, |name, kernel| {
            let limit = if name.ends_with("-fp16") { 3e-7 } else { 1e-12 };
            let nmse = nmse(&run(kernel, &case, &tiles).concat(), &exact);
            assert!(nmse < limit, "{name}, {n_rows} rows: NMSE {nmse:e}");
            println!("{name}, {n_rows} rows: NMSE {nmse:e}");
        });
    }
}

fn nmse(got: &[f32], exact: &[f64]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let errors = squares(&mut got.iter().zip(exact).map(|(got, v)| f64::from(*got) - v));
    errors / squares(&mut exact.iter().copied())
}

/// Weights and x at the ends of the format: products and sums that no half float holds.
#[test]
fn half_floats_of_any_size_keep_the_tolerance() {
    let sizes = [65504.0, 3000.0, 1.0, 1e-4, 6e-8];
    for (i, weight) in sizes.into_iter().enumerate() {
        for n_rows in [1, 5, 12] {
            let mut case = Case::random(TileType::F16, 320, 45, n_rows, i as u64);
            let mut rng = Rng(3);
            for w in case
                .weights
                .iter_mut()
                .flat_map(|row| row.as_chunks_mut().0)
            {
                // One in 64 is as large as can be, among others that are not.
                let factor = if rng.next().is_multiple_of(64) {
                    65504.0
                } else {
                    weight
                };
                let value = rng.float().clamp(-1.0, 1.0) * factor;
                *w = f16::from_f32(value).to_le_bytes();
            }
            for (r, row) in case.x.iter_mut().enumerate() {
                let factor = sizes[(r + i) % sizes.len()];
                for x in row.iter_mut() {
                    *x = x.clamp(-1.0, 1.0) * factor;
                }
            }
            let (exact, tiles) = (case.exact(), case.tiles());
            each_kernel(TileType::F16, |name, kernel| {
                let share = check(name, kernel, &case, &tiles, &exact);
                println!("{name}, weights of {weight:e}: worst error {share:.3} of the tolerance");
            });
        }
    }
}

/// x of every size side by side, and weights that take little of it: what counts is far smaller than what it is scaled with.
#[test]
fn small_elements_beside_large_ones_keep_the_tolerance() {
    let sizes = (-24..=15).map(|log| 2f32.powi(log));
    let sizes: Vec<f32> = sizes.chain([65504.0]).collect();
    for n_rows in [1, 3, 8] {
        let mut case = Case::random(TileType::F16, 64, 32, n_rows, 5);
        let mut rng = Rng(8);
        let mut any = || sizes[rng.next() as usize % sizes.len()];
        for (i0, row) in case.weights.iter_mut().enumerate() {
            row.fill(0);
            for (k, w) in row.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                if k % 32 == i0 {
                    *w = f16::from_f32(any()).to_le_bytes();
                }
            }
        }
        for x in case.x.iter_mut().flatten() {
            *x = any();
        }
        for row in &mut case.x {
            row[0] = 65504.0;
        }
        // By the letter: one element counts, and it is 2^-35 of the largest.
        case.x[0][..2].copy_from_slice(&[65504.0, 2f32.powi(-19)]);
        case.weights[1][2..4].copy_from_slice(&f16::MAX.to_le_bytes());
        let (exact, tiles) = (case.exact(), case.tiles());
        each_kernel(TileType::F16, |name, kernel| {
            let share = check(name, kernel, &case, &tiles, &exact);
            println!("{name}, {n_rows} rows: worst error {share:.3} of the tolerance");
        });
    }
}
