//! Logits of the engine against stock libllama's and NumPy's.
//!
//! Everything runs on our device; the matrix against stock runs a second time on the host's CPU device, which separates
//! errors of the engine from errors of kernels.

#![expect(
    clippy::print_stdout,
    reason = "errors are worth seeing where they pass"
)]

use std::path::{Path, PathBuf};

use ggml_llada_npu::decode::plan::Prediction;
use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::decode::{Decoder, RowPlan};
use ggml_llada_npu::engine::sample::{SampleParams, Sampler, Sampling};
use ggml_llada_npu::engine::{Session, Target};
use llada_npu_tests::engine::{
    cpu_target, forward, load, params, rows_plan, session, target, whole_plan,
};
use llada_npu_tests::files::trained;
use llada_npu_tests::host;
use llada_npu_tests::llama::{Llama, nmse};
use llada_npu_tests::numpy::{Numpy, first_part, rows};
use serde_json::json;

/// Largest error where weights and arithmetic are f32 on both sides.
const F32: f64 = 1e-9;
/// Largest error where weights are F16 and activations are rounded to it.
const F16: f64 = 1e-6;
/// Largest error where activations are quantised to 8 bits.
const QUANTISED: f64 = 1e-4;

/// For models with quantised weights. An activation that lies near the middle between two 8-bit values is rounded one way
/// or the other by the last bit of a sum, and a random network makes the difference grow on its way: in these it has fewer
/// layers and flatter attention to grow in.
const CALM: &str = "--n-layer 2 --attention-gain 1";
/// The mixture of a `Q4_K_M` file, for a shape of two layers.
const K_MIX: &str =
    "--type Q4_K --tensor-type ffn_down|attn_v|output.weight=Q6_K --attention-gain 1";

const LENGTHS: [usize; 5] = [1, 31, 32, 33, 200];

/// Returns `n` tokens below `n_vocab`, about every second one `mask`.
fn random_tokens(n: usize, n_vocab: usize, mask: i32, seed: u64) -> Vec<i32> {
    let key = Key::new(seed, 0, 0, Purpose::Token);
    (0..u32::try_from(n).expect("a short sequence"))
        .map(|i| {
            let bits = key.bits(i);
            if bits & 1 == 1 {
                return mask;
            }
            i32::try_from((bits >> 1) % n_vocab as u64).expect("a token")
        })
        .collect()
}

fn mask_of(session: &Session) -> i32 {
    session.traits().mask.expect("the model has a mask token")
}

fn flat(rows: &[Vec<f32>]) -> Vec<f32> {
    rows.concat()
}

/// Compares full-sequence logits with stock's at all lengths; returns the largest error.
fn against_stock(path: &Path, target: Target) -> f64 {
    let mut stock = Llama::load(path, 256);
    let mut session = session(&load(path, target), 1, Sampling::default());
    let mask = mask_of(&session);
    let mut worst = 0.0_f64;
    for (seed, n) in (0..).zip(LENGTHS) {
        let tokens = random_tokens(n, stock.n_vocab(), mask, seed);
        let expected = flat(&stock.decode(&tokens, 0));
        // All in scratch, all in the store, some in each: where K/V lies must not matter.
        for n_store in [0, u32::MAX, 7] {
            let got = flat(&forward(&mut session, &whole_plan(&tokens, n_store)));
            worst = worst.max(nmse(&got, &expected));
        }
    }
    worst
}

/// A model file with a name for messages and the largest error allowed.
type Case = (String, PathBuf, f64);

/// Models made by `numpy`, which runs before this returns.
fn random_cases(numpy: &mut Numpy, variants: &[(&str, f64)]) -> Vec<Case> {
    let cases = variants
        .iter()
        .map(|&(arguments, limit)| (arguments.to_owned(), numpy.make(arguments), limit))
        .collect();
    numpy.run();
    cases
}

fn check_against_stock(cases: &[Case]) {
    for (device, target) in [("llada-npu", target()), ("CPU", cpu_target())] {
        for (name, path, limit) in cases {
            let worst = against_stock(path, target);
            println!("{device}, {name}: NMSE {worst:.1e} (limit {limit:.0e})");
            assert!(worst <= *limit, "{device}, {name}: NMSE {worst:e}");
        }
    }
}

#[test]
fn full_sequences_of_trained_models_match_stock() {
    let cases = [("f16", F16), ("q8_0", QUANTISED), ("q4_0", QUANTISED)]
        .map(|(weights, limit)| (format!("trained {weights}"), trained(weights), limit));
    check_against_stock(&cases);
}

#[test]
fn full_sequences_of_random_models_match_stock() {
    let mut numpy = Numpy::new();
    let cases = random_cases(
        &mut numpy,
        &[
            ("--arch dream --shape small --type F32", F32),
            ("--arch dream --shape small --type F16", F16),
            (
                &format!("--arch dream --shape small --type Q8_0 {CALM}"),
                QUANTISED,
            ),
            (
                &format!("--arch dream --shape small --type Q4_0 {CALM}"),
                QUANTISED,
            ),
            ("--arch llada --shape small --type F32", F32),
            ("--arch llada --shape small --type F16", F16),
            (
                &format!("--arch llada --shape tiny --type Q8_0 {CALM}"),
                QUANTISED,
            ),
            (
                &format!("--arch llada --shape tiny --type Q4_0 {CALM}"),
                QUANTISED,
            ),
        ],
    );
    check_against_stock(&cases);
}

#[test]
fn other_layouts_and_types_of_files_match_stock() {
    let mut numpy = Numpy::new();
    let cases = random_cases(
        &mut numpy,
        &[
            ("--arch llada --shape small --type F16 --tied", F16),
            ("--arch dream --shape small --type F16 --tied", F16),
            ("--arch llada --shape small --type F16 --fused-qkv", F16),
            ("--arch dream --shape small --type F16 --fused-qkv", F16),
            (&format!("--arch dream --shape 256 {K_MIX}"), QUANTISED),
            (&format!("--arch llada --shape 256 {K_MIX}"), QUANTISED),
            (
                &format!("--arch dream --shape 256 --type IQ4_XS {CALM}"),
                QUANTISED,
            ),
            (
                &format!("--arch dream --shape 256 --type IQ3_S {CALM}"),
                QUANTISED,
            ),
        ],
    );
    check_against_stock(&cases);
}

#[test]
fn a_split_file_matches_stock() {
    let Some(stock) = host::stock("a_split_file_matches_stock") else {
        return;
    };
    let mut numpy = Numpy::new();
    let splitter = stock.bin().join("llama-gguf-split");
    let whole = numpy.make_split(
        "--arch dream --shape small --type F16 --seed 2",
        9,
        &splitter,
    );
    numpy.run();
    check_against_stock(&[("split dream F16".to_owned(), first_part(&whole), F16)]);
}

/// Prefill with the prompt in the store, then steps that compute the canvas alone: what a row sees of the prompt is what
/// the prefill left.
#[test]
fn canvas_rows_over_a_stored_prefix_match_the_autoregressive_twin() {
    let mut numpy = Numpy::new();
    let mut models: Vec<_> = [
        ("--arch llada --shape small --type F32", F32),
        ("--arch dream --shape small --type F32", F32),
        ("--arch llada --shape small --type F16", F16),
        ("--arch dream --shape small --type F16", F16),
    ]
    .into_iter()
    .map(|(arguments, limit)| (arguments, numpy.make(arguments), limit))
    .collect();
    models.push(("trained f16", trained("f16"), F16));
    let models: Vec<_> = models
        .into_iter()
        .map(|(name, path, limit)| (name, numpy.twin(&path), path, limit))
        .collect();
    numpy.run();

    for (name, twin, path, limit) in models {
        let model = load(&path, target());
        let mut worst = 0.0_f64;
        for (seed, (n_prompt, n_canvas)) in
            (0..).zip([(1, 1), (5, 32), (33, 31), (64, 96), (3, 200)])
        {
            let mut stock = Llama::load(&twin, 512);
            // A new session: slots of an earlier canvas must not be seen, and are not there.
            let mut session = session(&model, 1, Sampling::default());
            let mask = mask_of(&session);
            let first = u32::try_from(n_prompt).expect("a short prompt");
            let mut tokens = random_tokens(n_prompt + n_canvas, stock.n_vocab(), mask, 10 * seed);
            tokens[n_prompt..].fill(mask);

            let expected = flat(&stock.decode(&tokens, 0));
            let got = flat(&forward(&mut session, &whole_plan(&tokens, first)));
            worst = worst.max(nmse(&got, &expected));
            for step in 1..4 {
                // Another canvas, and in the last step a shorter one.
                let n_canvas = if step == 3 {
                    n_canvas.div_ceil(2)
                } else {
                    n_canvas
                };
                let canvas = random_tokens(n_canvas, stock.n_vocab(), mask, 10 * seed + step);
                stock.forget_from(n_prompt);
                let expected = flat(&stock.decode(&canvas, n_prompt));
                let got = flat(&forward(&mut session, &rows_plan(&canvas, first, first)));
                worst = worst.max(nmse(&got, &expected));
            }
        }
        println!("prefix K/V, {name}: NMSE {worst:.1e} (limit {limit:.0e})");
        assert!(worst <= limit, "{name}: NMSE {worst:e}");
    }
}

/// One step of [`SCRIPT`]: rows of the forward as canvas positions, the predicted positions with their predictor rows (with
/// and without shift), the stored K/V that is seen as (position, forward it comes from), and what commits afterwards.
struct Step {
    rows: &'static [u32],
    past: &'static [(u32, usize)],
    predict: &'static [u32],
    commit: &'static [u32],
}

const N_PROMPT: u32 = 5;

/// Dream, prompt of 5, two blocks of 3, no refresh, all masks in sight. Position 6 is masked between committed ones in step
/// 1; step 2 begins a block: the predictor of 8 is 7, committed and stored before; in step 3 masks 8 and 10 are isolated.
const DREAM: &[Step] = &[
    Step {
        rows: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        past: &[],
        predict: &[5, 6, 7],
        commit: &[5, 7],
    },
    Step {
        rows: &[5, 6, 7, 8, 9, 10],
        past: &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)],
        predict: &[6],
        commit: &[6],
    },
    Step {
        rows: &[6, 7, 8, 9, 10],
        past: &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1)],
        predict: &[8, 9, 10],
        commit: &[9],
    },
    Step {
        rows: &[7, 8, 9, 10],
        past: &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 2)],
        predict: &[8, 10],
        commit: &[8, 10],
    },
];

/// The same for LLaDA, where a position is predicted by its own row.
const LLADA: &[Step] = &[
    Step {
        rows: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        past: &[],
        predict: &[5, 6, 7],
        commit: &[5, 7],
    },
    Step {
        rows: &[5, 6, 7, 8, 9, 10],
        past: &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)],
        predict: &[6],
        commit: &[6],
    },
    Step {
        rows: &[6, 8, 9, 10],
        past: &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (7, 1)],
        predict: &[8, 9, 10],
        commit: &[9],
    },
    Step {
        rows: &[8, 9, 10],
        past: &[
            (0, 0),
            (1, 0),
            (2, 0),
            (3, 0),
            (4, 0),
            (5, 1),
            (7, 1),
            (6, 2),
        ],
        predict: &[8, 10],
        commit: &[8, 10],
    },
];

/// Returns the reference's request for a script, `tokens` being what is committed where, prompt included.
fn request(script: &[Step], tokens: &[i32], mask: i32, shift: u32) -> serde_json::Value {
    let mut committed: Vec<u32> = (0..N_PROMPT).collect();
    let steps: Vec<_> = script
        .iter()
        .map(|step| {
            let input: Vec<i32> = step
                .rows
                .iter()
                .map(|pos| match committed.contains(pos) {
                    true => tokens[*pos as usize],
                    false => mask,
                })
                .collect();
            committed.extend(step.commit);
            let row_of = |pos: u32, rows: &[u32]| rows.iter().position(|&row| row == pos);
            let past: Vec<_> = step
                .past
                .iter()
                .map(|&(pos, from)| (from, row_of(pos, script[from].rows)))
                .collect();
            let logits: Vec<_> = step
                .predict
                .iter()
                .map(|&pos| row_of(pos - shift, step.rows))
                .collect();
            json!({"tokens": input, "positions": step.rows, "past": past, "logits": logits})
        })
        .collect();
    json!(steps)
}

/// Follows a decoder whose commits the script decides; returns the logits of all predictions.
fn follow(session: &mut Session, script: &[Step], tokens: &[i32]) -> Vec<Vec<f32>> {
    let n_gen = u32::try_from(tokens.len()).expect("a short text") - N_PROMPT;
    let params = params("mode=cached block-length=3 threshold=0.5 refresh-blocks=0 suffix=all");
    let resolved = session.check(N_PROMPT, n_gen, &params).expect("valid");
    let prompt = &tokens[..N_PROMPT as usize];
    let mut decoder = Decoder::new(resolved, prompt, 0).expect("valid");
    let mut logits = Vec::new();
    for (index, step) in script.iter().enumerate() {
        let plan = decoder.next_plan().expect("ready").expect("not done");
        let predicted: Vec<u32> = plan.predict.iter().map(|predict| predict.pos).collect();
        assert_eq!(predicted, step.predict, "step {index}");
        logits.extend(forward(session, plan));
        let predictions: Vec<_> = predicted
            .iter()
            .map(|&pos| Prediction {
                pos,
                token: tokens[pos as usize],
                confidence: f32::from(u8::from(step.commit.contains(&pos))),
                score: 0.0,
                probe: 0.0,
            })
            .collect();
        decoder
            .absorb(&predictions)
            .expect("the plan's predictions");
    }
    assert!(decoder.is_done(), "the script commits everything");
    logits
}

#[test]
fn first_positions_of_blocks_and_isolated_masks_match_numpy() {
    let mut numpy = Numpy::new();
    let models = [
        (
            "dream",
            DREAM,
            1_u32,
            numpy.make("--arch dream --shape small --type F32"),
        ),
        (
            "llada",
            LLADA,
            0,
            numpy.make("--arch llada --shape small --type F32"),
        ),
    ];
    numpy.run();
    for (name, script, shift, path) in models {
        let mut session = session(&load(&path, target()), 1, Sampling::default());
        let mask = mask_of(&session);
        let n_vocab = session.traits().n_vocab as usize;
        let tokens: Vec<i32> = (0..11).map(|i| 20 + 11 * i).collect();
        let out = numpy.forward(&path, &request(script, &tokens, mask, shift));
        numpy.run();
        let expected = rows(&out, n_vocab);
        let got = follow(&mut session, script, &tokens);
        assert_eq!(got.len(), expected.len());
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let error = nmse(got, expected);
            assert!(error <= F32, "{name}, prediction {index}: NMSE {error:e}");
        }
    }
}

/// Decodes with a refresh at every step and everything in sight; returns the largest difference between the logits of the
/// plans and those of stock's full sequence without a cache.
fn refreshed_against_stock(session: &mut Session, stock: &mut Llama, seed: u64) -> f64 {
    let (n_prompt, n_gen) = (13, 27);
    let params = params("mode=cached block-length=8 threshold=0.3 refresh-steps=1 suffix=all");
    let mask = mask_of(session);
    let mut prompt = random_tokens(n_prompt, stock.n_vocab(), mask, seed);
    prompt.iter_mut().for_each(|token| *token %= mask);
    let resolved = session.check(13, n_gen, &params).expect("valid");
    let mut decoder = Decoder::new(resolved, &prompt, 0).expect("valid");
    let sampling = SampleParams::new(&resolved, Sampling::default()).expect("valid");
    let mut sampler = Sampler::new(sampling);
    let mut worst = 0.0_f64;
    while let Some(plan) = decoder.next_plan().expect("ready") {
        let plan: RowPlan = plan.clone();
        let got = forward(session, &plan);
        // Positions right of an end token are not in sight.
        let n_seen = plan.rows.iter().map(|row| row.pos + 1).max().expect("rows");
        let canvas = &decoder.canvas()[..n_seen as usize];
        let full = stock.decode(canvas, 0);
        let shift = u32::from(resolved.shift_logits);
        for (predict, got) in plan.predict.iter().zip(&got) {
            let row = predict.pos.saturating_sub(shift) as usize;
            worst = worst.max(nmse(got, &full[row]));
        }
        let predictions: Vec<_> = plan
            .predict
            .iter()
            .zip(&got)
            .map(|(predict, row)| {
                let prediction = sampler.predict(row, None, *predict, plan.step);
                prediction.expect("finite logits")
            })
            .collect();
        decoder
            .absorb(&predictions)
            .expect("the plan's predictions");
    }
    worst
}

#[test]
fn a_refresh_at_every_step_equals_no_cache() {
    let mut numpy = Numpy::new();
    let models = ["llada", "dream"]
        .map(|arch| numpy.make(&format!("--arch {arch} --shape small --type F32")));
    numpy.run();
    for path in models {
        let mut stock = Llama::load(&path, 64);
        let mut session = session(&load(&path, target()), 1, Sampling::default());
        for seed in 0..4 {
            let worst = refreshed_against_stock(&mut session, &mut stock, seed);
            assert!(worst <= F32, "{}: NMSE {worst:e}", path.display());
        }
    }
}
