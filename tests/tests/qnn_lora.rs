//! `LoRA` adapters through Qualcomm's emulation of the NPU: stock libllama and a stock tool on the plug-in's device. Every run is a
//! process of its own.

use llada_npu_tests::host::{stock, succeed};
use llada_npu_tests::lora::{Adapted, Log, Run};
use llada_npu_tests::numpy::Numpy;
use llada_npu_tests::qnn::Qnn;

const EVAL: &str = env!("CARGO_BIN_EXE_lora-eval");

#[test]
fn adapters_and_scales_change_without_another_graph() {
    let name = "adapters_and_scales_change_without_another_graph";
    let (Some(qnn), Some(other)) = (Qnn::emulation(name), Qnn::emulation(name)) else {
        return;
    };
    let mut files = Adapted::make(None);
    let scratch = tempfile::tempdir().expect("a directory");
    let [first, all, more] = ["first", "all", "more"].map(|dir| scratch.path().join(dir));
    let log = files.eval(EVAL, &[&[(0, 1.0)]], &first, &qnn, &[]);
    let n_graphs = log.number("graphs_built");
    assert!(n_graphs > 0.0 && log.number("additions") > 0.0, "{log:?}");

    // None for another scale, or another adapter of that rank.
    let runs: [Run<'_>; 4] = [&[(0, 1.0)], &[(0, -0.5)], &[(1, 0.75)], &[(0, 1.0)]];
    let log = files.eval(EVAL, &runs, &all, &other, &[]);
    assert_eq!(log.number("graphs_built"), n_graphs, "{log:?}");
    assert_eq!(log.number("refused"), 0.0, "{log:?}");
    files.check(&runs, &all);

    // A second start has their binaries. Then others: none, one at some matrices, two at once.
    let runs: [Run<'_>; 4] = [&[(0, 1.5)], &[], &[(2, 0.5)], &[(0, 0.5), (2, 0.25)]];
    let log = files.eval(EVAL, &runs, &more, &other, &[]);
    assert!(log.number("graphs_loaded") >= n_graphs, "{log:?}");
    assert_eq!(log.number("refused"), 0.0, "{log:?}");
    files.check(&runs, &more);
}

#[test]
fn a_random_model_takes_adapters() {
    let Some(qnn) = Qnn::emulation("a_random_model_takes_adapters") else {
        return;
    };
    let mut files = Adapted::make(Some("--arch llada --shape small --type F16"));
    let scratch = tempfile::tempdir().expect("a directory");
    let runs: [Run<'_>; 2] = [&[(0, 0.5)], &[(1, -0.75)]];
    let log = files.eval(EVAL, &runs, scratch.path(), &qnn, &[]);
    assert_eq!(log.number("refused"), 0.0, "{log:?}");
    files.check(&runs, scratch.path());
}

#[test]
fn a_stock_tool_takes_an_adapter() {
    let name = "a_stock_tool_takes_an_adapter";
    let (Some(qnn), Some(stock)) = (Qnn::emulation(name), stock(name)) else {
        return;
    };
    let mut numpy = Numpy::new();
    let model = numpy.make("--arch llama --shape small --type F16");
    let adapter = numpy.adapter(&model, "--rank 8");
    numpy.run();
    let run = |lora: &str, accel: &str| {
        let mut command = stock.tool("llama-completion");
        qnn.set(&mut command);
        command
            .env("LLADA_NPU_ACCEL", accel)
            .env("LLADA_NPU_LOG", "debug")
            .args([
                "--device",
                "llada-npu",
                "--temp",
                "0",
                "-n",
                "24",
                "-no-cnv",
            ])
            .args(["-p", "the of and", "--ignore-eos", "-v", "-t", "2"])
            .arg("-m")
            .arg(&model)
            .arg("--lora-scaled")
            .arg(format!("{}:{lora}", adapter.display()));
        let written = succeed(&mut command);
        let lines = written.stdout.lines();
        let text: Vec<_> = lines.filter(|line| !line.contains("LIBNATIVE")).collect();
        (text.join("\n"), written.stderr)
    };
    let (expected, _) = run("1.0", "host");
    let (got, log) = run("1.0", "qnn");
    assert_eq!(got, expected);
    let log = Log(log);
    assert!(log.number("additions") > 0.0, "{log:?}");
    assert_eq!(log.number("refused"), 0.0, "{log:?}");
    let (without, _) = run("0.0", "host");
    assert_ne!(without, expected, "the adapter shows");
}
