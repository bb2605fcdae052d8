//! What is computed: rows, logits, forwards.

use crate::models::{EOS, MODELS, SURE, bytes};
use crate::programs::{Program, Run, programs};

/// A model that is never sure and never ends: every masked position slightly prefers `a`.
fn unsure(name: &str) -> std::path::PathBuf {
    MODELS.constant(name, &[(i32::from(b'a'), 1.0)])
}

/// Options under which a step computes nothing but its block and what the last one committed, one position a step.
const SPARSE: [&str; 10] = [
    "--diffusion-mode",
    "cached",
    "--diffusion-threshold",
    "inf",
    "--diffusion-block-length",
    "32",
    "--diffusion-suffix",
    "none",
    "--diffusion-refresh-blocks",
    "0",
];

fn prompt_of(program: Program, model: &std::path::Path, n_prompt: usize, n: &str) -> Run {
    let prompt = "x".repeat(n_prompt);
    let run = program.report(model, &[&SPARSE[..], &["-p", &prompt, "-n", n]].concat());
    assert_eq!(run.count("n_prompt"), n_prompt as u64);
    run
}

/// D1; R4, R12.
#[test]
fn prompt_and_finished_blocks_are_computed_once() {
    let model = unsure("once.gguf");
    for program in programs("prompt_and_finished_blocks_are_computed_once") {
        let short = prompt_of(program, &model, 10, "96");
        let long = prompt_of(program, &model, 1010, "96");
        assert_eq!(short.text, "a".repeat(96));
        assert_eq!(long.count("forwards"), 96, "{program:?}");
        assert_eq!(
            (
                long.count("forwards_prefill"),
                long.count("forwards_refresh")
            ),
            (1, 0)
        );
        assert_eq!(
            long.count("rows_dense") - short.count("rows_dense"),
            1000,
            "{program:?}: a longer prompt costs its rows once"
        );
        // Masks of the block, and the position committed before.
        let rows: u64 = (1..=32).sum::<u64>() * 3 + 95;
        assert_eq!(short.count("rows_dense"), 10 + rows, "{program:?}");
    }
}

/// D1 with shifted logits: the predictor of the first mask is the one row more.
#[test]
fn rows_of_a_step_are_bounded_with_shifted_logits_too() {
    for program in programs("rows_of_a_step_are_bounded_with_shifted_logits_too") {
        let args = ["--diffusion-logits-eos-inf", "true", "-n", "64"];
        let run = program.report(&MODELS.dream, &[&SPARSE[..], &args].concat());
        let n_steps = run.count("forwards") - 1;
        assert!(
            run.count("rows_dense") <= run.count("n_prompt") + 32 + n_steps * (32 + 32 + 1),
            "{program:?}: {}",
            run.report
        );
        assert!(run.count("rows_logits") <= 32 * run.count("forwards"));
    }
}

/// D2; R5, R20.
#[test]
fn logits_are_computed_for_masks_of_the_block_alone() {
    let model = unsure("logits.gguf");
    for program in programs("logits_are_computed_for_masks_of_the_block_alone") {
        let run = prompt_of(program, &model, 500, "96");
        let masks: u64 = (1..=32).sum();
        assert_eq!(run.count("rows_logits"), 3 * masks, "{program:?}");
        // With the whole tail in sight its rows are computed, and still have no logits.
        let all = program.report(
            &model,
            &[
                "--diffusion-mode",
                "cached",
                "--diffusion-threshold",
                "inf",
                "--diffusion-suffix",
                "all",
                "-n",
                "96",
            ],
        );
        assert_eq!(all.count("rows_logits"), 3 * masks, "{program:?}");
        assert!(all.count("rows_dense") > run.count("rows_dense") - 500);
    }
}

/// R6: forwards follow what the model knows, not a number of steps.
#[test]
fn a_sure_model_needs_one_forward_per_block() {
    let model = MODELS.constant("sure.gguf", &[(i32::from(b'a'), SURE)]);
    for program in programs("a_sure_model_needs_one_forward_per_block") {
        let run = program.report(&model, &["-n", "768"]);
        assert_eq!(run.text, "a".repeat(768));
        assert_eq!(run.count("forwards"), 24, "{program:?}");
    }
}

/// D6: blocks are of the answer, not of the canvas with its prompt.
#[test]
fn every_step_asked_for_runs_inside_the_answer() {
    let model = unsure("steps.gguf");
    let prompt = "x".repeat(40);
    let cases = [
        // n, block, steps, forwards
        ("24", "24", "12", 12),
        ("64", "32", "32", 32),
        ("64", "32", "64", 64),
        ("96", "32", "33", 33),
        // Steps that would commit nothing are not run.
        ("24", "8", "240", 24),
    ];
    for program in programs("every_step_asked_for_runs_inside_the_answer") {
        for (n, block, steps, forwards) in cases {
            let args = [
                "--diffusion-mode",
                "reference",
                "--diffusion-block-length",
                block,
                "--diffusion-steps",
                steps,
            ];
            let run = program.report(&model, &[&args[..], &["-p", &prompt, "-n", n]].concat());
            assert_eq!(
                run.count("forwards"),
                forwards,
                "{program:?} -n {n} {args:?}"
            );
            assert_eq!(run.count("n_committed").to_string(), n);
        }
    }
}

/// Tokens of a chain that ends after 40 of them, and what would follow.
fn forty_and_more() -> Vec<i32> {
    let mut chain = bytes("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/");
    assert_eq!(chain.len(), 40);
    chain.push(EOS);
    chain.extend(bytes("abcdefgh"));
    chain
}

/// D11.
#[test]
fn decoding_ends_at_the_end_token() {
    let model = MODELS.chain("forty.gguf", &forty_and_more());
    let modes: [&[&str]; 3] = [
        &[],
        &[
            "--diffusion-refresh-blocks",
            "0",
            "--diffusion-suffix",
            "none",
        ],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-block-length",
            "32",
        ],
    ];
    for program in programs("decoding_ends_at_the_end_token") {
        for mode in modes {
            let run = program.report(&model, &[mode, &["-n", "512"]].concat());
            assert_eq!(run.text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-*/");
            assert_eq!(run.count("n_generated"), 40);
            assert_eq!(run.count("forwards"), 41, "{program:?} {mode:?}");
        }
        // Rows behind the end go: at most prompt, two blocks and the tail once a step.
        let cached = program.report(&model, &[modes[1], &["-n", "512"]].concat());
        assert!(
            cached.count("rows_dense") <= 1 + 41 * (32 + 2),
            "{}",
            cached.report
        );
    }
}

/// D11: `-n` is the length of the answer.
#[test]
fn n_is_the_length_of_the_answer() {
    let model = unsure("length.gguf");
    for program in programs("n_is_the_length_of_the_answer") {
        for n in [1, 7, 33] {
            let run = program.report(&model, &["-n", &n.to_string()]);
            assert_eq!(run.text, "a".repeat(n), "{program:?}");
        }
        let run = program.report(&model, &["-c", "20"]);
        assert_eq!(
            run.text,
            "a".repeat(19),
            "{program:?}: what the context leaves"
        );
    }
}

/// R11: where the time went is in the report.
#[test]
fn the_report_tells_time_by_phase() {
    for program in programs("the_report_tells_time_by_phase") {
        let run = program.report(&MODELS.llada, &["-n", "16"]);
        let seconds = |key: &str| {
            run.report[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key}: {}", run.report))
        };
        let parts = seconds("seconds_dense") + seconds("seconds_sampling");
        assert!(seconds("seconds_dense") > 0.0);
        assert!(parts <= seconds("seconds_total"), "{}", run.report);
    }
}

/// Options that double the work do so: `--diffusion-cfg-scale` is dead in stock.
#[test]
fn guidance_runs_the_sequence_twice() {
    let args = [
        "--diffusion-mode",
        "reference",
        "-n",
        "8",
        "--diffusion-logits-eos-inf",
        "true",
    ];
    for program in programs("guidance_runs_the_sequence_twice") {
        let plain = program.report(&MODELS.llada, &args);
        let guided = program.report(
            &MODELS.llada,
            &[&args[..], &["--diffusion-cfg-scale", "2"]].concat(),
        );
        let rows = |run: &Run| run.count("rows_dense") / run.count("forwards");
        assert_eq!(rows(&guided), 2 * rows(&plain), "{program:?}");
    }
}
