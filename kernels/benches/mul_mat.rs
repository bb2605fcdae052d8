//! Throughput of every `MUL_MAT` kernel on one thread: name, shape, GFLOP/s (two per product), GB/s of weights read.
//!
//! `cargo bench --profile release -p llada-npu-kernels [-- SUBSTRING_OF_A_NAME]`

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a bench"
)]

use std::time::Instant;

use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};

/// Elements of a row, weight rows: a small model's matrix, a large model's (part of one), an attention head.
const MATRICES: [(usize, usize); 3] = [(128, 384), (4096, 1024), (32, 200)];

const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];

/// Shortest time of some repetitions that take a fraction of a second together.
fn shortest(mut body: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut n = 0;
    while n < 3 || start.elapsed().as_secs_f64() < 0.1 {
        let before = Instant::now();
        body();
        best = best.min(before.elapsed().as_secs_f64());
        n += 1;
    }
    best
}

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|arg| !arg.starts_with('-'))
        .unwrap_or_default();
    println!(
        "{:32} {:>20} {:>12} {:>10} {:>8}",
        "kernel", "k x weights x rows", "pack us", "GFLOP/s", "GB/s"
    );
    for ty in WeightType::ALL {
        for kernel in registry::mul_mat(ty)
            .iter()
            .filter(|kernel| kernel.name.contains(&filter))
        {
            let Some(mul_mat) = kernel.select() else {
                println!("{:32} not on this CPU", kernel.name);
                continue;
            };
            for (k, n_weights) in MATRICES {
                for n_rows in ROWS {
                    if kernel.name.starts_with("reference") && k * n_weights * n_rows > 1 << 24 {
                        continue;
                    }
                    measure(kernel.name, &mul_mat, k, n_weights, n_rows);
                }
            }
        }
    }
}

fn measure(
    name: &str,
    kernel: &llada_npu_kernels::op::mul_mat::MulMat,
    k: usize,
    n_weights: usize,
    n_rows: usize,
) {
    let row_size = kernel.ty().row_size(k).expect("whole blocks");
    // Bytes below 0x3c make small finite numbers of every type.
    let bytes: Vec<u8> = (0..n_weights * row_size)
        .map(|i| (i * 7 % 60) as u8)
        .collect();
    let weights = WeightRows::new(kernel.ty(), k, n_weights, row_size, &bytes)
        .expect("as many bytes as rows");
    let x: Vec<u8> = (0..k * n_rows)
        .flat_map(|i| ((i % 13) as f32 - 6.0).to_ne_bytes())
        .collect();
    let x = F32Rows::new(k, n_rows, 4 * k, &x).expect("as many bytes as rows");
    let layout = kernel.layout(k, n_rows);
    let mut panel = vec![0; layout.panel_size_bytes() + 64];
    let aligned = panel.as_ptr().align_offset(64);
    let panel = &mut panel[aligned..][..layout.panel_size_bytes()];
    let mut out = vec![0.0; n_weights * n_rows];
    let pack = shortest(|| kernel.prepare(&layout, &x, panel));
    let time = shortest(|| {
        // In parts, as a device's threads take them.
        for w0 in (0..n_weights).step_by(32) {
            let part = weights.slice(w0, 32.min(n_weights - w0));
            kernel.mul_mat(&layout, &part, panel, n_rows, &mut out[w0..], n_weights);
        }
    });
    let flops = 2.0 * (k * n_weights * n_rows) as f64;
    let shape = format!("{k} x {n_weights} x {n_rows}");
    let bandwidth = bytes.len() as f64 / time / 1e9;
    println!(
        "{name:32} {shape:>20} {:>12.2} {:>10.2} {bandwidth:>8.2}",
        pack * 1e6,
        flops / time / 1e9
    );
}
