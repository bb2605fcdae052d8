//! The model with QNN within a budget of addresses, over the library that fails on demand: contexts come and go, texts stay.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::ffi::{CString, c_char};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ggml_llada_npu::abi;
use ggml_llada_npu::abi::resident::Budget;
use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::device::qnn;
use ggml_llada_npu::engine::sample::Sampling;
use ggml_llada_npu::engine::{Control, EngineError, KvType, Session, SessionParams};
use ggml_llada_npu::knobs::Policy;
use ggml_llada_npu::memory::runtime::Limits;
use libloading::Library;
use llada_npu_tests::engine::{load, params, target};
use llada_npu_tests::files::{prompts, trained};
use llada_npu_tests::llama::Llama;
use llada_npu_tests::lora::{Adapted, Run};
use llada_npu_tests::qnn::{Answer, Qnn, answer_of_host};

const PROMPT: &str = "Spell: 46881";
const POLICIES: [&str; 5] = ["naive", "lru", "drop-unused", "planned", "planned+pipeline"];

/// Tells what came of a run whose text has to be right: numbers of the report by name.
fn check(answer: &Answer, expected: &str, what: &str) -> impl Fn(&str) -> u64 {
    let stderr = answer.finished.stderr.clone();
    assert_eq!(answer.text(), expected, "{what}: {stderr}");
    let (answer, what) = (answer.clone(), what.to_owned());
    move |name: &str| {
        let number = answer.number(name);
        let number = number.unwrap_or_else(|| panic!("{what}: no {name} in {stderr}"));
        format!("{number}").parse().unwrap()
    }
}

#[test]
fn contexts_go_through_the_budget_and_the_text_stays() {
    let expected = answer_of_host("q4_0", PROMPT);
    for faults in ["", "memory"] {
        let qnn = Qnn::fault();
        for (policy, mib) in POLICIES
            .iter()
            .flat_map(|policy| [(policy, 1_u64), (policy, 3)])
        {
            let what = format!("{faults} {policy} {mib} MiB");
            let settings = [
                ("QNN_FAULT", faults),
                ("LLADA_NPU_BUDGET", &mib.to_string()),
                ("LLADA_NPU_MEMORY", policy),
            ];
            let answer = qnn.answer("q4_0", PROMPT, &settings);
            let number = check(&answer, expected.text(), &what);
            assert_eq!(answer.warnings(), [""; 0], "{what}");
            assert_eq!(number("refused"), 0, "{what}");
            let peak = number("peak_mapped_bytes");
            assert!(0 < peak && peak <= mib << 20, "{what}: {peak}");
            assert!(peak < number("binary_bytes"), "{what}: they do not all fit");
            let n_maps = number("context_maps");
            assert!(n_maps >= number("contexts"), "{what}");
            assert_eq!(n_maps, number("context_unmaps"), "{what}");
            assert_eq!(number("shared") > 0, faults == "memory", "{what}");
        }
    }
}

#[test]
fn contexts_of_attention_go_through_the_budget() {
    let expected = answer_of_host("q4_0", PROMPT);
    let qnn = Qnn::fault();
    for policy in POLICIES {
        let settings = [
            ("QNN_FAULT", "memory"),
            ("LLADA_NPU_QNN_ATTENTION", "npu"),
            ("LLADA_NPU_BUDGET", "1"),
            ("LLADA_NPU_MEMORY", policy),
        ];
        let answer = qnn.answer("q4_0", PROMPT, &settings);
        let number = check(&answer, expected.text(), policy);
        assert_eq!(answer.warnings(), [""; 0], "{policy}");
        assert_eq!(number("refused"), 0, "{policy}");
        assert!(number("attentions") > 0, "{policy}");
        let peak = number("peak_mapped_bytes");
        assert!(0 < peak && peak <= 1 << 20, "{policy}: {peak}");
        assert_eq!(number("context_maps"), number("context_unmaps"), "{policy}");
    }
    // Those that are lost on the way are the host's, and nothing else.
    let fault = "memory; fail contextCreateFromBinary 1002 after 20";
    let settings = [
        ("QNN_FAULT", fault),
        ("LLADA_NPU_QNN_ATTENTION", "npu"),
        ("LLADA_NPU_BUDGET", "1"),
    ];
    let answer = qnn.answer("q4_0", PROMPT, &settings);
    let number = check(&answer, expected.text(), fault);
    assert!(number("refused") > 0);
    assert_eq!(number("context_maps"), number("context_unmaps"));
}

/// Weights of products in the model: seven in each of six layers, and the output matrix.
const N_WEIGHTS: u64 = 6 * 7 + 1;

#[test]
fn tiles_of_what_contexts_hold_are_not_mapped_beside() {
    let qnn = Qnn::fault();
    let run = |accel: &str| {
        // Everything fits, so that it is mapped once.
        let settings = [("LLADA_NPU_BUDGET", "64"), ("LLADA_NPU_ACCEL", accel)];
        let answer = qnn.answer("q4_0", PROMPT, &settings);
        let log = answer.finished.stderr.clone();
        let (before, _) = log.split_once(" maps (").expect("the runtime's line");
        let n_maps: u64 = before.split(' ').next_back().unwrap().parse().unwrap();
        (n_maps, answer)
    };
    let (n_of_host, _) = run("host");
    let (n_maps, answer) = run("qnn");
    let expected = answer_of_host("q4_0", PROMPT);
    let number = check(&answer, expected.text(), "64 MiB");
    let n_context_maps = number("context_maps");
    assert!(n_context_maps > 0);
    assert_eq!(n_maps, n_of_host - N_WEIGHTS + n_context_maps);
}

#[test]
fn what_goes_wrong_while_contexts_come_and_go_costs_no_text() {
    let expected = answer_of_host("q4_0", PROMPT);
    // Files are there, so that the library only reads them.
    let qnn = Qnn::fault();
    let first = qnn.answer("q4_0", PROMPT, &[("LLADA_NPU_BUDGET", "1")]);
    let n = check(&first, expected.text(), "first")("contexts");
    for (fault, n_warnings) in [
        (
            format!("fail contextCreateFromBinary 1002 after {}", n + 2),
            1,
        ),
        (format!("hang contextCreateFromBinary after {}", n + 2), 1),
        (format!("null contextCreateFromBinary after {}", n + 2), 1),
        (format!("fail contextFree 5000 after {n}"), n + 8),
        (format!("hang contextFree after {}", n + 2), 1),
        ("fail graphExecute 6000 after 23".to_owned(), 1),
        ("hang graphExecute after 23".to_owned(), 1),
        ("wrong nan after 23".to_owned(), 1),
        ("memory; fail memRegister 8000 after 7".to_owned(), 0),
        ("memory; hang memRegister after 20".to_owned(), 1),
        ("memory; hang memDeRegister after 20".to_owned(), 1),
        ("missing memRegister".to_owned(), 0),
    ] {
        let settings = [
            ("QNN_FAULT", fault.as_str()),
            ("LLADA_NPU_BUDGET", "1"),
            ("LLADA_NPU_QNN_TIMEOUT", "2"),
        ];
        let answer = qnn.answer("q4_0", PROMPT, &settings);
        let number = check(&answer, expected.text(), &fault);
        let (n_maps, n_unmaps) = (number("context_maps"), number("context_unmaps"));
        assert_eq!(n_maps, n_unmaps, "{fault}");
        assert!(number("peak_mapped_bytes") <= 1 << 20, "{fault}");
        let warnings = answer.warnings();
        assert!(warnings.len() as u64 <= n_warnings, "{fault}: {warnings:?}");
        let has_refused = number("refused") + number("overflows") > 0;
        let is_harmless = fault.contains("contextFree 5000") || n_warnings == 0;
        assert_eq!(
            !has_refused, is_harmless,
            "{fault}: {}",
            answer.finished.stderr
        );
    }
}

#[test]
fn factors_that_no_graph_takes_change_no_plan() {
    let eval = env!("CARGO_BIN_EXE_lora-eval");
    let files = Adapted::make(Some("--arch llada --shape small --type F16"));
    let scratch = tempfile::tempdir().unwrap();
    let n_maps = |n: usize| {
        // Beyond half floats; what comes after it is normalised.
        let run: Run<'_> = &[(3, 1e16)];
        let (qnn, budget) = (Qnn::fault(), [("LLADA_NPU_BUDGET", "64")]);
        let log = files.eval(eval, &vec![run; n], scratch.path(), &qnn, &budget);
        assert!(log.number("refused") > 0.0, "{log:?}");
        assert_eq!(log.number("overflows"), 0.0, "{log:?}");
        log.number("context_maps")
    };
    let first = n_maps(1);
    assert!(first > 0.0);
    // All fit, so that they stay from graph to graph.
    assert_eq!(n_maps(4), first);
}

#[test]
fn logits_within_a_budget_are_those_without_one() {
    let qnn = Qnn::fault();
    let scratch = tempfile::tempdir().unwrap();
    let eval = |out: &Path, settings: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qnn-eval"));
        let arguments = ["validation.jsonl", "3", "24", "f16", "default"];
        command.arg(trained("q4_0")).args(arguments).arg(out);
        qnn.set(&mut command);
        command.env("LLADA_NPU_QNN_ATTENTION", "npu");
        let output = command.envs(settings.iter().copied()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        let logits = (0..3).map(|i| std::fs::read(out.join(format!("{i}.f32"))).unwrap());
        let text = std::fs::read_to_string(out.join("result.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        (logits.collect::<Vec<_>>(), result["prompts"].clone())
    };
    let expected = eval(&scratch.path().join("all"), &[]);
    for (policy, faults) in [("planned+pipeline", "memory"), ("lru", "")] {
        let settings = [
            ("LLADA_NPU_BUDGET", "2"),
            ("LLADA_NPU_MEMORY", policy),
            ("QNN_FAULT", faults),
        ];
        let found = eval(&scratch.path().join(policy), &settings);
        assert!(found == expected, "{policy}");
    }
}

/// The library that this process uses.
struct Counts(Library);

impl Counts {
    fn open(path: &Path) -> Self {
        // SAFETY: a library of ours, whose initialisers do nothing.
        Self(unsafe { Library::new(path) }.unwrap())
    }

    fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: the export has this signature.
        let calls = unsafe {
            self.0
                .get::<unsafe extern "C" fn(*const c_char) -> u64>(b"qnn_fault_calls")
        };
        // SAFETY: a NUL-terminated string.
        unsafe { calls.unwrap()(name.as_ptr()) }
    }

    fn number(&self, name: &str) -> u64 {
        // SAFETY: the exports have this signature.
        let function = unsafe { self.0.get::<extern "C" fn() -> u64>(name.as_bytes()) };
        function.unwrap()()
    }
}

const N_GENERATIONS: u32 = 200;
const N_PROMPTS: u32 = 8;

/// Set in the process of its own that the environment of QNN needs.
const CHILD: &str = "LLADA_NPU_TEST_CHILD";

fn number(generation: u32, what: u32, below: u32) -> u32 {
    let bits = Key::new(11, generation, what, Purpose::Order).bits(0);
    u32::try_from(bits % u64::from(below)).unwrap()
}

/// Generates, unless it is cancelled after some time.
fn generate(
    session: &mut Session,
    prompt: &[i32],
    cancel_after: Option<Duration>,
) -> Result<Vec<i32>, EngineError> {
    let flag = session.cancel_flag();
    let canceller = cancel_after.map(|delay| {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            flag.store(true, Ordering::Relaxed);
        })
    });
    let result = session.generate(prompt, 8, &params(""), &mut |_event, _canvas| {
        Control::Continue
    });
    if let Some(canceller) = canceller {
        canceller.join().unwrap();
    }
    result.map(|_report| session.output().to_vec())
}

fn budget(generation: u32) -> Budget {
    let limits = Limits {
        budget_bytes: u64::from(700 + number(generation, 1, 3000)) << 10,
        ..Limits::default()
    };
    Budget {
        limits,
        policy: Policy::ALL[number(generation, 2, 5) as usize],
        costs: None,
    }
}

#[test]
fn two_hundred_generations_free_what_they_make() {
    let qnn = Qnn::fault();
    if std::env::var_os(CHILD).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "two_hundred_generations_free_what_they_make";
        command
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1");
        qnn.set(&mut command);
        let status = command.env("QNN_FAULT", "memory").status().unwrap();
        return assert!(status.success(), "{status}");
    }
    let dir = std::env::var_os("LLADA_NPU_QNN_DIR").unwrap();
    let counts = Counts::open(&Path::new(&dir).join("libQnnHtp.so"));
    let path = trained("q4_0");
    let model = load(&path, target());
    let llama = Llama::load(&path, 256);
    let prompts: Vec<Vec<i32>> = prompts("validation.jsonl")
        .iter()
        .take(N_PROMPTS as usize)
        .map(|prompt| llama.chat_prompt(prompt))
        .collect();
    let params = SessionParams {
        n_ctx: 256,
        n_threads: 1,
        type_k: KvType::F16,
        type_v: KvType::F16,
        sampling: Sampling::default(),
    };
    let session = || Session::new(model.clone(), params).unwrap();
    // An instance that computes nothing, so that the library stays open.
    abi::set_budget(Some(budget(0))).unwrap();
    let first = session();
    let mut n_ends = [0; 2];
    let expected: Vec<Vec<i32>> = prompts
        .iter()
        .map(|prompt| generate(&mut session(), prompt, None).unwrap())
        .collect();
    for generation in 0..N_GENERATIONS {
        let i = number(generation, 3, N_PROMPTS) as usize;
        let budget = budget(generation);
        let is_cancelled = number(generation, 4, 3) == 0;
        let delay = Duration::from_micros(u64::from(number(generation, 5, 40_000)));
        let _peak_before = counts.number("qnn_fault_peak_bytes");
        abi::set_budget(Some(budget)).unwrap();
        let mut session = session();
        let result = generate(&mut session, &prompts[i], is_cancelled.then_some(delay));
        drop(session);
        let peak = counts.number("qnn_fault_peak_bytes");
        let what = format!("{generation}: {budget:?}");
        assert!(peak <= budget.limits.budget_bytes, "{what}: {peak}");
        assert_eq!(counts.number("qnn_fault_peak_bytes"), 0, "{what}");
        n_ends[usize::from(is_cancelled)] += 1;
        match result {
            Ok(output) if !is_cancelled => assert_eq!(output, expected[i], "{what}"),
            Ok(_) | Err(EngineError::Cancelled) if is_cancelled => {}
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => unreachable!("it was matched above"),
        }
    }
    let report = qnn::session().unwrap().unwrap().report();
    println!("{n_ends:?}, {report}");
    assert_eq!(report.refused.len(), 0);
    assert!(report.n_context_maps > u64::from(N_GENERATIONS));
    drop(first);
    let report = abi::memory_report().unwrap().report.transfers;
    assert_eq!((report.mapped_bytes, report.n_maps), (0, report.n_unmaps));
    let made = counts.calls("contextCreate") + counts.calls("contextCreateFromBinary");
    assert_eq!(made, counts.calls("contextFree"));
    let n_registered = counts.calls("memRegister");
    assert_eq!(n_registered, counts.calls("memDeRegister"));
    assert!(n_registered > 0);
    assert_eq!(counts.number("qnn_fault_violations"), 0);
    assert_eq!(counts.number("qnn_fault_alive"), 0);
}
