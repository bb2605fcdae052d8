//! Throughput of every attention kernel on one thread: name, kind of K and V, shape, GFLOP/s (two per product of q and k
//! or p and v).
//!
//! `cargo bench --profile release -p llada-npu-kernels --bench attention [-- SUBSTRING_OF_A_NAME]`

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a bench"
)]

use std::time::Instant;

use llada_npu_kernels::op::attention::{Attend, Attention, HeadRows, Scores, StateLayout};
use llada_npu_kernels::tile::kv::{self, HeadTiles, Role};
use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};

const D: usize = 128;

/// Heads of K and V, so that a pass over all of them is as cold as in a model.
const N_HEADS: usize = 8;

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|arg| !arg.starts_with('-'))
        .unwrap_or_default();
    for kernel in registry::attention()
        .iter()
        .filter(|kernel| kernel.name.contains(&filter) && !kernel.name.starts_with("reference"))
    {
        let Some(attention) = kernel.select() else {
            println!("{:32} not on this CPU", kernel.name);
            continue;
        };
        for n_rows in [1, 2, 4, 8, 16, 32, 64] {
            for n_kv in [1024, 4096] {
                for tiled in [false, true] {
                    measure(kernel.name, &attention, n_rows, n_kv, tiled);
                }
            }
        }
    }
}

fn measure(name: &str, kernel: &Attention, n_rows: usize, n_kv: usize, tiled: bool) {
    let n_embd = N_HEADS * D;
    // Bytes below 0x3c make small finite numbers.
    let bytes: Vec<u8> = (0..2 * n_embd * n_kv).map(|i| (i * 7 % 60) as u8).collect();
    let x: Vec<u8> = (0..D * n_rows)
        .flat_map(|i| ((i % 13) as f32 - 6.0).to_ne_bytes())
        .collect();
    let q = [F32Rows::new(D, n_rows, 4 * D, &x).expect("as many bytes as rows")];
    let head = |role: Role, i: usize| {
        if tiled {
            let tiles = HeadTiles::new(role, n_embd, i * D, D, n_kv, &bytes);
            HeadRows::Tiles(tiles.expect("whole tiles"))
        } else {
            let rows = WeightRows::new(WeightType::F16, D, n_kv, 2 * n_embd, &bytes[2 * i * D..]);
            HeadRows::Plain(rows.expect("as many bytes as rows"))
        }
    };
    assert_eq!(kv::size_bytes(n_embd, n_kv), Ok(bytes.len()));
    let layout = StateLayout::new(n_rows, D);
    let mut state = vec![0.0; layout.len()];
    let mut scratch = vec![0.0; kernel.scratch_len(n_rows, D, D)];
    let mut best = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 0.15 {
        let before = Instant::now();
        for i in 0..N_HEADS {
            layout.clear(&mut state);
            let op = Attend {
                q: &q,
                k: head(Role::K, i),
                v: head(Role::V, i),
                mask: None,
                scores: Scores {
                    scale: 0.1,
                    softcap: 0.0,
                    slopes: &[],
                },
            };
            kernel.attend(&op, &mut state, &mut scratch);
        }
        best = best.min(before.elapsed().as_secs_f64());
    }
    let flops = 4.0 * (D * n_kv * n_rows * N_HEADS) as f64;
    let kind = if tiled { "tiles" } else { "plain" };
    let bandwidth = 2.0 * bytes.len() as f64 / best / 1e9;
    println!(
        "{name:26} {kind} {n_rows:>3} x {n_kv:>5} {:>8.2} GFLOP/s {bandwidth:>7.2} GB/s",
        flops / best / 1e9
    );
}
