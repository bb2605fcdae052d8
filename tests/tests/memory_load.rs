//! Many generations of the engine, each within another budget of addresses, some cancelled, some without enough: nothing is
//! left behind.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ggml_llada_npu::abi;
use ggml_llada_npu::abi::resident::Budget;
use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::engine::sample::Sampling;
use ggml_llada_npu::engine::{Control, EngineError, KvType, Session, SessionParams};
use ggml_llada_npu::memory::runtime::{Costs, Limits, Policy};
use llada_npu_tests::engine::{load, params, target};
use llada_npu_tests::files::{prompts, trained};
use llada_npu_tests::llama::Llama;

const N_GENERATIONS: u32 = 1000;

/// The generation after which nothing grows any more.
const SETTLED: u32 = 300;

/// How a generation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// By its caller, in the answer to an event.
    Event,
    /// By another thread, in the middle of a graph perhaps.
    Flag,
    /// For want of addresses.
    TooSmall,
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    n_threads: usize,
    n_maps: usize,
    resident_kib: usize,
}

impl Held {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            n_threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
            n_maps: maps.lines().count(),
            resident_kib: resident.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }
}

fn number(generation: u32, what: u32, below: u32) -> u32 {
    let bits = Key::new(7, generation, what, Purpose::Order).bits(0);
    u32::try_from(bits % u64::from(below)).unwrap()
}

fn session_params() -> SessionParams {
    SessionParams {
        n_ctx: 256,
        n_threads: 1,
        type_k: KvType::F16,
        type_v: KvType::F16,
        sampling: Sampling::default(),
    }
}

/// Generates; the tokens kept.
fn generate(
    session: &mut Session,
    prompt: &[i32],
    end: End,
    generation: u32,
) -> Result<Vec<i32>, EngineError> {
    let flag = session.cancel_flag();
    let delay = Duration::from_micros(u64::from(number(generation, 5, 8000)));
    let canceller = (end == End::Flag).then(|| {
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            flag.store(true, Ordering::Relaxed);
        })
    });
    let mut n_events = number(generation, 6, 12);
    let result = session.generate(prompt, 32, &params(""), &mut |_event, _canvas| {
        if end == End::Event && n_events == 0 {
            return Control::Cancel;
        }
        n_events = n_events.saturating_sub(1);
        Control::Continue
    });
    if let Some(canceller) = canceller {
        canceller.join().unwrap();
    }
    result.map(|_report| session.output().to_vec())
}

#[test]
fn a_thousand_generations_leave_nothing_behind() {
    let path = trained("f16");
    let model = load(&path, target());
    let llama = Llama::load(&path, 256);
    let prompts: Vec<Vec<i32>> = prompts("validation.jsonl")
        .iter()
        .take(20)
        .map(|prompt| llama.chat_prompt(prompt))
        .collect();
    let mut expected = BTreeMap::new();
    for (i, prompt) in prompts.iter().enumerate() {
        let mut session = Session::new(model.clone(), session_params()).unwrap();
        expected.insert(i, generate(&mut session, prompt, End::Whole, 0).unwrap());
    }
    let (mut settled, mut n_ends) = (Held::now(), BTreeMap::new());
    for generation in 0..N_GENERATIONS {
        let end = match number(generation, 0, 10) {
            0..4 => End::Whole,
            4..6 => End::Event,
            6..9 => End::Flag,
            _ => End::TooSmall,
        };
        *n_ends.entry(format!("{end:?}")).or_insert(0) += 1;
        let kib = match end {
            End::TooSmall => 64,
            _ => 1000 + number(generation, 1, 7000),
        };
        let i = number(generation, 3, 20) as usize;
        let policy = Policy::ALL[number(generation, 2, 5) as usize];
        let budget_bytes = u64::from(kib) << 10;
        let limits = Limits {
            budget_bytes,
            ..Limits::default()
        };
        abi::set_budget(Some(Budget {
            limits,
            policy,
            costs: Some(Costs::default()),
        }))
        .unwrap();
        let mut session = Session::new(model.clone(), session_params()).unwrap();
        let result = generate(&mut session, &prompts[i], end, generation);
        match (end, result) {
            (End::Whole, Ok(output)) => assert_eq!(output, expected[&i], "{policy} {kib} KiB"),
            (End::Event | End::Flag, Ok(_) | Err(EngineError::Cancelled)) => {}
            (End::TooSmall, Err(EngineError::Cancelled) | Ok(_)) => panic!("it cannot fit"),
            (End::TooSmall, Err(_)) => {}
            (_, Err(error)) => panic!("{end:?} {policy} {kib} KiB: {error}"),
        }
        drop(session);
        if generation == SETTLED {
            settled = Held::now();
        }
    }
    let (held, memory) = (Held::now(), abi::memory_report().unwrap());
    println!("{n_ends:?}, {settled:?}, {held:?}, {memory:?}");
    assert!(held.n_threads <= settled.n_threads);
    assert!(held.n_maps <= settled.n_maps + 16);
    assert!(held.resident_kib <= settled.resident_kib + (16 << 10));
    let transfers = memory.report.transfers;
    assert_eq!(
        (transfers.mapped_bytes, transfers.n_maps),
        (0, transfers.n_unmaps)
    );
    assert!(transfers.n_evictions > 0 && memory.seconds.transfer > 0.0);
    assert!(transfers.peak_bytes <= 8000 << 10);
    abi::set_budget(None).unwrap();
}
