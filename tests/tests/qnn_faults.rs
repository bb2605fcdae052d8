//! A QNN library that fails in every way that one can: generations end with the right text, from the CPU's kernels where
//! need be, with at most one warning.

use std::path::Path;
use std::process::Command;

use llada_npu_tests::lora::{Adapted, Run};
use llada_npu_tests::program::Finished;
use llada_npu_tests::qnn::{Answer, Qnn, answer_of_host};

const PROMPT: &str = "Spell: 46881";

/// Seconds that a call may take here.
const LIMIT: (&str, &str) = ("LLADA_NPU_QNN_TIMEOUT", "3");

/// What a fault leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The library computes everything.
    All,
    /// The host computes some or all of it; one warning.
    Host,
}

fn expect(answer: &Answer, expected: &str, fault: &str, left: Left) {
    assert_eq!(
        answer.text(),
        expected,
        "{fault}: {}",
        answer.finished.stderr
    );
    let warnings = answer.warnings();
    match left {
        Left::All => {
            assert_eq!(warnings, [""; 0], "{fault}");
            assert!(answer.number("executions") > Some(0.0), "{fault}");
            assert_eq!(answer.number("refused"), Some(0.0), "{fault}");
        }
        Left::Host => {
            assert_eq!(warnings.len(), 1, "{fault}: {warnings:?}");
            assert!(warnings[0].contains("QNN"), "{fault}: {warnings:?}");
        }
    }
}

fn check(faults: &[(&str, Left)]) {
    let expected = answer_of_host("q4_0", PROMPT);
    for &(fault, left) in faults {
        let qnn = Qnn::fault();
        let answer = qnn.answer("q4_0", PROMPT, &[LIMIT, ("QNN_FAULT", fault)]);
        expect(&answer, expected.text(), fault, left);
    }
}

#[test]
fn without_a_fault_the_library_computes_and_a_second_start_builds_nothing() {
    let expected = answer_of_host("q4_0", PROMPT);
    let qnn = Qnn::fault();
    let first = qnn.answer("q4_0", PROMPT, &[]);
    expect(&first, expected.text(), "first start", Left::All);
    assert!(first.number("graphs_built") > Some(0.0));
    assert_eq!(first.number("graphs_loaded"), Some(0.0));
    let second = qnn.answer("q4_0", PROMPT, &[]);
    expect(&second, expected.text(), "second start", Left::All);
    assert_eq!(second.number("graphs_built"), Some(0.0));
    assert_eq!(second.number("graphs_loaded"), first.number("graphs_built"));
    let dropped = qnn.answer("q4_0", PROMPT, &[("LLADA_NPU_HOST_WEIGHTS", "drop")]);
    expect(&dropped, expected.text(), "drop", Left::All);
    assert!(dropped.number("dropped_bytes") > Some(0.0));
    // Another build of the library does not take them.
    let other = qnn.answer("q4_0", PROMPT, &[("QNN_FAULT", "build v9.9.9")]);
    expect(&other, expected.text(), "another build", Left::All);
    assert_eq!(other.number("graphs_loaded"), Some(0.0));
}

#[test]
fn other_forms_of_weights_give_the_same_text() {
    let expected = answer_of_host("q4_0", PROMPT);
    for form in [
        ("LLADA_NPU_QNN_LINEAR", "conv"),
        ("LLADA_NPU_QNN_WEIGHTS", "half"),
        ("LLADA_NPU_QNN_WEIGHTS", "int8"),
        ("LLADA_NPU_QNN_ROWS", "16"),
    ] {
        let answer = Qnn::fault().answer("q4_0", PROMPT, &[form]);
        expect(&answer, expected.text(), &format!("{form:?}"), Left::All);
    }
    for weights in ["f16", "q8_0"] {
        let expected = answer_of_host(weights, PROMPT);
        let answer = Qnn::fault().answer(weights, PROMPT, &[]);
        expect(&answer, expected.text(), weights, Left::All);
    }
}

#[test]
fn a_library_that_is_not_usable_is_not_used() {
    check(&[
        ("no-providers", Left::Host),
        ("provider GPU_QTI_AISW", Left::Host),
        ("core 2.10.0", Left::Host),
        ("core 3.0.0", Left::Host),
        ("backend 4.1.0", Left::Host),
        ("missing graphFinalize", Left::Host),
        ("missing deviceCreate", Left::Host),
        ("missing deviceGetInfrastructure", Left::All),
    ]);
    let expected = answer_of_host("q4_0", PROMPT);
    let mut qnn = Qnn::fault();
    for dir in ["/no/such/directory", "/usr/bin"] {
        let answer = qnn.answer("q4_0", PROMPT, &[("LLADA_NPU_QNN_DIR", dir)]);
        expect(&answer, expected.text(), dir, Left::Host);
    }
    // Not a library at all.
    std::fs::write(qnn.dir().join("libQnnHtp.so"), b"not a library").expect("a file");
    let answer = qnn.answer("q4_0", PROMPT, &[]);
    expect(&answer, expected.text(), "no library", Left::Host);
    qnn = Qnn::fault();
    let unused = qnn.answer("q4_0", PROMPT, &[("LLADA_NPU_ACCEL", "auto")]);
    assert_eq!(unused.text(), expected.text());
    if cfg!(target_arch = "x86_64") {
        assert_eq!(
            unused.number("executions"),
            None,
            "an emulation is asked for by name"
        );
    }
}

#[test]
fn calls_that_fail() {
    check(&[
        ("fail logCreate 1000", Left::Host),
        ("fail backendCreate 4000", Left::Host),
        ("null backendCreate", Left::Host),
        ("fail deviceCreate 14001", Left::Host),
        ("null deviceCreate", Left::Host),
        ("fail contextCreate 5000", Left::Host),
        ("null contextCreate", Left::Host),
        ("fail backendValidateOpConfig 3110", Left::Host),
        ("fail graphCreate 6003", Left::Host),
        ("null graphCreate", Left::Host),
        ("fail tensorCreateGraphTensor 7004", Left::Host),
        ("fail graphAddNode 6005", Left::Host),
        ("fail graphFinalize 1002", Left::Host),
        ("fail graphFinalize 1002 after 3", Left::Host),
        ("fail graphExecute 6000", Left::Host),
        ("fail graphExecute 6000 after 30", Left::Host),
        ("fail contextGetBinarySize 5000", Left::All),
        ("fail contextGetBinary 5000", Left::All),
        ("fail deviceGetPlatformInfo 1000", Left::All),
    ]);
}

#[test]
fn results_that_are_wrong() {
    check(&[
        ("wrong scale", Left::Host),
        ("wrong row", Left::Host),
        ("wrong nan", Left::Host),
        ("formula", Left::Host),
        ("wrong nan after 25", Left::Host),
    ]);
}

#[test]
fn calls_that_are_slow_or_hang() {
    check(&[
        ("slow graphExecute 20", Left::All),
        ("hang backendCreate", Left::Host),
        ("hang deviceCreate", Left::Host),
        ("hang contextCreate", Left::Host),
        ("hang graphFinalize after 2", Left::Host),
        ("hang contextGetBinary", Left::Host),
        ("hang graphExecute", Left::Host),
        ("hang graphExecute after 30", Left::Host),
        ("hang contextFree", Left::All),
    ]);
}

#[test]
fn attention_runs_in_graphs_or_on_the_host() {
    let expected = answer_of_host("q4_0", PROMPT);
    let attention = ("LLADA_NPU_QNN_ATTENTION", "npu");
    let qnn = Qnn::fault();
    let first = qnn.answer("q4_0", PROMPT, &[attention, ("QNN_FAULT", "memory")]);
    expect(&first, expected.text(), "first start", Left::All);
    assert!(first.number("attentions") > Some(0.0));
    let second = qnn.answer("q4_0", PROMPT, &[attention, ("QNN_FAULT", "memory")]);
    expect(&second, expected.text(), "second start", Left::All);
    assert_eq!(second.number("graphs_built"), Some(0.0));
    assert_eq!(second.number("attentions"), first.number("attentions"));
    // Five tensors of each lie in registered memory, two of every product's at least.
    let products = second.number("executions").unwrap_or(0.0);
    let least = 5.0 * second.number("attentions").unwrap_or(0.0) + 2.0 * products;
    assert!(second.number("shared") >= Some(least));
    let products = qnn.answer("q4_0", PROMPT, &[]);
    assert_eq!(products.number("attentions"), Some(0.0));
    for (fault, left) in [
        // The graphs of products come first.
        ("fail graphExecute 6000 after 20", Left::Host),
        ("fail graphFinalize 1002 after 19", Left::Host),
        ("wrong nan after 25", Left::Host),
        ("wrong inputs", Left::Host),
        ("hang graphExecute after 25", Left::Host),
        ("hang graphFinalize after 19", Left::Host),
        ("memory; fail memRegister 8000 after 10", Left::All),
    ] {
        let settings = [LIMIT, attention, ("QNN_FAULT", fault)];
        let answer = Qnn::fault().answer("q4_0", PROMPT, &settings);
        expect(&answer, expected.text(), fault, left);
        // What fails after the graphs of products is attention.
        if fault.starts_with("fail graph") || fault.starts_with("wrong nan") {
            let warnings = answer.warnings();
            let told = warnings.iter().filter(|it| it.contains("attention"));
            assert_eq!(told.count(), 1, "{warnings:?}");
        }
    }
}

#[test]
fn adapters_run_in_graphs_or_on_the_host() {
    let eval = env!("CARGO_BIN_EXE_lora-eval");
    let mut files = Adapted::make(Some("--arch llada --shape small --type F16"));
    let scratch = tempfile::tempdir().expect("a directory");
    let runs: [Run<'_>; 3] = [&[(0, 0.5)], &[(1, -0.75)], &[(0, 0.25), (2, 0.5)]];
    let first = files.eval(eval, &runs[..1], scratch.path(), &Qnn::fault(), &[]);
    let log = files.eval(eval, &runs[..2], scratch.path(), &Qnn::fault(), &[]);
    assert_eq!(log.number("graphs_built"), first.number("graphs_built"));
    assert!(log.number("additions") > first.number("additions"));
    for (fault, is_used) in [
        ("", true),
        ("wrong inputs", false),
        ("fail graphExecute 6000", false),
    ] {
        let qnn = Qnn::fault();
        let settings = [("QNN_FAULT", fault)];
        let log = files.eval(eval, &runs, scratch.path(), &qnn, &settings);
        assert_eq!(log.number("refused") == 0.0, is_used, "{fault}: {log:?}");
        files.check(&runs, scratch.path());
    }
}

/// What is done to a file.
type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn files_that_are_damaged_are_made_anew() {
    let expected = answer_of_host("q4_0", PROMPT);
    let qnn = Qnn::fault();
    let whole = qnn.answer("q4_0", PROMPT, &[]);
    assert!(whole.number("graphs_built") > Some(0.0));
    let files = qnn.contexts();
    let change = |path: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(path).expect("a file of the cache");
        change(&mut bytes);
        std::fs::write(path, bytes).expect("a file of the cache");
    };
    let foreign = std::fs::read(&files[0]).expect("a file of the cache");
    let changes: [(&str, Damage<'_>); 4] = [
        ("cut off", &|bytes| bytes.truncate(bytes.len() / 2)),
        ("empty", &Vec::clear),
        ("one bit", &|bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }),
        ("of something else", &|bytes| bytes.clone_from(&foreign)),
    ];
    for (what, damage) in changes {
        change(&files[1], damage);
        let answer = qnn.answer("q4_0", PROMPT, &[]);
        assert_eq!(answer.text(), expected.text(), "{what}");
        assert_eq!(
            answer.warnings().len(),
            1,
            "{what}: {:?}",
            answer.warnings()
        );
        assert!(answer.number("graphs_built") > Some(0.0), "{what}");
        let after = qnn.answer("q4_0", PROMPT, &[]);
        expect(&after, expected.text(), what, Left::All);
        assert_eq!(after.number("graphs_built"), Some(0.0), "{what}");
    }
    // A library that does not take its own binaries back.
    let refused = [("QNN_FAULT", "fail contextCreateFromBinary 5000")];
    let answer = qnn.answer("q4_0", PROMPT, &refused);
    assert_eq!(answer.text(), expected.text());
    assert!(answer.number("executions") > Some(0.0));
    assert_eq!(answer.warnings().len(), 1);
}

fn doctor(qnn: &Qnn, fault: &str) -> String {
    let mut command: Command = qnn.command(&["doctor"]);
    command.envs([("QNN_FAULT", fault), ("LLADA_NPU_QNN_TIMEOUT", "3")]);
    let finished = Finished::from(command.output().expect("the program starts"));
    finished.success()
}

#[test]
fn doctor_survives_the_library_and_tells_the_truth() {
    let qnn = Qnn::fault();
    let whole = doctor(&qnn, "");
    assert!(whole.contains("qnn          used: "), "{whole}");
    // This library has no clocks.
    let missing: Vec<_> = whole
        .lines()
        .filter(|line| line.contains(": no, "))
        .collect();
    assert_eq!(missing.len(), 1, "{whole}");
    assert!(missing[0].contains("performance mode"), "{whole}");
    assert!(
        whole.contains("value of a number in a block: yes, (q + offset) * scale"),
        "{whole}"
    );
    for (fault, expected) in [
        (
            "formula",
            "value of a number in a block: no, q * scale + offset",
        ),
        ("wrong scale", ": no, wrong results: error "),
        (
            "fail backendCreate 4000",
            "qnn          not used: library: backendCreate: error 4000",
        ),
        (
            "abort graphExecute",
            "the library aborted (SIGABRT), the last thing that it did was: performance mode",
        ),
        (
            "abort backendCreate",
            "the library aborted (SIGABRT), the last thing that it did was: nothing",
        ),
        (
            "hang graphFinalize",
            ": no, a call of the library did not return within 3 s",
        ),
        (
            "fail graphFinalize 1002 after 4",
            ": no, graphFinalize: error 1002",
        ),
    ] {
        let text = doctor(&qnn, fault);
        assert!(text.contains(expected), "{fault}: {text}");
    }
}
