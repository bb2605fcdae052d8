//! Weights and x that are integers times scales, and what is not finite.

use half::f16;
use llada_npu_kernels::tile::TileType;

use crate::case::{Case, check, each_kernel, run};
use crate::common::product::{fill_with_halves, rows_of_edges};
use crate::common::{Rng, scale_offsets};

#[test]
fn integer_parts_are_exact() {
    // Scales are powers of two and every block of x holds a 127, so that all terms and sums are whole numbers in f32.
    for ty in TileType::ALL {
        if ty == TileType::F16 {
            continue;
        }
        for n_rows in [1, 3, 16, 33] {
            let k = 512;
            let mut case = Case::random(ty, k, 37, n_rows, 11);
            let mut rng = Rng(1);
            for row in &mut case.weights {
                for block in row.chunks_mut(ty.type_size()) {
                    match rng.next() % 4 {
                        0 => block.fill(0x80),
                        1 => block.fill(0x7f),
                        2 => block.fill(0xff),
                        _ => {}
                    }
                    for &at in scale_offsets(ty) {
                        block[at..at + 2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
                    }
                }
            }
            for block in case.x.iter_mut().flat_map(|row| row.chunks_mut(32)) {
                let same = rng.next() % 3;
                for x in block.iter_mut() {
                    *x = match same {
                        0 => 127.0,
                        1 => -127.0,
                        _ => (rng.next() % 255) as f32 - 127.0,
                    };
                }
                block[(rng.next() % 32) as usize] = 127.0;
            }
            let (exact, tiles) = (case.exact(), case.tiles());
            // K-quants have integers of up to 14 bits times factors of up to 7: in halves of 32 they stay below 2^24,
            // their sums along a row need not.
            let limit = 2f64.powi(24);
            each_kernel(ty, |name, kernel| {
                let got = run(kernel, &case, &tiles);
                for (i1, row) in got.iter().enumerate() {
                    for (i0, got) in row.iter().enumerate() {
                        if exact.magnitudes[i1][i0] < limit {
                            let want = exact.values[i1][i0] as f32;
                            assert_eq!(*got, want, "{name} {n_rows} [{i1}][{i0}]");
                        } else {
                            let off = (f64::from(*got) - exact.values[i1][i0]).abs();
                            assert!(
                                off <= case.tolerance(name, i1, i0, exact.magnitudes[i1][i0]),
                                "{name}"
                            );
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn every_kernel_quantises_x_as_the_row_conversion_does() {
    // Weights that pick one element: the result is its quantised value.
    let mut rng = Rng(5);
    for n_rows in [1, 20] {
        let x = rows_of_edges(&mut rng, n_rows);
        for (ty, size, at) in [(TileType::Q8_0, 34, 2), (TileType::Q4_0, 18, 2)] {
            let weights = (0..32)
                .map(|i| {
                    let mut block = vec![if ty == TileType::Q4_0 { 0x88 } else { 0 }; size];
                    block[..2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
                    match ty {
                        TileType::Q4_0 => block[at + i % 16] += if i < 16 { 1 } else { 16 },
                        _ => block[at + i] = 1,
                    }
                    block
                })
                .collect();
            let x = x.clone();
            let case = Case {
                ty,
                k: 32,
                weights,
                x,
            };
            let (exact, tiles) = (case.exact(), case.tiles());
            each_kernel(ty, |name, kernel| {
                exact.check_picked(name, &run(kernel, &case, &tiles));
            });
        }
    }
}

#[test]
fn k_quants_have_one_scale_for_256_elements_and_round_halves_to_even() {
    for ty in [TileType::Q4K, TileType::Q6K] {
        for n_rows in [1, 2, 9, 40] {
            let mut case = Case::random(ty, 768, 33, n_rows, 21);
            for (r, row) in case.x.iter_mut().enumerate() {
                for (b, block) in row.chunks_mut(256).enumerate() {
                    match (r + b) % 6 {
                        // Halves on both sides of zero, and the floats next to them.
                        0 => {
                            fill_with_halves(block);
                            block[(7 * r + 100 * b) % 256] = -127.0;
                        }
                        1 => block.fill(0.0),
                        // Too small for a factor.
                        2 => block.fill(1e-40),
                        3 => block[5] = 1e30,
                        4 => block.iter_mut().for_each(|x| *x *= 1e-30),
                        _ => {}
                    }
                }
            }
            let (exact, tiles) = (case.exact(), case.tiles());
            each_kernel(ty, |name, kernel| {
                check(name, kernel, &case, &tiles, &exact);
            });
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row_and_column() {
    for ty in TileType::ALL {
        for (bad, in_x) in [
            (f32::NAN, true),
            (f32::INFINITY, true),
            (f32::NEG_INFINITY, true),
            (f32::NAN, false),
            (f32::INFINITY, false),
        ] {
            for n_rows in [3, 19] {
                let mut case = Case::random(ty, 512, 41, n_rows, 77);
                let clean = case.exact();
                if in_x {
                    case.x[2][40] = bad;
                } else {
                    let at = 2 * ty.type_size() / 2 + scale_offsets(ty)[0];
                    let bytes = f16::from_f32(bad).to_le_bytes();
                    case.weights[5][at..at + 2].copy_from_slice(&bytes);
                }
                let tiles = case.tiles();
                each_kernel(ty, |name, kernel| {
                    for (i1, row) in run(kernel, &case, &tiles).iter().enumerate() {
                        for (i0, got) in row.iter().enumerate() {
                            let hit = if in_x { i1 == 2 } else { i0 == 5 };
                            let off = (f64::from(*got) - clean.values[i1][i0]).abs();
                            let ok = if hit {
                                !got.is_finite()
                            } else {
                                off <= case.tolerance(name, i1, i0, clean.magnitudes[i1][i0])
                            };
                            assert!(ok, "{name} {bad} in x {in_x} [{i1}][{i0}]: {got}");
                        }
                    }
                });
            }
        }
    }
}
