//! All pairs of state and call.

use super::super::*;
use super::machine::{MASK, params, traits};

fn decoder() -> Decoder {
    let resolved = params("mode=cached block-length=1")
        .resolve(&traits(false, false), 1, 2)
        .unwrap();
    Decoder::new(resolved, &[5], 0).unwrap()
}

fn prediction(pos: u32) -> Prediction {
    Prediction {
        pos,
        token: 7,
        confidence: 0.5,
        score: 0.5,
        probe: 0.0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    Awaiting,
    Done,
}

fn reach(state: State) -> Decoder {
    let mut decoder = decoder();
    let n_plans = match state {
        State::Ready => 0,
        State::Awaiting => 1,
        State::Done => 2,
    };
    for plan in 0..n_plans {
        let pos = decoder.next_plan().unwrap().unwrap().predict[0].pos;
        if state == State::Done || plan + 1 < n_plans {
            decoder.absorb(&[prediction(pos)]).unwrap();
        }
    }
    decoder
}

/// The state, by what the machine says of calls that are illegal elsewhere.
fn state(decoder: &mut Decoder) -> State {
    match (decoder.is_done(), decoder.absorb(&[])) {
        (true, _) => State::Done,
        (false, Err(DecodeError::State { .. })) => State::Ready,
        _ => State::Awaiting,
    }
}

/// What a call comes to: its error, or whether a plan or events came.
type Outcome = Result<bool, DecodeError>;

#[test]
fn every_call_in_every_state_does_what_the_table_says() {
    type Call = (&'static str, fn(&mut Decoder) -> Outcome);
    let calls: [Call; 6] = [
        ("next_plan", |d| d.next_plan().map(|plan| plan.is_some())),
        ("absorb", |d| {
            d.absorb(&[prediction(1)]).map(|events| !events.is_empty())
        }),
        ("absorb too few", |d| d.absorb(&[]).map(|_| true)),
        ("absorb of another position", |d| {
            d.absorb(&[prediction(2)]).map(|_| true)
        }),
        ("absorb of the mask", |d| {
            let mask = Prediction {
                token: MASK,
                ..prediction(1)
            };
            d.absorb(&[mask]).map(|_| true)
        }),
        ("absorb of NaN", |d| {
            let nan = Prediction {
                confidence: f32::NAN,
                ..prediction(1)
            };
            d.absorb(&[nan]).map(|_| true)
        }),
    ];
    let illegal = |call, state| Err(DecodeError::State { call, state });
    let count = DecodeError::PredictionCount {
        expected: 1,
        found: 0,
    };
    let position = DecodeError::PredictionPosition {
        index: 0,
        expected: 1,
        found: 2,
    };
    let token = DecodeError::PredictionToken {
        pos: 1,
        token: MASK,
    };
    use State::{Awaiting, Done, Ready};
    let cases: [(usize, State, Outcome, State); 17] = [
        (0, Ready, Ok(true), Awaiting),
        (
            0,
            Awaiting,
            illegal("next_plan", "awaiting predictions"),
            Awaiting,
        ),
        (0, Done, Ok(false), Done),
        (1, Ready, illegal("absorb", "ready"), Ready),
        (1, Awaiting, Ok(true), Ready),
        (1, Done, illegal("absorb", "done"), Done),
        (2, Ready, illegal("absorb", "ready"), Ready),
        (2, Awaiting, Err(count), Awaiting),
        (2, Done, illegal("absorb", "done"), Done),
        (3, Ready, illegal("absorb", "ready"), Ready),
        (3, Awaiting, Err(position), Awaiting),
        (3, Done, illegal("absorb", "done"), Done),
        (4, Ready, illegal("absorb", "ready"), Ready),
        (4, Awaiting, Err(token), Awaiting),
        (4, Done, illegal("absorb", "done"), Done),
        (5, Ready, illegal("absorb", "ready"), Ready),
        (5, Done, illegal("absorb", "done"), Done),
    ];
    for (call, from, outcome, to) in cases {
        let (name, call) = calls[call];
        let mut decoder = reach(from);
        assert_eq!(call(&mut decoder), outcome, "{name} in {from:?}");
        assert_eq!(state(&mut decoder), to, "after {name} in {from:?}");
    }
    // NaN is not equal to itself, so this pair is apart.
    let mut decoder = reach(Awaiting);
    let (_, absorb_nan) = calls[5];
    assert!(matches!(
        absorb_nan(&mut decoder),
        Err(DecodeError::NotANumber { pos: 1, .. })
    ));
    assert_eq!(state(&mut decoder), Awaiting);
}

#[test]
fn a_refused_absorb_changes_nothing_and_can_be_repeated() {
    let mut decoder = reach(State::Awaiting);
    let before = (decoder.canvas().to_vec(), *decoder.report());
    for token in [MASK, -1, 30] {
        let wrong = Prediction {
            token,
            ..prediction(1)
        };
        assert_eq!(
            decoder.absorb(&[wrong]),
            Err(DecodeError::PredictionToken { pos: 1, token })
        );
    }
    assert_eq!((decoder.canvas().to_vec(), *decoder.report()), before);
    decoder.absorb(&[prediction(1)]).unwrap();
    assert_eq!(decoder.canvas(), [5, 7, MASK]);
}

#[test]
fn a_wrong_prompt_is_refused() {
    let resolved = params("mode=cached")
        .resolve(&traits(false, false), 2, 2)
        .unwrap();
    let error = Decoder::new(resolved, &[5], 0).unwrap_err();
    assert_eq!(
        error,
        DecodeError::PromptLength {
            expected: 2,
            found: 1
        }
    );
    for token in [-1, 30] {
        let error = Decoder::new(resolved, &[5, token], 0).unwrap_err();
        assert_eq!(
            error,
            DecodeError::PromptToken {
                pos: 1,
                token,
                n_vocab: 30
            }
        );
    }
}

#[test]
fn output_is_the_final_prefix_at_any_time() {
    let resolved = params("mode=cached block-length=2 threshold=inf")
        .resolve(&traits(false, true), 1, 4)
        .unwrap();
    let mut decoder = Decoder::new(resolved, &[5], 0).unwrap();
    decoder.next_plan().unwrap();
    let sure = |pos, confidence| Prediction {
        confidence,
        ..prediction(pos)
    };
    decoder.absorb(&[sure(1, 0.1), sure(2, 0.9)]).unwrap();
    assert_eq!(
        (decoder.canvas(), decoder.output()),
        ([5, MASK, 7, MASK, MASK].as_slice(), [].as_slice())
    );
    decoder.next_plan().unwrap();
    let events = decoder.absorb(&[sure(1, 0.1)]).unwrap();
    assert!(events.contains(&Event::StablePrefix { len: 2 }));
    assert_eq!(decoder.output(), [7, 7]);
    decoder.next_plan().unwrap();
    let eos = Prediction {
        token: 1,
        ..sure(3, 0.9)
    };
    let events = decoder.absorb(&[eos, sure(4, 0.1)]).unwrap();
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::StablePrefix { .. })),
        "{events:?}"
    );
    assert_eq!(
        (decoder.output(), decoder.is_done()),
        ([7, 7].as_slice(), true)
    );
}
