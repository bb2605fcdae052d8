//! A stand-in for model and engine: executes row plans by hashing, and checks each of them.
//!
//! It has two layers of attention, so that the K/V of a row depends on what the row saw when it was computed: stale, missing
//! or doubled K/V changes every later prediction. Sums over visible slots make it blind to the order of rows and slots only.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::decode::plan::{Predict, Slot, Stream};

pub(super) const MASK: Token = 0;
pub(in crate::decode) const EOS: Token = 1;
pub(super) const EOT: Token = 2;

/// A model with a small vocabulary, so that EOS, EoT and ties of confidence are frequent.
pub(in crate::decode) fn traits(shift_logits: bool, ends: bool) -> ModelTraits {
    ModelTraits {
        mask: Some(MASK),
        eos: ends.then_some(EOS),
        eot: ends.then_some(EOT),
        n_vocab: 30,
        n_ctx: 4096,
        shift_logits,
        default_block_length: 32,
        family: Family::Llada,
    }
}

/// Parameters from `key=value` words.
pub(super) fn params(words: &str) -> Params {
    let mut params = Params::default();
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap();
        params.set(key, value).unwrap();
    }
    params
}

pub(super) fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x1234_5678, |state, &part| {
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// K/V of one slot, and what was computed there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kv {
    pub(super) token: Token,
    pub(super) pos: u32,
    pub(super) step: u32,
    layers: [u64; 2],
}

/// The weights: any number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights(pub(super) u64);

impl Weights {
    fn first(self, token: Token, pos: u32) -> u64 {
        hash(&[self.0, 1, u64::from(token.unsigned_abs()), u64::from(pos)])
    }

    fn second(self, token: Token, pos: u32, seen: u64) -> u64 {
        hash(&[
            self.0,
            2,
            u64::from(token.unsigned_abs()),
            u64::from(pos),
            seen,
        ])
    }

    fn output(self, second: u64, seen: u64) -> u64 {
        hash(&[self.0, 3, second, seen])
    }

    /// The prediction of `pos` from the output of its row.
    fn prediction(self, pos: u32, output: u64) -> Prediction {
        let token = Token::try_from(output % 29).unwrap() + 1;
        let confidence = f32::from(u8::try_from((output >> 32) % 21).unwrap()) / 20.0;
        Prediction {
            pos,
            token,
            confidence,
            score: confidence,
            probe: 0.0,
        }
    }

    /// The same with a probe, which is the predicted token in every other case.
    fn probed(self, probe: Option<Token>, prediction: Prediction, output: u64) -> Prediction {
        let Some(token) = probe else {
            return prediction;
        };
        if output & (1 << 40) != 0 {
            return Prediction {
                token,
                probe: prediction.confidence,
                ..prediction
            };
        }
        Prediction {
            probe: if token == prediction.token {
                prediction.confidence
            } else {
                1.0 - prediction.confidence
            },
            ..prediction
        }
    }

    /// The predictions of `wanted` from a forward over `canvas` where all of `visible` see each other and nothing else.
    pub(super) fn full(
        self,
        canvas: &[Token],
        visible: &[u32],
        wanted: &[u32],
        shift: bool,
    ) -> Vec<Prediction> {
        let token = |pos: u32| canvas[pos as usize];
        let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0u64, u64::wrapping_add);
        let seen_first = sum(&mut visible.iter().map(|&pos| self.first(token(pos), pos)));
        let second = |pos: u32| self.second(token(pos), pos, seen_first);
        let seen_second = sum(&mut visible.iter().map(|&pos| second(pos)));
        let predict = |&pos: &u32| {
            let row = if shift { pos.saturating_sub(1) } else { pos };
            assert!(visible.contains(&row));
            self.prediction(pos, self.output(second(row), seen_second))
        };
        wanted.iter().map(predict).collect()
    }
}

/// Store and scratch, and the checks of a plan.
#[derive(Debug)]
pub(super) struct Machine {
    weights: Weights,
    resolved: Resolved,
    store: BTreeMap<u32, Kv>,
    scratch: BTreeMap<u32, Kv>,
    last_step: Option<u32>,
}

impl Machine {
    pub(super) fn new(weights: Weights, resolved: &Resolved) -> Self {
        Self {
            weights,
            resolved: *resolved,
            store: BTreeMap::new(),
            scratch: BTreeMap::new(),
            last_step: None,
        }
    }

    /// Executes a plan.
    pub(super) fn run(
        &mut self,
        plan: &RowPlan,
        canvas: &[Token],
        stages: &[Stage],
    ) -> Vec<Prediction> {
        self.check(plan, canvas, stages);
        self.execute(plan)
    }

    /// Executes a plan that was checked.
    pub(super) fn execute(&mut self, plan: &RowPlan) -> Vec<Prediction> {
        let mut layers: Vec<[u64; 2]> = Vec::new();
        for row in &plan.rows {
            layers.push([self.weights.first(row.token, row.pos), 0]);
        }
        self.write(plan, &layers);
        let seen = self.seen(&plan.streams, 0);
        for (row, layers) in plan.rows.iter().zip(&mut layers) {
            layers[1] = self
                .weights
                .second(row.token, row.pos, seen[usize::from(row.stream)]);
        }
        self.write(plan, &layers);
        let seen = self.seen(&plan.streams, 1);
        let output = |row: u32| {
            let row = row as usize;
            self.weights
                .output(layers[row][1], seen[usize::from(plan.rows[row].stream)])
        };
        let predict = |wanted: &Predict| {
            let guided = wanted.uncond_row.map_or(0, output);
            let output = output(wanted.row) ^ guided;
            self.weights.probed(
                wanted.probe,
                self.weights.prediction(wanted.pos, output),
                output,
            )
        };
        plan.predict.iter().map(predict).collect()
    }

    fn write(&mut self, plan: &RowPlan, layers: &[[u64; 2]]) {
        for (row, &layers) in plan.rows.iter().zip(layers) {
            let kv = Kv {
                token: row.token,
                pos: row.pos,
                step: plan.step,
                layers,
            };
            match row.kv {
                Some(Slot::Store(slot)) => self.store.insert(slot, kv),
                Some(Slot::Scratch(slot)) => self.scratch.insert(slot, kv),
                None => None,
            };
        }
    }

    /// What was computed into a slot last.
    pub(super) fn kv(&self, slot: Slot) -> Option<Kv> {
        match slot {
            Slot::Store(slot) => self.store.get(&slot).copied(),
            Slot::Scratch(slot) => self.scratch.get(&slot).copied(),
        }
    }

    fn seen(&self, streams: &[Stream], layer: usize) -> Vec<u64> {
        let slots = |kv: &BTreeMap<u32, Kv>, ranges: &[std::ops::Range<u32>]| {
            let values = ranges
                .iter()
                .cloned()
                .flatten()
                .map(|slot| kv[&slot].layers[layer]);
            values.fold(0u64, u64::wrapping_add)
        };
        let sum = |stream: &Stream| {
            slots(&self.store, &stream.store).wrapping_add(slots(&self.scratch, &stream.scratch))
        };
        streams.iter().map(sum).collect()
    }

    fn check(&mut self, plan: &RowPlan, canvas: &[Token], stages: &[Stage]) {
        assert!(
            self.last_step.is_none_or(|last| plan.step > last),
            "steps ascend"
        );
        assert!(!plan.predict.is_empty());
        assert!(plan.rows.len() <= self.resolved.n_rows_max() as usize);
        self.last_step = Some(plan.step);
        let masked = |pos: u32| stages[pos as usize] == Stage::Invisible;

        let mut store = BTreeSet::new();
        let mut scratch = BTreeSet::new();
        for row in &plan.rows {
            assert!(usize::from(row.stream) < plan.streams.len());
            match row.kv.expect("every row of these modes is seen") {
                Slot::Store(slot) => {
                    assert!(store.insert(slot), "store slot {slot} is written twice");
                    assert!(slot == row.pos && slot < self.resolved.n_store_slots());
                    assert!(
                        !masked(row.pos),
                        "position {} is masked and enters the store",
                        row.pos
                    );
                    assert_eq!(row.token, canvas[row.pos as usize]);
                }
                Slot::Scratch(slot) => {
                    assert!(scratch.insert(slot), "scratch slot {slot} is written twice");
                    assert!(slot < self.resolved.n_scratch_slots());
                }
            }
        }
        self.check_visible(plan, canvas, &store, &scratch);

        assert!(plan.predict.is_sorted_by_key(|wanted| wanted.pos));
        for wanted in &plan.predict {
            assert!(masked(wanted.pos), "position {} is not masked", wanted.pos);
            let from = wanted
                .pos
                .saturating_sub(u32::from(self.resolved.shift_logits));
            let row = plan.rows[wanted.row as usize];
            assert_eq!(
                (row.pos, row.stream),
                (from, 0),
                "predictor of {}",
                wanted.pos
            );
            if let Some(uncond) = wanted.uncond_row {
                let row = plan.rows[uncond as usize];
                assert_eq!(
                    (row.pos, row.stream),
                    (from, 1),
                    "predictor of {}",
                    wanted.pos
                );
            }
        }
    }

    /// Ranges in order, slots written, no position seen twice, kept scratch before written scratch.
    fn check_visible(
        &self,
        plan: &RowPlan,
        canvas: &[Token],
        store: &BTreeSet<u32>,
        scratch: &BTreeSet<u32>,
    ) {
        let mut kept = BTreeSet::new();
        for (index, stream) in plan.streams.iter().enumerate() {
            for ranges in [&stream.store, &stream.scratch] {
                assert!(ranges.iter().all(|range| range.start < range.end));
                assert!(
                    ranges.windows(2).all(|pair| pair[0].end < pair[1].start),
                    "{ranges:?}"
                );
            }
            let mut seen = BTreeSet::new();
            for slot in stream.store.iter().cloned().flatten() {
                assert!(
                    store.contains(&slot) || self.store.contains_key(&slot),
                    "store slot {slot} has no K/V"
                );
                if let (false, Some(kv)) = (store.contains(&slot), self.store.get(&slot)) {
                    assert_eq!(
                        kv.token, canvas[slot as usize],
                        "K/V of another token at {slot}"
                    );
                }
                assert!(seen.insert(slot));
            }
            for slot in stream.scratch.iter().cloned().flatten() {
                let written = plan
                    .rows
                    .iter()
                    .find(|row| row.kv == Some(Slot::Scratch(slot)));
                let pos = match written {
                    Some(row) => {
                        assert_eq!(usize::from(row.stream), index, "streams are apart");
                        row.pos
                    }
                    None => {
                        let kv = self.scratch.get(&slot).expect("scratch slot has K/V");
                        assert_eq!(
                            (kv.token, canvas[kv.pos as usize]),
                            (MASK, MASK),
                            "kept scratch is of masks"
                        );
                        kept.insert(slot);
                        kv.pos
                    }
                };
                assert!(seen.insert(pos), "position {pos} is seen twice");
            }
            let rows = plan
                .rows
                .iter()
                .filter(|row| usize::from(row.stream) == index);
            assert!(
                rows.clone().all(|row| seen.contains(&row.pos)),
                "every row sees itself"
            );
        }
        let in_order = kept
            .iter()
            .chain(scratch)
            .copied()
            .eq(0..u32::try_from(kept.len() + scratch.len()).unwrap());
        assert!(in_order, "kept {kept:?}, written {scratch:?}");
    }
}

/// What a decoding did.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Trace {
    pub(super) commits: Vec<Vec<(u32, Token)>>,
    pub(super) kinds: Vec<plan::ForwardKind>,
    /// Positions that stream 0 sees, per forward.
    pub(super) visible: Vec<Vec<u32>>,
    pub(super) canvas: Vec<Token>,
    pub(super) output: Vec<Token>,
}

/// Decodes to the end and checks events against the canvas.
pub(super) fn run(resolved: Resolved, prompt: &[Token], seed: u64, weights: Weights) -> Trace {
    let mut decoder = Decoder::new(resolved, prompt, seed).unwrap();
    let mut machine = Machine::new(weights, &resolved);
    let mut trace = Trace::default();
    let mut replay = decoder.canvas().to_vec();
    let mut n_prefix = 0;
    assert_eq!(
        decoder.stages()[..prompt.len()],
        vec![Stage::Stable; prompt.len()]
    );
    loop {
        let (canvas, stages) = (decoder.canvas().to_vec(), decoder.stages().to_vec());
        let Some(plan) = decoder.next_plan().unwrap() else {
            break;
        };
        let predictions = machine.run(plan, &canvas, &stages);
        let (step, kind) = (plan.step, plan.kind);
        let stream = plan.streams[0].clone();
        let mut commits = Vec::new();
        let events = decoder.absorb(&predictions).unwrap().to_vec();
        let (last, changes) = events.split_last().unwrap();
        for event in changes {
            match *event {
                Event::Committed { pos, token, stage } => {
                    assert_eq!(replay[pos as usize], MASK, "position {pos} changed");
                    assert_eq!(stage, Stage::Stable);
                    replay[pos as usize] = token;
                    commits.push((pos, token));
                }
                Event::StablePrefix { len } => {
                    assert!(len > n_prefix);
                    n_prefix = len;
                }
                _ => panic!("{event:?} in a mode without revision"),
            }
        }
        assert_eq!(replay, decoder.canvas());
        let text = kept(&replay[prompt.len()..], &resolved);
        assert_eq!((n_prefix as usize, decoder.output()), (text.len(), text));
        let n_masked = masked_before_end(&replay[prompt.len()..], &resolved);
        assert_eq!(
            *last,
            Event::Step {
                step,
                kind,
                n_masked
            }
        );
        let scratch = stream
            .scratch
            .into_iter()
            .flatten()
            .map(|slot| machine.scratch[&slot].pos);
        let mut visible: Vec<u32> = stream.store.into_iter().flatten().chain(scratch).collect();
        visible.sort_unstable();
        commits.sort_unstable();
        trace.commits.push(commits);
        trace.kinds.push(kind);
        trace.visible.push(visible);
        assert!(trace.kinds.len() < 10_000, "decoding does not end");
    }
    assert!(decoder.is_done());
    assert_eq!(masked_before_end(&replay[prompt.len()..], &resolved), 0);
    let report = decoder.report();
    assert_eq!(report.n_forwards() as usize, trace.kinds.len());
    assert_eq!(
        report.n_committed as usize,
        trace.commits.iter().map(Vec::len).sum::<usize>()
    );
    assert_eq!(report.n_generated as usize, decoder.output().len());
    trace.canvas = replay;
    trace.output = decoder.output().to_vec();
    trace
}

fn is_end(token: Token, resolved: &Resolved) -> bool {
    [resolved.eos, resolved.eot].contains(&Some(token))
}

/// The generated tokens up to the first mask, EOS or EoT.
pub(super) fn kept<'a>(generated: &'a [Token], resolved: &Resolved) -> &'a [Token] {
    let stop = |&token: &Token| token == MASK || is_end(token, resolved);
    &generated[..generated.iter().position(stop).unwrap_or(generated.len())]
}

fn masked_before_end(generated: &[Token], resolved: &Resolved) -> u32 {
    let text = generated
        .iter()
        .take_while(|&&token| !is_end(token, resolved));
    u32::try_from(text.filter(|&&token| token == MASK).count()).unwrap()
}
