//! Where text goes, and in what pieces.

use crate::models::{EOS, MODELS, SURE, bytes};
use crate::programs::{Program, answer_of, on_terminal, programs};

/// Runs in a row. The report was of 4 lost answers in 120; 40 runs of each program is what a test has time for.
const N_RUNS: usize = 40;

/// D14; R24.
#[test]
fn answer_goes_to_stdout_and_is_never_lost() {
    let model = MODELS.chain(
        "never-lost.gguf",
        &[&bytes("forty 2.")[..], &[EOS]].concat(),
    );
    for program in programs("answer_goes_to_stdout_and_is_never_lost") {
        for run in 0..N_RUNS {
            let mut command = program.command(&[]);
            let output = command
                .arg("-m")
                .arg(&model)
                .args(["-p", "x", "--no-chat-template"])
                .stderr(std::process::Stdio::null())
                .output()
                .expect("the program starts");
            assert_eq!(output.status.code(), Some(0));
            assert_eq!(output.stdout, b"forty 2.\n", "{program:?}: run {run}");
        }
    }
}

/// D14: everything else is on stderr.
#[test]
fn nothing_but_the_answer_is_on_stdout() {
    let model = MODELS.constant("alone.gguf", &[(i32::from(b'a'), SURE)]);
    for program in programs("nothing_but_the_answer_is_on_stdout") {
        for args in [
            &["-n", "9"][..],
            &["-n", "9", "-v"],
            &["-n", "9", "--diffusion-visual"],
        ] {
            let finished = program.answer(&model, args);
            assert_eq!(answer_of(&finished), "a".repeat(9), "{program:?} {args:?}");
            assert!(!finished.stderr.is_empty());
        }
    }
}

/// Characters of two, three and four bytes, a token each byte, no byte twice.
const SPLIT: &str = "é日🦀";

/// D17 without a terminal.
#[test]
fn characters_split_over_tokens_are_whole() {
    let model = MODELS.chain("split.gguf", &[&bytes(SPLIT)[..], &[EOS]].concat());
    for program in programs("characters_split_over_tokens_are_whole") {
        assert_eq!(
            answer_of(&program.answer(&model, &["-n", "32"])),
            SPLIT,
            "{program:?}"
        );
        // Cut in the middle of the last one: what is left of it is a replacement character.
        let cut = answer_of(&program.answer(&model, &["-n", "7"]));
        assert_eq!(cut, "é日\u{fffd}", "{program:?}");
    }
}

/// D17: the canvas is drawn at every step, the character under construction among the rest.
#[test]
fn visual_mode_keeps_utf8_split_over_tokens() {
    let model = MODELS.chain("visual.gguf", &[&bytes(SPLIT)[..], &[EOS]].concat());
    for program in programs("visual_mode_keeps_utf8_split_over_tokens") {
        let mut command = program.command(&["--diffusion-visual", "-n", "16"]);
        command.arg("-m").arg(&model);
        command.args(["-p", "x", "--no-chat-template"]);
        let shown = on_terminal(command);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        let screen = String::from_utf8(shown.screen)
            .unwrap_or_else(|error| panic!("{program:?} wrote half a character: {error}"));
        for text in ["é", "é日", "é日🦀"] {
            assert!(
                screen.contains(text),
                "{program:?}: no {text:?} in {screen:?}"
            );
        }
        assert_eq!(
            shown.stdout,
            format!("{SPLIT}\n").into_bytes(),
            "{program:?}"
        );
    }
}

/// D17: a piece may be longer than stock's buffer of 256 bytes, or hold control characters.
#[test]
fn the_canvas_does_not_steer_the_terminal() {
    let text = "a\u{1b}[31mb";
    let model = MODELS.chain("escape.gguf", &[&bytes(text)[..], &[EOS]].concat());
    for program in programs("the_canvas_does_not_steer_the_terminal") {
        let mut command = program.command(&["--diffusion-visual", "-n", "16"]);
        command.arg("-m").arg(&model);
        command.args(["-p", "x", "--no-chat-template"]);
        let shown = on_terminal(command);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        let escape = b"\x1b[31m";
        let steered = shown
            .screen
            .windows(escape.len())
            .any(|bytes| bytes == escape);
        assert!(
            !steered,
            "{program:?}: {}",
            String::from_utf8_lossy(&shown.screen)
        );
        // Into a pipe the text goes as it is.
        assert_eq!(
            shown.stdout,
            format!("{text}\n").into_bytes(),
            "{program:?}"
        );
    }
}

/// R23: a program that wraps ours can follow it.
#[test]
fn report_and_progress_can_be_parsed() {
    const COUNTERS: [&str; 12] = [
        "n_prompt",
        "n_generated",
        "n_committed",
        "forwards",
        "forwards_prefill",
        "forwards_refresh",
        "forwards_step",
        "forwards_promotion",
        "forwards_sweep",
        "rows_dense",
        "rows_revision",
        "rows_logits",
    ];
    let model = MODELS.constant("progress.gguf", &[(i32::from(b'a'), 1.0)]);
    for program in programs("report_and_progress_can_be_parsed") {
        let run = program.report(&model, &["-n", "20", "--diffusion-mode", "cached"]);
        for key in COUNTERS {
            let _is_there = run.count(key);
        }
        let kinds = ["prefill", "refresh", "step", "promotion", "sweep"];
        let by_kind: u64 = kinds
            .iter()
            .map(|kind| run.count(&format!("forwards_{kind}")))
            .sum();
        assert_eq!(run.count("forwards"), by_kind);
        assert_eq!(
            (run.count("n_generated"), run.count("n_committed")),
            (20, 20)
        );

        let finished = program.answer(
            &model,
            &[
                "-n",
                "20",
                "--diffusion-mode",
                "cached",
                "--diffusion-visual",
            ],
        );
        let shares = progress(program, &finished.stderr);
        assert!(shares.len() > 5, "{program:?}: {finished:?}");
        assert!(shares.is_sorted(), "{program:?}: {shares:?}");
        assert_eq!(shares.last(), Some(&20), "{program:?}: {shares:?}");
    }
}

/// Returns how many of 20 positions were decided at each line of progress.
fn progress(program: Program, stderr: &str) -> Vec<u32> {
    let number = |text: &str| text.trim().parse::<u32>().expect("a number");
    let lines = stderr.lines();
    match program {
        // "step 3: 17 of 20 tokens masked"
        Program::CommandLine => lines
            .filter_map(|line| {
                line.strip_prefix("step ")?
                    .split_once(": ")?
                    .1
                    .split_once(" of 20 tokens masked")
            })
            .map(|(masked, _)| 20 - number(masked))
            .collect(),
        // "diffusion step: 3 [=====     ] 15%"
        Program::Tool => lines
            .filter_map(|line| line.strip_prefix("diffusion step: ")?.split_once("] "))
            .map(|(_, share)| number(share.trim_end_matches('%')) / 5)
            .collect(),
    }
}
