//! Multiplies strips of tiles a number of times, and prints nothing: scripts/arm-instructions.sh counts what it executes.
//!
//! Arguments: name of the kernel, elements of k, rows of x, repetitions.

use std::process::ExitCode;

use llada_npu_kernels::op::gemm::Gemm;
use llada_npu_kernels::tile::{TILE, TileType};
use llada_npu_kernels::{F32Rows, registry};

fn kernel(name: &str) -> Option<Gemm> {
    let mut kernels = TileType::ALL.into_iter().flat_map(registry::gemm);
    kernels.find(|kernel| kernel.name == name)?.select()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|text| text.parse::<usize>().ok());
    let name = arguments.first().map_or("", String::as_str);
    let (Some(gemm), Some(k), Some(n_rows), Some(repetitions)) =
        (kernel(name), number(1), number(2), number(3))
    else {
        return ExitCode::FAILURE;
    };
    let layout = gemm.layout(k, n_rows);
    let bytes: Vec<u8> = (0..k * n_rows)
        .flat_map(|i| (if i % 3 == 0 { 1.0f32 } else { -0.5 }).to_ne_bytes())
        .collect();
    let Ok(x) = F32Rows::new(k, n_rows, 4 * k, &bytes) else {
        return ExitCode::FAILURE;
    };
    let mut panel = vec![0; layout.panel_size_bytes()];
    gemm.prepare(&layout, &x, 0..layout.n_units(), &mut panel);
    let Some(strip_size_bytes) = gemm.ty().strip_size_bytes(k) else {
        return ExitCode::FAILURE;
    };
    let tiles = vec![0; strip_size_bytes];
    let mut out = vec![[0.0; TILE]; n_rows];
    for _ in 0..repetitions {
        for group in 0..layout.n_groups() {
            let out = &mut out[layout.rows(group)];
            gemm.strip(&layout, &tiles, &panel[layout.group_bytes(group)], out);
        }
    }
    ExitCode::SUCCESS
}
