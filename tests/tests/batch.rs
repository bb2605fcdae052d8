//! Several canvases in one forward: each prompt gets the text that it gets alone.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use ggml_llada_npu::decode::{Event, Params};
use ggml_llada_npu::engine::sample::Sampling;
use ggml_llada_npu::engine::{
    BatchOutcome, BatchPrompt, CanvasView, Control, EngineError, Session,
};
use llada_npu_tests::engine::{load, session, target, traced, traced_together};
use llada_npu_tests::files::trained;
use llada_npu_tests::near_tie::Trace;

/// Prompts of different lengths, with different numbers of tokens to generate.
fn prompts() -> Vec<(Vec<i32>, u32)> {
    let tokens = |n: i32, seed: i32| (0..n).map(|i| (i * 37 + seed * 11) % 90 + 3).collect();
    vec![
        (tokens(5, 1), 40),
        (tokens(33, 2), 7),
        (tokens(1, 3), 64),
        (tokens(17, 4), 33),
        (tokens(64, 5), 1),
        (tokens(2, 6), 31),
        (tokens(12, 7), 64),
    ]
}

fn batch(prompts: &[(Vec<i32>, u32)]) -> Vec<BatchPrompt<'_>> {
    prompts
        .iter()
        .map(|(tokens, n_gen)| BatchPrompt {
            tokens,
            n_gen: *n_gen,
        })
        .collect()
}

fn params(options: &[(&str, &str)]) -> Params {
    let mut params = Params::default();
    for (key, value) in options {
        params.set(key, value).unwrap();
    }
    params
}

fn new_session(temperature: f32) -> Session {
    let sampling = Sampling {
        temperature,
        seed: 7,
        ..Sampling::default()
    };
    session(&load(&trained("f16"), target()), 1, sampling)
}

fn silent(_index: usize, _event: &Event, _canvas: &CanvasView<'_>) -> Control {
    Control::Continue
}

#[test]
fn every_prompt_gets_the_text_that_it_gets_alone() {
    let cases: &[(f32, &[(&str, &str)])] = &[
        (0.0, &[]),
        (
            0.0,
            &[
                ("mode", "cached"),
                ("block-length", "8"),
                ("threshold", "0.5"),
            ],
        ),
        (
            0.0,
            &[
                ("mode", "cached"),
                ("suffix", "none"),
                ("refresh-blocks", "0"),
            ],
        ),
        (0.0, &[("mode", "reference"), ("steps", "12")]),
        (
            0.0,
            &[("mode", "reference"), ("steps", "9"), ("cfg-scale", "0.5")],
        ),
        (1.0, &[("mode", "cached"), ("threshold", "0.3")]),
    ];
    let prompts = prompts();
    for (temperature, options) in cases {
        let params = params(options);
        let mut session = new_session(*temperature);
        let alone: Vec<_> = prompts
            .iter()
            .map(|(tokens, n_gen)| {
                let report = session
                    .generate(tokens, *n_gen, &params, &mut |_, _| Control::Continue)
                    .unwrap();
                (session.output().to_vec(), report.counts)
            })
            .collect();
        for n_seats in [1, 2, 3, 16] {
            let together = session
                .generate_batch(&batch(&prompts), n_seats, &params, &mut silent)
                .unwrap();
            let together: Vec<_> = together
                .into_iter()
                .map(|outcome| (outcome.output, outcome.report.counts))
                .collect();
            assert_eq!(together, alone, "{options:?}, {n_seats} seats");
        }
    }
}

#[test]
fn events_name_their_prompt_and_add_up_to_its_text() {
    let prompts = prompts();
    let mut session = new_session(0.0);
    let mut stable = vec![Vec::new(); prompts.len()];
    let outcomes = session
        .generate_batch(
            &batch(&prompts),
            3,
            &params(&[]),
            &mut |index, event, canvas| {
                assert_eq!(canvas.n_prompt as usize, prompts[index].0.len());
                if let Event::StablePrefix { len } = *event {
                    stable[index] =
                        canvas.tokens[prompts[index].0.len()..][..len as usize].to_vec();
                }
                Control::Continue
            },
        )
        .unwrap();
    let outputs: Vec<_> = outcomes.into_iter().map(|outcome| outcome.output).collect();
    assert_eq!(stable, outputs);
}

#[test]
fn a_cancelled_batch_leaves_a_session_that_works() {
    let prompts = prompts();
    let params = params(&[]);
    let mut session = new_session(0.0);
    let expected = session
        .generate_batch(&batch(&prompts), 3, &params, &mut silent)
        .unwrap();
    for n_events in [1, 4, 9] {
        let mut n = 0;
        let result = session.generate_batch(&batch(&prompts), 3, &params, &mut |_, _, _| {
            n += 1;
            if n == n_events {
                Control::Cancel
            } else {
                Control::Continue
            }
        });
        assert!(matches!(result, Err(EngineError::Cancelled)), "{result:?}");
    }
    let again = session
        .generate_batch(&batch(&prompts), 3, &params, &mut silent)
        .unwrap();
    let outputs = |outcomes: &[BatchOutcome]| -> Vec<Vec<i32>> {
        outcomes
            .iter()
            .map(|outcome| outcome.output.clone())
            .collect()
    };
    assert_eq!(outputs(&again), outputs(&expected));
}

#[test]
fn what_cannot_be_a_batch_is_refused_before_anything_is_computed() {
    let mut session = new_session(0.0);
    let none = session
        .generate_batch(&[], 4, &params(&[]), &mut silent)
        .unwrap();
    assert!(none.is_empty());
    let prompts = prompts();
    for n_seats in [0, 257] {
        let result = session.generate_batch(&batch(&prompts), n_seats, &params(&[]), &mut silent);
        let message = result.unwrap_err().to_string();
        assert!(message.contains("n_seats"), "{message}");
    }
    let mut too_long = prompts;
    too_long.push((vec![3; 600], 10));
    let mut n_events = 0;
    let result = session.generate_batch(&batch(&too_long), 2, &params(&[]), &mut |_, _, _| {
        n_events += 1;
        Control::Continue
    });
    assert!(matches!(result, Err(EngineError::Param(_))), "{result:?}");
    assert_eq!(n_events, 0);
}

#[test]
fn traces_of_prompts_side_by_side_are_those_of_each_alone() {
    let options = "mode=cached block-length=4 suffix=2 refresh-blocks=2";
    let prompts: Vec<Vec<i32>> = prompts().into_iter().map(|(prompt, _)| prompt).collect();
    let mut session = new_session(0.0);
    let together = traced_together(&mut session, &prompts, 24, options, 3);
    assert_eq!(together.len(), prompts.len());
    for (prompt, found) in prompts.iter().zip(together) {
        let alone = traced(&mut session, prompt, 24, options);
        assert_eq!(found.output, alone.output);
        let told = |trace: &Trace| -> Vec<_> {
            let forwards = trace.forwards.iter();
            let told = forwards.map(|it| (it.plan, it.canvas.clone()));
            told.collect()
        };
        assert_eq!(told(&found), told(&alone));
    }
}
