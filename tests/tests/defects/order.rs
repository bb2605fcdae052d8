//! Which token is chosen and which position commits first, on logits that the test makes up.

use ggml_llada_npu::decode::{Decoder, Event, Family, ModelTraits};
use ggml_llada_npu::engine::sample::{SampleParams, Sampler, Sampling};
use llada_npu_tests::engine::params;

use crate::models::{EOS, EOT, MASK, MODELS, SURE};
use crate::programs::{answer_of, programs};

const N_VOCAB: u32 = 12;
const MASK_ID: i32 = 11;
const SEEDS: std::ops::Range<u64> = 0..20;
/// Every algorithm of [`Mode::Reference`](ggml_llada_npu::decode::Mode::Reference).
const ALGORITHMS: [&str; 5] = ["origin", "entropy", "margin", "random", "confidence"];
/// Those that choose positions by the model's logits.
const BY_LOGITS: [&str; 3] = ["entropy", "margin", "confidence"];

/// How a canvas was decoded.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    /// Positions (the prompt is empty) that each forward committed, in the order of commitment.
    steps: Vec<Vec<u32>>,
    /// The canvas at the end.
    canvas: Vec<i32>,
}

impl Decoded {
    fn order(&self) -> Vec<u32> {
        self.steps.concat()
    }
}

/// Decodes `n_gen` positions without prompt; `row(pos)` are the logits of a position, at every step.
fn decode(options: &str, n_gen: u32, sampling: Sampling, row: impl Fn(u32) -> Vec<f32>) -> Decoded {
    let model = ModelTraits {
        mask: Some(MASK_ID),
        eos: None,
        eot: None,
        n_vocab: N_VOCAB,
        n_ctx: 256,
        shift_logits: false,
        default_block_length: 32,
        family: Family::Llada,
    };
    let resolved = params(options).resolve(&model, 0, n_gen).expect(options);
    let mut decoder = Decoder::new(resolved, &[], sampling.seed).expect("an empty prompt");
    let mut sampler = Sampler::new(SampleParams::new(&resolved, sampling).expect("valid sampling"));
    let mut steps = Vec::new();
    while let Some(plan) = decoder.next_plan().expect("the decoder is ready") {
        let predict = |wanted: &ggml_llada_npu::decode::plan::Predict| {
            let logits = row(wanted.pos);
            sampler
                .predict(&logits, None, *wanted, plan.step)
                .expect("logits are numbers")
        };
        let predictions: Vec<_> = plan.predict.iter().map(predict).collect();
        let events = decoder.absorb(&predictions).expect("what the plan wants");
        let committed = events.iter().filter_map(|event| match *event {
            Event::Committed { pos, .. } => Some(pos),
            _ => None,
        });
        steps.push(committed.collect());
        assert!(steps.len() < 1000, "{options}: no end");
    }
    Decoded {
        steps,
        canvas: decoder.canvas().to_vec(),
    }
}

fn at(temperature: f32, seed: u64) -> Sampling {
    Sampling {
        temperature,
        seed,
        ..Sampling::default()
    }
}

/// A row that prefers one token by so much.
fn peak(token: usize, logit: f32) -> Vec<f32> {
    let mut row = vec![0.0; N_VOCAB as usize];
    row[token] = logit;
    row
}

/// Options of the two schedules of `reference` with as many steps as positions.
fn schedules(algorithm: &str) -> [String; 2] {
    ["block-length=4", "eps=0.001"]
        .map(|schedule| format!("mode=reference steps=4 {schedule} algorithm={algorithm}"))
}

/// D7: the sampler of stock stays at temperature 1.
#[test]
fn the_most_probable_token_is_chosen_at_temperature_zero() {
    let row = |pos: u32| {
        let mut row = peak(pos as usize, 0.1);
        row[10 - pos as usize] = 0.05;
        row
    };
    let all = ALGORITHMS.map(|algorithm| format!("mode=reference algorithm={algorithm}"));
    for options in all.iter().map(String::as_str).chain(["mode=cached"]) {
        for seed in SEEDS {
            for gumbel in ["true", "false"] {
                let options = format!("{options} add-gumbel-noise={gumbel}");
                let decoded = decode(&options, 4, at(0.0, seed), row);
                assert_eq!(decoded.canvas, [0, 1, 2, 3], "{options} seed {seed}");
            }
        }
    }
}

/// D7; R25 end to end.
#[test]
fn temp_zero_is_greedy() {
    let modes: [&[&str]; 4] = [
        &[],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-algorithm",
            "1",
        ],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-algorithm",
            "2",
        ],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-algorithm",
            "4",
        ],
    ];
    let never_ends = ["--diffusion-logits-eos-inf", "true", "-n", "12"];
    for program in programs("temp_zero_is_greedy") {
        let texts = |model, args: &[&str]| {
            let one = |seed: u32| {
                let seed = seed.to_string();
                let args = [args, &never_ends, &["--seed", &seed]].concat();
                answer_of(&program.answer(model, &args))
            };
            let mut texts: Vec<_> = (1..=5).map(one).collect();
            texts.dedup();
            texts
        };
        for mode in modes {
            let texts = texts(&MODELS.llada, &[mode, &["--temp", "0"]].concat());
            assert_eq!(texts.len(), 1, "{program:?} {mode:?}: {texts:?}");
        }
        // The seed is not dead: it decides where there is something to decide.
        let hot = texts(&MODELS.llada, &["--temp", "1"]);
        assert!(hot.len() > 1, "{program:?}: {hot:?}");
    }
}

/// The same seed gives the same text above temperature 0, and where positions are drawn.
#[test]
fn a_seed_decides_the_text() {
    let args = [
        "--diffusion-mode",
        "reference",
        "--temp",
        "1",
        "--seed",
        "7",
        "-n",
        "12",
    ];
    for program in programs("a_seed_decides_the_text") {
        for algorithm in ["0", "3"] {
            let args = [&args[..], &["--diffusion-algorithm", algorithm]].concat();
            let text = || answer_of(&program.answer(&MODELS.llada, &args));
            assert_eq!(text(), text(), "{program:?} {algorithm}");
        }
    }
}

/// D8; R26.
#[test]
fn entropy_commits_least_uncertain_first() {
    const HEIGHTS: [f32; 4] = [1.0, 6.0, 3.0, 9.0];
    let row = |pos: u32| peak(pos as usize, HEIGHTS[pos as usize]);
    for options in schedules("entropy") {
        for temperature in [0.0, 1.0] {
            let decoded = decode(&options, 4, at(temperature, 3), row);
            assert_eq!(decoded.order(), [3, 1, 2, 0], "{options} T {temperature}");
        }
    }
}

/// D9: stock subtracts the logits of the first two ids when nothing sorts the candidates.
#[test]
fn margin_is_that_of_the_two_most_probable_tokens() {
    // By ids 0 and 1 the order would be 0, 1, 2, 3; by the two best it is the reverse.
    let row = |pos: u32| {
        let mut row = vec![-9.0; N_VOCAB as usize];
        row[0] = 3.0 - pos as f32;
        row[7] = 8.0;
        row[5] = 5.0 + (3 - pos) as f32;
        row
    };
    for options in schedules("margin") {
        for temperature in [0.0, 1.0] {
            let decoded = decode(&options, 4, at(temperature, 3), row);
            assert_eq!(decoded.order(), [3, 2, 1, 0], "{options} T {temperature}");
        }
    }
}

/// The confidence is the model's own probability, not one renormalised by top-k, top-p or temperature.
#[test]
fn filters_do_not_make_a_position_sure() {
    let row = |pos: u32| peak(pos as usize, [1.0, 4.0, 2.0, 3.0][pos as usize]);
    let one_kept = Sampling {
        top_k: 1,
        ..at(0.05, 1)
    };
    // In stock all four have probability 1 then, and the lowest position wins.
    let decoded = decode(
        "mode=reference block-length=4 algorithm=confidence",
        4,
        one_kept,
        row,
    );
    assert_eq!(decoded.order(), [1, 3, 2, 0]);
}

/// D10: with an algorithm temperature stock may draw a position twice.
#[test]
fn drawn_positions_are_distinct() {
    let row = |pos: u32| peak(pos as usize % 11, pos as f32 * 0.3);
    for algorithm in BY_LOGITS {
        let options = format!("mode=reference block-length=16 steps=4 algorithm={algorithm}");
        let greedy = decode(&options, 16, at(0.0, 0), row);
        let mut n_same = 0;
        for seed in SEEDS {
            let drawn = decode(&format!("{options} alg-temp=0.5"), 16, at(0.0, seed), row);
            for step in &drawn.steps {
                assert_eq!(step.len(), 4, "{algorithm} seed {seed}: {drawn:?}");
            }
            let mut order = drawn.order();
            n_same += u32::from(order == greedy.order());
            order.sort_unstable();
            assert_eq!(
                order,
                (0..16).collect::<Vec<_>>(),
                "{algorithm} seed {seed}"
            );
        }
        // In stock the option is dead.
        assert!(n_same < 2, "{algorithm}: alg-temp draws nothing");
    }
}

/// D12: the model may want MASK everywhere and does not get it anywhere.
#[test]
fn mask_is_never_committed() {
    let row = |pos: u32| {
        let mut row = peak(pos as usize % 11, 2.0);
        row[11] = 20.0;
        row
    };
    let mut all: Vec<_> = ALGORITHMS
        .iter()
        .flat_map(|algorithm| schedules(algorithm))
        .collect();
    all.push("mode=cached".to_owned());
    all.push("mode=cached confidence=without-mask".to_owned());
    for options in &all {
        for (temperature, seed) in [(0.0, 0), (1.0, 1), (5.0, 2)] {
            let decoded = decode(options, 9, at(temperature, seed), row);
            assert!(!decoded.canvas.contains(&MASK_ID), "{options}: {decoded:?}");
            assert_eq!(decoded.order().len(), 9, "{options}: {decoded:?}");
        }
    }
}

/// D12, end to end: a model that predicts MASK with all its weight.
#[test]
fn a_model_that_wants_masks_gives_text() {
    let model = MODELS.constant("mask.gguf", &[(MASK, 2.0 * SURE), (i32::from(b'b'), SURE)]);
    let modes: [&[&str]; 3] = [
        &[],
        &[
            "--diffusion-mode",
            "reference",
            "--diffusion-algorithm",
            "0",
        ],
        &["--diffusion-mode", "reference", "--diffusion-eps", "0.001"],
    ];
    for program in programs("a_model_that_wants_masks_gives_text") {
        for mode in modes {
            let run = program.report(&model, &[mode, &["-n", "24"]].concat());
            assert_eq!(run.text, "b".repeat(24), "{program:?} {mode:?}");
        }
    }
}

/// D12: ORIGIN is a matter of chance in stock's block schedule, and may leave masks.
#[test]
fn origin_leaves_no_mask() {
    let row = |pos: u32| peak(pos as usize % 11, 1.0);
    for schedule in [
        "block-length=8",
        "block-length=5 steps=9",
        "eps=0.001 steps=3",
    ] {
        for seed in 0..100 {
            let options = format!("mode=reference algorithm=origin {schedule}");
            let decoded = decode(&options, 24, at(0.0, seed), row);
            assert!(
                !decoded.canvas.contains(&MASK_ID),
                "{options} seed {seed}: {decoded:?}"
            );
        }
    }
}

/// A flood of EOS or EoT is an empty answer, not text.
#[test]
fn end_tokens_are_not_printed() {
    for (name, token) in [("eos.gguf", EOS), ("eot.gguf", EOT)] {
        let model = MODELS.constant(name, &[(token, SURE)]);
        for program in programs("end_tokens_are_not_printed") {
            let run = program.report(&model, &["-n", "64"]);
            assert_eq!(run.text, "", "{program:?}");
            assert_eq!(run.count("forwards"), 1, "{program:?}: {}", run.report);
        }
    }
}
