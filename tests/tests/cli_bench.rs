//! `llada-npu bench`: it measures, and both sides compute the same.

use llada_npu_tests::host;
use llada_npu_tests::program::run;
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
fn a_ggml_that_is_not_there_is_named() {
    let finished = run(["bench", "kernels", "--ggml", "/no/such"]);
    finished.failure(1, &["/no/such/libggml.so"]);
}
