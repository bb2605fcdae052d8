//! What is wrong in stock llama-diffusion-cli and must be right here; each test says the fault it looks for.

use llada_npu_tests::files::repository;
use llada_npu_tests::gguf_edit::Gguf;
use llada_npu_tests::program::{Finished, run, trained_model};
use serde_json::Value;

const PROMPT: &str = "Sort: 41 17 93 25 66";
const REFERENCE: &[&str] = &["--diffusion-mode", "reference"];
/// No end before the last token, so that counts are exact.
const ENDLESS: &[&str] = &[
    "--diffusion-logits-eos-inf",
    "--diffusion-confidence-eos-eot-inf",
];

fn model() -> String {
    trained_model().to_str().expect("UTF-8").to_owned()
}

fn run_prompt(args: &[&[&str]]) -> Finished {
    let fixed = ["run", "-m", &model(), "-p", PROMPT, "-t", "1"].map(str::to_owned);
    let given = args.concat().into_iter().map(str::to_owned);
    run(fixed.into_iter().chain(given))
}

/// Runs and returns the report.
fn report(args: &[&[&str]]) -> Value {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("report.json");
    let json = ["--diffusion-json", path.to_str().expect("UTF-8")];
    let args: Vec<&[&str]> = args.iter().copied().chain([&json[..]]).collect();
    let _answer = run_prompt(&args).success();
    let report = std::fs::read_to_string(&path).expect("the report is there");
    serde_json::from_str(&report).expect("a JSON object")
}

fn count(report: &Value, key: &str) -> u64 {
    report[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no {key} in {report}"))
}

/// Share of right answers to the first validation tasks.
fn accuracy(args: &[&str]) -> f64 {
    let tasks = repository().join("tests/tasks/validation.jsonl");
    let tasks = tasks.to_str().expect("UTF-8");
    let fixed = [
        "eval",
        "-m",
        &model(),
        "--tasks",
        tasks,
        "--limit",
        "12",
        "-n",
        "96",
        "--json",
        "-t",
        "1",
    ];
    let text = run(fixed.iter().chain(args)).success();
    let results: Value = serde_json::from_str(&text).expect("a JSON object");
    results["overall"]["accuracy"].as_f64().expect("a number")
}

#[test]
fn prompt_and_committed_tokens_are_not_computed_again_every_step() {
    let args = [
        "--diffusion-threshold",
        "inf",
        "--diffusion-refresh-blocks",
        "0",
        "-n",
        "64",
    ];
    let report = report(&[&args, ENDLESS]);
    let (n_prompt, n_forwards) = (count(&report, "n_prompt"), count(&report, "forwards"));
    assert_eq!(n_forwards, 64);
    let after_prefill = count(&report, "rows_dense") - (n_prompt + 64);
    // Masks, and what the step before committed; never the prompt.
    assert!(after_prefill <= (n_forwards - 1) * 65, "{report}");
}

#[test]
fn logits_are_computed_for_masked_positions_of_the_block_alone() {
    let report = report(&[&["--diffusion-threshold", "inf", "-n", "64"], ENDLESS]);
    // Two blocks of 32, one commit a step: 32 + 31 + … + 1, twice.
    assert_eq!(count(&report, "rows_logits"), 2 * 32 * 33 / 2);
    assert!(count(&report, "rows_logits") < count(&report, "rows_dense"));
}

#[test]
fn a_canvas_of_almost_the_context_works() {
    assert_eq!(run_prompt(&[&["-n", "450"]]).code, Some(0));
}

#[test]
fn no_schedule_has_to_be_named_and_nothing_has_to_divide() {
    let cases: [&[&str]; 6] = [
        &[],
        &["-n", "64", "--diffusion-steps", "33"],
        &["-n", "64", "--diffusion-block-length", "24"],
        &["-n", "1", "--diffusion-steps", "7"],
        &[
            "-n",
            "33",
            "--diffusion-block-length",
            "32",
            "--diffusion-steps",
            "5",
        ],
        &[
            "-n",
            "50",
            "--diffusion-eps",
            "0.001",
            "--diffusion-steps",
            "12",
        ],
    ];
    for case in cases {
        assert_eq!(run_prompt(&[REFERENCE, case]).code, Some(0), "{case:?}");
    }
}

#[test]
fn the_steps_asked_for_are_the_steps_made_whatever_the_prompt() {
    let long = "word ".repeat(60);
    for prompt in ["x", &long] {
        let report = report(&[
            REFERENCE,
            ENDLESS,
            &["-n", "64", "--diffusion-steps", "32", "-p", prompt],
        ]);
        assert_eq!(count(&report, "forwards"), 32, "{report}");
        assert_eq!(count(&report, "n_committed"), 64, "{report}");
    }
}

#[test]
fn temperature_0_is_greedy_with_every_algorithm_that_draws_nothing() {
    for algorithm in ["entropy", "margin", "confidence", "1", "2", "4"] {
        let answer = |seed| {
            let args = [
                "--diffusion-algorithm",
                algorithm,
                "-n",
                "32",
                "--seed",
                seed,
            ];
            run_prompt(&[REFERENCE, &args]).success()
        };
        assert_eq!(answer("1"), answer("2"), "{algorithm}");
    }
}

#[test]
fn entropy_and_margin_commit_the_least_uncertain_first() {
    let right = |algorithm| {
        accuracy(&[
            "--diffusion-mode",
            "reference",
            "--diffusion-algorithm",
            algorithm,
        ])
    };
    let confidence = right("confidence");
    for algorithm in ["entropy", "margin"] {
        let other = right(algorithm);
        assert!(
            other >= confidence - 0.15,
            "{algorithm}: {other}, confidence: {confidence}"
        );
    }
}

#[test]
fn a_drawn_order_commits_every_position_once() {
    let args = [
        "-n",
        "48",
        "--diffusion-alg-temp",
        "1",
        "--diffusion-steps",
        "12",
        "--seed",
        "5",
    ];
    let report = report(&[REFERENCE, ENDLESS, &args]);
    assert_eq!(
        (count(&report, "forwards"), count(&report, "n_committed")),
        (12, 48)
    );
}

#[test]
fn the_origin_algorithm_leaves_no_masks() {
    for seed in ["1", "2", "3"] {
        let args = [
            "-n",
            "48",
            "--diffusion-algorithm",
            "origin",
            "--diffusion-steps",
            "6",
            "--seed",
            seed,
        ];
        let report = report(&[REFERENCE, ENDLESS, &args]);
        assert_eq!(count(&report, "n_committed"), 48, "{report}");
    }
}

#[test]
fn decoding_ends_at_the_end_of_the_answer() {
    let short = report(&[&["-n", "96"]]);
    let endless = report(&[&["-n", "96"], ENDLESS]);
    assert!(count(&short, "n_generated") < 40, "{short}");
    assert!(
        count(&short, "forwards") < count(&endless, "forwards"),
        "{short} {endless}"
    );
    assert!(count(&short, "n_committed") <= 96);
}

#[test]
fn the_length_asked_for_is_not_exceeded() {
    for n in ["1", "7", "31", "32", "33"] {
        let report = report(&[&["-n", n], ENDLESS]);
        assert!(
            count(&report, "n_generated") <= n.parse().expect("a number"),
            "{report}"
        );
    }
}

#[test]
fn a_llada_file_that_does_not_say_whether_logits_are_shifted_is_read_as_not_shifted() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let key = "diffusion.shift_logits";
    let path = Gguf::read(&trained_model())
        .replace(key, &key.replace("shift", "shoft"))
        .write(directory.path(), "silent.gguf");
    let path = path.to_str().expect("UTF-8");
    let right = run_prompt(&[]).success();
    assert_eq!(run_prompt(&[&["-m", path]]).success(), right);
    assert_ne!(
        run_prompt(&[&["--diffusion-shift-logits", "true"]]).success(),
        right
    );
}

#[test]
fn flags_that_have_no_effect_are_refused_by_name() {
    let cases: [&[&str]; 9] = [
        &["-ot", "exps=CPU"],
        &["--override-kv", "x=int:1"],
        &["--no-repack"],
        &["--min-p", "0.1"],
        &["--repeat-penalty", "1.1"],
        &["--logit-bias", "5+1"],
        &["--ignore-eos"],
        &["-ngl", "99"],
        &["-fa", "on"],
    ];
    for case in cases {
        run_prompt(&[case]).failure(2, &[case[0]]);
    }
    run_prompt(&[&["-c", "32", "-n", "64"]]).failure(1, &["context of 32 tokens"]);
}

#[test]
fn every_diffusion_flag_of_stock_is_known_in_mode_reference() {
    let block = [
        "--diffusion-steps",
        "16",
        "--diffusion-block-length",
        "16",
        "--diffusion-algorithm",
        "4",
    ];
    let more = [
        "--diffusion-alg-temp",
        "0.1",
        "--diffusion-cfg-scale",
        "0.5",
        "--diffusion-add-gumbel-noise",
        "1",
    ];
    let eps = [
        "--diffusion-eps",
        "0.001",
        "--diffusion-steps",
        "16",
        "--diffusion-visual",
    ];
    assert_eq!(
        run_prompt(&[REFERENCE, &block, &more, &["-n", "32"]]).code,
        Some(0)
    );
    assert_eq!(run_prompt(&[REFERENCE, &eps, &["-n", "32"]]).code, Some(0));
}

#[test]
fn guidance_has_an_effect() {
    let with = |scale| {
        let args = ["--diffusion-cfg-scale", scale, "-n", "32"];
        report(&[REFERENCE, ENDLESS, &args])
    };
    assert_eq!(
        count(&with("1.5"), "rows_dense"),
        2 * count(&with("0"), "rows_dense")
    );
}
