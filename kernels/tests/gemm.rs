//! Every kernel of every list of products with tiled weights against exact sums, computed here in f64 from ggml's blocks.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

mod common;

use common::{Element, Rng, scale_offsets};
use half::f16;
use llada_npu_kernels::op::convert::quantize_row_q8_0;
use llada_npu_kernels::op::gemm::Gemm;
use llada_npu_kernels::tile::{TileMatrix, TileType};
use llada_npu_kernels::{F32Rows, registry};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};

/// Operands of one product, dense; weights in ggml's blocks.
#[derive(Clone)]
struct Case {
    ty: TileType,
    k: usize,
    weights: Vec<Vec<u8>>,
    x: Vec<Vec<f32>>,
}

/// Exact results, and for each the sum of the magnitudes of what is added up.
struct Exact {
    values: Vec<Vec<f64>>,
    magnitudes: Vec<Vec<f64>>,
}

/// 256 elements of x as K-quants see them.
fn quantised_256(x: &[f32]) -> Vec<f64> {
    let amax = x.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
    let factor = 127.0 / amax;
    let unit = if factor.is_finite() {
        1.0 / factor
    } else {
        0.0
    };
    let value = |x: &f32| match unit {
        0.0 => 0.0,
        _ => f64::from(unit) * f64::from((x * factor).round_ties_even()),
    };
    x.iter().map(value).collect()
}

impl Case {
    fn random(ty: TileType, k: usize, n_weights: usize, n_rows: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let weights = (0..n_weights).map(|_| rng.ggml_row(ty, k)).collect();
        let x = (0..n_rows)
            .map(|_| (0..k).map(|_| rng.float()).collect())
            .collect();
        Self { ty, k, weights, x }
    }

    /// x as the contract converts it.
    fn converted(&self) -> Vec<Vec<f64>> {
        let convert = |x: &Vec<f32>| -> Vec<f64> {
            if self.ty == TileType::F16 {
                return x.iter().map(|x| f16::from_f32(*x).to_f64()).collect();
            }
            if matches!(self.ty, TileType::Q4K | TileType::Q6K) {
                return x.chunks(256).flat_map(quantised_256).collect();
            }
            let mut bytes = vec![0; self.k / 32 * 34];
            quantize_row_q8_0(x, &mut bytes);
            let element = |k| Element::of(TileType::Q8_0, &bytes, k).value();
            (0..self.k).map(element).collect()
        };
        self.x.iter().map(convert).collect()
    }

    /// The definition: exact products and sums.
    fn exact(&self) -> Exact {
        let weights: Vec<Vec<(f64, f64)>> = self
            .weights
            .iter()
            .map(|row| {
                let element = |k| {
                    let e = Element::of(self.ty, row, k);
                    (e.d * f64::from(e.q - e.offset), e.m)
                };
                (0..self.k).map(element).collect()
            })
            .collect();
        let x = self.converted();
        let sums = |f: fn(f64, f64) -> f64| -> Vec<Vec<f64>> {
            let dot = |w: &Vec<(f64, f64)>, x: &Vec<f64>| {
                w.iter().zip(x).map(|((w, m), x)| f(w * x, m * x)).sum()
            };
            x.iter()
                .map(|x| weights.iter().map(|w| dot(w, x)).collect())
                .collect()
        };
        Exact {
            values: sums(|w, m| w + m),
            magnitudes: sums(|w, m| w.abs() + m.abs()),
        }
    }

    /// Half of what two implementations may differ by; all that a kernel may be off that adds up half floats.
    fn tolerance(&self, name: &str, i1: usize, i0: usize, magnitude: f64) -> f64 {
        let k = self.k as f64;
        let (terms, unit) = match self.ty {
            TileType::F16 => (k, 2f64.powi(-23)),
            _ => (k / 32.0, 2f64.powi(-22)),
        };
        let mut tolerance = terms * unit * magnitude;
        if name.ends_with("tile_f16-fp16") {
            let max = self.x[i1].iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let weights = self.weights[i0].as_chunks().0.iter();
            let sum: f64 = weights.map(|w| f16::from_le_bytes(*w).to_f64().abs()).sum();
            let of_max = k * 2f64.powi(-31) + 2f64.powi(-33) * sum;
            tolerance += 10.0 * 2f64.powi(-11) * magnitude + of_max * f64::from(max);
        }
        tolerance
    }

    fn matrix(&self) -> TileMatrix {
        TileMatrix::new(self.ty, self.k, self.weights.len()).unwrap()
    }

    /// The tiles, from an odd address on.
    fn tiles(&self) -> Vec<u8> {
        let matrix = self.matrix();
        let mut tiles = vec![0xee; matrix.size_bytes() + 1];
        let rows = self.weights.concat();
        let nb1 = self.ty.row_size(self.k).unwrap();
        for strip in 0..matrix.n_strips() {
            let size = matrix.strip_size_bytes();
            let part = &mut tiles[1 + strip * size..][..size];
            matrix
                .pack_strip(strip, &rows[32 * strip * nb1..], nb1, part)
                .unwrap();
        }
        tiles
    }
}

fn run(kernel: &Gemm, case: &Case, tiles: &[u8]) -> Vec<Vec<f32>> {
    let (k, n_weights, n_rows) = (case.k, case.weights.len(), case.x.len());
    let x_nb1 = 4 * k + 1;
    let mut x_bytes = vec![0xee; 1];
    for row in &case.x {
        x_bytes.extend(row.iter().flat_map(|v| v.to_ne_bytes()));
        x_bytes.push(0xee);
    }
    let x = F32Rows::new(k, n_rows, x_nb1, &x_bytes[1..]).unwrap();
    let layout = kernel.layout(k, n_rows);
    // Old contents must not matter, nor where the panel starts.
    let mut panel = vec![0xff; layout.panel_size_bytes() + 3];
    kernel.prepare(&layout, &x, 0..layout.n_units(), &mut panel[3..]);
    let stride = n_weights + 2;
    let mut out = vec![7.25; n_rows * stride];
    let matrix = case.matrix();
    kernel.gemm(&layout, &matrix, &tiles[1..], &panel[3..], &mut out, stride);
    out.chunks(stride)
        .map(|row| {
            assert_eq!(row[n_weights..], [7.25; 2], "written beside the results");
            row[..n_weights].to_vec()
        })
        .collect()
}

/// Runs `test` on every kernel for the type.
fn each_kernel(ty: TileType, test: impl FnMut(&'static str, &Gemm)) {
    common::each_kernel(registry::gemm(ty), test);
}

/// Checks results against exact ones and returns the largest share of the tolerance used.
fn check(name: &str, kernel: &Gemm, case: &Case, tiles: &[u8], exact: &Exact) -> f64 {
    let mut worst: f64 = 0.0;
    for (i1, row) in run(kernel, case, tiles).iter().enumerate() {
        for (i0, got) in row.iter().enumerate() {
            let (want, tolerance) = (
                exact.values[i1][i0],
                case.tolerance(name, i1, i0, exact.magnitudes[i1][i0]),
            );
            let error = (f64::from(*got) - want).abs();
            let shape = (case.k, case.weights.len(), case.x.len());
            assert!(
                error <= tolerance,
                "{name} {shape:?} [{i1}][{i0}]: {got}, exact {want}, tolerance {tolerance:e}"
            );
            if tolerance > 0.0 {
                worst = worst.max(error / tolerance);
            }
        }
    }
    worst
}

fn lengths(ty: TileType) -> &'static [usize] {
    match ty {
        TileType::F16 => &[0, 1, 2, 31, 32, 33, 63, 64, 100, 257],
        TileType::Q4K | TileType::Q6K => &[0, 256, 512],
        _ => &[0, 32, 64, 96, 544],
    }
}

#[test]
fn every_kernel_keeps_the_tolerance_at_every_edge_of_its_tiles() {
    for ty in TileType::ALL {
        let mut worst = vec![(0.0f64, ""); registry::gemm(ty).len()];
        for &k in lengths(ty) {
            for n_rows in [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 32, 33, 130] {
                for n_weights in [0, 1, 31, 32, 33, 70] {
                    let seed = k * 1000 + n_rows * 20 + n_weights;
                    let case = Case::random(ty, k, n_weights, n_rows, seed as u64);
                    let (exact, tiles) = (case.exact(), case.tiles());
                    let mut i = 0;
                    each_kernel(ty, |name, kernel| {
                        let share = check(name, kernel, &case, &tiles, &exact);
                        worst[i] = (worst[i].0.max(share), name);
                        i += 1;
                    });
                }
            }
        }
        println!("largest share of the tolerance used: {worst:?}");
    }
}

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
        let mut x: Vec<Vec<f32>> = (0..n_rows)
            .map(|_| (0..32).map(|_| rng.float()).collect())
            .collect();
        // Halves on both sides of zero, and the floats next to them.
        for (i, x) in x[0].iter_mut().enumerate() {
            let half = (i / 3) as f32 + 0.5;
            *x = [half, half.next_down(), -half][i % 3];
        }
        x[0][31] = 127.0;
        if n_rows > 10 {
            x[1].fill(0.0);
            // Too small for a scale in f16; a scale that is subnormal; and what is subnormal itself.
            x[2].fill(1e-9);
            x[3].fill(4e-6);
            x[4].fill(-3e38);
            x[5].iter_mut().for_each(|x| *x *= 1e-3);
            x[6].iter_mut().for_each(|x| *x *= 1e5);
            x[7].fill(-1e-40);
        }
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
                let got = run(kernel, &case, &tiles);
                for (i, (got, want)) in got.iter().zip(&exact.values).enumerate() {
                    if i == 4 {
                        // The scale overflows f16.
                        assert!(got.iter().all(|v| !v.is_finite()), "{name}: {got:?}");
                        continue;
                    }
                    let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
                    assert_eq!(got, &want, "{name}, row {i} of {n_rows}");
                }
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
                            for (i, x) in block.iter_mut().enumerate() {
                                let half = (i / 3) as f32 + 0.5;
                                *x = [half, half.next_down(), -half][i % 3];
                            }
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

#[test]
fn a_panel_prepared_in_pieces_is_the_panel() {
    for ty in TileType::ALL {
        let case = Case::random(ty, 1024, 1, 150, 3);
        let bytes: Vec<u8> = case
            .x
            .concat()
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        let x = F32Rows::new(1024, 150, 4 * 1024, &bytes).unwrap();
        each_kernel(ty, |name, kernel| {
            let layout = kernel.layout(1024, 150);
            let n = layout.n_units();
            let mut whole = vec![0xaa; layout.panel_size_bytes()];
            kernel.prepare(&layout, &x, 0..n, &mut whole);
            let mut pieces = vec![0x55; whole.len()];
            let mut start = 0;
            for len in [1, 5, 20, 0, 30].into_iter().cycle() {
                let units = start..n.min(start + len);
                let bytes = layout.unit_bytes(units.clone());
                kernel.prepare(&layout, &x, units.clone(), &mut pieces[bytes]);
                start = units.end;
                if start == n {
                    break;
                }
            }
            assert!(whole == pieces, "{name}");
        });
    }
}

fn regressions() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: regressions(), ..ProptestConfig::default() })]

    #[test]
    fn any_shape_keeps_the_tolerance(ty in 0..6usize, k in 0..400usize, n_weights in 1..70usize, n_rows in 1..60usize, seed: u64) {
        let ty = TileType::ALL[ty];
        let k = k / ty.blck_size() * ty.blck_size();
        let case = Case::random(ty, k, n_weights, n_rows, seed);
        let (exact, tiles) = (case.exact(), case.tiles());
        each_kernel(ty, |name, kernel| {
            check(name, kernel, &case, &tiles, &exact);
        });
    }
}
