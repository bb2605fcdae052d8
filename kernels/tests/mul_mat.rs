//! Every kernel of every `MUL_MAT` list against exact sums, computed here in f64 from the definition.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

mod common;

use common::Rng;
use common::product::{Exact, lay, random_rows, regressions, results, rows_of_edges, with_rows};
use llada_npu_kernels::op::convert::{dequantize_row, f32_to_f16_row, quantize_row_q8_0};
use llada_npu_kernels::op::mul_mat::MulMat;
use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};
use proptest::prelude::*;

/// Rows of weights.
trait WeightRow {
    fn weight_row(&mut self, ty: WeightType, k: usize) -> Vec<u8>;
}

impl WeightRow for Rng {
    fn weight_row(&mut self, ty: WeightType, k: usize) -> Vec<u8> {
        let mut row: Vec<u8> = (0..ty.row_size(k).unwrap())
            .map(|_| self.next() as u8)
            .collect();
        match ty {
            WeightType::F32 => row
                .as_chunks_mut()
                .0
                .iter_mut()
                .for_each(|b| *b = self.float().to_ne_bytes()),
            WeightType::F16 => {
                let floats: Vec<f32> = (0..k).map(|_| self.float()).collect();
                f32_to_f16_row(&floats, &mut row);
            }
            WeightType::Q8_0 | WeightType::Q4_0 => {
                for block in row.chunks_mut(ty.type_size()) {
                    f32_to_f16_row(&[self.float() / 64.0], &mut block[..2]);
                }
            }
        }
        row
    }
}

/// Operands of one product, dense.
#[derive(Clone)]
struct Case {
    ty: WeightType,
    k: usize,
    weights: Vec<Vec<u8>>,
    x: Vec<Vec<f32>>,
}

impl Case {
    fn random(ty: WeightType, k: usize, n_weights: usize, n_rows: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let weights = (0..n_weights).map(|_| rng.weight_row(ty, k)).collect();
        let x = random_rows(&mut rng, n_rows, k);
        Self { ty, k, weights, x }
    }

    /// The definition: x converted as the contract says, then exact products and sums.
    fn exact(&self) -> Exact {
        let converted = |x: &Vec<f32>| {
            let mut floats = x.clone();
            let (ty, size) = match self.ty {
                WeightType::F32 => return floats,
                WeightType::F16 => (WeightType::F16, 2 * self.k),
                WeightType::Q8_0 | WeightType::Q4_0 => (WeightType::Q8_0, self.k / 32 * 34),
            };
            let mut bytes = vec![0; size];
            if ty == WeightType::F16 {
                f32_to_f16_row(x, &mut bytes)
            } else {
                quantize_row_q8_0(x, &mut bytes)
            }
            dequantize_row(ty, &bytes, &mut floats);
            floats
        };
        let weights: Vec<Vec<f32>> = self
            .weights
            .iter()
            .map(|row| {
                let mut floats = vec![0.0; self.k];
                dequantize_row(self.ty, row, &mut floats);
                floats
            })
            .collect();
        let x: Vec<Vec<f32>> = self.x.iter().map(converted).collect();
        let sums = |f: fn(f64) -> f64| {
            x.iter()
                .map(|x| {
                    weights
                        .iter()
                        .map(|w| {
                            w.iter()
                                .zip(x)
                                .map(|(w, x)| f(f64::from(*w) * f64::from(*x)))
                                .sum()
                        })
                        .collect()
                })
                .collect()
        };
        Exact {
            values: sums(|v| v),
            magnitudes: sums(f64::abs),
        }
    }

    /// Largest share of the contract's tolerance (half of what two implementations may differ by) that is allowed.
    fn tolerance(&self, magnitude: f64) -> f64 {
        let (terms, unit) = match self.ty {
            WeightType::F32 | WeightType::F16 => (self.k, 2f64.powi(-23)),
            WeightType::Q8_0 | WeightType::Q4_0 => (self.k / 32, 2f64.powi(-22)),
        };
        terms as f64 * unit * magnitude
    }
}

fn run(kernel: &MulMat, case: &Case) -> Vec<Vec<f32>> {
    let (k, n_weights, n_rows) = (case.k, case.weights.len(), case.x.len());
    let nb1 = case.ty.row_size(k).unwrap() + 3;
    let bytes = lay(case.weights.iter().cloned(), nb1);
    let weights = WeightRows::new(case.ty, k, n_weights, nb1, &bytes[1..]).unwrap();

    let layout = kernel.layout(k, n_rows);
    // Old contents must not matter.
    let mut panel = vec![0xff; layout.panel_size_bytes()];
    with_rows(&case.x, k, |x| kernel.prepare(&layout, x, &mut panel));
    results(n_rows, n_weights, |out, stride| {
        kernel.mul_mat(&layout, &weights, &panel, n_rows, out, stride);
    })
}

/// Runs `test` on every kernel for the type.
fn each_kernel(ty: WeightType, test: impl FnMut(&'static str, &MulMat)) {
    common::each_kernel(registry::mul_mat(ty), test);
}

/// Checks results against exact ones and returns the largest share of the tolerance used.
fn check(name: &str, kernel: &MulMat, case: &Case, exact: &Exact) -> f64 {
    let what = format!("{name} {:?}", (case.k, case.weights.len(), case.x.len()));
    let tolerance = |_, _, magnitude| case.tolerance(magnitude);
    exact.check(&what, &run(kernel, case), tolerance)
}

fn lengths(ty: WeightType) -> &'static [usize] {
    match ty {
        WeightType::F32 | WeightType::F16 => &[
            0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 255, 256, 257, 600,
        ],
        WeightType::Q8_0 | WeightType::Q4_0 => &[0, 32, 64, 96, 128, 480, 512, 544, 1056],
    }
}

const ROWS: [usize; 16] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 130];

#[test]
fn every_kernel_keeps_the_tolerance_at_every_edge_of_its_tiles() {
    for ty in WeightType::ALL {
        let mut worst = vec![(0.0f64, ""); registry::mul_mat(ty).len()];
        for &k in lengths(ty) {
            for n_rows in ROWS {
                for n_weights in [0, 1, 3, 4, 5, 8, 9, 17] {
                    let case = Case::random(
                        ty,
                        k,
                        n_weights,
                        n_rows,
                        (k * 1000 + n_rows * 20 + n_weights) as u64,
                    );
                    let exact = case.exact();
                    let mut i = 0;
                    each_kernel(ty, |name, kernel| {
                        worst[i] = (worst[i].0.max(check(name, kernel, &case, &exact)), name);
                        i += 1;
                    });
                }
            }
        }
        println!("largest share of the tolerance used: {worst:?}");
    }
}

#[test]
fn integer_parts_are_exact() {
    // Scales are powers of two and every block of x holds a 127, so that all terms and sums are whole numbers in f32.
    for ty in [WeightType::Q8_0, WeightType::Q4_0] {
        for k in [32, 64, 512, 992] {
            for n_rows in [1, 3, 5, 16, 33] {
                let mut case = Case::random(ty, k, 9, n_rows, k as u64);
                let mut rng = Rng(1);
                for block in case
                    .weights
                    .iter_mut()
                    .flat_map(|row| row.chunks_mut(ty.type_size()))
                {
                    f32_to_f16_row(&[1.0], &mut block[..2]);
                    match rng.next() % 4 {
                        0 => block[2..].fill(0x80),
                        1 => block[2..].fill(0x7f),
                        _ => {}
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
                let exact = case.exact();
                each_kernel(ty, |name, kernel| {
                    for (got, want) in run(kernel, &case).iter().zip(&exact.values) {
                        let want: Vec<f32> = want.iter().map(|v| *v as f32).collect();
                        assert_eq!(got, &want, "{name} {k} {n_rows}");
                    }
                });
            }
        }
    }
}

#[test]
fn every_kernel_quantises_x_as_the_row_conversion_does() {
    // Weights that pick one element: the result is its quantised value.
    let mut rng = Rng(5);
    for n_rows in [1, 20] {
        let x = rows_of_edges(&mut rng, n_rows);
        let weights = (0..32)
            .map(|i| {
                let mut block = vec![0; 34];
                f32_to_f16_row(&[1.0], &mut block[..2]);
                block[2 + i] = 1;
                block
            })
            .collect();
        let case = Case {
            ty: WeightType::Q8_0,
            k: 32,
            weights,
            x,
        };
        let exact = case.exact();
        each_kernel(case.ty, |name, kernel| {
            exact.check_picked(name, &run(kernel, &case));
        });
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row_and_column() {
    for ty in WeightType::ALL {
        for (bad, in_x) in [
            (f32::NAN, true),
            (f32::INFINITY, true),
            (f32::NEG_INFINITY, true),
            (f32::NAN, false),
            (f32::INFINITY, false),
        ] {
            for n_rows in [3, 19] {
                let mut case = Case::random(ty, 64, 9, n_rows, 77);
                let clean = case.exact();
                if in_x {
                    case.x[2][40] = bad;
                } else {
                    let row = &mut case.weights[5];
                    match ty {
                        WeightType::F32 => row[160..164].copy_from_slice(&bad.to_ne_bytes()),
                        WeightType::F16 => f32_to_f16_row(&[bad], &mut row[80..82]),
                        WeightType::Q8_0 | WeightType::Q4_0 => {
                            let at = ty.type_size();
                            f32_to_f16_row(&[bad], &mut row[at..at + 2]);
                        }
                    }
                }
                each_kernel(ty, |name, kernel| {
                    for (i1, row) in run(kernel, &case).iter().enumerate() {
                        for (i0, got) in row.iter().enumerate() {
                            let hit = if in_x { i1 == 2 } else { i0 == 5 };
                            let off = (f64::from(*got) - clean.values[i1][i0]).abs();
                            let ok = if hit {
                                !got.is_finite()
                            } else {
                                off <= case.tolerance(clean.magnitudes[i1][i0])
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
fn parts_of_a_product_are_the_bits_of_the_whole() {
    for ty in WeightType::ALL {
        let case = Case::random(ty, 288, 21, 70, 3);
        let whole_of = |kernel: &MulMat| run(kernel, &case);
        each_kernel(ty, |name, kernel| {
            let whole = whole_of(kernel);
            let bytes: Vec<u8> = case.weights.concat();
            let x: Vec<u8> = case
                .x
                .concat()
                .iter()
                .flat_map(|v| v.to_ne_bytes())
                .collect();
            let weights = WeightRows::new(ty, 288, 21, ty.row_size(288).unwrap(), &bytes).unwrap();
            let x = F32Rows::new(288, 70, 4 * 288, &x).unwrap();
            let layout = kernel.layout(288, 70);
            let mut panel = vec![0; layout.panel_size_bytes()];
            for g in (0..layout.n_groups()).rev() {
                let start = g * layout.lanes();
                let size = layout.group_size_bytes();
                let rows = x.slice(start, layout.lanes().min(70 - start));
                kernel.prepare(&layout, &rows, &mut panel[g * size..][..size]);
            }
            for (w0, n_w) in [(0, 8), (8, 12), (20, 1)] {
                for (g0, n_g) in [(0, 1), (1, 2), (3, layout.n_groups() - 3)] {
                    let start = g0 * layout.lanes();
                    let rows = (70 - start).min(n_g * layout.lanes());
                    let size = layout.group_size_bytes();
                    let part = &panel[g0 * size..][..n_g * size];
                    let mut out = vec![0.0; rows * n_w];
                    kernel.mul_mat(&layout, &weights.slice(w0, n_w), part, rows, &mut out, n_w);
                    for (i, out) in out.chunks(n_w).enumerate() {
                        assert_eq!(out, &whole[start + i][w0..w0 + n_w], "{name} {w0} {g0}");
                    }
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: regressions(), ..ProptestConfig::default() })]

    #[test]
    fn any_shape_keeps_the_tolerance(ty in 0..4usize, k in 0..400usize, n_weights in 1..24usize, n_rows in 1..60usize, seed: u64) {
        let ty = WeightType::ALL[ty];
        let case = Case::random(ty, k / ty.blck_size() * ty.blck_size(), n_weights, n_rows, seed);
        let exact = case.exact();
        each_kernel(ty, |name, kernel| { check(name, kernel, &case, &exact); });
    }
}
