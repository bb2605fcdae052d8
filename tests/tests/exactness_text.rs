//! Texts of the engine against those of the NumPy reference, token for token, at temperature 0; and against themselves.
//!
//! Random models have f32 weights, and the reference leaves out prompts on which one of its decisions was close: there texts,
//! commits, forwards and rows have to be equal without exception. The trained model has F16 weights, for which ggml rounds
//! activations and the reference does not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::engine::sample::Sampling;
use llada_npu_tests::engine::{Generated, generate, load, session, target};
use llada_npu_tests::files::{copy_with_u32, prompts, trained};
use llada_npu_tests::llama::Llama;
use llada_npu_tests::numpy::{Decoded, Numpy, decoded};
use llada_npu_tests::text::{Rule, Same, Tally, before_end};

const LLADA: &str = "--arch llada --shape small --type F32 --attention-gain 3";
const DREAM: &str = "--arch dream --shape small --type F32 --attention-gain 3";

/// Rounding differences of f32 arithmetic, with room.
const F32_NEAR_TIE: f64 = 1e-4;
/// What rounding activations to F16 changes in logits, with room.
const F16_NEAR_TIE: f64 = 0.05;

/// One way to decode, said to both sides.
#[derive(Clone, Debug)]
struct Case {
    n_gen: u32,
    numpy: String,
    options: String,
    same: Same,
}

fn case(n_gen: u32, numpy: &str, options: &str, same: Same) -> Case {
    Case {
        n_gen,
        numpy: format!("--gen {n_gen} {numpy}"),
        options: options.to_owned(),
        same,
    }
}

fn reference(n_gen: u32, numpy: &str, options: &str) -> Case {
    case(
        n_gen,
        &format!("--mode llada {numpy}"),
        &format!("mode=reference {options}"),
        Same::Commits,
    )
}

/// Compares the engine with what the reference decoded, on our device with one thread.
fn compare(title: &str, path: &Path, cases: &[(Case, Vec<Decoded>)], seed: u64, near_tie: f64) {
    let sampling = Sampling {
        seed,
        ..Sampling::default()
    };
    let mut session = session(&load(path, target()), 1, sampling);
    let traits = session.traits();
    let ends: Vec<i32> = [traits.eos, traits.eot].into_iter().flatten().collect();
    let mut tally = Tally::default();
    for (case, results) in cases {
        let rule = Rule {
            ends: &ends,
            near_tie,
            same: case.same,
        };
        for expected in results {
            let got = generate(&mut session, &expected.prompt, case.n_gen, &case.options);
            let what = format!("{} on {:?}", case.options, expected.prompt);
            tally.compare(&what, expected, &got, rule);
        }
    }
    tally.finish(title);
}

/// Has the reference decode `count` prompts of its own in every way, and compares.
fn compare_golden(
    title: &str,
    numpy: &mut Numpy,
    path: &Path,
    cases: Vec<Case>,
    count: usize,
    seed: u64,
) {
    let files: Vec<PathBuf> = (1..)
        .zip(&cases)
        .map(|(prompts, case)| {
            let drawn = format!("--count {count} --seed {prompts} --commits");
            numpy.golden(path, &format!("{} {drawn}", case.numpy))
        })
        .collect();
    numpy.run();
    let results = files.iter().map(|file| decoded(file));
    let cases: Vec<_> = cases.into_iter().zip(results).collect();
    compare(title, path, &cases, seed, F32_NEAR_TIE);
}

fn make(numpy: &mut Numpy, arguments: &str) -> PathBuf {
    let path = numpy.make(arguments);
    numpy.run();
    path
}

/// Returns a copy of a model whose EOS and EoT are tokens frequent in `texts`, and these.
fn with_frequent_ends(
    numpy: &Numpy,
    path: &Path,
    texts: &[Decoded],
    name: &str,
) -> (PathBuf, [i32; 2]) {
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    for text in texts {
        for &token in &text.tokens {
            *counts.entry(token).or_default() += 1;
        }
    }
    let mut by_count: Vec<_> = counts.into_iter().collect();
    by_count.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let ends = [by_count[1].0, by_count[4].0];
    let copy = numpy.path(name);
    for (source, key, end) in [
        (path, "tokenizer.ggml.eos_token_id", ends[0]),
        (&copy, "tokenizer.ggml.eot_token_id", ends[1]),
    ] {
        copy_with_u32(source, &copy, key, end.cast_unsigned());
    }
    (copy, ends)
}

/// Modes of the reference's `cached` with the engine's options: every suffix with every refresh, thresholds in turn.
fn cached_cases(ends: [i32; 2]) -> Vec<Case> {
    let ends = format!("--end-ids {},{}", ends[0], ends[1]);
    let mut cases = Vec::new();
    for suffix in ["none", "5", "all", "cached"] {
        for refresh in 0..3 {
            let threshold = ["inf", "0.9", "0.3"][cases.len() % 3];
            cases.push(case(
                29,
                &format!(
                    "--mode cached --block 8 --suffix {suffix} --refresh-blocks {refresh} --threshold {threshold} {ends}"
                ),
                &format!(
                    "mode=cached block-length=8 suffix={suffix} refresh-blocks={refresh} threshold={threshold}"
                ),
                Same::Everything,
            ));
        }
        let threshold = ["inf", "0.9", "0.3"][cases.len() % 3];
        cases.push(case(
            21,
            &format!("--mode cached --block 8 --suffix {suffix} --refresh-every-step --threshold {threshold} {ends}"),
            &format!("mode=cached block-length=8 suffix={suffix} refresh-steps=1 threshold={threshold}"),
            Same::Everything,
        ));
    }
    cases.push(case(
        24,
        &format!("--mode cached --block 8 --logits-eos-inf --confidence-eos-eot-inf {ends}"),
        "mode=cached block-length=8 logits-eos-inf=true confidence-eos-eot-inf=true",
        Same::Everything,
    ));
    cases
}

#[test]
fn llada_schedules_give_the_reference_text() {
    let mut numpy = Numpy::new();
    let path = make(&mut numpy, LLADA);
    let cases = vec![
        reference(40, "--block 16", "block-length=16"),
        reference(40, "--block 16 --steps 10", "block-length=16 steps=10"),
        // Steps of a block are rounded: up, and from the half up.
        reference(37, "--block 8 --steps 27", "block-length=8 steps=27"),
        reference(32, "--block 16 --steps 5", "block-length=16 steps=5"),
        reference(32, "--block 32 --steps 64", "block-length=32 steps=64"),
        reference(23, "--block 50 --steps 7", "block-length=50 steps=7"),
        reference(24, "--block 8 --cfg 1.5", "block-length=8 cfg-scale=1.5"),
        reference(
            21,
            "--block 8 --cfg 0.5 --steps 6",
            "block-length=8 cfg-scale=0.5 steps=6",
        ),
    ];
    compare_golden("llada reference", &mut numpy, &path, cases, 8, 0);
}

#[test]
fn eos_rules_give_the_reference_text() {
    let mut numpy = Numpy::new();
    let path = numpy.make(LLADA);
    let plain = numpy.golden(&path, "--mode llada --gen 24 --block 8 --count 12");
    numpy.run();
    let (path, ends) = with_frequent_ends(&numpy, &path, &decoded(&plain), "ends.gguf");
    let mut cases = vec![reference(24, "--block 8", "block-length=8")];
    for (flags, options) in [
        ("--logits-eos-inf", "logits-eos-inf=true"),
        ("--confidence-eos-eot-inf", "confidence-eos-eot-inf=true"),
        (
            "--logits-eos-inf --confidence-eos-eot-inf",
            "logits-eos-inf=true confidence-eos-eot-inf=true",
        ),
    ] {
        cases.push(reference(
            24,
            &format!("--block 8 {flags}"),
            &format!("block-length=8 {options}"),
        ));
        cases.push(case(
            24,
            &format!(
                "--mode cached --block 8 --end-ids {},{} {flags}",
                ends[0], ends[1]
            ),
            &format!("mode=cached block-length=8 {options}"),
            Same::Everything,
        ));
    }
    compare_golden("EOS rules", &mut numpy, &path, cases, 10, 0);
}

#[test]
fn dream_algorithms_give_the_reference_text() {
    const SEED: u64 = 42;
    let mut numpy = Numpy::new();
    let path = make(&mut numpy, DREAM);
    let uniform = numpy.path("uniform.json");
    std::fs::write(&uniform, uniform_numbers(SEED, 64, 80)).expect("a file");
    let uniform = uniform.to_str().expect("a UTF-8 path");
    let mut cases = Vec::new();
    for algorithm in ["maskgit_plus", "topk_margin", "entropy", "origin"] {
        for (n_gen, steps) in [(32, 32), (27, 10), (20, 64)] {
            let mut flags = format!("--mode dream --algorithm {algorithm} --steps {steps}");
            if algorithm == "origin" {
                let _infallible = write!(flags, " --uniform {uniform}");
            }
            cases.push(case(
                n_gen,
                &flags,
                &format!("mode=reference algorithm={algorithm} steps={steps}"),
                Same::Commits,
            ));
        }
    }
    compare_golden("dream reference", &mut numpy, &path, cases, 8, SEED);
}

/// Returns a JSON table of the numbers that `origin` draws, `[step][position]`, as `decode::random` documents them.
fn uniform_numbers(seed: u64, n_steps: u32, n_positions: u32) -> String {
    let table: Vec<Vec<f64>> = (0..n_steps)
        .map(|step| {
            (0..n_positions)
                .map(|pos| Key::new(seed, pos, step, Purpose::Order).unit(0))
                .collect()
        })
        .collect();
    serde_json::json!(table).to_string()
}

#[test]
fn cached_texts_equal_the_reference() {
    for (arch, arguments) in [("llada", LLADA), ("dream", DREAM)] {
        let mut numpy = Numpy::new();
        let path = numpy.make(arguments);
        let plain = numpy.golden(&path, "--mode cached --gen 24 --block 8 --count 12");
        numpy.run();
        let traits = session(&load(&path, target()), 1, Sampling::default()).traits();
        let ends = [traits.eos, traits.eot].map(|end| end.expect("the model has both"));
        compare_golden(
            &format!("{arch} cached"),
            &mut numpy,
            &path,
            cached_cases(ends),
            4,
            0,
        );
        let texts = decoded(&plain);
        let (path, ends) = with_frequent_ends(&numpy, &path, &texts, "ends.gguf");
        compare_golden(
            &format!("{arch} cached with ends"),
            &mut numpy,
            &path,
            cached_cases(ends),
            4,
            0,
        );
    }
}

/// Cached decoding that keeps nothing and commits one position per step is LLaDA's schedule with a step per token.
#[test]
fn cached_without_a_cache_equals_llada_reference() {
    let mut numpy = Numpy::new();
    let path = numpy.make(LLADA);
    let file = numpy.golden(
        &path,
        "--mode llada --gen 29 --block 8 --count 12 --commits",
    );
    numpy.run();
    let results = decoded(&file);
    let mut session = session(&load(&path, target()), 1, Sampling::default());
    let traits = session.traits();
    let ends: Vec<i32> = [traits.eos, traits.eot].into_iter().flatten().collect();
    let mut n = 0;
    for expected in &results {
        // Behind an end token the two see different things.
        if before_end(&expected.tokens, &ends).len() < expected.tokens.len() {
            continue;
        }
        let options = "mode=cached block-length=8 threshold=inf suffix=all refresh-steps=1";
        let got = generate(&mut session, &expected.prompt, 29, options);
        assert_eq!(got.output, expected.tokens);
        assert_eq!(got.commits, expected.commits);
        n += 1;
    }
    assert!(n >= 8, "only {n} texts without an end token");
}

/// Mode `full` on random models, whose confidences are low: thresholds that tokens reach, miss and lose again.
#[test]
fn full_texts_equal_the_reference() {
    for arch in [LLADA, DREAM] {
        let mut numpy = Numpy::new();
        let path = numpy.make(arch);
        let plain = numpy.golden(&path, "--mode full --gen 24 --block 8 --count 6");
        numpy.run();
        let (path, ends) = with_frequent_ends(&numpy, &path, &decoded(&plain), "ends.gguf");
        let full = |suffix: &str, ways: &[(&str, &str)]| {
            let numpy = |(key, value)| format!(" --{key} {value}");
            let option = |(key, value): (&str, &str)| match key {
                "block" => format!(" block-length={value}"),
                "budget" | "radius" => format!(" revision-{key}={value}"),
                _ => format!(" {key}={value}"),
            };
            let [numpy, options] = [
                ways.iter().map(|&way| numpy(way)).collect::<String>(),
                ways.iter().map(|&way| option(way)).collect(),
            ];
            case(
                29,
                &format!(
                    "--mode full --suffix {suffix} --end-ids {},{}{numpy}",
                    ends[0], ends[1]
                ),
                &format!("mode=full suffix={suffix}{options}"),
                Same::Everything,
            )
        };
        let taus = [
            ("tau-visible", "0.3"),
            ("tau-stable", "0.7"),
            ("draft-threshold", "0.4"),
            ("tau-replace", "0.4"),
            ("tau-remask", "0.2"),
        ];
        let with = |more: &[(&'static str, &'static str)]| [&taus, more].concat();
        let cases = vec![
            full("none", &[("block", "8")]),
            full("none", &with(&[("block", "8"), ("budget", "8")])),
            full(
                "5",
                &with(&[("block", "8"), ("budget", "2"), ("refresh-blocks", "0")]),
            ),
            full(
                "all",
                &with(&[("block", "8"), ("budget", "2"), ("radius", "0")]),
            ),
            full(
                "none",
                &with(&[
                    ("block", "16"),
                    ("max-revisions", "1"),
                    ("lookahead-max", "6"),
                ]),
            ),
            full(
                "all",
                &with(&[("block", "32"), ("budget", "3"), ("final-sweep", "2")]),
            ),
        ];
        compare_golden(&format!("{arch} full"), &mut numpy, &path, cases, 4, 0);
    }
}

/// 100 real prompts in the model's chat template, evenly from all tasks.
fn real_prompts(path: &Path) -> Vec<Vec<i32>> {
    let llama = Llama::load(path, 8);
    let messages = prompts("validation.jsonl");
    let stride = messages.len() / 100;
    let every = messages.iter().step_by(stride.max(1)).take(100);
    let prompts: Vec<_> = every.map(|message| llama.chat_prompt(message)).collect();
    assert_eq!(prompts.len(), 100);
    prompts
}

#[test]
fn the_trained_model_gives_the_reference_text_on_100_prompts() {
    let path = trained("f16");
    let prompts = real_prompts(&path);
    let traits = session(&load(&path, target()), 1, Sampling::default()).traits();
    let ends = [traits.eos, traits.eot].map(|end| end.expect("the model has both"));
    let cases = [
        case(
            64,
            "--mode llada --block 32 --jobs 2",
            "mode=reference block-length=32",
            Same::Text,
        ),
        case(
            96,
            &format!("--mode cached --block 32 --end-ids {},{}", ends[0], ends[1]),
            "mode=cached block-length=32",
            Same::Text,
        ),
        case(
            96,
            &format!("--mode full --end-ids {},{}", ends[0], ends[1]),
            "mode=full suffix=none block-length=32",
            Same::Text,
        ),
    ];
    let mut numpy = Numpy::new();
    let files = cases
        .clone()
        .map(|case| numpy.decode(&path, &prompts, &case.numpy));
    numpy.run();
    for (case, file) in cases.into_iter().zip(files) {
        let mut results = decoded(&file);
        for (result, prompt) in results.iter_mut().zip(&prompts) {
            result.prompt.clone_from(prompt);
        }
        let title = format!("trained f16, {}", case.options);
        compare(&title, &path, &[(case, results)], 0, F16_NEAR_TIE);
    }
}

/// Ways to decode that between them draw in every way there is.
const DRAWS: [(&str, f32); 5] = [
    ("mode=reference block-length=16 steps=20", 0.0),
    ("mode=reference block-length=16 steps=20 alg-temp=0.5", 0.8),
    ("mode=reference algorithm=origin eps=0.001 steps=20", 0.8),
    ("mode=cached block-length=16 threshold=0.4", 0.0),
    (
        "mode=cached block-length=16 threshold=0.4 suffix=cached",
        0.8,
    ),
];

fn draws(model: &std::sync::Arc<ggml_llada_npu::engine::Model>, n_threads: u32) -> Vec<Generated> {
    let prompt = [17, 80, 3, 44, 200, 101, 9];
    DRAWS
        .iter()
        .map(|&(options, temperature)| {
            let sampling = Sampling {
                temperature,
                top_k: 50,
                top_p: 0.95,
                seed: 7,
            };
            generate(
                &mut session(model, n_threads, sampling),
                &prompt,
                45,
                options,
            )
        })
        .collect()
}

fn texts(generated: &[Generated]) -> Vec<(&[i32], &[Vec<u32>])> {
    generated
        .iter()
        .map(|each| (&each.output[..], &each.commits[..]))
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_text_on_any_number_of_threads_and_beside_others() {
    let mut numpy = Numpy::new();
    let paths = [
        "--arch llada --shape small --type F16",
        "--arch dream --shape small --type Q8_0",
        "--arch llada --shape small --type Q4_0",
    ]
    .map(|arguments| numpy.make(arguments));
    numpy.run();
    for path in paths {
        let model = load(&path, target());
        let alone = draws(&model, 1);
        for n_threads in [1, 2, 3] {
            let again = draws(&model, n_threads);
            assert_eq!(texts(&again), texts(&alone), "{n_threads} threads");
        }
        // Two sessions on one model at the same time.
        std::thread::scope(|scope| {
            let beside = [1, 2].map(|n_threads| {
                scope.spawn({
                    let model = &model;
                    move || draws(model, n_threads)
                })
            });
            for thread in beside {
                let beside = thread.join().expect("no panic");
                assert_eq!(texts(&beside), texts(&alone), "two sessions");
            }
        });
    }
}
