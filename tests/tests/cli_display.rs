//! `llada-npu run` on a terminal: progress, the canvas, and what is left out where a terminal cannot show it.

use std::process::Stdio;
use std::thread;

use llada_npu_tests::files::trained;
use llada_npu_tests::program::{Finished, command, run};
use llada_npu_tests::terminal;

const PROMPT: &str = "JSON: Eva, age 18, lives in Lima, likes tea, owns 60 shells";

/// Runs a prompt with stderr on a terminal of that size and stdout in a pipe; returns stdout, and what the terminal got.
fn shown(
    args: &[&str],
    environment: &[(&str, &str)],
    size: Option<(u16, u16)>,
) -> (String, String) {
    let (ours, theirs) = terminal::open().expect("a pseudo-terminal");
    if let Some((width, height)) = size {
        terminal::resize(&ours, width, height).expect("terminals have a size");
    }
    let model = trained("f16");
    let mut command = command(["run", "-p", PROMPT, "-t", "1", "-m"]);
    let child = command
        .arg(model)
        .args(args)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stderr(theirs)
        .stdout(Stdio::piped())
        .spawn();
    let child = child.expect("the program starts");
    drop(command);
    let screen = thread::spawn(|| terminal::read_to_end(ours));
    let output = child.wait_with_output().expect("the program ends");
    let screen = screen.join().expect("the reader ends");
    (Finished::from(output).success(), screen)
}

fn answer() -> String {
    let model = trained("f16");
    let model = model.to_str().expect("UTF-8");
    run(["run", "-p", PROMPT, "-t", "1", "-m", model]).success()
}

/// Frames of the canvas: what is between the beginnings of synchronised updates and their ends.
fn frames(screen: &str) -> Vec<&str> {
    screen
        .split("\x1b[?2026h")
        .skip(1)
        .map(|frame| frame.split_once("\x1b[?2026l").expect("an update ends").0)
        .collect()
}

#[test]
fn the_bar_shows_and_the_answer_stays_alone() {
    let (stdout, screen) = shown(&[], &[], None);
    assert_eq!(stdout, answer());
    for part in ["decoding [", "forwards", "\x1b[K"] {
        assert!(screen.contains(part), "no {part:?} in {screen:?}");
    }
    assert!(!screen.contains("\x1b[?1049h"), "{screen:?}");
}

#[test]
fn the_canvas_is_drawn_in_place_and_leaves_the_terminal_as_it_was() {
    // One position per forward, so that there is much to draw.
    let args = [
        "--diffusion-visual",
        "--diffusion-mode",
        "cached",
        "--diffusion-threshold",
        "inf",
    ];
    let (stdout, screen) = shown(&args, &[], None);
    assert_eq!(stdout.lines().count(), 1);
    assert!(screen.starts_with("\x1b[?1049h"), "{screen:?}");
    assert_eq!(
        screen.matches("\x1b[2J").count(),
        1,
        "emptied once, drawn over after that"
    );
    let end = screen.rfind("\x1b[?1049l").expect("the screen is left");
    let shows_cursor = screen.rfind("\x1b[?25h").expect("the cursor comes back");
    assert!(shows_cursor < end && end > screen.rfind("\x1b[?2026l").expect("frames"));
    let frames = frames(&screen);
    assert!(frames.len() > 10, "{} frames", frames.len());
    assert!(
        frames.windows(2).all(|pair| pair[0] != pair[1]),
        "a frame is drawn when it differs"
    );
    for frame in &frames {
        assert!(
            frame.starts_with("\x1b[H") && frame.contains("decoding ["),
            "{frame:?}"
        );
    }
    let masks = |frame: &&str| frame.matches('·').count();
    assert!(frames.first().map(masks) > frames.last().map(masks));
    for part in ["\x1b[0;2m", "masked", "stable"] {
        assert!(screen.contains(part), "no {part:?} in {screen:?}");
    }
}

#[test]
fn no_color_and_dumb_terminals_are_respected() {
    let visual = ["--diffusion-visual"];
    let (_, screen) = shown(&visual, &[("NO_COLOR", "1")], None);
    assert!(
        frames(&screen).iter().any(|frame| frame.contains('·')),
        "{screen:?}"
    );
    assert!(!screen.contains("\x1b[0;"), "{screen:?}");
    // An empty value is as good as none.
    let (_, screen) = shown(&visual, &[("NO_COLOR", "")], None);
    assert!(screen.contains("\x1b[0;2m"), "{screen:?}");
    let (stdout, screen) = shown(&visual, &[("TERM", "dumb")], None);
    assert!(!screen.contains('\x1b'), "{screen:?}");
    assert!(screen.starts_with("step 1: "), "{screen:?}");
    assert_eq!(stdout, answer());
}

#[test]
fn a_small_terminal_gets_no_more_than_it_can_show() {
    let (_, screen) = shown(
        &["--diffusion-visual", "-n", "200"],
        &[("NO_COLOR", "1")],
        Some((21, 8)),
    );
    for frame in frames(&screen) {
        let lines: Vec<&str> = frame.lines().collect();
        assert!(lines.len() <= 8, "{frame:?}");
        for line in lines {
            let text = line
                .replace("\x1b[H", "")
                .replace("\x1b[K", "")
                .replace("\x1b[J", "")
                .replace('\r', "");
            assert!(text.chars().count() <= 20, "{text:?}");
        }
    }
}

#[test]
fn without_a_terminal_it_is_one_line_a_step() {
    let model = trained("f16");
    let model = model.to_str().expect("UTF-8");
    let finished = run([
        "run",
        "-p",
        PROMPT,
        "-t",
        "1",
        "--diffusion-visual",
        "-m",
        model,
    ]);
    assert!(finished.stderr.starts_with("step 1: "), "{finished:?}");
    assert!(!finished.stderr.contains('\x1b'), "{finished:?}");
    assert_eq!(finished.success(), answer());
}
