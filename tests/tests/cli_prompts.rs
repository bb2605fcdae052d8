//! `llada-npu run` with several prompts: where they come from, how they are answered, what is printed.

use std::path::{Path, PathBuf};

use llada_npu_tests::files::{prompts, trained};
use llada_npu_tests::program::{Finished, run};
use serde_json::Value;
use tempfile::TempDir;

/// Prompts of different kinds and lengths.
const N_PROMPTS: usize = 9;

fn run_file(path: &Path, args: &[&str]) -> Finished {
    let model = trained("f16");
    let [model, path] = [&model, path].map(path_text);
    run(["run", "-m", model, "-n", "96", "-t", "1", "-f", path]
        .iter()
        .chain(args))
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

fn file(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).expect("a writable directory");
    path
}

fn some_prompts() -> Vec<String> {
    prompts("validation.jsonl")
        .into_iter()
        .take(N_PROMPTS)
        .collect()
}

/// The answer to each, asked for alone.
fn answers(prompts: &[String]) -> Vec<String> {
    let model = trained("f16");
    let answer = |prompt: &String| {
        let args = [
            "run",
            "-m",
            path_text(&model),
            "-n",
            "96",
            "-t",
            "1",
            "--no-escape",
            "-p",
            prompt,
        ];
        run(args).success().trim_end_matches('\n').to_owned()
    };
    prompts.iter().map(answer).collect()
}

#[test]
fn prompts_of_a_file_are_answered_with_one_load_one_by_one_or_together() {
    let directory = TempDir::new().expect("a scratch directory");
    let prompts = some_prompts();
    let answers = answers(&prompts);
    let lines = file(
        &directory,
        "prompts.txt",
        &format!("{}\n\n", prompts.join("\n")),
    );
    let objects: Vec<String> = prompts
        .iter()
        .map(|prompt| {
            serde_json::json!({"prompt": prompt, "task": "other fields are ignored"}).to_string()
        })
        .collect();
    let jsonl = file(&directory, "prompts.jsonl", &objects.join("\n"));
    for batch in ["1", "4", "64"] {
        let text = run_file(&lines, &["--file-format", "lines", "--batch", batch]).success();
        assert_eq!(text.lines().collect::<Vec<_>>(), answers, "--batch {batch}");
        let text = run_file(&jsonl, &["--batch", batch]).success();
        let found: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("an object a line"))
            .collect();
        for ((found, prompt), answer) in found.iter().zip(&prompts).zip(&answers) {
            assert_eq!(
                (&found["prompt"], &found["answer"]),
                (&prompt[..].into(), &answer[..].into())
            );
        }
        assert_eq!(found.len(), prompts.len());
    }
}

#[test]
fn reports_are_a_line_for_each_prompt() {
    let directory = TempDir::new().expect("a scratch directory");
    let prompts = some_prompts();
    let lines = file(&directory, "prompts.txt", &prompts.join("\n"));
    let report = directory.path().join("report.jsonl");
    for batch in ["1", "3"] {
        let args = [
            "--file-format",
            "lines",
            "--batch",
            batch,
            "--diffusion-json",
            path_text(&report),
        ];
        let finished = run_file(&lines, &args);
        assert!(
            finished
                .stderr
                .contains(&format!("({} prefill", prompts.len())),
            "{finished:?}"
        );
        let reports = std::fs::read_to_string(&report).expect("reports are there");
        let reports: Vec<Value> = reports
            .lines()
            .map(|line| serde_json::from_str(line).expect("an object a line"))
            .collect();
        assert_eq!(reports.len(), prompts.len());
        for report in reports {
            assert_eq!(report["forwards_prefill"], 1, "{report}");
            assert!(
                report["n_generated"].as_u64().is_some_and(|n| n > 0),
                "{report}"
            );
            assert!(
                report["seconds_total"].as_f64().is_some_and(|s| s > 0.0),
                "{report}"
            );
        }
    }
}

#[test]
fn a_line_may_have_a_system_prompt_of_its_own() {
    let directory = TempDir::new().expect("a scratch directory");
    let prompt = &some_prompts()[0];
    let with = serde_json::json!({"prompt": prompt, "system": "Answer: no."});
    let without = serde_json::json!({"prompt": prompt});
    let path = file(&directory, "system.jsonl", &format!("{with}\n{without}\n"));
    let n_prompt = |args: &[&str]| -> Vec<u64> {
        let report = directory.path().join("report.jsonl");
        let _text = run_file(
            &path,
            &[args, &["--diffusion-json", path_text(&report)]].concat(),
        )
        .success();
        let reports = std::fs::read_to_string(&report).expect("reports are there");
        let count = |line: &str| -> Option<u64> {
            let report: Value = serde_json::from_str(line).ok()?;
            report["n_prompt"].as_u64()
        };
        reports
            .lines()
            .map(|line| count(line).expect("a count"))
            .collect()
    };
    let lengths = n_prompt(&[]);
    assert!(lengths[0] > lengths[1], "{lengths:?}");
    let both = n_prompt(&["-sys", "Answer: no."]);
    assert_eq!(both, [lengths[0]; 2]);
}

#[test]
fn files_that_cannot_be_taken_are_named_with_the_line_or_the_prompt() {
    let directory = TempDir::new().expect("a scratch directory");
    let bad = file(
        &directory,
        "bad.jsonl",
        "{\"prompt\": \"x\"}\n\n{\"text\": \"x\"}\n",
    );
    run_file(&bad, &[]).failure(1, &["bad.jsonl", "line 3", "prompt"]);
    let empty = file(&directory, "empty.txt", "\n \n");
    run_file(&empty, &["--file-format", "lines"]).failure(1, &["empty.txt", "no prompt"]);
    let long = file(
        &directory,
        "long.txt",
        &format!("Spell: 1\n{}\n", "word ".repeat(5000)),
    );
    for batch in ["1", "2"] {
        let args = ["--file-format", "lines", "--batch", batch];
        run_file(&long, &args).failure(1, &["prompt 2: ", "context of"]);
    }
    let good = file(&directory, "good.txt", "Spell: 1\nSpell: 2\n");
    run_file(&good, &["--file-format", "words"]).failure(2, &["words"]);
    run_file(&good, &["--batch", "0"]).failure(2, &["--batch", "`0`"]);
    run_file(&good, &["--batch", "2", "--diffusion-visual"])
        .failure(2, &["--batch", "--diffusion-visual"]);
}

#[test]
fn long_answers_are_whole_in_every_mode() {
    let directory = TempDir::new().expect("a scratch directory");
    let joined = file(&directory, "joined.txt", &some_prompts().join("\n"));
    let report = directory.path().join("report.json");
    let args = [
        "-n",
        "512",
        "-c",
        "1024",
        "--diffusion-logits-eos-inf",
        "--diffusion-json",
        path_text(&report),
    ];
    let mut n_generated = Vec::new();
    // Joined prompts are nothing that the model knows: at the usual threshold most steps would commit one token.
    for options in [
        &["cached", "--diffusion-threshold", "0.2"][..],
        &[
            "mbsd",
            "--diffusion-threshold",
            "0.2",
            "--diffusion-suffix",
            "none",
        ],
        &[
            "full",
            "--diffusion-tau-visible",
            "0.2",
            "--diffusion-suffix",
            "none",
        ],
        &["reference", "--diffusion-steps", "8"],
    ] {
        let finished = run_file(
            &joined,
            &[&args[..], &["--diffusion-mode"], options].concat(),
        );
        let text = finished.clone().success();
        assert!(text.ends_with('\n') && text.len() > 1, "{options:?}");
        let report = std::fs::read_to_string(&report).expect("a report is there");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        // EOS is never chosen; EoT may end the text early.
        assert!(
            report["n_committed"].as_u64().is_some_and(|n| n >= 1),
            "{report}"
        );
        n_generated.push(report["n_generated"].as_u64());
    }
    assert!(
        n_generated.iter().all(|n| n.is_some_and(|n| n <= 512)),
        "{n_generated:?}"
    );
}
