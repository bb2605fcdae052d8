//! Multiplies strips of tiles, or attends, a number of times, and prints nothing: scripts/arm-instructions.sh counts what it
//! executes.
//!
//! Arguments: name of the kernel; elements of k, or positions of F16 K and V with 128 elements; rows of x or of Q; repetitions.

use std::process::ExitCode;

use llada_npu_kernels::op::attention::{Attend, Attention, HeadRows, Scores, StateLayout};
use llada_npu_kernels::op::gemm::Gemm;
use llada_npu_kernels::tile::{TILE, TileType};
use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};

/// Elements of a head.
const D: usize = 128;

fn kernel(name: &str) -> Option<Gemm> {
    let mut kernels = TileType::ALL.into_iter().flat_map(registry::gemm);
    kernels.find(|kernel| kernel.name == name)?.select()
}

/// Returns rows of floats, as bytes.
fn floats(n: usize) -> Vec<u8> {
    let value = |i| if i % 3 == 0 { 1.0f32 } else { -0.5 };
    (0..n).flat_map(|i| value(i).to_ne_bytes()).collect()
}

fn attend(attention: &Attention, n_kv: usize, n_rows: usize, repetitions: usize) -> Option<()> {
    let (q, kv) = (floats(D * n_rows), vec![0; 2 * D * n_kv]);
    let q = [F32Rows::new(D, n_rows, 4 * D, &q).ok()?];
    let rows = WeightRows::new(WeightType::F16, D, n_kv, 2 * D, &kv).ok()?;
    let scores = Scores {
        scale: 1.0,
        softcap: 0.0,
        slopes: &[],
    };
    let op = Attend {
        q: &q,
        k: HeadRows::Plain(rows),
        v: HeadRows::Plain(rows),
        mask: None,
        scores,
    };
    let layout = StateLayout::new(n_rows, D);
    let mut state = vec![0.0; layout.len()];
    let mut scratch = vec![0.0; attention.scratch_len(n_rows, D, D)];
    for _ in 0..repetitions {
        layout.clear(&mut state);
        attention.attend(&op, &mut state, &mut scratch);
    }
    Some(())
}

fn multiply(gemm: &Gemm, k: usize, n_rows: usize, repetitions: usize) -> Option<()> {
    let layout = gemm.layout(k, n_rows);
    let bytes = floats(k * n_rows);
    let x = F32Rows::new(k, n_rows, 4 * k, &bytes).ok()?;
    let mut panel = vec![0; layout.panel_size_bytes()];
    gemm.prepare(&layout, &x, 0..layout.n_units(), &mut panel);
    let tiles = vec![0; gemm.ty().strip_size_bytes(k)?];
    let mut out = vec![[0.0; TILE]; n_rows];
    for _ in 0..repetitions {
        for group in 0..layout.n_groups() {
            let out = &mut out[layout.rows(group)];
            gemm.strip(&layout, &tiles, &panel[layout.group_bytes(group)], out);
        }
    }
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|text| text.parse::<usize>().ok());
    let name = arguments.first().map_or("", String::as_str);
    let (Some(k), Some(n_rows), Some(repetitions)) = (number(1), number(2), number(3)) else {
        return ExitCode::FAILURE;
    };
    let mut attentions = registry::attention().iter();
    let attention = attentions.find(|kernel| kernel.name == name);
    let done = match attention.and_then(|kernel| kernel.select()) {
        Some(attention) => attend(&attention, k, n_rows, repetitions),
        None => kernel(name).and_then(|gemm| multiply(&gemm, k, n_rows, repetitions)),
    };
    if done.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
