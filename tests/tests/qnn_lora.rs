//! `LoRA` adapters through Qualcomm's emulation of the NPU: stock libllama and a stock tool on the plug-in's device. Every run is a
//! process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use llada_npu_tests::files::trained;
use llada_npu_tests::host::{plugin, stock, succeed};
use llada_npu_tests::llama::nmse;
use llada_npu_tests::numpy::{self, Numpy};
use llada_npu_tests::program::Finished;
use llada_npu_tests::qnn::{Qnn, report_number};

/// How far logits may be from the f32 reference of the dequantised weights.
const MAX_NMSE: f64 = 1e-5;

/// A model, and random adapters for it: two of ranks that have the same room, one for some matrices alone.
struct Files {
    numpy: Numpy,
    model: PathBuf,
    adapters: [PathBuf; 3],
}

impl Files {
    /// Takes the trained model, or makes a random one.
    fn make(random: Option<&str>) -> Self {
        let mut numpy = Numpy::new();
        let model = random.map_or_else(|| trained("q4_0"), |arguments| numpy.make(arguments));
        let adapters = [
            "--rank 16 --seed 1",
            "--rank 12 --alpha 24 --type F32 --seed 2",
            "--rank 9 --alpha 0 --only attn_(q|v) --seed 3",
        ]
        .map(|arguments| numpy.adapter(&model, arguments));
        numpy.run();
        Self {
            numpy,
            model,
            adapters,
        }
    }
}

/// Runs `lora-eval` on the plug-in's device; returns what the plug-in logged.
fn eval(files: &Files, tokens: &[i32], runs: &str, out: &Path, qnn: &Qnn) -> String {
    let tokens: Vec<String> = tokens.iter().map(i32::to_string).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lora-eval"));
    command
        .arg(plugin())
        .arg(&files.model)
        .arg(tokens.join(","))
        .arg(out)
        .arg(runs)
        .args(&files.adapters)
        .env("LLADA_NPU_LOG", "debug");
    qnn.set(&mut command);
    let finished = Finished::from(command.output().expect("the program starts"));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    finished.stderr
}

fn number(log: &str, name: &str) -> f64 {
    report_number(log, name).unwrap_or_else(|| panic!("no {name} in {log}"))
}

#[test]
fn adapters_and_scales_change_without_another_graph() {
    let name = "adapters_and_scales_change_without_another_graph";
    let Some(qnn) = Qnn::emulation(name) else {
        return;
    };
    let mut files = Files::make(None);
    let tokens = tokens();
    let scratch = tempfile::tempdir().expect("a directory");
    let [first, all] = ["first", "all"].map(|dir| scratch.path().join(dir));
    let log = eval(&files, &tokens, "0:1", &first, &qnn);
    let n_graphs = number(&log, "graphs_built");
    assert!(n_graphs > 0.0 && number(&log, "additions") > 0.0, "{log}");

    // Graphs of its own for no adapter, and for one at other matrices; none for another scale, or another adapter of that rank.
    let other = Qnn::emulation(name).expect("just as before");
    let runs: [&[(usize, f32)]; 4] = [&[(0, 1.0)], &[(0, -0.5)], &[(1, 0.75)], &[(0, 1.0)]];
    let text = |run: &&[(usize, f32)]| -> String {
        let pairs = run.iter().map(|(i, scale)| format!("{i}:{scale}"));
        pairs.collect::<Vec<_>>().join(",")
    };
    let log = eval(
        &files,
        &tokens,
        &runs.iter().map(text).collect::<Vec<_>>().join(";"),
        &all,
        &other,
    );
    assert_eq!(number(&log, "graphs_built"), n_graphs, "{log}");
    assert_eq!(number(&log, "refused"), 0.0, "{log}");
    check(&mut files, &tokens, &runs, &all);

    // A second start has their binaries. Then others: none, one at some matrices, two at once.
    let runs: [&[(usize, f32)]; 4] = [&[(0, 1.5)], &[], &[(2, 0.5)], &[(0, 0.5), (2, 0.25)]];
    let more = scratch.path().join("more");
    let log = eval(
        &files,
        &tokens,
        &runs.iter().map(text).collect::<Vec<_>>().join(";"),
        &more,
        &other,
    );
    assert!(number(&log, "graphs_loaded") >= n_graphs, "{log}");
    assert_eq!(number(&log, "refused"), 0.0, "{log}");
    check(&mut files, &tokens, &runs, &more);
}

#[test]
fn a_random_model_takes_adapters() {
    let Some(qnn) = Qnn::emulation("a_random_model_takes_adapters") else {
        return;
    };
    let mut files = Files::make(Some("--arch llada --shape small --type F16"));
    let scratch = tempfile::tempdir().expect("a directory");
    let log = eval(&files, &tokens(), "0:0.5;1:-0.75", scratch.path(), &qnn);
    assert_eq!(number(&log, "refused"), 0.0, "{log}");
    let runs: [&[(usize, f32)]; 2] = [&[(0, 0.5)], &[(1, -0.75)]];
    check(&mut files, &tokens(), &runs, scratch.path());
}

fn tokens() -> Vec<i32> {
    (0..40).map(|i| (i * 37 + 11) % 280).collect()
}

/// Compares logits of runs with the reference.
fn check(files: &mut Files, tokens: &[i32], runs: &[&[(usize, f32)]], out: &Path) {
    let references: Vec<_> = runs
        .iter()
        .map(|run| {
            let adapters = run
                .iter()
                .map(|&(i, scale)| (files.adapters[i].as_path(), scale));
            let adapters: Vec<_> = adapters.collect();
            files.numpy.logits(&files.model, tokens, &adapters)
        })
        .collect();
    files.numpy.run();
    let read = |path: &Path| numpy::rows(path, 1).concat();
    let all: Vec<_> = references.iter().map(|path| read(path)).collect();
    for (i, (run, expected)) in runs.iter().zip(&all).enumerate() {
        let error = nmse(&read(&out.join(format!("{i}.f32"))), expected);
        println!("{run:?}: NMSE {error:.1e} (limit {MAX_NMSE:.0e})");
        assert!(error <= MAX_NMSE, "{run:?}: NMSE {error:e}");
        // An adapter that were not there would show.
        for (j, other) in all.iter().enumerate().filter(|(j, _)| runs[*j] != *run) {
            assert!(nmse(other, expected) > 100.0 * MAX_NMSE, "{i} {j}");
        }
    }
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
    assert!(
        number(&log, "additions") > 0.0 && number(&log, "refused") == 0.0,
        "{log}"
    );
    let (without, _) = run("0.0", "host");
    assert_ne!(without, expected, "the adapter shows");
}
