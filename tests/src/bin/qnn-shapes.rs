//! `qnn-shapes TYPE ROWS K N`: one product with a QNN library, of a weight of example blocks; `qnn-shapes TYPE ROWS layer
//! N_EMBD N_FF`: the graphs of a layer. Prints one line of numbers. `host_bytes` is how much the process grew by the
//! contexts of the layer, `host_peak_bytes` the most memory that it had, the library's and the examples' included.

use ggml_llada_npu::device::qnn::{LayerShape, QnnType, Settings, measure, measure_layer};

#[expect(clippy::print_stdout, reason = "what this program is for")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let usage = "usage: qnn-shapes TYPE ROWS K N, or qnn-shapes TYPE ROWS layer N_EMBD N_FF";
    let [ty, n_rows, shape @ ..] = arguments.as_slice() else {
        panic!("{usage}");
    };
    let ty = QnnType::ALL.into_iter().find(|known| known.name() == *ty);
    let ty = ty.expect("a type of ggml's, such as q4_0");
    let number = |text: &str| -> usize { text.parse().expect("a number") };
    let n_rows = number(n_rows);
    let settings = Settings::read().expect("settings that are understood");
    let (what, measured) = match *shape {
        [k, n] => (
            format!("k={k} n={n}"),
            measure(&settings, ty, (number(k), number(n)), n_rows),
        ),
        ["layer", n_embd, n_ff] => {
            let shape = LayerShape {
                n_embd: number(n_embd),
                n_ff: number(n_ff),
            };
            let resident = || bytes("VmRSS:");
            (
                format!("n_embd={n_embd} n_ff={n_ff}"),
                measure_layer(&settings, ty, shape, n_rows, &resident),
            )
        }
        _ => panic!("{usage}"),
    };
    let measured = measured.unwrap_or_else(|error| panic!("{error}"));
    println!(
        "SHAPE type={} rows={n_rows} {what} nmse={:.2e} graphs={} contexts={} finalize_s={:.3} execute_s={:.2} \
         binary_bytes={} host_bytes={} host_peak_bytes={}",
        ty.name(),
        measured.nmse,
        measured.n_graphs,
        measured.n_contexts,
        measured.finalize.as_secs_f64(),
        measured.execute.as_secs_f64(),
        measured.binary_bytes,
        measured.resident_bytes,
        bytes("VmHWM:")
    );
}

/// Returns an amount of memory of this process, as the system tells it.
fn bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
