//! A product: its operands, what a kernel makes of them, and what it should.

use half::f16;
use llada_npu_kernels::op::convert::quantize_row_q8_0;
use llada_npu_kernels::op::gemm::Gemm;
use llada_npu_kernels::registry;
use llada_npu_kernels::tile::{TileMatrix, TileType};

use crate::common;
use crate::common::product::{Exact, random_rows, results, with_rows};
use crate::common::{Element, Rng};

/// Operands of one product, dense; weights in ggml's blocks.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) ty: TileType,
    pub(crate) k: usize,
    pub(crate) weights: Vec<Vec<u8>>,
    pub(crate) x: Vec<Vec<f32>>,
}

/// 256 elements of x as K-quants see them.
pub(crate) fn quantised_256(x: &[f32]) -> Vec<f64> {
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
    pub(crate) fn random(
        ty: TileType,
        k: usize,
        n_weights: usize,
        n_rows: usize,
        seed: u64,
    ) -> Self {
        let mut rng = Rng(seed);
        let weights = (0..n_weights).map(|_| rng.ggml_row(ty, k)).collect();
        let x = random_rows(&mut rng, n_rows, k);
        Self { ty, k, weights, x }
    }

    /// x as the contract converts it.
    pub(crate) fn converted(&self) -> Vec<Vec<f64>> {
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
    pub(crate) fn exact(&self) -> Exact {
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
    pub(crate) fn tolerance(&self, name: &str, i1: usize, i0: usize, magnitude: f64) -> f64 {
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

    pub(crate) fn matrix(&self) -> TileMatrix {
        TileMatrix::new(self.ty, self.k, self.weights.len()).unwrap()
    }

    /// The tiles, from an odd address on.
    pub(crate) fn tiles(&self) -> Vec<u8> {
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

pub(crate) fn run(kernel: &Gemm, case: &Case, tiles: &[u8]) -> Vec<Vec<f32>> {
    let layout = kernel.layout(case.k, case.x.len());
    // Old contents must not matter, nor where the panel starts.
    let mut panel = vec![0xff; layout.panel_size_bytes() + 3];
    with_rows(&case.x, case.k, |x| {
        kernel.prepare(&layout, x, 0..layout.n_units(), &mut panel[3..]);
    });
    results(case.x.len(), case.weights.len(), |out, stride| {
        let matrix = case.matrix();
        kernel.gemm(&layout, &matrix, &tiles[1..], &panel[3..], out, stride);
    })
}

/// Runs `test` on every kernel for the type.
pub(crate) fn each_kernel(ty: TileType, test: impl FnMut(&'static str, &Gemm)) {
    common::each_kernel(registry::gemm(ty), test);
}

/// Checks results against exact ones and returns the largest share of the tolerance used.
pub(crate) fn check(name: &str, kernel: &Gemm, case: &Case, tiles: &[u8], exact: &Exact) -> f64 {
    let what = format!("{name} {:?}", (case.k, case.weights.len(), case.x.len()));
    let tolerance = |i1, i0, magnitude| case.tolerance(name, i1, i0, magnitude);
    exact.check(&what, &run(kernel, case, tiles), tolerance)
}
