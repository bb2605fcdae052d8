//! The trained model through Qualcomm's emulation of the NPU: logits and texts. Every run is a process of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use llada_npu_tests::files::trained;
use llada_npu_tests::llama::nmse;
use llada_npu_tests::near_tie::Difference;
use llada_npu_tests::numpy::{self, Numpy};
use llada_npu_tests::qnn::{Qnn, answer_of_host};
use serde::Deserialize;

/// Prompts that are answered.
const N_PROMPTS: usize = 5;
/// Tokens of an answer at most.
const N_GEN: usize = 40;
/// How far logits may be from the f32 reference of the dequantised weights.
const MAX_NMSE: f64 = 1e-5;

#[derive(Debug, Deserialize)]
struct Run {
    prompts: Vec<Prompt>,
    qnn: Option<Report>,
}

#[derive(Debug, Deserialize)]
struct Prompt {
    prompt: String,
    answers: BTreeMap<String, Answer>,
    tokens: Vec<i32>,
    n_vocab: usize,
}

/// By one decoding of the program.
#[derive(Debug, Deserialize)]
struct Answer {
    output: Vec<i32>,
    difference: Option<Difference>,
}

#[derive(Debug, Deserialize)]
struct Report {
    graphs_built: u64,
    graphs_loaded: u64,
    executions: u64,
    attentions: u64,
    refused: serde_json::Map<String, serde_json::Value>,
    overflows: u64,
}

/// Runs `qnn-eval` with an environment; it compares with what an earlier run wrote into `host`.
fn eval(
    weights: &str,
    kv: &str,
    decodings: &str,
    out: &Path,
    host: Option<&Path>,
    environment: &dyn Fn(&mut Command),
) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qnn-eval"));
    command
        .arg(trained(weights))
        .arg("validation.jsonl")
        .args([N_PROMPTS, N_GEN].map(|n| n.to_string()))
        .args([kv, decodings])
        .arg(out)
        .args(host);
    environment(&mut command);
    let output = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    let text = std::fs::read_to_string(out.join("result.json")).expect("the program wrote it");
    serde_json::from_str(&text).expect("JSON of the program")
}

#[test]
fn logits_and_texts_are_those_of_the_reference_and_of_the_host() {
    let name = "logits_and_texts_are_those_of_the_reference_and_of_the_host";
    if let Some(qnn) = Qnn::emulation(name) {
        check_logits_and_texts(&qnn, "q4_0", false);
    }
}

#[test]
fn with_attention_logits_and_texts_are_those_of_the_reference_and_of_the_host() {
    let name = "with_attention_logits_and_texts_are_those_of_the_reference_and_of_the_host";
    for weights in ["q4_0", "f16"] {
        if let Some(qnn) = Qnn::emulation(name) {
            check_logits_and_texts(&qnn, weights, true);
        }
    }
}

/// Compares logits with the reference, texts with the host's, and a second start with the first.
fn check_logits_and_texts(qnn: &Qnn, weights: &str, has_attention: bool) {
    // Graphs of attention take half floats.
    let kv = if has_attention { "f16" } else { "f32" };
    // Token by token takes many forwards, and attention in the emulation a long time in each.
    let decodings = if has_attention {
        "default"
    } else {
        "default,token_by_token"
    };
    let set = |command: &mut Command| {
        qnn.set(command);
        if has_attention {
            command.env("LLADA_NPU_QNN_ATTENTION", "npu");
        }
    };
    let scratch = tempfile::tempdir().expect("a directory");
    let [on_host, on_qnn, again] = ["host", "qnn", "again"].map(|dir| scratch.path().join(dir));
    let host = eval(weights, kv, decodings, &on_host, None, &|command| {
        command.env("LLADA_NPU_ACCEL", "host");
    });
    let first = eval(weights, kv, decodings, &on_qnn, Some(&on_host), &set);
    let report = first.qnn.expect("the library was used");
    assert!(
        report.graphs_built > 0 && report.executions > 0,
        "{report:?}"
    );
    assert_eq!(report.attentions > 0, has_attention, "{report:?}");
    assert!(
        report.refused.is_empty() && report.overflows == 0,
        "{report:?}"
    );

    let mut numpy = Numpy::new();
    let requests = first.prompts.iter().map(|prompt| {
        let request = serde_json::json!([{ "tokens": prompt.tokens }]);
        numpy.forward(&trained(weights), &request)
    });
    let references: Vec<_> = requests.collect();
    numpy.run();
    for (i, (prompt, reference)) in first.prompts.iter().zip(&references).enumerate() {
        let expected = numpy::rows(reference, prompt.n_vocab).concat();
        let got = numpy::rows(&on_qnn.join(format!("{i}.f32")), prompt.n_vocab).concat();
        let error = nmse(&got, &expected);
        println!("{}: NMSE {error:.1e} (limit {MAX_NMSE:.0e})", prompt.prompt);
        assert!(error <= MAX_NMSE, "{}: NMSE {error:e}", prompt.prompt);
        let answered = prompt.answers.keys().map(String::as_str);
        assert!(answered.eq(decodings.split(',')), "{prompt:?}");
        assert_texts(prompt, &host.prompts[i]);
    }

    let second = eval(weights, kv, "default", &again, None, &set);
    let report = second.qnn.expect("the library was used");
    assert_eq!(report.graphs_built, 0, "{report:?}");
    assert!(report.graphs_loaded > 0, "{report:?}");
    for (first, second) in first.prompts.iter().zip(&second.prompts) {
        let [first, second] = [first, second].map(|prompt| &prompt.answers["default"].output);
        assert_eq!(first, second);
    }
}

/// Texts are there, and the host's or near ties.
fn assert_texts(prompt: &Prompt, host: &Prompt) {
    for (decoding, answer) in &prompt.answers {
        let expected = &host.answers[decoding].output;
        assert!(!expected.is_empty(), "{}: {decoding}", prompt.prompt);
        let is_same = answer.output == *expected;
        let is_near_tie = answer.difference.as_ref().is_some_and(|it| it.is_near_tie);
        if !is_same {
            println!("{}: {decoding}: {:?}", prompt.prompt, answer.difference);
        }
        assert!(is_same || is_near_tie, "{}: {decoding}", prompt.prompt);
    }
}

#[test]
fn doctor_finds_everything_in_the_emulation() {
    let Some(qnn) = Qnn::emulation("doctor_finds_everything_in_the_emulation") else {
        return;
    };
    let output = qnn
        .command(&["doctor"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success());
    assert!(text.contains("qnn          used: "), "{text}");
    assert!(!text.contains(": no, "), "{text}");
}

#[test]
fn a_damaged_context_binary_never_reaches_the_library() {
    let Some(qnn) = Qnn::emulation("a_damaged_context_binary_never_reaches_the_library") else {
        return;
    };
    let prompt = "Spell: 46881";
    let expected = answer_of_host("q4_0", prompt);
    let whole = qnn.answer("q4_0", prompt, &[]);
    assert_eq!(whole.text(), expected.text());
    for file in qnn.contexts() {
        let mut bytes = std::fs::read(&file).expect("a file of the cache");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 16;
        std::fs::write(&file, bytes).expect("a file of the cache");
    }
    let answer = qnn.answer("q4_0", prompt, &[]);
    assert_eq!(answer.text(), expected.text());
    assert_eq!(answer.number("graphs_loaded"), Some(0.0));
    assert_eq!(answer.warnings().len(), 1);
}

#[test]
fn a_part_of_the_contexts_at_a_time_gives_the_same_text() {
    let name = "a_part_of_the_contexts_at_a_time_gives_the_same_text";
    let Some(qnn) = Qnn::emulation(name) else {
        return;
    };
    let prompt = "Spell: 46881";
    let expected = answer_of_host("q4_0", prompt);
    for (mib, policy, most) in [("3", "planned+pipeline", 0.75), ("2", "lru", 0.5)] {
        let settings = [("LLADA_NPU_BUDGET", mib), ("LLADA_NPU_MEMORY", policy)];
        let answer = qnn.answer("q4_0", prompt, &settings);
        assert_eq!(answer.text(), expected.text(), "{policy}");
        let number = |name| answer.number(name).unwrap_or(f64::NAN);
        let share = number("peak_mapped_bytes") / number("binary_bytes");
        println!("{mib} MiB, {policy}: {share:.2} of the contexts at a time");
        assert!(share > 0.05 && share < most, "{policy}: {share}");
        assert_eq!(number("refused"), 0.0, "{policy}");
        assert!(number("context_maps") >= number("contexts"), "{policy}");
        assert_eq!(number("context_maps"), number("context_unmaps"), "{policy}");
        // Qualcomm's emulation registers no memory.
        assert_eq!(number("registrations") + number("shared"), 0.0);
    }
}
