//! What revision makes of errors: answers of the trained model with one token in twenty replaced at random.
//!
//! The oracle of a position is a forward over the whole text in which that position is truly masked. The shadow's verdict,
//! which costs a few rows, has to agree with it; revision has to repair what the oracle would, and to leave the rest alone.

use ggml_llada_npu::decode::plan::{Predict, Prediction, RowPlan};
use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::decode::{Decoder, ModeParams, Params, Resolved, RevisionParams, Token};
use ggml_llada_npu::engine::Session;
use ggml_llada_npu::engine::sample::{SampleParams, Sampler, Sampling};
use llada_npu_tests::engine::{generate, load, params, session, target, whole_plan};
use llada_npu_tests::files::{prompts, trained};
use llada_npu_tests::llama::Llama;

/// What revision does to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Replace(Token),
    Remask,
    Keep,
}

fn verdict(prediction: &Prediction, own: Token, revision: &RevisionParams) -> Verdict {
    if prediction.token != own && prediction.confidence >= revision.tau_replace {
        Verdict::Replace(prediction.token)
    } else if prediction.probe < revision.tau_remask {
        Verdict::Remask
    } else {
        Verdict::Keep
    }
}

#[derive(Debug, Default)]
struct Counts {
    n_verdicts: u32,
    n_agreed: u32,
    n_wrong: u32,
    n_wrong_agreed: u32,
    /// Of the wrong tokens: repaired by the oracle, by revision.
    n_oracle: u32,
    n_repaired: u32,
    n_right: u32,
    n_spoiled: u32,
}

struct Bench {
    session: Session,
    sampler: Sampler,
    resolved: Resolved,
    revision: RevisionParams,
}

impl Bench {
    fn predict(&mut self, plan: &RowPlan) -> Vec<Prediction> {
        let logits = self.session.forward(plan).expect("a plan of the decoder");
        let sampler = &mut self.sampler;
        let mut predict = |wanted: &Predict| {
            let row = logits.row(wanted.row).expect("predicting rows have logits");
            sampler
                .predict(row, None, *wanted, plan.step)
                .expect("finite logits")
        };
        plan.predict.iter().map(&mut predict).collect()
    }

    /// The oracle's prediction of `pos`.
    fn oracle(&mut self, tokens: &[Token], pos: usize) -> Prediction {
        let mut masked = tokens.to_vec();
        masked[pos] = self.resolved.mask;
        let mut plan = whole_plan(&masked, 0);
        plan.predict.retain(|wanted| wanted.pos as usize == pos);
        plan.predict[0].probe = Some(tokens[pos]);
        self.predict(&plan)[0]
    }

    /// Revises `text`, some of whose tokens are not those of `right`.
    fn revise(&mut self, prompt: &[Token], text: &[Token], right: &[Token], counts: &mut Counts) {
        let mut decoder = Decoder::revise(self.resolved, prompt, text, 0).expect("a text");
        let whole = [prompt, text].concat();
        loop {
            let tokens = decoder.canvas().to_vec();
            let Some(plan) = decoder.next_plan().expect("in order") else {
                break;
            };
            let plan = plan.clone();
            let predictions = self.predict(&plan);
            let revised = plan.predict.iter().map(|wanted| wanted.probe.is_some());
            for (prediction, _) in predictions
                .iter()
                .zip(revised)
                .filter(|&(_, revised)| revised)
            {
                let pos = prediction.pos as usize;
                let oracle = self.oracle(&tokens, pos);
                let verdicts = [prediction, &oracle]
                    .map(|prediction| verdict(prediction, tokens[pos], &self.revision));
                let agreed = u32::from(verdicts[0] == verdicts[1]);
                counts.n_verdicts += 1;
                counts.n_agreed += agreed;
                if tokens[pos] != right[pos - prompt.len()] {
                    counts.n_wrong_agreed += agreed;
                }
            }
            decoder
                .absorb(&predictions)
                .expect("the plan's predictions");
        }
        for (place, (&before, &right)) in text.iter().zip(right).enumerate() {
            let after = decoder.canvas()[prompt.len() + place];
            if before == right {
                counts.n_right += 1;
                counts.n_spoiled += u32::from(after != right);
            } else {
                counts.n_wrong += 1;
                counts.n_repaired += u32::from(after == right);
                let oracle = self.oracle(&whole, prompt.len() + place);
                counts.n_oracle += u32::from(oracle.token == right);
            }
        }
    }
}

/// One token in twenty, and at least one, is another.
fn spoil(text: &[Token], n_vocab: u32, mask: Token, seed: u64) -> Vec<Token> {
    let key = |place: u32, purpose| Key::new(seed, place, 0, purpose);
    let mut order: Vec<u32> = (0..).take(text.len()).collect();
    order.sort_by_key(|&place| key(place, Purpose::Order).bits(0));
    let mut spoiled = text.to_vec();
    for &place in order.iter().take(text.len().div_ceil(20)) {
        let own = &mut spoiled[place as usize];
        let draws = (0..).map(|draw| key(place, Purpose::Token).bits(draw) % u64::from(n_vocab));
        let tokens = draws.map(|token| Token::try_from(token).expect("a token"));
        *own = tokens
            .into_iter()
            .find(|&token| token != *own && token != mask)
            .expect("there are others");
    }
    spoiled
}

fn forced_errors(every: usize) -> Counts {
    let path = trained("q8_0");
    let llama = Llama::load(&path, 512);
    let model = load(&path, target());
    let session = session(&model, 2, Sampling::default());
    let params: Params = params("mode=full final-sweep=1000");
    let mut counts = Counts::default();
    let mut bench: Option<Bench> = None;
    let mut session = Some(session);
    for (index, prompt) in (0..).zip(prompts("validation.jsonl").iter().step_by(every)) {
        let prompt = llama.chat_prompt(prompt);
        let mut answers = bench
            .take()
            .map_or_else(|| session.take().expect("once"), |b| b.session);
        let right = generate(&mut answers, &prompt, 96, "mode=reference").output;
        if right.is_empty() {
            session = Some(answers);
            continue;
        }
        let n_gen = u32::try_from(right.len()).expect("a short answer");
        let resolved = params
            .resolve(
                &answers.traits(),
                u32::try_from(prompt.len()).expect("short"),
                n_gen,
            )
            .expect("valid options");
        let ModeParams::Full(full) = resolved.mode else {
            panic!("mode=full")
        };
        let mut now = Bench {
            session: answers,
            sampler: Sampler::new(
                SampleParams::new(&resolved, Sampling::default()).expect("argmax"),
            ),
            resolved,
            revision: full.revision.expect("revision is on"),
        };
        let text = spoil(&right, resolved.n_vocab, resolved.mask, index);
        now.revise(&prompt, &text, &right, &mut counts);
        bench = Some(now);
    }
    counts
}

fn rate(n: u32, of: u32) -> f64 {
    f64::from(n) / f64::from(of.max(1))
}

#[test]
fn revision_agrees_with_the_masked_forward_repairs_and_spares() {
    let counts = forced_errors(12);
    let agreed = rate(counts.n_agreed, counts.n_verdicts);
    println!("{counts:?}: {agreed}");
    assert!(counts.n_wrong >= 70, "{counts:?}");
    assert!(agreed >= 0.9, "{counts:?}");
    assert!(2 * counts.n_repaired >= counts.n_oracle, "{counts:?}");
    assert!(rate(counts.n_spoiled, counts.n_right) <= 0.01, "{counts:?}");
}
