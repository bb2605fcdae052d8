//! `llada-npu` with wrong flags and wrong files: one line that names the thing, and the exit code.

use std::path::{Path, PathBuf};

use llada_npu_tests::files::trained;
use llada_npu_tests::gguf_edit::Gguf;
use llada_npu_tests::program::{Finished, run};

/// Exit code of a failure.
const FAILED: i32 = 1;
/// Exit code of a wrong command line.
const USAGE: i32 = 2;

fn run_model(model: &Path, args: &[&str]) -> Finished {
    let model = model.to_str().expect("paths of tests are UTF-8");
    run(["run", "-m", model, "-p", "Sort: 41 17 93 25"]
        .iter()
        .chain(args))
}

/// Options of the decoding mode that both programs refuse alike are in `defects`.
#[test]
fn flags_that_cannot_be_taken() {
    let model = trained("f16");
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["-n", "0"], USAGE, &["--predict: `0`", "from 1 to"]),
        (&["-n", "-1"], USAGE, &["--predict: `-1`"]),
        (&["-n", "12x"], USAGE, &["--predict: `12x`"]),
        (&["-t", "100000"], USAGE, &["--threads: `100000`", "512"]),
        (&["-n", "100000"], FAILED, &["100000 tokens", "context"]),
        (&["-c", "8"], FAILED, &["context of 8 tokens"]),
        (
            &["--diffusion-mode", "fast"],
            USAGE,
            &["--diffusion-mode", "`fast`", "reference, cached"],
        ),
        (
            &["--diffusion-mask-id", "99999999"],
            FAILED,
            &["mask token 99999999"],
        ),
        (
            &["--diffusion-nonsense", "1"],
            USAGE,
            &["--diffusion-nonsense"],
        ),
        (
            &["--backend", "cuda"],
            USAGE,
            &["--backend cuda", "llada-npu"],
        ),
        (&["--temp", "nan"], USAGE, &["--temp", "`nan`"]),
        (&["--temp", "-1"], USAGE, &["--temp", "`-1`"]),
        (&["--top-p", "1.5"], USAGE, &["--top-p", "`1.5`"]),
        (&["--top-k", "-5"], USAGE, &["--top-k", "`-5`"]),
        (
            &["--seed", "5000000000"],
            USAGE,
            &["--seed", "`5000000000`"],
        ),
        (&["-ctk", "q8_0"], USAGE, &["'q8_0'", "--cache-type-k"]),
        (&["-ub", "512"], USAGE, &["`-ub`"]),
        (&["-f", "also.txt"], USAGE, &["--prompt", "--file"]),
        (
            &["--diffusion-json", "/no/such/directory/report.json"],
            FAILED,
            &["/no/such/directory/report.json"],
        ),
        (
            &["-m", "/no/such.gguf"],
            FAILED,
            &["/no/such.gguf", "No such file"],
        ),
    ];
    for (args, code, parts) in cases {
        run_model(&model, args).failure(*code, parts);
    }
}

#[test]
fn prompts_that_cannot_be_taken() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let bad = directory.path().join("bad.txt");
    std::fs::write(&bad, b"Sort: \xff").expect("a writable directory");
    let (model, bad) = (trained("f16"), bad.to_str().expect("UTF-8").to_owned());
    let model = model.to_str().expect("UTF-8");
    run(["run", "-m", model]).failure(USAGE, &["-p TEXT", "-f FILE"]);
    run(["run", "-m", model, "-f", "/no/such.txt"]).failure(FAILED, &["/no/such.txt"]);
    run(["run", "-m", model, "-f", &bad]).failure(FAILED, &[&bad, "UTF-8", "byte 6"]);
    run(["run", "-m", model, "-p", r"a\x00b"]).failure(FAILED, &["NUL"]);
    let system = [
        "run",
        "-m",
        model,
        "-p",
        "x",
        "-sys",
        "y",
        "--no-chat-template",
    ];
    run(system).failure(USAGE, &["--system-prompt"]);
    let long = "word ".repeat(5000);
    run(["run", "-m", model, "-p", &long]).failure(FAILED, &["prompt of", "context of"]);
}

/// A broken variant of a good file, and what the message must name.
type Broken = (&'static str, fn(Gguf) -> Gguf, &'static [&'static str]);

#[test]
fn files_that_are_no_models() {
    let cases: &[Broken] = &[
        ("empty.gguf", |_good| Gguf(Vec::new()), &["empty"]),
        (
            "half.gguf",
            |good| Gguf(good.0[..good.0.len() / 2].to_vec()),
            &["tensor `", "exceed"],
        ),
        ("header.gguf", |good| Gguf(good.0[..200].to_vec()), &["200"]),
        ("magic.gguf", |good| good.replace("GGUF", "GGLF"), &["GGUF"]),
        (
            "version.gguf",
            |mut good| {
                good.0[4] = 99;
                good
            },
            &["99"],
        ),
        (
            "twin.gguf",
            |good| good.replace_in_value("general.architecture", "llada", "llama"),
            &["`llama`"],
        ),
        (
            "unknown.gguf",
            |good| good.replace_in_value("general.architecture", "llada", "wedlm"),
            &["`wedlm`", "llada, dream"],
        ),
        (
            "tensor.gguf",
            |good| good.replace("blk.1.attn_k.weight", "blk.1.attn_z.weight"),
            &["blk.1.attn_"],
        ),
    ];
    let directory = tempfile::tempdir().expect("a scratch directory");
    let good = Gguf::read(&trained("f16"));
    for (name, edit, parts) in cases {
        let path = edit(good.clone()).write(directory.path(), name);
        let finished = run_model(&path, &[]);
        finished.failure(FAILED, parts);
        finished.failure(FAILED, &[name]);
    }
    run_model(directory.path(), &[]).failure(FAILED, &["not a regular file"]);
}

/// A file whose mask token has neither its key nor its usual text.
fn without_mask(directory: &Path) -> PathBuf {
    let key = "tokenizer.ggml.mask_token_id";
    Gguf::read(&trained("f16"))
        .replace(key, &key.replace("mask", "musk"))
        .replace("<|mask|>", "<|musk|>")
        .write(directory, "maskless.gguf")
}

#[test]
fn a_model_without_mask_token_names_the_flag_that_gives_one() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = without_mask(directory.path());
    run_model(&path, &[]).failure(FAILED, &["mask token", "--diffusion-mask-id"]);
    let answer = run_model(&path, &["--diffusion-mask-id", "1"]).success();
    assert_eq!(answer, run_model(&trained("f16"), &[]).success());
}

#[test]
fn an_unknown_template_names_the_flag_that_skips_it() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = Gguf::read(&trained("f16"))
        .replace_in_value("tokenizer.chat_template", "<|im_", "<|zz_")
        .write(directory.path(), "template.gguf");
    run_model(&path, &[]).failure(FAILED, &["chat template", "--no-chat-template"]);
    assert_eq!(run_model(&path, &["--no-chat-template"]).code, Some(0));
}

#[test]
fn without_a_template_the_prompt_is_raw_and_a_note_says_so() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let key = "tokenizer.chat_template";
    let path = Gguf::read(&trained("f16"))
        .replace(key, &key.replace("chat", "chut"))
        .write(directory.path(), "raw.gguf");
    let finished = run_model(&path, &[]);
    assert!(
        finished
            .stderr
            .contains("note: the model has no chat template"),
        "{finished:?}"
    );
    assert_eq!(
        finished.clone().success(),
        run_model(&trained("f16"), &["--no-chat-template"]).success()
    );
}

#[test]
fn task_files_that_cannot_be_taken() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let good = r#"{"task": "add", "prompt": "Add: 12 + 34", "answer": "46"}"#;
    let model = trained("f16");
    let model = model.to_str().expect("UTF-8");
    let cases = [
        ("empty.jsonl", String::new(), "no tasks"),
        ("bad.jsonl", format!("{good}\n{{\"task\": 5}}\n"), "line 2"),
        (
            "missing.jsonl",
            format!("{good}\n\n{{\"task\": \"a\", \"prompt\": \"b\"}}"),
            "line 3",
        ),
    ];
    for (name, text, part) in cases {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a writable directory");
        let path = path.to_str().expect("UTF-8");
        run(["eval", "-m", model, "--tasks", path]).failure(FAILED, &[name, part]);
    }
    run(["eval", "-m", model, "--tasks", "/no/such.jsonl"]).failure(FAILED, &["/no/such.jsonl"]);
    let tasks = directory.path().join("good.jsonl");
    std::fs::write(&tasks, good).expect("a writable directory");
    let tasks = tasks.to_str().expect("UTF-8");
    run([
        "eval",
        "-m",
        model,
        "--tasks",
        tasks,
        "--predictions",
        "/no/such/p.jsonl",
    ])
    .failure(FAILED, &["/no/such/p.jsonl"]);
}
