//! Flags and lengths: taken as they are meant, or refused by name, and never an abort.

use llada_npu_tests::program::Finished;

use crate::models::MODELS;
use crate::programs::{Program, answer_of, path_text, programs, refused};

/// D3: in stock `-ub 4096` alone aborts.
#[test]
fn batch_sizes_do_not_matter() {
    let cases = [
        ["-ub", "4096", "-ub", "4096"],
        ["-b", "32", "-ub", "64"],
        ["-b", "1", "-ub", "1"],
        ["-ub", "16", "-b", "4096"],
    ];
    for program in programs("batch_sizes_do_not_matter") {
        let plain = program.answer(&MODELS.llada, &["-n", "40"]);
        for args in cases {
            let finished = program.answer(&MODELS.llada, &[&args[..], &["-n", "40"]].concat());
            match program {
                Program::Tool => {
                    assert_eq!(answer_of(&finished), answer_of(&plain), "{args:?}");
                    for flag in [args[0], args[2]] {
                        let warning = format!("warning: {flag} has no effect");
                        assert!(finished.stderr.contains(&warning), "{finished:?}");
                    }
                }
                // It has no batches.
                Program::CommandLine => refused("batch", &finished, &["unknown flag `-"]),
            }
        }
    }
}

/// D4: in stock `-m X -p Y` alone aborts.
#[test]
fn no_schedule_needs_to_be_chosen() {
    for program in programs("no_schedule_needs_to_be_chosen") {
        for model in [&MODELS.llada, &MODELS.dream] {
            let modes: [&[&str]; 2] = [&[], &["--diffusion-mode", "reference"]];
            for mode in modes {
                let run = program.report(model, &[mode, &["-n", "9"]].concat());
                assert!(run.count("n_generated") <= 9, "{program:?} {mode:?}");
            }
        }
    }
}

/// D4: both.
#[test]
fn two_schedules_are_refused_by_name() {
    let both = [
        "--diffusion-mode",
        "reference",
        "--diffusion-eps",
        "0.001",
        "--diffusion-block-length",
        "32",
    ];
    for program in programs("two_schedules_are_refused_by_name") {
        let finished = program.answer(&MODELS.llada, &both);
        refused("both", &finished, &["eps", "block-length"]);
    }
}

/// D5: in stock all of these abort.
#[test]
fn steps_and_blocks_need_not_divide_the_length() {
    let cases = [
        ("64", "24", "33"),
        ("7", "5", "3"),
        ("9", "64", "100"),
        ("1", "32", "128"),
        ("33", "32", "1"),
    ];
    for program in programs("steps_and_blocks_need_not_divide_the_length") {
        for (n, block, steps) in cases {
            let length = [
                "-n",
                n,
                "--diffusion-block-length",
                block,
                "--diffusion-logits-eos-inf",
                "true",
            ];
            let reference = ["--diffusion-mode", "reference", "--diffusion-steps", steps];
            let cached = ["--diffusion-mode", "cached"];
            for args in [
                [&length[..], &cached].concat(),
                [&length[..], &reference].concat(),
            ] {
                let run = program.report(&MODELS.llada, &args);
                // EOS is never chosen; EoT may end the text early.
                let n: u64 = n.parse().expect("a number");
                assert!((1..=n).contains(&run.count("n_committed")), "{args:?}");
                assert!(run.count("n_generated") <= n, "{args:?}");
            }
        }
    }
}

/// D13: stock prints garbage, or nothing, with exit code 0.
#[test]
fn a_prompt_that_does_not_fit_is_a_failure() {
    let long = "x".repeat(300);
    for program in programs("a_prompt_that_does_not_fit_is_a_failure") {
        for args in [
            &["-c", "256"][..],
            &["-c", "300"],
            &["-c", "310", "-n", "11"],
            &["-n", "4000"],
        ] {
            let finished = program.answer(&MODELS.llada, &[args, &["-p", &long]].concat());
            refused("long prompt", &finished, &["300 tokens", "context"]);
        }
        // To the last position it fits.
        let full = [
            "-c",
            "310",
            "-n",
            "10",
            "-p",
            &long,
            "--diffusion-logits-eos-inf",
            "true",
        ];
        let run = program.report(&MODELS.llada, &full);
        assert_eq!(run.count("n_prompt"), 300);
    }
}

/// D13: a forward that fails is a failure.
#[test]
fn a_failed_step_is_a_failure() {
    let model = MODELS.not_a_number();
    for program in programs("a_failed_step_is_a_failure") {
        let modes: [&[&str]; 2] = [&[], &["--diffusion-mode", "reference"]];
        for mode in modes {
            let finished = program.answer(&model, mode);
            refused("NaN", &finished, &["NaN"]);
        }
    }
}

/// D13: an empty prompt is a prompt (Dream predicts position 0 from row 0), or refused; never a crash.
#[test]
fn an_empty_prompt_is_no_crash() {
    for program in programs("an_empty_prompt_is_no_crash") {
        for model in [&MODELS.llada, &MODELS.dream] {
            let finished = program.answer(model, &["-p", "", "-n", "8"]);
            match finished.code {
                Some(0) => assert!(finished.stdout.ends_with('\n'), "{finished:?}"),
                _ => refused("empty prompt", &finished, &["prompt"]),
            }
        }
    }
}

/// Flags that stock parses and drops, with a value that would have to show, and what our error names.
const DROPPED_BY_STOCK: &[&[&str]] = &[
    &["-ot", "exps=CPU"],
    &["--override-kv", "llada.context_length=int:64"],
    &["--n-cpu-moe", "2"],
    &["-sm", "none"],
    &["-mg", "1"],
    &["-nkvo"],
    &["--no-repack"],
    &["--lora", "adapter.gguf"],
    &["--min-p", "0.1"],
    &["--repeat-penalty", "1.1"],
    &["--logit-bias", "97+5"],
    &["--ignore-eos"],
    &["-fa", "on"],
];

/// D16; R14 (flash attention is not switched off silently), R15, R29b.
#[test]
fn flags_are_honoured_or_refused_by_name() {
    for program in programs("flags_are_honoured_or_refused_by_name") {
        for args in DROPPED_BY_STOCK {
            // A file that is not there: the flag is refused before anything is loaded.
            let finished = program.run(&[&["-m", "/no/such.gguf", "-p", "x"][..], args].concat());
            refused(args[0], &finished, &[args[0]]);
        }
        for unknown in ["--no-such-flag", "-cnv", "--host"] {
            let finished = program.answer(&MODELS.llada, &[unknown]);
            refused(unknown, &finished, &[unknown]);
        }
    }
}

/// `-c` and the K/V types are silently ignored by stock.
#[test]
fn context_and_cache_types_are_honoured() {
    for program in programs("context_and_cache_types_are_honoured") {
        let finished = program.answer(&MODELS.llada, &["-c", "32", "-n", "64"]);
        refused("-c 32 -n 64", &finished, &["context of 32 tokens"]);
        let finished = program.answer(&MODELS.llada, &["-ctk", "q8_0", "-n", "4"]);
        refused("-ctk q8_0", &finished, &["q8_0"]);
        for ty in ["f16", "f32"] {
            let run = program.report(&MODELS.llada, &["-ctk", ty, "-ctv", ty, "-n", "4"]);
            assert!(run.count("n_committed") > 0, "{program:?} {ty}");
        }
    }
}

/// R3: users were told that these are invalid arguments; each flag of stock is taken here.
#[test]
fn every_flag_of_the_stock_tool_is_taken() {
    let cases: &[&[&str]] = &[
        &["--diffusion-steps", "4", "--diffusion-eps", "0.001"],
        &["--diffusion-block-length", "8"],
        &["--diffusion-algorithm", "0"],
        &["--diffusion-algorithm", "1"],
        &["--diffusion-algorithm", "2"],
        &["--diffusion-algorithm", "3"],
        &["--diffusion-algorithm", "4"],
        &["--diffusion-algorithm", "4", "--diffusion-alg-temp", "0.2"],
        &["--diffusion-cfg-scale", "1.5"],
        &["--diffusion-add-gumbel-noise", "1"],
        &["--diffusion-visual"],
        &["-s", "1", "--temp", "0.5", "--top-k", "4", "--top-p", "0.9"],
    ];
    for program in programs("every_flag_of_the_stock_tool_is_taken") {
        for args in cases {
            let args = [args, &["--diffusion-mode", "reference", "-n", "8"][..]].concat();
            let _text = answer_of(&program.answer(&MODELS.llada, &args));
        }
        let model = path_text(&MODELS.llada);
        let system = program.run(&["-m", model, "-p", "x", "-sys", "Be brief.", "-n", "8"]);
        let plain = program.run(&["-m", model, "-p", "x", "-n", "8"]);
        assert_ne!(
            answer_of(&system),
            answer_of(&plain),
            "{program:?}: the system prompt is seen"
        );
    }
}

/// `--diffusion-add-gumbel-noise` is not dead: stock's touches one row that nobody reads.
#[test]
fn gumbel_noise_changes_every_position() {
    for program in programs("gumbel_noise_changes_every_position") {
        let text = |noise: &str| {
            let args = [
                "--temp",
                "1",
                "-s",
                "3",
                "-n",
                "32",
                "--diffusion-add-gumbel-noise",
                noise,
            ];
            answer_of(&program.answer(&MODELS.llada, &args))
        };
        assert_ne!(text("true"), text("false"), "{program:?}");
    }
}

/// Options that mean nothing in a mode, modes that there are not, and values outside their range are refused by name.
#[test]
fn what_has_no_meaning_is_refused_by_name() {
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["--diffusion-mode", "fast"],
            &["fast", "reference, cached, mbsd, full"],
        ),
        (&["--diffusion-steps", "8"], &["steps", "full"]),
        (
            &[
                "--diffusion-mode",
                "reference",
                "--diffusion-threshold",
                "0.5",
            ],
            &["threshold", "reference"],
        ),
        (&["--diffusion-threshold", "nan"], &["threshold", "nan"]),
        (&["--diffusion-threshold", "-1"], &["threshold", "-1"]),
        (&["--diffusion-block-length", "0"], &["block-length", "0"]),
        (&["--diffusion-mask-id", "320"], &["mask", "320"]),
        (&["-n", "0"], &["0"]),
        (&["--temp", "nan"], &["temp"]),
        (&["--top-k", "-5"], &["top", "-5"]),
    ];
    for program in programs("what_has_no_meaning_is_refused_by_name") {
        for (args, parts) in cases {
            let finished: Finished = program.answer(&MODELS.llada, args);
            refused(&format!("{program:?} {args:?}"), &finished, parts);
        }
    }
}

/// Numbers that nobody means: an answer or an error, and soon.
#[test]
fn absurd_numbers_are_no_hang() {
    let harmless: &[&[&str]] = &[
        &["--diffusion-suffix", "4294967295"],
        &["--diffusion-block-length", "2147483647"],
        &["--diffusion-refresh-blocks", "4294967295"],
        &["--temp", "1e30"],
        &["--temp", "1e-30"],
        &["--temp", "1", "--top-p", "0"],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-steps",
            "1000000",
        ],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-steps",
            "1000000",
            "--diffusion-eps",
            "0.5",
        ],
    ];
    for program in programs("absurd_numbers_are_no_hang") {
        for args in harmless {
            // A mode given by the case counts, as the later one.
            let short = &["--diffusion-mode", "cached", "-n", "8"][..];
            let run = program.report(&MODELS.llada, &[short, args].concat());
            assert!(run.count("forwards") <= 8, "{program:?} {args:?}");
        }
        let long = program.answer(&MODELS.llada, &["-c", "2000000000", "-n", "1999999000"]);
        refused("-c 2000000000", &long, &["2000000000", "1048576"]);
        let steps = [
            "--diffusion-mode",
            "reference",
            "--diffusion-steps",
            "4294967295",
        ];
        let finished = program.answer(&MODELS.llada, &steps);
        assert!(finished.code.is_some_and(|code| code > 0), "{finished:?}");
        assert!(
            finished.stderr.contains("--diffusion-steps"),
            "{finished:?}"
        );
    }
}
