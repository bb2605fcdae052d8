//! Environment variables as users of `llada-npu` meet them: one line that names what is wrong, and what `doctor` says.

use std::process::Command;

use llada_npu_tests::files::trained;
use llada_npu_tests::program::{Finished, command};
use serde_json::Value;

fn run_with(program: &mut Command, settings: &[(&str, &str)]) -> Finished {
    program.envs(settings.iter().copied());
    program.output().expect("the program starts").into()
}

fn answer(ty: &str, settings: &[(&str, &str)]) -> Finished {
    let prompt = "Sort: ".to_owned() + &"41 17 93 25 ".repeat(10);
    let mut program = command(["run", "-p", &prompt, "-n", "200", "-m"]);
    run_with(program.arg(trained(ty)), settings)
}

fn doctor(settings: &[(&str, &str)], args: &[&str]) -> Finished {
    run_with(&mut command(["doctor"].iter().chain(args)), settings)
}

#[test]
fn the_error_names_the_cause_and_nothing_is_told_twice() {
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "LLADA_NPU_KERNEL",
            "genericf16",
            &[
                "`genericf16`; the nearest names are generic-f16, ",
                "; `llada-npu doctor` lists all",
            ],
        ),
        ("LLADA_NPU_REPACK", "junk", &["cache, memory or off"]),
        ("LLADA_NPU_LOG", "loud", &["=loud"]),
        ("LLADA_NPU_LOG", "a\nb\u{1b}[31m", &["=a b\u{fffd}[31m is"]),
        ("LLADA_NPU_ACCEL", "npu", &["=npu"]),
        ("LLADA_NPU_QNN_ROWS", "x", &["=x"]),
        ("LLADA_NPU_BUDGET", "0", &["=0"]),
        (
            "LLADA_NPU_BUDGET",
            "1",
            &["needs ", "1048576 are there", "`activations`"],
        ),
    ];
    for &(name, value, parts) in cases {
        let finished = answer("f16", &[(name, value)]);
        finished.failure(1, &[&[name], parts].concat());
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    }
}

#[test]
fn doctor_lists_every_kernel_also_where_an_unknown_one_is_named() {
    let kernels = |finished: &Finished| {
        let found: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        found["kernels"].clone()
    };
    let all = kernels(&doctor(&[], &["--json"]));
    assert!(all.as_array().is_some_and(|all| all.len() > 10), "{all}");
    let unknown = [("LLADA_NPU_KERNEL", "junk")];
    assert_eq!(kernels(&doctor(&unknown, &["--json"])), all);
    let text = doctor(&unknown, &[]).stdout;
    for name in ["generic-f16", "reference-rope"] {
        assert!(text.contains(name), "no {name} in {text}");
    }
}

#[test]
fn a_directory_without_a_library_is_told_once() {
    let named = ("LLADA_NPU_QNN_DIR", "/no/such/directory");
    let finished = answer("q8_0", &[named]);
    let warnings: Vec<_> = finished
        .stderr
        .lines()
        .filter(|line| line.starts_with("warning: "))
        .collect();
    assert_eq!(warnings.len(), 1, "{finished:?}");
    assert!(warnings[0].contains("LLADA_NPU_QNN_DIR=/no/such/directory"));
    assert!(warnings[0].contains("libQnnHtp.so"), "{finished:?}");
    let without = answer("q8_0", &[named, ("LLADA_NPU_ACCEL", "host")]);
    assert!(!without.stderr.contains("warning"), "{without:?}");
    assert_eq!(finished.success(), without.success());
}

#[test]
fn doctor_shows_the_settings_and_fails_with_one_that_is_not_understood() {
    let text = doctor(&[], &[]).success();
    assert!(text.contains("\nmemory       no budget"), "{text}");
    let set = [
        ("LLADA_NPU_BUDGET", "512"),
        ("LLADA_NPU_MEMORY", "lru"),
        ("LLADA_NPU_BUGDET", "7"),
    ];
    let text = doctor(&set, &[]).success();
    for line in [
        "setting      LLADA_NPU_BUDGET=512",
        "setting      LLADA_NPU_BUGDET=7: there is no such setting",
        "memory       budget of 512 MiB an instance, policy lru",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no {line:?} in {text}"
        );
    }
    let found: Value = serde_json::from_str(&doctor(&set, &["--json"]).success()).expect("JSON");
    assert_eq!(found["settings"]["budget_bytes"], 512 << 20);
    assert_eq!(found["settings"]["memory_policy"], "lru");
    let junk = [
        ("LLADA_NPU_REPACK", "junk"),
        ("LLADA_NPU_MEMORY", "best"),
        ("LLADA_NPU_CACHE_MAX", "many"),
        ("LLADA_NPU_QNN_TIMEOUT", "0"),
        ("LLADA_NPU_KERNEL", "junk"),
    ];
    for (name, value) in junk {
        for args in [&[][..], &["--json"]] {
            let finished = doctor(&[(name, value)], args);
            assert!(finished.stdout.contains(name), "{finished:?}");
            finished.failure_after_output(&[name, value]);
        }
    }
}
