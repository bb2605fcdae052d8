//! What revision makes of errors: one token in twenty of the trained model's answers is another, at random.
//!
//! The oracle of a position is a forward over the whole text in which that position is truly masked. The shadow's verdict,
//! which costs a few rows, has to agree with it; revision has to repair what the oracle would, and to leave the rest alone.
//!
//! Errors are put into finished answers, all of which is revised ([`Decoder::revise`]), and into answers while they are
//! decoded: a prediction that commits is another token then, not confident enough to be stable at once.

use std::collections::{BTreeMap, BTreeSet};

use ggml_llada_npu::decode::plan::{ForwardKind, Predict, Prediction, RowPlan};
use ggml_llada_npu::decode::random::{Key, Purpose};
use ggml_llada_npu::decode::{
    CommitRule, Decoder, Event, ModeParams, Resolved, RevisionParams, Stage, Token,
};
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
    /// Verdicts of shadows beside dense steps, and of those in forwards that only revise; how many the oracle agrees with.
    n_beside: u32,
    n_beside_agreed: u32,
    n_sweep: u32,
    n_sweep_agreed: u32,
    n_wrong: u32,
    /// Of the wrong tokens: repaired by the oracle, by revision.
    n_oracle: u32,
    n_repaired: u32,
    n_right: u32,
    n_spoiled: u32,
    /// Right tokens that decoding itself, which saw the errors, did not come to.
    n_misled: u32,
}

impl Counts {
    fn agreed(&self) -> f64 {
        rate(
            self.n_beside_agreed + self.n_sweep_agreed,
            self.n_beside + self.n_sweep,
        )
    }

    /// What it came to, in one line.
    fn result(&self) -> String {
        format!(
            "RESULT agreed={:.4} agreed_beside_steps={:.4} oracle={:.4} repaired={:.4} spoiled={:.4} {self:?}",
            self.agreed(),
            rate(self.n_beside_agreed, self.n_beside),
            rate(self.n_oracle, self.n_wrong),
            rate(self.n_repaired, self.n_wrong),
            rate(self.n_spoiled, self.n_right),
        )
    }

    /// Checks what revision has to reach, with so many wrong tokens and verdicts beside dense steps at least.
    fn check(&self, n_wrong: u32, n_beside: u32) {
        assert!(
            self.n_wrong >= n_wrong && self.n_beside >= n_beside,
            "{self:?}"
        );
        assert!(self.agreed() >= 0.9, "{self:?}");
        assert!(2 * self.n_repaired >= self.n_oracle, "{self:?}");
        assert!(rate(self.n_spoiled, self.n_right) <= 0.01, "{self:?}");
    }
}

fn rate(n: u32, of: u32) -> f64 {
    f64::from(n) / f64::from(of.max(1))
}

/// One session, and what belongs to the prompt at hand.
struct Bench {
    session: Session,
    sampler: Sampler,
    resolved: Resolved,
    block_length: u32,
    /// Confidences at which a token is visible and stable.
    taus: [f32; 2],
    revision: RevisionParams,
    counts: Counts,
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

    /// Compares the verdicts of a plan's shadows with the oracle's. `tokens` are those that a forward sees.
    fn judge(&mut self, plan: &RowPlan, predictions: &[Prediction], tokens: &[Token]) {
        for (wanted, prediction) in plan.predict.iter().zip(predictions) {
            if wanted.probe.is_none() {
                continue;
            }
            let pos = wanted.pos as usize;
            let oracle = self.oracle(tokens, pos);
            let verdicts = [prediction, &oracle]
                .map(|prediction| verdict(prediction, tokens[pos], &self.revision));
            let agreed = u32::from(verdicts[0] == verdicts[1]);
            if plan.kind == ForwardKind::Sweep {
                self.counts.n_sweep += 1;
                self.counts.n_sweep_agreed += agreed;
            } else {
                self.counts.n_beside += 1;
                self.counts.n_beside_agreed += agreed;
            }
        }
    }

    /// Revises `text`, some of whose tokens are not those of `right`.
    fn revise(&mut self, prompt: &[Token], text: &[Token], right: &[Token]) {
        let mut decoder = Decoder::revise(self.resolved, prompt, text, 0).expect("a text");
        loop {
            let tokens = decoder.canvas().to_vec();
            let Some(plan) = decoder.next_plan().expect("in order") else {
                break;
            };
            let plan = plan.clone();
            let predictions = self.predict(&plan);
            self.judge(&plan, &predictions, &tokens);
            decoder
                .absorb(&predictions)
                .expect("the plan's predictions");
        }
        for (place, (&before, &right)) in text.iter().zip(right).enumerate() {
            let after = decoder.canvas()[prompt.len() + place];
            if before == right {
                self.counts.n_right += 1;
                self.counts.n_spoiled += u32::from(after != right);
            } else {
                self.counts.n_wrong += 1;
                self.counts.n_repaired += u32::from(after == right);
            }
        }
        self.ask_oracle(prompt, text, right);
    }

    /// Counts the wrong tokens of `text` that the oracle repairs.
    fn ask_oracle(&mut self, prompt: &[Token], text: &[Token], right: &[Token]) {
        let whole = [prompt, text].concat();
        for (place, (before, right)) in text.iter().zip(right).enumerate() {
            if before != right {
                let oracle = self.oracle(&whole, prompt.len() + place);
                self.counts.n_oracle += u32::from(oracle.token == *right);
            }
        }
    }

    /// Decodes, with errors where `errors` has a token for a position, and compares with `right`, decoded without.
    fn decode(&mut self, prompt: &[Token], right: &[Token], errors: &BTreeMap<u32, Token>) {
        let mut decoder = Decoder::new(self.resolved, prompt, 0).expect("a prompt");
        let mut left = errors.clone();
        let mut made = BTreeSet::new();
        let mut changed = BTreeSet::new();
        while let Some(plan) = decoder.next_plan().expect("in order") {
            let plan = plan.clone();
            let mut predictions = self.predict(&plan);
            let seen = self.seen(&decoder);
            self.judge(&plan, &predictions, &seen);
            for (wanted, prediction) in plan.predict.iter().zip(&mut predictions) {
                if wanted.probe.is_some() || prediction.confidence < self.taus[0] {
                    continue;
                }
                if let Some(&token) = left.get(&prediction.pos) {
                    let confidence = f32::midpoint(self.taus[0], self.taus[1]);
                    *prediction = Prediction {
                        token,
                        confidence,
                        score: confidence,
                        ..*prediction
                    };
                }
            }
            let events = decoder
                .absorb(&predictions)
                .expect("the plan's predictions");
            for event in events {
                match *event {
                    Event::Committed { pos, token, .. } if left.get(&pos) == Some(&token) => {
                        left.remove(&pos);
                        made.insert(pos);
                    }
                    Event::Replaced { pos, .. } | Event::Remasked { pos } => {
                        changed.insert(pos);
                    }
                    _ => {}
                }
            }
        }
        let place = |pos: u32| pos as usize - prompt.len();
        let mut text = right.to_vec();
        for &pos in &made {
            text[place(pos)] = errors[&pos];
        }
        for (pos, &right) in (self.resolved.n_prompt..).zip(right) {
            let after = decoder.canvas()[pos as usize];
            if made.contains(&pos) {
                self.counts.n_wrong += 1;
                self.counts.n_repaired += u32::from(after == right);
            } else {
                self.counts.n_right += 1;
                let spoiled = after != right && changed.contains(&pos);
                self.counts.n_spoiled += u32::from(spoiled);
                self.counts.n_misled += u32::from(after != right && !spoiled);
            }
        }
        self.ask_oracle(prompt, &text, right);
    }

    /// The canvas as the rows of a step see it: what is committed, and the masks of the current block.
    fn seen(&self, decoder: &Decoder) -> Vec<Token> {
        let n_prompt = self.resolved.n_prompt as usize;
        let block = self.block_length as usize;
        let tokens = decoder.canvas();
        let is_end =
            |&token: &Token| Some(token) == self.resolved.eos || Some(token) == self.resolved.eot;
        let limit = tokens[n_prompt..]
            .iter()
            .position(is_end)
            .map_or(tokens.len(), |at| n_prompt + at + 1);
        let is_committed =
            |&pos: &usize| matches!(decoder.stages()[pos], Stage::Visible | Stage::Stable);
        let last = (0..limit).rev().find(is_committed).map_or(0, |pos| pos + 1);
        let frontier = (n_prompt..limit).find(|pos| !is_committed(pos));
        let block_end =
            frontier.map_or(0, |pos| n_prompt + (pos - n_prompt) / block * block + block);
        tokens[..last.max(block_end.min(limit))].to_vec()
    }
}

/// Draws a token that is not `own` and not the mask.
fn another(own: Token, resolved: &Resolved, seed: u64, place: u32) -> Token {
    let key = Key::new(seed, place, 0, Purpose::Token);
    let draws = (0..).map(|draw| key.bits(draw) % u64::from(resolved.n_vocab));
    let tokens = draws.map(|token| Token::try_from(token).expect("a token"));
    tokens
        .into_iter()
        .find(|&token| token != own && token != resolved.mask)
        .expect("there are others")
}

/// One token in twenty, and at least one, is another: their places in `text`.
fn errors(text: &[Token], resolved: &Resolved, seed: u64) -> BTreeMap<u32, Token> {
    let key = |place: u32| Key::new(seed, place, 0, Purpose::Order);
    let mut order: Vec<u32> = (0..).take(text.len()).collect();
    order.sort_by_key(|&place| key(place).bits(0));
    order.truncate(text.len().div_ceil(20));
    let other = |place: u32| (place, another(text[place as usize], resolved, seed, place));
    order.into_iter().map(other).collect()
}

/// Where errors are put.
#[derive(Clone, Copy, Debug)]
enum Where {
    Finished,
    WhileDecoding,
}

/// Counts what revision with `options` makes of errors in the answers to every `every`-th prompt.
fn forced_errors(place: Where, options: &str, every: usize) -> Counts {
    let path = trained("q8_0");
    let llama = Llama::load(&path, 512);
    let model = load(&path, target());
    let mut session = session(&model, 2, Sampling::default());
    let mut counts = Counts::default();
    for (seed, prompt) in (0..).zip(prompts("validation.jsonl").iter().step_by(every)) {
        let prompt = llama.chat_prompt(prompt);
        let right_by = match place {
            Where::Finished => "mode=reference",
            Where::WhileDecoding => options,
        };
        let right = generate(&mut session, &prompt, 96, right_by).output;
        if right.is_empty() {
            continue;
        }
        let n_gen = match place {
            Where::Finished => u32::try_from(right.len()).expect("a short answer"),
            Where::WhileDecoding => 96,
        };
        let n_prompt = u32::try_from(prompt.len()).expect("short");
        let resolved = params(options)
            .resolve(&session.traits(), n_prompt, n_gen)
            .expect("valid options");
        let ModeParams::Full(full) = resolved.mode else {
            panic!("mode=full")
        };
        let CommitRule::Threshold(tau_visible) = full.cache.commit.rule else {
            panic!("tokens commit by threshold")
        };
        let sampling = SampleParams::new(&resolved, Sampling::default()).expect("argmax");
        let mut bench = Bench {
            session,
            sampler: Sampler::new(sampling),
            resolved,
            block_length: full.cache.block_length,
            taus: [tau_visible, full.tau_stable],
            revision: full.revision.expect("revision is on"),
            counts,
        };
        let errors = errors(&right, &resolved, seed);
        match place {
            Where::Finished => {
                let mut text = right.clone();
                errors
                    .iter()
                    .for_each(|(&place, &token)| text[place as usize] = token);
                bench.revise(&prompt, &text, &right);
            }
            Where::WhileDecoding => {
                let errors = errors
                    .into_iter()
                    .map(|(place, token)| (n_prompt + place, token))
                    .collect();
                bench.decode(&prompt, &right, &errors);
            }
        }
        (session, counts) = (bench.session, bench.counts);
    }
    counts
}

/// All of an answer may still change, and nothing is known of it: as many forwards revise it as it takes.
#[test]
fn in_finished_answers() {
    let counts = forced_errors(Where::Finished, "mode=full final-sweep=1000", 12);
    println!("{}", counts.result());
    counts.check(70, 0);
}

#[test]
fn while_answers_are_decoded() {
    let counts = forced_errors(Where::WhileDecoding, "mode=full revision-budget=8", 6);
    println!("{}", counts.result());
    counts.check(140, 0);
}

/// Short blocks are decoded in more steps, so that more is revised beside them and less at the end.
#[test]
fn beside_dense_steps() {
    let options = "mode=full revision-budget=8 block-length=8 refresh-blocks=0";
    let counts = forced_errors(Where::WhileDecoding, options, 6);
    println!("{}", counts.result());
    counts.check(140, 100);
}
