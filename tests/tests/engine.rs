//! What a session keeps between forwards, and what it refuses. The numbers themselves are compared with independent
//! references elsewhere; here the engine is compared with itself, computing the same thing in another way.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]
#![expect(
    clippy::single_range_in_vec_init,
    reason = "streams are lists of ranges"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ggml_llada_npu::abi;
use ggml_llada_npu::decode::plan::{ForwardKind, Predict, Row, RowPlan, Slot, Stream};
use ggml_llada_npu::decode::{Event, Params};
use ggml_llada_npu::engine::{
    Control, EngineError, KvType, LoadOptions, Model, PlanError, Session, SessionParams, Target,
};
use ggml_llada_npu::model::ModelFile;
use llada_npu_tests::files::trained;
use llada_npu_tests::llama;

/// Two ways of computing the same logits may round activations to F16 differently.
const TOLERANCE: f32 = 0.05;

fn load(path: &Path, target: Target) -> Arc<Model> {
    let mut options = LoadOptions {
        check_tensors: false,
        progress: &mut |_share| true,
    };
    Model::load(path, target, &mut options).unwrap()
}

fn session(model: &Arc<Model>) -> Session {
    let params = SessionParams {
        n_threads: 1,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..SessionParams::default()
    };
    Session::new(Arc::clone(model), params).unwrap()
}

/// A session on our device with the trained model.
fn trained_session() -> Session {
    llama::init();
    session(&load(&trained("f16"), abi::target().unwrap()))
}

fn tokens(n: u32) -> Vec<i32> {
    (0..n)
        .map(|i| i32::try_from((i * 37 + 11) % 90 + 3).unwrap())
        .collect()
}

/// Rows of `tokens` at positions 0…, in the store; all see each other, all predict.
fn plan(tokens: &[i32]) -> RowPlan {
    let n = u32::try_from(tokens.len()).unwrap();
    let row = |(pos, &token): (u32, &i32)| Row {
        token,
        pos,
        stream: 0,
        kv: Some(Slot::Store(pos)),
    };
    RowPlan {
        kind: ForwardKind::Step,
        step: 0,
        rows: (0..).zip(tokens).map(row).collect(),
        streams: vec![Stream {
            store: vec![0..n],
            scratch: vec![],
        }],
        predict: (0..n).map(predict).collect(),
        split: None,
    }
}

fn predict(row: u32) -> Predict {
    Predict {
        pos: row,
        row,
        uncond_row: None,
        probe: None,
    }
}

fn row(session: &mut Session, plan: &RowPlan, row: u32) -> Vec<f32> {
    session.forward(plan).unwrap().row(row).unwrap().to_vec()
}

#[track_caller]
fn assert_close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let worst = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst < TOLERANCE, "largest difference {worst}");
}

#[track_caller]
fn assert_different(a: &[f32], b: &[f32]) {
    let worst = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst > 10.0 * TOLERANCE, "largest difference {worst}");
}

#[test]
fn rows_see_what_an_earlier_forward_left_in_the_store_however_it_grows() {
    let mut session = trained_session();
    let all = plan(&tokens(40));
    let expected = row(&mut session, &all, 20);
    session.clear();
    // No logits: the last layer's K/V is all that is computed.
    session
        .forward(&RowPlan {
            predict: vec![],
            ..all.clone()
        })
        .unwrap();
    let far = RowPlan {
        rows: vec![
            Row {
                token: 5,
                pos: 1,
                stream: 0,
                kv: Some(Slot::Scratch(500)),
            },
            Row {
                token: 6,
                pos: 2,
                stream: 0,
                kv: Some(Slot::Store(700)),
            },
        ],
        streams: vec![Stream {
            store: vec![700..701],
            scratch: vec![500..501],
        }],
        predict: vec![],
        ..all.clone()
    };
    session.forward(&far).unwrap();
    let again = RowPlan {
        rows: vec![Row {
            kv: None,
            ..all.rows[20]
        }],
        predict: vec![predict(0)],
        ..all
    };
    assert_close(&row(&mut session, &again, 0), &expected);
    session.clear();
    assert_different(&row(&mut session, &again, 0), &expected);
}

#[test]
fn nobody_sees_rows_without_a_slot() {
    let mut session = trained_session();
    let all = plan(&tokens(12));
    let expected = row(&mut session, &all, 5);
    let mut more = all.clone();
    more.rows.extend([3, 4, 5].map(|pos| Row {
        token: 50,
        pos,
        stream: 0,
        kv: None,
    }));
    assert_close(&row(&mut session, &more, 5), &expected);
    let mut seen = more;
    for (row, slot) in seen.rows[12..].iter_mut().zip(0..) {
        row.kv = Some(Slot::Scratch(slot));
    }
    seen.streams[0].scratch = vec![0..3];
    assert_different(&row(&mut session, &seen, 5), &expected);
}

#[test]
fn streams_of_one_forward_do_not_see_each_other() {
    let mut session = trained_session();
    let (first, second) = (plan(&tokens(20)), plan(&tokens(33)[20..]));
    let (expected_first, expected_second) =
        (row(&mut session, &first, 4), row(&mut session, &second, 3));
    let mut both = first;
    both.rows
        .extend((0..).zip(&second.rows).map(|(slot, row)| Row {
            stream: 1,
            kv: Some(Slot::Scratch(slot)),
            ..*row
        }));
    both.streams.push(Stream {
        store: vec![],
        scratch: vec![0..13],
    });
    both.predict = vec![predict(23), predict(4)];
    assert_close(&row(&mut session, &both, 23), &expected_second);
    assert_close(&row(&mut session, &both, 4), &expected_first);
    assert!(
        session.forward(&both).unwrap().row(5).is_none(),
        "row 5 predicts nothing"
    );
}

#[test]
fn the_order_of_rows_does_not_matter() {
    let mut session = trained_session();
    let all = plan(&tokens(17));
    let expected = row(&mut session, &all, 2);
    let mut reversed = all;
    reversed.rows.reverse();
    reversed.predict = vec![predict(14)];
    assert_close(&row(&mut session, &reversed, 14), &expected);
}

#[test]
fn mapped_weights_and_copied_weights_give_the_same_bits() {
    let path = trained("f16");
    llama::init();
    let mapped = abi::target().unwrap();
    let copied = Target::new(mapped.api(), *mapped.device(), *mapped.buffer_type(), None)
        .with_kv_tiles(mapped.kv_tiles().unwrap());
    let all = plan(&tokens(9));
    let [a, b] = [mapped, copied].map(|target| row(&mut session(&load(&path, target)), &all, 8));
    assert_eq!(a, b);
}

#[test]
fn a_refused_plan_leaves_the_session_as_it_was() {
    let mut session = trained_session();
    let all = plan(&tokens(8));
    let expected = row(&mut session, &all, 7);
    let mut wrong = all.clone();
    wrong.rows[3].token = i32::MAX;
    let error = session.forward(&wrong).unwrap_err();
    assert!(
        matches!(error, EngineError::Plan(PlanError::Token { row: 3, .. })),
        "{error}"
    );
    assert_eq!(row(&mut session, &all, 7), expected);
}

#[test]
fn a_cancelled_generation_keeps_what_is_stable_and_the_session_goes_on() {
    let mut session = trained_session();
    let prompt = tokens(6);
    let mut params = Params::default();
    params.set("mode", "reference").unwrap();
    let mut stable = 0;
    let mut on_event = |event: &Event, canvas: &ggml_llada_npu::engine::CanvasView<'_>| {
        assert_eq!(canvas.tokens.len(), 30);
        match *event {
            Event::StablePrefix { len } => stable = len,
            Event::Step { step: 9, .. } => return Control::Cancel,
            _ => {}
        }
        Control::Continue
    };
    let error = session
        .generate(&prompt, 24, &params, &mut on_event)
        .unwrap_err();
    assert!(matches!(error, EngineError::Cancelled), "{error}");
    assert!(session.output().len() <= stable as usize);
    assert_eq!(session.report().counts.n_forwards(), 10);

    let go_on = &mut |_: &Event, _: &ggml_llada_npu::engine::CanvasView<'_>| Control::Continue;
    let flag = session.cancel_flag();
    flag.store(true, Ordering::Relaxed);
    let error = session.generate(&prompt, 24, &params, go_on).unwrap_err();
    assert!(matches!(error, EngineError::Cancelled), "{error}");
    let report = session.generate(&prompt, 24, &params, go_on).unwrap();
    assert_eq!(report.counts.n_committed, 24);
    let first = session.output().to_vec();
    session.generate(&prompt, 24, &params, go_on).unwrap();
    assert_eq!(session.output(), first, "the same seed gives the same text");
}

#[test]
fn logits_that_are_not_numbers_are_an_error_that_names_the_step() {
    let path = trained("f16");
    llama::init();
    let mut bytes = std::fs::read(&path).unwrap();
    let weights = ModelFile::open(&path).unwrap();
    let output = weights.weights().get(weights.weights().output.weight);
    let at = output.data().range().start;
    bytes[at..at + 2].copy_from_slice(&0x7e00_u16.to_le_bytes()); // an F16 NaN
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("nan.gguf");
    std::fs::write(&broken, bytes).unwrap();
    let mut session = session(&load(&broken, abi::target().unwrap()));
    let go_on = &mut |_: &Event, _: &ggml_llada_npu::engine::CanvasView<'_>| Control::Continue;
    let error = session
        .generate(&tokens(5), 8, &Params::default(), go_on)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("step 0: position 5: a logit is NaN"),
        "{error}"
    );

    let mut options = LoadOptions {
        check_tensors: true,
        progress: &mut |_share| true,
    };
    let error = Model::load(&broken, abi::target().unwrap(), &mut options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("invalid number in block"), "{error}");
}

#[test]
fn loading_is_cancelled_by_its_progress() {
    let path = trained("f16");
    llama::init();
    let mut options = LoadOptions {
        check_tensors: true,
        progress: &mut |share| share < 0.5,
    };
    let error = Model::load(&path, abi::target().unwrap(), &mut options).unwrap_err();
    assert!(matches!(error, EngineError::Cancelled), "{error}");
}

#[test]
fn every_prefix_of_a_model_file_is_refused() {
    let path = trained("f16");
    llama::init();
    let target = abi::target().unwrap();
    let n_bytes = std::fs::metadata(&path).unwrap().len();
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.gguf");
    std::fs::copy(&path, &cut).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&cut).unwrap();
    for len in (0..n_bytes)
        .step_by(1024)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        file.set_len(len).unwrap();
        let mut options = LoadOptions {
            check_tensors: false,
            progress: &mut |_share| true,
        };
        let error = Model::load(&cut, target, &mut options)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cut.gguf: ") && !error.contains('\n'),
            "{len} bytes: {error}"
        );
    }
}
