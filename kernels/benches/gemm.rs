//! Throughput of products with tiled weights: kernel, shape, GFLOP/s (two per product), GB/s of weights read.
//!
//! `cargo bench --profile release -p llada-npu-kernels --bench gemm [-- SUBSTRING_OF_A_NAME [ROWS,…]]`, one thread, in
//! processor time; weights pass by that no cache holds.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench")]

use llada_npu_kernels::op::gemm::Gemm;
use llada_npu_kernels::tile::{TileMatrix, TileType};
use llada_npu_kernels::{F32Rows, registry};

/// Bytes of weights that pass by before any is read again.
const WEIGHTS: usize = 512 << 20;

/// Bytes of a large page, on which weights lie in the backend as well.
const HUGE_PAGE: usize = 2 << 20;

const MATRICES: [(usize, usize); 3] = [(4096, 4096), (12288, 4096), (4096, 12288)];

const ROWS: [usize; 8] = [1, 4, 8, 32, 64, 96, 128, 256];

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let filter = args.first().cloned().unwrap_or_default();
    let rows: Vec<usize> = match args.get(1) {
        Some(list) => list.split(',').map(|n| n.parse().unwrap()).collect(),
        None => ROWS.to_vec(),
    };
    let probe = registry::int8_probe();
    let peak = probe.map_or(f64::NAN, |probe| best(20, || probe.run(1 << 16) as f64));
    println!("int8 peak of a thread: {:.0} GOP/s", peak / 1e9);
    // Scales of 1/128: neither zeros nor subnormals.
    let line: [u8; 64] = std::array::from_fn(|i| [0x00, 0x20, 0x31, 0x20][i % 4]);
    let mut bytes = vec![0; WEIGHTS + HUGE_PAGE];
    let start = bytes.as_ptr().align_offset(HUGE_PAGE);
    let bytes = &mut bytes[start..][..WEIGHTS];
    // SAFETY: advice on memory of ours, which nothing has touched yet; it changes no contents.
    let _refused =
        unsafe { libc::madvise(bytes.as_mut_ptr().cast(), WEIGHTS, libc::MADV_HUGEPAGE) };
    for part in bytes.as_chunks_mut::<64>().0 {
        *part = line;
    }
    let bytes = &*bytes;
    let read = best(3, || {
        let words = bytes.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b));
        std::hint::black_box(words.fold(0, u64::wrapping_add));
        bytes.len() as f64
    });
    println!("memory, one thread: {:.1} GB/s", read / 1e9);
    for ty in TileType::ALL {
        for kernel in registry::gemm(ty)
            .iter()
            .filter(|k| k.name.contains(&filter))
        {
            let Some(gemm) = kernel.select() else {
                continue;
            };
            for (k, n) in MATRICES
                .into_iter()
                .take(args.get(2).map_or(3, |n| n.parse().unwrap()))
            {
                for &n_rows in &rows {
                    measure(kernel.name, &gemm, k, n, n_rows, bytes, peak);
                }
            }
        }
    }
}

/// Processor time of this thread, in seconds: other work on the machine does not count.
fn now() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Returns the best rate of several runs, each of the number of units of work that the body returns.
fn best(n: usize, mut body: impl FnMut() -> f64) -> f64 {
    let mut best: f64 = 0.0;
    for _ in 0..n {
        let start = now();
        let work = body();
        best = best.max(work / (now() - start));
    }
    best
}

fn measure(name: &str, gemm: &Gemm, k: usize, n: usize, n_rows: usize, bytes: &[u8], peak: f64) {
    let matrix = TileMatrix::new(gemm.ty(), k, n).unwrap();
    let strips = bytes.chunks_exact(matrix.strip_size_bytes());
    let layout = gemm.layout(k, n_rows);
    let x: Vec<u8> = (0..k * n_rows)
        .flat_map(|i| ((i % 255) as f32 - 127.0).to_ne_bytes())
        .collect();
    let x = F32Rows::new(k, n_rows, 4 * k, &x).unwrap();
    let mut panel = vec![0; layout.panel_size_bytes()];
    let pack = 1.0
        / best(3, || {
            gemm.prepare(&layout, &x, 0..layout.n_units(), &mut panel);
            1.0
        });
    let mut strips = strips.cycle();
    let mut out = vec![[0.0; 32]; layout.rows(0).len()];
    // Strips for a twentieth of a second.
    let ops = 2.0 * (k * 32 * n_rows) as f64;
    let n_strips = (5_000_000_000 / (k * 32 * n_rows)).clamp(8, 4000);
    let rate = best(3, || {
        for tiles in strips.by_ref().take(n_strips) {
            for group in 0..layout.n_groups() {
                let rows = layout.rows(group).len();
                let part = &panel[layout.group_bytes(group)];
                gemm.strip(&layout, tiles, part, &mut out[..rows]);
            }
        }
        n_strips as f64
    });
    println!(
        "{name:36} {k:6} x {n:6} x {n_rows:3}  {:7.1} GFLOP/s ({:4.1} % of the peak) {:5.1} GB/s  pack {:4.1} %",
        ops * rate / 1e9,
        ops * rate / peak * 100.0,
        matrix.strip_size_bytes() as f64 * rate / 1e9,
        pack * rate / matrix.n_strips() as f64 * 100.0
    );
}
