//! Modes `mbsd` and `full` on the trained model: the paths of a step, determinism, ends, memory, and the modes as special
//! cases of each other.

use std::sync::Arc;
use std::time::Duration;

use ggml_llada_npu::decode::{Event, Stage};
use ggml_llada_npu::engine::sample::Sampling;
use ggml_llada_npu::engine::{
    CanvasView, Control, EngineError, KvType, Model, Path, Session, SessionParams,
};
use llada_npu_tests::engine::{load, params, target};
use llada_npu_tests::files::{prompts, trained};
use llada_npu_tests::llama::Llama;

/// Short blocks without refreshes, where everything stays visible and is revised beside the steps.
const BUSY: &str = "mode=full block-length=8 refresh-blocks=0 tau-visible=0.95 tau-stable=2 tau-remask=0.8 \
                    tau-replace=0.6 lookahead-trigger=9 draft-threshold=0.3 revision-budget=3 max-revisions=4 final-sweep=1";

const N_GEN: u32 = 48;

fn session(model: &Arc<Model>, n_threads: u32) -> Session {
    let params = SessionParams {
        n_ctx: 512,
        n_threads,
        type_k: KvType::F16,
        type_v: KvType::F16,
        sampling: Sampling::default(),
    };
    Session::new(Arc::clone(model), params).unwrap_or_else(|error| panic!("{error}"))
}

/// Tokens of a few prompts of each task.
fn tokens(weights: &str, every: usize) -> Vec<Vec<i32>> {
    let llama = Llama::load(&trained(weights), 512);
    prompts("validation.jsonl")
        .iter()
        .step_by(every)
        .map(|prompt| llama.chat_prompt(prompt))
        .collect()
}

/// Everything that a generation tells, times apart.
fn generate(session: &mut Session, prompt: &[i32], options: &str) -> (Vec<i32>, Vec<Event>) {
    let mut events = Vec::new();
    let mut on_event = |event: &Event, _: &CanvasView<'_>| {
        events.push(*event);
        Control::Continue
    };
    session
        .generate(prompt, N_GEN, &params(options), &mut on_event)
        .unwrap_or_else(|error| panic!("{options}: {error}"));
    (session.output().to_vec(), events)
}

/// Of a few prompts, the one with the most revisions.
fn busiest(session: &mut Session, options: &str) -> Vec<i32> {
    let mut n_revisions = |prompt: &Vec<i32>| {
        generate(session, prompt, options);
        session.report().counts.revisions_made
    };
    let (n, prompt) = tokens("q8_0", 60)
        .into_iter()
        .map(|prompt| (n_revisions(&prompt), prompt))
        .max()
        .expect("a few prompts");
    assert!(n > 5, "{n} revisions");
    prompt
}

/// Up to three milliseconds, as good as random, different for the paths.
fn delay(path: Path, step: u32) -> Duration {
    use std::hash::BuildHasher as _;
    let bits = std::hash::RandomState::new().hash_one((path, step));
    Duration::from_micros(bits % 3000)
}

#[test]
fn text_does_not_depend_on_the_path_of_the_revision() {
    for weights in ["f16", "q8_0", "q4_0"] {
        let model = load(&trained(weights), target());
        let (mut one, mut other) = (session(&model, 1), session(&model, 2));
        let mut n_revised = 0;
        for prompt in &tokens(weights, 60) {
            for context in ["committed", "window"] {
                let options = format!("{BUSY} revision-context={context}");
                let dense = generate(&mut one, prompt, &format!("{options} revision-path=dense"));
                let own = format!("{options} revision-path=own revision-threads=1");
                assert_eq!(
                    generate(&mut other, prompt, &own),
                    dense,
                    "{weights} {context}"
                );
                n_revised += one.report().counts.revisions_made;
                assert_eq!(one.report().counts, other.report().counts);
            }
        }
        assert!(
            n_revised > 50,
            "{weights}: {n_revised} revisions are no test"
        );
    }
}

#[test]
fn twenty_runs_with_delays_in_either_path_are_one() {
    let model = load(&trained("q8_0"), target());
    let mut session = session(&model, 2);
    let options = format!("{BUSY} revision-path=own");
    let prompt = &busiest(&mut session, &options);
    let first = generate(&mut session, prompt, &options);
    let waited = session.report().waiting;
    session.set_delay(Some(delay));
    for run in 0..20 {
        assert_eq!(generate(&mut session, prompt, &options), first, "run {run}");
    }
    assert!(session.report().waiting > Duration::ZERO, "{waited:?}");
}

#[test]
fn full_with_everything_off_is_cached_and_mbsd_too() {
    let model = load(&trained("q8_0"), target());
    let mut session = session(&model, 2);
    let off = "lookahead-max=0 block-length=16 refresh-blocks=2";
    for prompt in &tokens("q8_0", 100) {
        for suffix in ["all", "none", "cached", "7"] {
            let common = format!("block-length=16 refresh-blocks=2 suffix={suffix}");
            let cached = generate(&mut session, prompt, &format!("mode=cached {common}"));
            let counts = session.report().counts;
            let full = format!(
                "mode=full {off} suffix={suffix} tau-visible=0.9 tau-stable=0.9 revision-budget=0 final-sweep=0"
            );
            assert_eq!(generate(&mut session, prompt, &full), cached, "{suffix}");
            assert_eq!(session.report().counts, counts);
            let mbsd = format!("mode=mbsd {off} suffix={suffix}");
            assert_eq!(generate(&mut session, prompt, &mbsd), cached, "{suffix}");
        }
    }
}

#[test]
fn a_cancelled_generation_keeps_the_stable_text() {
    let model = load(&trained("q8_0"), target());
    let mut session = session(&model, 2);
    let prompt = &busiest(&mut session, BUSY);
    for path in ["own", "dense"] {
        let options = format!("{BUSY} revision-path={path}");
        let (text, events) = generate(&mut session, prompt, &options);
        let n_steps = events
            .iter()
            .filter(|event| matches!(event, Event::Step { .. }))
            .count();
        assert!(n_steps > 3);
        for last in 0..n_steps - 1 {
            let (mut step, mut n_stable) = (0, 0);
            let mut on_event = |event: &Event, canvas: &CanvasView<'_>| {
                match *event {
                    Event::StablePrefix { len } => n_stable = len as usize,
                    Event::Step { .. } => {
                        let stages = &canvas.stages[prompt.len()..];
                        assert!(
                            stages[..n_stable]
                                .iter()
                                .all(|&stage| stage == Stage::Stable)
                        );
                        step += 1;
                        if step > last {
                            return Control::Cancel;
                        }
                    }
                    _ => {}
                }
                Control::Continue
            };
            let result = session.generate(prompt, N_GEN, &params(&options), &mut on_event);
            assert!(matches!(result, Err(EngineError::Cancelled)));
            assert_eq!(
                session.output(),
                &text[..n_stable],
                "cancelled in step {last}"
            );
        }
        assert_eq!(generate(&mut session, prompt, &options).0, text);
    }
}

#[test]
fn sessions_in_threads_give_what_each_gives_alone() {
    let model = load(&trained("q8_0"), target());
    let prompts = tokens("q8_0", 120);
    let options = format!("{BUSY} revision-path=own");
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| generate(&mut session(&model, 1), prompt, &options))
        .collect();
    let (model, options) = (&model, &options);
    std::thread::scope(|scope| {
        for (prompt, expected) in prompts.iter().zip(&alone) {
            scope.spawn(move || {
                let mut session = session(model, 1);
                for _ in 0..3 {
                    assert_eq!(&generate(&mut session, prompt, options), expected);
                }
            });
        }
    });
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let mut lines = status.lines();
    let line = lines.find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("VmRSS: N kB") * 1024
}

#[test]
fn memory_does_not_grow_over_five_hundred_generations() {
    let model = load(&trained("q8_0"), target());
    let mut session = session(&model, 2);
    let prompts = tokens("q8_0", 60);
    let options = format!("{BUSY} revision-path=own");
    let mut generate = |n: usize| {
        for run in 0..n {
            let prompt = &prompts[run % prompts.len()];
            session
                .generate(prompt, 8, &params(&options), &mut |_, _| Control::Continue)
                .unwrap_or_else(|error| panic!("run {run}: {error}"));
        }
    };
    generate(50);
    let before = resident();
    generate(500);
    let grown = resident().saturating_sub(before);
    // Other tests of this process allocate too; a leak of one row's logits per forward would be more.
    assert!(grown < 64 << 20, "{grown} bytes more after 500 generations");
}

#[test]
fn a_measured_cost_table_gives_a_text_too() {
    let model = load(&trained("q8_0"), target());
    let mut session = session(&model, 2);
    let prompt = &tokens("q8_0", 300)[0];
    let (text, _) = generate(&mut session, prompt, "mode=full cost=measured");
    assert!(!text.is_empty());
}
