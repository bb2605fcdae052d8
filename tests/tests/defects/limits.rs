//! A grid over lengths and options, in this process: thousands of forwards in seconds.

use std::path::Path;
use std::sync::Arc;

use ggml_llada_npu::decode::ParamError;
use ggml_llada_npu::engine::sample::Sampling;
use ggml_llada_npu::engine::{Control, EngineError, Session};
use llada_npu_tests::engine::{load, params, session, target};

use crate::models::{EOS, EOT, MASK, MODELS};

const N_CTX: u32 = 512;
const N_PROMPT: [u32; 8] = [0, 1, 31, 32, 33, 511, 512, 513];
const N_GEN: [u32; 5] = [1, 31, 32, 33, 257];
const BLOCK: [u32; 4] = [1, 7, 32, 64];
const STEPS: [u32; 3] = [1, 33, 128];
const SUFFIX: [&str; 4] = ["none", "5", "all", "cached"];
const REFRESH: [&str; 4] = [
    "refresh-blocks=0",
    "refresh-blocks=1",
    "refresh-blocks=3",
    "refresh-blocks=0 refresh-steps=2",
];
const THRESHOLD: [&str; 3] = ["0.9", "0.02", "0"];

/// Ids that no random prompt should hold, so that lengths alone decide.
fn prompt(n_prompt: u32) -> Vec<i32> {
    (0..n_prompt)
        .map(|i| i32::try_from(i * 7 % 256).expect("a byte"))
        .collect()
}

/// Asserts what must hold of every generation, and returns the number of forwards.
fn generate(session: &mut Session, n_prompt: u32, n_gen: u32, options: &str) -> u32 {
    let case = format!("{n_prompt} + {n_gen} {options}");
    let mut n_events = 0;
    let result = session.generate(
        &prompt(n_prompt),
        n_gen,
        &params(options),
        &mut |_event, canvas| {
            n_events += 1;
            assert_eq!(canvas.tokens.len(), (n_prompt + n_gen) as usize);
            Control::Continue
        },
    );
    let fits = n_prompt + n_gen <= N_CTX;
    match result {
        Ok(report) => {
            assert!(fits, "{case}: more than the context");
            let output = session.output();
            assert!(
                output.len() <= n_gen as usize,
                "{case}: {} tokens",
                output.len()
            );
            assert_eq!(output.len(), report.counts.n_generated as usize, "{case}");
            for special in [MASK, EOS, EOT] {
                assert!(!output.contains(&special), "{case}: {special} in the text");
            }
            let n_forwards = report.counts.n_forwards();
            assert!(
                (1..=n_gen).contains(&n_forwards),
                "{case}: {n_forwards} forwards"
            );
            n_forwards
        }
        Err(EngineError::Param(ParamError::Context { .. })) => {
            assert!(!fits, "{case}: refused");
            assert_eq!(
                (session.output().len(), n_events),
                (0, 0),
                "{case}: text of a refused generation"
            );
            0
        }
        Err(error) => panic!("{case}: {error}"),
    }
}

fn run_grid(path: &Path) {
    let model = load(path, target());
    let mut session = session(&Arc::clone(&model), 1, Sampling::default());
    let (mut n_cases, mut n_forwards) = (0_usize, 0);
    for n_prompt in N_PROMPT {
        for n_gen in N_GEN {
            for block in BLOCK {
                // Every pair of lengths meets every block; the other options take turns.
                let i = n_cases;
                let cached = |i: usize| {
                    format!(
                        "mode=cached block-length={block} suffix={} {} threshold={}",
                        SUFFIX[i % 4],
                        REFRESH[i / 4 % 4],
                        THRESHOLD[i % 3]
                    )
                };
                let steps = STEPS[i % 3];
                let by_block = format!(
                    "mode=reference block-length={block} steps={steps} algorithm={}",
                    i % 5
                );
                let by_time = format!(
                    "mode=reference eps=0.01 steps={steps} algorithm={}",
                    (i + 2) % 5
                );
                for options in [
                    cached(i),
                    cached(5 * i + 2),
                    if i % 2 == 0 { by_block } else { by_time },
                ] {
                    n_forwards += generate(&mut session, n_prompt, n_gen, &options);
                }
                n_cases += 1;
            }
        }
    }
    assert_eq!(n_cases, N_PROMPT.len() * N_GEN.len() * BLOCK.len());
    assert!(n_forwards > 1000, "{n_forwards} forwards");
}

#[test]
fn any_lengths_and_options_give_text_or_one_error_llada() {
    run_grid(&MODELS.small_llada);
}

#[test]
fn any_lengths_and_options_give_text_or_one_error_dream() {
    run_grid(&MODELS.small_dream);
}
