//! Stock, unpatched llama.cpp tools with `--device llada-npu`: each does what it does on the CPU.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use llada_npu_tests::files::trained;
use llada_npu_tests::host::{Stock, stock, succeed};
use llada_npu_tests::numpy::random_model;

const CPU: &str = "none";
const NPU: &str = "llada-npu";

/// Returns a random model, made once per run of this file.
fn model(name: &str, arguments: &str) -> PathBuf {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stock_host-{name}.gguf"));
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made.insert(path.clone()) {
        random_model(arguments, &path);
    }
    path
}

/// An autoregressive model whose text does not hang on the last bit of a sum.
fn llama() -> PathBuf {
    model(
        "llama",
        "--arch llama --type F32 --shape small --context 2048",
    )
}

fn llada() -> PathBuf {
    model(
        "llada",
        "--arch llada --type F32 --shape small --context 2048",
    )
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a tool on a device and returns the text it generates.
fn output(stock: &Stock, tool: &str, device: &str, arguments: &[&str]) -> String {
    let mut command = stock.tool(tool);
    command.args(arguments).args(["--device", device]);
    let written = succeed(&mut command);
    match tool {
        // The answer is the last message of its log.
        "llama-diffusion-cli" => {
            let (_, answer) = written.stderr.rsplit_once(" I \n").unwrap();
            answer.to_owned()
        }
        _ => written.stdout,
    }
}

/// Asserts that a tool writes the same on both devices, and returns it.
fn assert_same_text(stock: &Stock, tool: &str, arguments: &[&str]) -> String {
    let cpu = output(stock, tool, CPU, arguments);
    let npu = output(stock, tool, NPU, arguments);
    assert!(!cpu.trim().is_empty(), "{tool} {arguments:?}");
    assert_eq!(cpu, npu, "{tool} {arguments:?}");
    cpu
}

#[test]
fn tools_list_the_device() {
    let Some(stock) = stock("tools_list_the_device") else {
        return;
    };
    for tool in ["llama-bench", "llama-diffusion-cli", "llama-completion"] {
        let written = succeed(stock.tool(tool).arg("--list-devices"));
        assert!(
            written.stdout.contains("llada-npu: "),
            "{tool}: {written:?}"
        );
    }
}

#[test]
fn generation_with_every_kv_type_is_that_of_the_cpu() {
    let Some(stock) = stock("generation_with_every_kv_type_is_that_of_the_cpu") else {
        return;
    };
    let llama = llama();
    let floats = ["f32", "f16", "bf16"].map(|kv| (kv, "40"));
    // A number near the middle between two integers is rounded one way or the other by the last bit of a sum, whose order depends on the
    // instruction set: sooner or later that shows in a text.
    let quantised = ["q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"].map(|kv| (kv, "12"));
    for (kv, n) in floats.into_iter().chain(quantised) {
        #[rustfmt::skip]
        assert_same_text(&stock, "llama-completion", &[
            "-m", text(&llama), "-p", "hello there", "-no-cnv", "-n", n, "--temp", "0", "--ignore-eos",
            "-t", "1", "-fa", "on", "-ctk", kv, "-ctv", kv,
        ]);
    }
}

#[test]
fn generation_through_context_shifts_is_that_of_the_cpu() {
    let Some(stock) = stock("generation_through_context_shifts_is_that_of_the_cpu") else {
        return;
    };
    let llama = llama();
    #[rustfmt::skip]
    let text = assert_same_text(&stock, "llama-completion", &[
        "-m", text(&llama), "-p", "hello there", "-no-cnv", "-c", "256", "-n", "420", "--context-shift",
        "--temp", "0", "--ignore-eos", "-t", "1",
    ]);
    assert!(text.len() > 420, "{text:?}");
}

#[test]
fn quantised_weights_generate_as_on_the_cpu() {
    let Some(stock) = stock("quantised_weights_generate_as_on_the_cpu") else {
        return;
    };
    // With blocks of 256 the CPU quantises what they are multiplied with in other blocks than our kernels: see device_logits.
    for weights in ["F16", "BF16", "Q8_0", "Q4_0", "IQ4_XS"] {
        let arguments = format!(
            "--arch llama --type {weights} --shape small --n-embd 256 --n-ff 512 --context 512"
        );
        let path = model(&format!("llama-{weights}"), &arguments);
        // Repacked weights round differently on the CPU, and so does its attention, which sums values in half floats.
        #[rustfmt::skip]
        assert_same_text(&stock, "llama-completion", &[
            "-m", text(&path), "-p", "one", "-no-cnv", "-n", "12", "--temp", "0", "--ignore-eos", "-t", "1",
            "--no-repack", "-fa", "off", "-ctk", "f32", "-ctv", "f32",
        ]);
    }
}

#[test]
fn diffusion_gives_the_text_of_the_cpu() {
    let Some(stock) = stock("diffusion_gives_the_text_of_the_cpu") else {
        return;
    };
    for model in &[llada(), trained("f16")] {
        for seed in ["1", "2"] {
            #[rustfmt::skip]
            assert_same_text(&stock, "llama-diffusion-cli", &[
                "-m", text(model), "-p", "Sort: 29 26 80", "-ub", "64", "--diffusion-steps", "32",
                "--diffusion-block-length", "32", "--seed", seed, "-t", "1",
            ]);
        }
    }
}

/// Reads the last perplexity estimate.
fn perplexity(stock: &Stock, device: &str, arguments: &[&str]) -> f64 {
    let mut command = stock.tool("llama-perplexity");
    command.args(arguments).args(["--device", device]);
    let written = succeed(&mut command);
    let all = written.stdout + &written.stderr;
    let estimate = all
        .split("Final estimate: PPL = ")
        .nth(1)
        .unwrap_or_else(|| panic!("no estimate in {all}"));
    estimate.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn perplexity_is_that_of_the_cpu() {
    let Some(stock) = stock("perplexity_is_that_of_the_cpu") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    let words: Vec<String> = (1..900).map(|n| n.to_string()).collect();
    std::fs::write(&file, words.join(" ")).unwrap();
    let (llama, llada) = (llama(), llada());
    #[rustfmt::skip]
    let cases: [&[&str]; 2] = [
        &["-m", text(&llama), "-f", text(&file), "-t", "1"],
        &["-m", text(&llada), "-f", text(&file), "-t", "1", "-b", "512", "-ub", "512"],
    ];
    for arguments in cases {
        let cpu = perplexity(&stock, CPU, arguments);
        let npu = perplexity(&stock, NPU, arguments);
        assert!(
            (cpu / npu - 1.0).abs() < 1e-3,
            "{arguments:?}: {cpu} on the CPU, {npu} on {NPU}"
        );
    }
}

#[test]
fn bench_runs_with_its_defaults() {
    let Some(stock) = stock("bench_runs_with_its_defaults") else {
        return;
    };
    let llada = llada();
    let written = succeed(
        stock
            .tool("llama-bench")
            .args(["-m", text(&llada), "-r", "2"]),
    );
    let rows: Vec<&str> = written
        .stdout
        .lines()
        .filter(|line| line.contains(NPU))
        .collect();
    assert_eq!(rows.len(), 2, "{written:?}");
    assert!(rows[0].contains("pp512") && rows[1].contains("tg128"));
}

/// Runs a tool on the device and returns all that it says, graphs and nodes included.
fn said(stock: &Stock, tool: &str, arguments: &[&str]) -> String {
    let mut command = stock.tool(tool);
    command
        .args(arguments)
        .args(["--device", NPU, "-t", "1", "-lv", "5"])
        .env("GGML_SCHED_DEBUG", "2")
        .env("LLADA_NPU_LOG", "debug");
    let written = succeed(&mut command);
    written.stdout + &written.stderr
}

/// Asserts that every graph is one piece, on the device.
fn assert_no_splits(what: &str, all: &str) {
    let splits: Vec<&str> = all
        .match_indices("## SPLIT #")
        .map(|(start, _)| all[start..].split(" # ").next().unwrap())
        .collect();
    assert!(!splits.is_empty(), "{what} shows no splits: {all}");
    for split in &splits {
        assert_eq!(*split, "## SPLIT #0: llada-npu", "{what}");
    }
}

/// Asserts that the plug-in computed every node of every graph with its own kernels.
fn assert_native(what: &str, all: &str) {
    let counts: Vec<&str> = all
        .lines()
        .filter_map(|line| line.split_once("nodes computed: native "))
        .map(|(_, counts)| counts)
        .collect();
    // One line for each operation, and the sum.
    assert!(counts.len() > 7, "{what}: {counts:?}");
    for count in counts {
        let (_, delegated) = count.split_once(", delegated ").unwrap();
        assert_eq!(delegated, "0", "{what}: {all}");
    }
}

#[test]
fn graphs_have_no_splits_and_nothing_is_delegated() {
    let name = "graphs_have_no_splits_and_nothing_is_delegated";
    let Some(stock) = stock(name) else {
        return;
    };
    for weights in ["F16", "Q8_0", "Q4_0"] {
        for arch in ["llada", "dream", "llama", "qwen2"] {
            let arguments = format!("--arch {arch} --type {weights} --shape small --context 2048");
            let path = model(&format!("graph-{arch}-{weights}"), &arguments);
            #[rustfmt::skip]
            let (tool, arguments): (&str, &[&str]) = match arch {
                "llada" | "dream" => ("llama-diffusion-cli", &[
                    "-p", "a b c", "-ub", "32", "--diffusion-steps", "1", "--diffusion-block-length", "32",
                ]),
                // Long enough for the cache to be shifted.
                _ => ("llama-completion", &[
                    "-p", "a b c", "-no-cnv", "-n", "40", "-c", "32", "--context-shift", "--ignore-eos",
                ]),
            };
            for attention in ["on", "off"] {
                let what = format!("{arch} {weights} -fa {attention}");
                let model = ["-m", text(&path), "-fa", attention];
                let all = said(&stock, tool, &[&model, arguments].concat());
                assert_no_splits(&what, &all);
                assert_native(&what, &all);
            }
        }
    }
}

#[test]
fn ggml_finds_no_fault_in_native_products() {
    let Some(stock) = stock("ggml_finds_no_fault_in_native_products") else {
        return;
    };
    let parameters = "type_a=(f32|f16|q8_0|q4_0),type_b=f32,m=16,n=(1|8),k=256,bs=.[123],[13].,nr=.(1,1|2,2).,per=.0,[12]";
    #[rustfmt::skip]
    let written = succeed(stock.tool("test-backend-ops").args([
        "test", "-b", NPU, "-o", "MUL_MAT", "-p", parameters,
    ]));
    let line = written
        .stdout
        .lines()
        .find(|line| line.ends_with("tests passed"))
        .unwrap_or_else(|| panic!("{written:?}"));
    let (passed, of) = line.trim().split_once('/').unwrap();
    assert_eq!(passed, of.split(' ').next().unwrap());
    assert!(passed.parse::<u32>().unwrap() > 20, "{line}");
    assert!(!written.stdout.contains("not supported"), "{written:?}");
}
