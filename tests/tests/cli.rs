//! `llada-npu` as its users see it: what goes where, what is repeatable, how it ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use llada_npu_tests::files::trained;
use llada_npu_tests::host;
use llada_npu_tests::program::{Finished, command, run};
use serde_json::Value;

const PROMPT: &str = "JSON: Eva, age 18, lives in Lima, likes tea, owns 60 shells";

fn model() -> String {
    trained("f16").to_str().expect("UTF-8").to_owned()
}

fn run_prompt(args: &[&str]) -> Finished {
    run(["run", "-m", &model(), "-p", PROMPT].iter().chain(args))
}

fn answer(args: &[&str]) -> String {
    run_prompt(args).success()
}

#[test]
fn the_answer_alone_goes_to_stdout_and_the_costs_to_stderr() {
    let finished = run_prompt(&[]);
    let Finished { stdout, stderr, .. } = &finished;
    assert_eq!(stdout.lines().count(), 1, "{finished:?}");
    assert!(
        stdout.ends_with('\n') && stdout.trim().len() > 10,
        "{finished:?}"
    );
    for part in [" forwards (1 prefill", " tokens per step", " tokens/s"] {
        assert!(stderr.contains(part), "no {part:?} in {finished:?}");
    }
    assert_eq!(stderr.lines().count(), 1, "{finished:?}");
}

#[test]
fn temperature_0_does_not_depend_on_the_seed_or_the_threads() {
    let expected = answer(&["--temp", "0"]);
    let cases = ["1", "2", "3", "4294967294"].map(|seed| ["--seed", seed, "-t", "1"]);
    for case in cases {
        assert_eq!(answer(&case), expected, "{case:?}");
    }
    assert_eq!(answer(&["-t", "2"]), expected);
}

#[test]
fn a_seed_repeats_a_drawn_text_and_another_seed_changes_it() {
    let drawn = |seed| answer(&["--temp", "30", "--seed", seed, "-t", "1", "-n", "48"]);
    let texts = ["1", "2", "3"].map(drawn);
    assert_eq!(texts[0], drawn("1"));
    assert_eq!(BTreeSet::from(texts.clone()).len(), 3, "{texts:?}");
}

#[test]
fn prompts_come_from_files_and_escapes_are_replaced() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("prompt.txt");
    std::fs::write(&path, format!("{PROMPT}\n")).expect("a writable directory");
    let path = path.to_str().expect("UTF-8");
    assert_eq!(
        run(["run", "-m", &model(), "-f", path]).success(),
        answer(&[])
    );
    let spelled = PROMPT.replace("Eva", r"\x45va");
    assert_eq!(
        run(["run", "-m", &model(), "-p", &spelled]).success(),
        answer(&[])
    );
    let report = directory.path().join("report.json");
    let report = report.to_str().expect("UTF-8");
    let n_prompt = |args: &[&str]| {
        let _answer = run([
            "run",
            "-m",
            &model(),
            "-p",
            &spelled,
            "--diffusion-json",
            report,
        ]
        .iter()
        .chain(args))
        .success();
        let report = std::fs::read_to_string(report).expect("the report is there");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        report["n_prompt"].as_u64().expect("a count")
    };
    assert!(n_prompt(&["--no-escape"]) > n_prompt(&[]));
}

#[test]
fn flags_are_spelled_as_in_llama_cpp() {
    let long = answer(&[
        "--cache-type-k",
        "f32",
        "--cache-type-v",
        "f32",
        "--predict",
        "64",
        "--top-k",
        "4",
    ]);
    let short = answer(&[
        "-ctk",
        "f32",
        "-ctv",
        "f32",
        "-n",
        "64",
        "--top_k",
        "4",
        "--backend",
        "llada-npu",
    ]);
    assert_eq!(long, short);
    assert_ne!(
        answer(&["-sys", "Answer: no."]),
        answer(&["--no-chat-template"])
    );
}

#[test]
fn generation_stops_at_n_or_fills_what_the_context_leaves() {
    let short = answer(&["-n", "5", "--diffusion-logits-eos-inf"]);
    let full = answer(&["-n", "64", "--diffusion-logits-eos-inf"]);
    assert!(short.trim().len() < full.trim().len(), "{short:?} {full:?}");
    // Any length does, multiples of nothing.
    for n in ["1", "31", "33", "97"] {
        assert_eq!(run_prompt(&["-n", n]).code, Some(0));
    }
    assert_eq!(run_prompt(&["-c", "60"]).code, Some(0));
}

#[test]
fn the_report_is_one_json_object_in_the_file() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("report.json");
    let path_text = path.to_str().expect("UTF-8");
    // One position per forward, so that there are steps after the prefill however sure the model is.
    let _answer = answer(&[
        "--diffusion-mode",
        "cached",
        "--diffusion-threshold",
        "inf",
        "--diffusion-json",
        path_text,
    ]);
    let report = std::fs::read_to_string(path).expect("the report is there");
    let report: Value = serde_json::from_str(&report).expect("one JSON object");
    assert_eq!(report["forwards_prefill"], 1);
    for key in [
        "n_prompt",
        "n_generated",
        "forwards_step",
        "rows_dense",
        "rows_logits",
        "seconds_total",
    ] {
        assert!(
            report[key].as_f64().is_some_and(|value| value > 0.0),
            "{key} in {report}"
        );
    }
}

#[test]
fn doctor_tells_what_it_finds_and_why_a_plug_in_does_not_load() {
    let found: Value =
        serde_json::from_str(&run(["doctor", "--json", "-m", &model()]).success()).expect("JSON");
    assert_eq!(found["ggml"]["api_version"], 3);
    let objects = found["ggml"]["objects"].as_array().expect("a list");
    assert!(objects.iter().any(|path| {
        path.as_str()
            .is_some_and(|path| path.contains("libggml-base"))
    }));
    assert_eq!(found["backend"]["available"], true);
    let devices = found["devices"].as_array().expect("a list");
    assert!(
        devices.iter().any(|device| device["name"] == "llada-npu"),
        "{found}"
    );
    let kernels = found["kernels"].as_array().expect("a list");
    let n_of = |op: &str| kernels.iter().filter(|found| found["op"] == op).count();
    assert_eq!(
        [n_of("mul_mat"), n_of("mul_mat on tiles")],
        [4, 6],
        "{found}"
    );
    assert_eq!([n_of("attention"), n_of("rope"), n_of("glu")], [1, 1, 1]);
    assert!(kernels.iter().all(|kernel| kernel["used"].is_string()));
    assert_eq!(found["model"]["architecture"], "llada");
    assert_eq!(found["model"]["shift_logits"], false);

    let text = run(["doctor"]).success();
    assert!(text.contains("\nqnn          not used: "), "{text}");
    let broken = command(["doctor"])
        .env("GGML_BACKEND_PATH", "/no/such.so")
        .output();
    let broken = Finished::from(broken.expect("the program starts")).success();
    assert!(
        broken.contains("/no/such.so (GGML_BACKEND_PATH): no such file"),
        "{broken}"
    );
    let plugin = host::plugin();
    let loads = command(["doctor"])
        .env("GGML_BACKEND_PATH", &plugin)
        .output();
    let loads = Finished::from(loads.expect("the program starts")).success();
    let expected = format!("{} (GGML_BACKEND_PATH): loads here", plugin.display());
    assert!(loads.contains(&expected), "{loads}");
    run(["doctor", "-m", "/no/such.gguf", "--json"]).failure_after_output(&["/no/such.gguf"]);
}

/// A generation that takes long: one token a step, nothing reused, no end before the last token.
fn long_run() -> Command {
    let mut command = command(["run", "-m", &model(), "-p", PROMPT, "-n", "256", "-t", "1"]);
    command
        .args([
            "--diffusion-mode",
            "reference",
            "--diffusion-logits-eos-inf",
            "--diffusion-visual",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for the first text on stdout and returns it.
fn first_text(child: &mut Child) -> String {
    let mut bytes = [0; 256];
    let stdout = child.stdout.as_mut().expect("stdout is a pipe");
    let n = stdout.read(&mut bytes).expect("stdout can be read");
    String::from_utf8(bytes[..n].to_vec()).expect("whole characters")
}

/// Keeps a pipe empty so that the program never waits for us, and returns what came.
fn drain(pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(|| {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.map(|line| line + "\n").collect()
    })
}

#[test]
fn ctrl_c_prints_the_stable_text_and_ends_with_130() {
    let mut child = long_run().spawn().expect("the program starts");
    let stderr = drain(child.stderr.take().expect("stderr is a pipe"));
    let mut text = first_text(&mut child);
    let pid = libc::pid_t::try_from(child.id()).expect("a process id");
    // SAFETY: a signal to our own child, which is not reaped yet.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let output = child.wait_with_output().expect("the program ends");
    text += &String::from_utf8(output.stdout).expect("whole characters");
    let stderr = stderr.join().expect("the reader ends");
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
    assert!(stderr.contains(" forwards ("), "{stderr}");
    let whole = long_run().output().expect("the program runs");
    let whole = Finished::from(whole).success();
    let text = text.strip_suffix('\n').expect("a line break at the end");
    assert!(
        !text.is_empty() && text.len() < whole.trim_end().len(),
        "{text:?}"
    );
    assert!(whole.starts_with(text), "{text:?} does not begin {whole:?}");
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let mut child = long_run().spawn().expect("the program starts");
    let stderr = drain(child.stderr.take().expect("stderr is a pipe"));
    let _text = first_text(&mut child);
    drop(child.stdout.take());
    let status = child.wait().expect("the program ends");
    let stderr = stderr.join().expect("the reader ends");
    assert_eq!(status.code(), Some(141), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
}

#[test]
fn what_is_printed_is_utf_8_whatever_tokens_are_drawn() {
    // At this temperature tokens are drawn almost evenly; lone bytes of longer characters are among them.
    let drawn = |seed: u32| {
        let seed = seed.to_string();
        let args = [
            "-n",
            "64",
            "--temp",
            "50",
            "--seed",
            &seed,
            "--diffusion-logits-eos-inf",
            "-t",
            "1",
        ];
        answer(&args)
    };
    let texts: Vec<_> = (1..=8).map(drawn).collect();
    assert!(
        texts.iter().any(|text| text.contains('\u{fffd}')),
        "{texts:?}"
    );
}
