//! `llada-npu bench`: it measures, and both sides compute the same.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use llada_npu_tests::host;
use llada_npu_tests::program::{command, run};
use serde_json::Value;

#[test]
fn kernels_are_measured_beside_ggml_s_and_give_the_same_results() {
    let Some(stock) = host::stock("kernels_are_measured_beside_ggml_s_and_give_the_same_results")
    else {
        return;
    };
    let bin = stock.bin();
    let ggml = bin.to_str().expect("UTF-8");
    let flags = ["--ggml", ggml, "--threads", "1", "--quick", "--json"];
    let report = run(["bench", "kernels"].iter().chain(&flags)).success();
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
    assert!(positive(&report["machine"]["memory_gbps"]), "{report}");
    let cells = report["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 5, "{report}");
    for cell in cells {
        for key in ["ms", "ggml_ms", "ratio", "gops", "ggml_gops", "gbps"] {
            assert!(positive(&cell[key]), "{key} of {cell}");
        }
        assert!(
            cell["nmse"].as_f64().is_some_and(|nmse| nmse < 1e-3),
            "{cell}"
        );
    }
    // ggml repacks where it can.
    assert_eq!(cells[0]["ggml_buffer"], "CPU_REPACK", "{report}");
    assert!(positive(&report["summary"]["attn_ratio"]), "{report}");
}

#[test]
fn ctrl_c_ends_with_130() {
    let Some(stock) = host::stock("ctrl_c_ends_with_130") else {
        return;
    };
    let mut child = command(["bench", "kernels", "--threads", "1", "--ggml"])
        .arg(stock.bin())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let stderr = child.stderr.take().expect("stderr is a pipe");
    let mut lines = BufReader::new(stderr).lines();
    let measures = lines.any(|line| line.is_ok_and(|line| line.starts_with("measuring")));
    assert!(measures, "it ended before it measured");
    let pid = libc::pid_t::try_from(child.id()).expect("a process id");
    // SAFETY: a signal to our own child, which is not reaped yet.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(output.stdout, b"");
}

#[test]
fn a_ggml_that_is_not_there_is_named() {
    let finished = run(["bench", "kernels", "--ggml", "/no/such"]);
    finished.failure(1, &["/no/such/libggml.so"]);
}
