//! The device within a budget of addresses: the same text as without one, whoever decides what is mapped.
//!
//! Tiles that are not mapped cannot be read: a program that read some would be killed, and a product that needed some would
//! fail. So a text that is right was computed from what was mapped.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use llada_npu_tests::files::{prompts, trained};
use llada_npu_tests::host::{stock, succeed};
use llada_npu_tests::program::{Finished, command};

const POLICIES: [&str; 5] = ["naive", "lru", "drop-unused", "planned", "planned+pipeline"];

/// Runs the program on the trained model, with settings in the environment.
fn run(weights: &str, args: &[&str], settings: &[(&str, &str)]) -> Finished {
    let model = trained(weights);
    let mut command = command(["run", "-v", "-m", model.to_str().unwrap(), "-t", "2"]);
    command
        .args(args)
        .env("LLADA_NPU_LOG", "info")
        .envs(settings.iter().copied());
    command.output().unwrap().into()
}

/// One number of what the device says of its maps at the end, the sum over its instances.
fn sum(stderr: &str, before: &str) -> u64 {
    let lines = stderr
        .lines()
        .filter(|line| line.contains("memory: ") && line.contains(" maps ("));
    lines
        .map(|line| {
            let (text, _) = line.split_once(before).unwrap();
            let digits = text.rsplit(|c: char| !c.is_ascii_digit()).next();
            digits.unwrap().parse::<u64>().unwrap()
        })
        .sum()
}

#[test]
fn a_tiny_budget_gives_the_same_text_with_every_policy() {
    let prompts = prompts("validation.jsonl");
    for (weights, mode) in [("f16", "full"), ("f16", "reference"), ("q8_0", "cached")] {
        let args = ["-p", &prompts[7], "-n", "64", "--diffusion-mode", mode];
        let expected = run(weights, &args, &[]).success();
        for policy in POLICIES {
            let settings = [("LLADA_NPU_BUDGET", "1"), ("LLADA_NPU_MEMORY", policy)];
            let finished = run(weights, &args, &settings);
            let stderr = finished.stderr.clone();
            assert_eq!(
                finished.success(),
                expected,
                "{weights} {mode} {policy}: {stderr}"
            );
            let (maps, unmaps) = (sum(&stderr, " maps ("), sum(&stderr, " unmaps,"));
            assert!(maps > 0 && maps == unmaps, "{policy}: {stderr}");
            assert_eq!(sum(&stderr, " failures"), 0, "{stderr}");
            let evicted = sum(&stderr, " evictions,");
            assert!(evicted > 0, "{weights} {mode} {policy}: {stderr}");
        }
    }
}

#[test]
fn a_large_budget_maps_once() {
    let prompts = prompts("validation.jsonl");
    let args = ["-p", &prompts[3], "-n", "64"];
    let expected = run("f16", &args, &[]).success();
    let settings = [("LLADA_NPU_BUDGET", "3200")];
    let finished = run("f16", &args, &settings);
    let stderr = finished.stderr.clone();
    assert_eq!(finished.success(), expected);
    assert_eq!(sum(&stderr, " evictions,"), 0, "{stderr}");
    // Longer texts need more activations, for which everything is planned anew.
    assert!(sum(&stderr, " maps (") < 400, "{stderr}");
}

#[test]
fn a_segment_that_does_not_fit_is_an_error_with_its_sizes() {
    let prompts = prompts("validation.jsonl");
    let mode = ["--diffusion-mode", "reference", "--diffusion-steps", "2"];
    let args = [
        "-p",
        &prompts[3],
        "-n",
        "400",
        "--diffusion-block-length",
        "400",
    ];
    let args: Vec<_> = args.iter().copied().chain(mode).collect();
    let finished = run("f16", &args, &[("LLADA_NPU_BUDGET", "1")]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let parts = [
        "bytes of address space at once, 1048576 are there",
        "the largest of it is `",
        "segment `",
    ];
    for part in parts {
        assert!(
            finished.stderr.contains(part),
            "no {part:?} in {finished:?}"
        );
    }
}

#[test]
fn settings_that_are_not_understood_are_refused() {
    for (name, value) in [("LLADA_NPU_BUDGET", "much"), ("LLADA_NPU_MEMORY", "best")] {
        let finished = run("f16", &["-p", "x"], &[(name, value)]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let text = format!("{name}={value} is not understood");
        assert!(finished.stderr.contains(&text), "{finished:?}");
    }
}

#[test]
fn tensors_of_a_stock_llama_go_through_it() {
    let Some(stock) = stock("tensors_of_a_stock_llama_go_through_it") else {
        return;
    };
    let model = trained("f16");
    let written = |budget: &str, more: &[&str]| {
        let mut command = stock.tool("llama-diffusion-cli");
        #[rustfmt::skip]
        command.args([
            "-m", model.to_str().unwrap(), "-p", "Sort: 29 26 80", "-ub", "64", "--diffusion-steps", "32",
            "--diffusion-block-length", "32", "--seed", "1", "-t", "1", "--device", "llada-npu",
        ]);
        command
            .args(more)
            .env("LLADA_NPU_BUDGET", budget)
            .env("LLADA_NPU_LOG", "info");
        succeed(&mut command).stderr
    };
    let answer = |budget: &str| {
        let stderr = written(budget, &[]);
        let (_, answer) = stderr.rsplit_once(" I \n").unwrap();
        answer.to_owned()
    };
    let expected = answer("");
    assert!(!expected.trim().is_empty());
    assert_eq!(answer("2"), expected);
    let said = written("2", &["-v"]);
    assert!(sum(&said, " evictions,") > 0, "{said}");
}
