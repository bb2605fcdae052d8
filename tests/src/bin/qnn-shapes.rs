//! `qnn-shapes TYPE ROWS K N`: one product with a QNN library, of a weight of example blocks. Prints one line of numbers;
//! `host_peak_bytes` is the most memory that this process had, the library's included.

use ggml_llada_npu::device::qnn::{QnnType, Settings, measure};

#[expect(clippy::print_stdout, reason = "what this program is for")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [ty, n_rows, k, n] = arguments.as_slice() else {
        panic!("usage: qnn-shapes TYPE ROWS K N");
    };
    let ty = QnnType::ALL.into_iter().find(|known| known.name() == ty);
    let ty = ty.expect("a type of ggml's, such as q4_0");
    let number = |text: &String| -> usize { text.parse().expect("a number") };
    let (n_rows, k, n) = (number(n_rows), number(k), number(n));
    let settings = Settings::read().expect("settings that are understood");
    let measured = measure(&settings, ty, (k, n), n_rows).unwrap_or_else(|error| panic!("{error}"));
    println!(
        "SHAPE type={} rows={n_rows} k={k} n={n} nmse={:.2e} graphs={} finalize_s={:.3} execute_s={:.2} \
         binary_bytes={} host_peak_bytes={}",
        ty.name(),
        measured.nmse,
        measured.n_graphs,
        measured.finalize.as_secs_f64(),
        measured.execute.as_secs_f64(),
        measured.binary_bytes,
        peak_bytes()
    );
}

/// Returns the most memory that this process had, as the system tells it.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
