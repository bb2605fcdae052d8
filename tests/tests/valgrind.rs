//! Stock tools with the plug-in under valgrind: nothing leaks, nothing is read before it is written.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;

use llada_npu_tests::files::trained;
use llada_npu_tests::host::{stock, succeed};
use llada_npu_tests::numpy::random_model;

/// What valgrind says of memory that is used wrongly, or lost for good.
const FAULTS: [&str; 7] = [
    "uninitialised",
    "Invalid read",
    "Invalid write",
    "Invalid free",
    "Mismatched free",
    "Process terminating",
    "are definitely lost",
];

fn check(test: &str, tool: &str, model: &Path, arguments: &[&str]) {
    let Some(stock) = stock(test) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("valgrind.log");
    let Some(mut command) = stock.under_valgrind(test, tool, &log) else {
        return;
    };
    command
        .arg("-m")
        .arg(model)
        .args(arguments)
        .args(["--device", "llada-npu", "-t", "2"]);
    // A device that is not there is an error.
    let _written = succeed(&mut command);
    let report = std::fs::read_to_string(&log).unwrap();
    assert!(report.contains("ERROR SUMMARY"), "{report}");
    for fault in FAULTS {
        assert!(!report.contains(fault), "{report}");
    }
    // Threads that the tool leaves running are "possibly lost"; none of ours may be.
    assert!(!report.contains("libggml_llada_npu"), "{report}");
}

#[test]
fn generation_under_valgrind_is_clean() {
    for weights in ["F16", "Q8_0", "Q4_0"] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("valgrind.gguf");
        let arguments = format!("--arch llama --type {weights} --shape tiny --context 512");
        random_model(&arguments, &path);
        #[rustfmt::skip]
        check("generation_under_valgrind_is_clean", "llama-completion", &path, &[
            "-p", "hello", "-no-cnv", "-n", "3", "-c", "256", "--temp", "0", "--ignore-eos",
        ]);
    }
}

#[test]
fn diffusion_under_valgrind_is_clean() {
    let model = trained("f16");
    #[rustfmt::skip]
    check("diffusion_under_valgrind_is_clean", "llama-diffusion-cli", &model, &[
        "-p", "Sort: 3 1 2", "-ub", "32", "--diffusion-steps", "2", "--diffusion-block-length", "32",
    ]);
}
