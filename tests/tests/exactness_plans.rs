//! Logits of the plans of mode `full` against NumPy: drafts, K/V that moved, shadows, pairs, neighbours, copies of fresh rows.
//!
//! The decoder is driven by random predictions, so that everything occurs and nothing hangs on the last bit of a logit. Each
//! plan is told to the reference by what every row sees: which rows of which forwards.

use std::collections::BTreeMap;

use ggml_llada_npu::decode::plan::{Prediction, RowPlan, Slot, Stream, Token};
use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::decode::{Decoder, Report};
use ggml_llada_npu::engine::Session;
use ggml_llada_npu::engine::sample::Sampling;
use llada_npu_tests::engine::{forward, load, params, session, target};
use llada_npu_tests::llama::nmse;
use llada_npu_tests::numpy::{Numpy, rows};
use serde_json::{Value, json};

const OPTIONS: &str = "mode=full block-length=5 lookahead-trigger=4 lookahead-max=6 draft-threshold=0.6 tau-visible=0.6 \
                       tau-stable=0.95 revision-budget=2 revision-radius=2 max-revisions=3 final-sweep=3 tau-replace=0.5";

fn slots(stream: &Stream) -> Vec<Slot> {
    let store = stream.store.iter().cloned().flatten().map(Slot::Store);
    let scratch = stream.scratch.iter().cloned().flatten().map(Slot::Scratch);
    store.chain(scratch).collect()
}

/// Says a plan to the reference. `written` knows which row of which forward wrote each slot last.
fn request(plan: &RowPlan, written: &mut BTreeMap<Slot, (usize, usize)>, index: usize) -> Value {
    let own: BTreeMap<Slot, usize> = (0..)
        .zip(&plan.rows)
        .filter_map(|(row, it)| Some((it.kv?, row)))
        .collect();
    let seen: Vec<Vec<Slot>> = plan.streams.iter().map(slots).collect();
    let mut past: Vec<Slot> = seen.iter().flatten().copied().collect();
    past.sort_unstable();
    past.dedup();
    past.retain(|slot| !own.contains_key(slot));
    let visible: Vec<Vec<u8>> = plan
        .rows
        .iter()
        .map(|row| {
            let seen = &seen[usize::from(row.stream)];
            let sees = |slot: Option<Slot>| u8::from(slot.is_some_and(|slot| seen.contains(&slot)));
            let past = past.iter().map(|&slot| sees(Some(slot)));
            past.chain(plan.rows.iter().map(|row| sees(row.kv)))
                .collect()
        })
        .collect();
    let sources: Vec<(usize, usize)> = past.iter().map(|slot| written[slot]).collect();
    for (slot, row) in own {
        written.insert(slot, (index, row));
    }
    json!({
        "tokens": plan.rows.iter().map(|row| row.token).collect::<Vec<_>>(),
        "positions": plan.rows.iter().map(|row| row.pos).collect::<Vec<_>>(),
        "past": sources,
        "visible": visible,
        "logits": plan.predict.iter().map(|wanted| wanted.row).collect::<Vec<_>>(),
    })
}

/// Decodes with random predictions; returns the logits of all of them, and what the reference is asked.
fn follow(session: &mut Session, options: &str, seed: u64) -> (Vec<Vec<f32>>, Value, Report) {
    let prompt: Vec<Token> = (20..27).collect();
    let resolved = session
        .check(7, 20, &params(&format!("{OPTIONS} {options}")))
        .expect("valid");
    let mut decoder = Decoder::new(resolved, &prompt, 0).expect("valid");
    let (mut logits, mut requests, mut written) = (Vec::new(), Vec::new(), BTreeMap::new());
    while let Some(plan) = decoder.next_plan().expect("ready") {
        requests.push(request(plan, &mut written, requests.len()));
        logits.extend(forward(session, plan));
        let predict = |wanted: &ggml_llada_npu::decode::plan::Predict| {
            let key = Key::new(seed, wanted.pos, plan.step, Purpose::Token);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a random number between 0 and 1"
            )]
            let unit = |index| key.unit(index) as f32;
            let other = Token::try_from(key.bits(0) % 90).expect("small") + 30;
            let token = wanted.probe.filter(|_| unit(1) < 0.5).unwrap_or(other);
            Prediction {
                pos: wanted.pos,
                token,
                confidence: unit(2),
                score: 0.0,
                probe: unit(3),
            }
        };
        let predictions: Vec<_> = plan.predict.iter().map(predict).collect();
        decoder
            .absorb(&predictions)
            .expect("the plan's predictions");
    }
    (logits, Value::Array(requests), *decoder.report())
}

#[test]
fn plans_of_full_match_numpy() {
    let mut numpy = Numpy::new();
    let models = ["llada", "dream"]
        .map(|arch| numpy.make(&format!("--arch {arch} --shape small --type F32")));
    numpy.run();
    let variants = [
        "",
        "suffix=cached refresh-blocks=0",
        "suffix=3 revision-context=window refresh-blocks=0",
    ];
    let mut checks = Vec::new();
    for path in &models {
        let mut session = session(&load(path, target()), 2, Sampling::default());
        for (seed, options) in (0..).zip(variants) {
            session.clear();
            let (logits, request, report) = follow(&mut session, options, seed);
            assert!(report.revisions_made > 5, "{options}: {report:?}");
            assert!(report.drafts_made > 0, "{options}: {report:?}");
            let expected = numpy.forward(path, &request);
            checks.push((format!("{} {options}", path.display()), logits, expected));
        }
    }
    numpy.run();
    for (title, logits, expected) in checks {
        let expected = rows(&expected, logits[0].len());
        assert_eq!(logits.len(), expected.len(), "{title}");
        let errors = logits
            .iter()
            .zip(&expected)
            .map(|(got, expected)| nmse(got, expected));
        let worst = errors.fold(0.0, f64::max);
        println!("{title}: {} rows, worst NMSE {worst:.1e}", logits.len());
        assert!(worst < 1e-9, "{title}: {worst}");
    }
}
