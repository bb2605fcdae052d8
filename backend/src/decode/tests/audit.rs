//! Drives a decoder of mode `mbsd` or `full` with a stand-in for the model, and checks every invariant at every step.

use std::collections::{BTreeMap, BTreeSet};

use super::super::plan::{ForwardKind, Row, RowPlan, Slot, Stream};
use super::super::*;
use super::machine::{MASK, Machine, Weights, params, traits};

/// Steps that put each position's token there, and how often each was masked again or looked at.
#[derive(Debug, Default)]
struct History {
    since: BTreeMap<u32, u32>,
    remasked: BTreeMap<u32, u32>,
}

/// Drives a decoder with a machine and checks plans, events and ends.
pub(super) struct Audit {
    decoder: Decoder,
    machine: Machine,
    resolved: Resolved,
    params: FullParams,
    history: History,
    canvas: Vec<Token>,
    stages: Vec<Stage>,
    n_dense: u32,
    n_sweeps: u32,
    log: Vec<String>,
}

impl Audit {
    pub(super) fn new(
        words: &str,
        shift: bool,
        ends: bool,
        prompt: &[Token],
        n_gen: u32,
        seed: u64,
    ) -> Self {
        let n_prompt = u32::try_from(prompt.len()).unwrap();
        let resolved = params(words)
            .resolve(&traits(shift, ends), n_prompt, n_gen)
            .unwrap();
        let ModeParams::Full(params) = resolved.mode else {
            panic!("{words}: mbsd or full");
        };
        let decoder = Decoder::new(resolved, prompt, 0).unwrap();
        Self {
            canvas: decoder.canvas().to_vec(),
            stages: decoder.stages().to_vec(),
            machine: Machine::new(Weights(seed), &resolved),
            decoder,
            resolved,
            params,
            history: History::default(),
            n_dense: 0,
            n_sweeps: 0,
            log: Vec::new(),
        }
    }

    fn masked(&self, pos: u32) -> bool {
        matches!(self.stages[pos as usize], Stage::Invisible | Stage::Draft)
    }

    fn is_end(&self, token: Token) -> bool {
        [self.resolved.eos, self.resolved.eot].contains(&Some(token))
    }

    /// One past the leftmost committed end.
    fn limit(&self) -> u32 {
        let end = (self.resolved.n_prompt..self.resolved.n_canvas())
            .find(|&pos| !self.masked(pos) && self.is_end(self.canvas[pos as usize]));
        end.map_or(self.resolved.n_canvas(), |pos| pos + 1)
    }

    fn block(&self) -> Option<std::ops::Range<u32>> {
        let limit = self.limit();
        let frontier = (self.resolved.n_prompt..limit).find(|&pos| self.masked(pos))?;
        let length = self.params.cache.block_length;
        let start = frontier - (frontier - self.resolved.n_prompt) % length;
        Some(start..(start + length).min(limit))
    }

    /// Decodes to the end; returns a log of everything that was decided.
    pub(super) fn run(mut self) -> Vec<String> {
        while let Some(plan) = self.decoder.next_plan().unwrap() {
            let plan = plan.clone();
            self.check_plan(&plan);
            let predictions = self.machine.execute(&plan);
            let events = self.decoder.absorb(&predictions).unwrap().to_vec();
            self.check_events(&plan, &predictions, &events);
            self.log.push(format!("{plan:?} {events:?}"));
            assert!(self.log.len() < 10_000, "decoding does not end");
        }
        self.check_end();
        self.log
    }

    fn check_plan(&mut self, plan: &RowPlan) {
        let written: BTreeMap<Slot, usize> = (0..)
            .map_while(|i| Some((plan.rows.get(i)?.kv?, i)))
            .collect();
        assert_eq!(
            written.len(),
            plan.rows.len(),
            "every row has a slot of its own"
        );
        for row in &plan.rows {
            match row.kv.unwrap() {
                Slot::Store(slot) => {
                    assert_eq!(slot, row.pos);
                    assert!(
                        !self.masked(row.pos),
                        "only committed tokens enter the store"
                    );
                    assert_eq!(row.token, self.canvas[row.pos as usize]);
                }
                Slot::Scratch(slot) => assert!(slot < self.resolved.n_scratch_slots()),
            }
            assert!(
                row.pos < self.limit(),
                "nothing right of an end is computed"
            );
        }
        assert!(plan.rows.len() <= self.resolved.n_rows_max() as usize);
        let n_dense = match (plan.kind, plan.split) {
            (ForwardKind::Sweep, _) => plan.predict.first().map_or(0, |p| self.first_of(plan, p)),
            (_, Some(split)) => split.row as usize,
            (_, None) => plan.rows.len(),
        };
        let dense: BTreeSet<u16> = plan.rows[..n_dense].iter().map(|row| row.stream).collect();
        for (index, row) in plan.rows.iter().enumerate() {
            assert_eq!(
                dense.contains(&row.stream),
                index < n_dense,
                "paths share no stream"
            );
        }
        for (index, stream) in plan.streams.iter().enumerate() {
            let is_dense = dense.contains(&u16::try_from(index).unwrap());
            let seen = self.seen(stream, plan, &written);
            for (slot, row) in slots(stream).filter_map(|slot| Some((slot, *written.get(&slot)?))) {
                let same_path = (row < n_dense) == is_dense;
                let sweep = plan.kind == ForwardKind::Sweep && row < n_dense;
                assert!(same_path || sweep, "{slot:?} is written by the other path");
            }
            let members = plan
                .rows
                .iter()
                .filter(|row| usize::from(row.stream) == index);
            for row in members {
                assert_eq!(
                    seen.get(&row.pos).map(|kv| kv.0),
                    row.kv,
                    "a row sees itself"
                );
            }
            if is_dense {
                self.check_dense(plan, &seen);
            }
        }
        self.check_predictions(plan, n_dense, &written);
    }

    /// First row of the group that a sweep's prediction belongs to, or of its real row.
    fn first_of(&self, plan: &RowPlan, _first: &plan::Predict) -> usize {
        let fresh = |row: &Row| {
            row.stream == 0 && matches!(row.kv, Some(Slot::Store(_))) && row.pos < self.limit()
        };
        let has_fresh = plan.rows.iter().take_while(|row| fresh(row)).count();
        // Stream 0 is the fresh rows' own if it sees nothing masked and predicts nothing.
        let group = plan
            .predict
            .iter()
            .any(|p| plan.rows[p.row as usize].stream == 0);
        let alone = plan.rows.iter().filter(|row| row.stream == 0).count();
        let is_real_row = alone == 1
            && plan.predict.iter().any(|p| p.pos == plan.rows[0].pos)
            && self
                .machine
                .kv(Slot::Store(plan.rows[0].pos))
                .is_some_and(|kv| kv.token == plan.rows[0].token);
        if group || is_real_row { 0 } else { has_fresh }
    }

    /// What a stream sees, by position: slot, and the K/V there after this plan has written.
    fn seen(
        &self,
        stream: &Stream,
        plan: &RowPlan,
        written: &BTreeMap<Slot, usize>,
    ) -> BTreeMap<u32, (Slot, Token, u32)> {
        let mut seen = BTreeMap::new();
        for ranges in [&stream.store, &stream.scratch] {
            assert!(ranges.iter().all(|range| range.start < range.end));
            assert!(
                ranges.windows(2).all(|pair| pair[0].end < pair[1].start),
                "{ranges:?}"
            );
        }
        for slot in slots(stream) {
            let (pos, token, step) = match written.get(&slot) {
                Some(&row) => (plan.rows[row].pos, plan.rows[row].token, plan.step),
                None => {
                    let kv = self
                        .machine
                        .kv(slot)
                        .expect("a slot that is seen was written");
                    (kv.pos, kv.token, kv.step)
                }
            };
            let before = seen.insert(pos, (slot, token, step));
            assert_eq!(before, None, "position {pos} is seen twice");
            let expected = if self.stages[pos as usize] == Stage::Draft && token != MASK {
                self.canvas[pos as usize]
            } else if self.masked(pos) || matches!(slot, Slot::Scratch(_)) && token == MASK {
                MASK
            } else {
                self.canvas[pos as usize]
            };
            assert_eq!(token, expected, "K/V of another token at {pos}");
            assert!(pos < self.limit(), "nothing right of an end is seen");
        }
        seen
    }

    /// The step sees all that is committed, its block masked, and full forwards nothing old.
    fn check_dense(&self, plan: &RowPlan, seen: &BTreeMap<u32, (Slot, Token, u32)>) {
        let full = matches!(plan.kind, ForwardKind::Prefill | ForwardKind::Refresh);
        for pos in 0..self.limit() {
            if !self.masked(pos) {
                assert_eq!(
                    seen[&pos].1, self.canvas[pos as usize],
                    "a committed token is not seen"
                );
            }
        }
        if full {
            assert!(
                seen.values().all(|kv| kv.2 == plan.step),
                "a full forward uses no old K/V"
            );
            assert_eq!(plan.split, None);
        }
        if let Some(block) = self.block() {
            for pos in block.filter(|&pos| self.masked(pos)) {
                assert_eq!(seen[&pos].1, MASK, "the block is fed masks");
            }
        }
        let all = self.params.cache.suffix == Suffix::All && plan.kind != ForwardKind::Sweep;
        if all {
            assert_eq!(
                seen.len(),
                self.limit() as usize,
                "suffix all hides nothing"
            );
        }
    }

    fn check_predictions(&self, plan: &RowPlan, n_dense: usize, written: &BTreeMap<Slot, usize>) {
        let shift = u32::from(self.resolved.shift_logits);
        let n_dense_predict = match (plan.kind, plan.split) {
            (ForwardKind::Sweep, _) => 0,
            (_, Some(split)) => split.predict as usize,
            (_, None) => plan.predict.len(),
        };
        let (dense, revised) = plan.predict.split_at(n_dense_predict);
        for part in [dense, revised] {
            assert!(part.windows(2).all(|pair| pair[0].pos < pair[1].pos));
        }
        if plan.kind != ForwardKind::Sweep {
            let block = self.block().unwrap();
            let masks: Vec<u32> = block.clone().filter(|&pos| self.masked(pos)).collect();
            let n_block = dense.partition_point(|p| p.pos < block.end);
            assert_eq!(
                dense[..n_block].iter().map(|p| p.pos).collect::<Vec<_>>(),
                masks
            );
            let ahead = &dense[n_block..];
            assert!(ahead.len() <= self.params.lookahead_max as usize);
            assert!(
                ahead
                    .iter()
                    .all(|p| self.stages[p.pos as usize] == Stage::Invisible)
            );
            assert!(
                dense
                    .iter()
                    .all(|p| (p.row as usize) < n_dense && p.probe.is_none())
            );
        }
        let revision = self.params.revision;
        assert!(revised.is_empty() || revision.is_some());
        let Some(revision) = revision else { return };
        if plan.kind != ForwardKind::Sweep {
            assert!(revised.len() <= revision.budget as usize);
        }
        for wanted in revised {
            let pos = wanted.pos;
            assert_eq!(self.stages[pos as usize], Stage::Visible);
            assert_eq!(wanted.probe, Some(self.canvas[pos as usize]));
            let row = plan.rows[wanted.row as usize];
            assert_eq!(row.pos, pos.saturating_sub(shift));
            let seen = self.seen(&plan.streams[usize::from(row.stream)], plan, written);
            assert_eq!(seen[&pos].1, MASK, "the shadow is masked");
            let since = self.history.since[&pos];
            for (&other, &(slot, _, step)) in &seen {
                let ours = written
                    .get(&slot)
                    .is_some_and(|&index| plan.rows[index].stream == row.stream);
                if other.abs_diff(pos) <= revision.radius && !self.masked(other) {
                    assert!(
                        ours || step <= since,
                        "K/V of {other} has seen the token at {pos}"
                    );
                }
                if shift > 0 && other + 1 == pos {
                    assert!(ours, "the pair is computed together");
                }
            }
            let outside = plan.streams.iter().enumerate();
            for (_, stream) in outside.filter(|&(index, _)| index != usize::from(row.stream)) {
                let shadow = seen[&pos].0;
                assert!(
                    slots(stream).all(|slot| slot != shadow),
                    "nobody outside sees a shadow"
                );
            }
        }
        if plan.kind == ForwardKind::Sweep {
            let fresh = n_dense;
            let group = revision.n_rows_each() as usize;
            let most = (fresh + 1).next_multiple_of(32).max(fresh + group);
            assert!(plan.rows.len() <= most, "a sweep is one bucket");
        }
    }

    fn check_events(&mut self, plan: &RowPlan, predictions: &[Prediction], events: &[Event]) {
        let block = self.block();
        let n_revised_before = self.decoder.report().revisions_made;
        let (stages_before, canvas_before) = (self.stages.clone(), self.canvas.clone());
        let (mut n_commits, mut replay) = (0, self.canvas.clone());
        for (token, stage) in replay.iter_mut().zip(&self.stages) {
            if *stage == Stage::Draft {
                *token = MASK;
            }
        }
        for event in events {
            match *event {
                Event::Committed { pos, token, stage } => {
                    assert!(self.masked(pos));
                    let block = block.clone().expect("sweeps commit nothing");
                    assert!(block.contains(&pos), "only the current block commits");
                    let prediction = predictions.iter().find(|p| p.pos == pos).unwrap();
                    assert_eq!(token, prediction.token);
                    assert!(matches!(stage, Stage::Visible | Stage::Stable));
                    if self.params.revision.is_none() {
                        assert_eq!(stage, Stage::Stable);
                    }
                    if prediction.confidence >= self.params.tau_stable {
                        assert_eq!(stage, Stage::Stable);
                    }
                    self.history.since.insert(pos, plan.step);
                    replay[pos as usize] = token;
                    n_commits += 1;
                }
                Event::Replaced { pos, token } => {
                    assert_eq!(
                        self.stages[pos as usize],
                        Stage::Visible,
                        "stable tokens never change"
                    );
                    self.history.since.insert(pos, plan.step);
                    replay[pos as usize] = token;
                }
                Event::Remasked { pos } => {
                    assert_eq!(self.stages[pos as usize], Stage::Visible);
                    *self.history.remasked.entry(pos).or_default() += 1;
                    replay[pos as usize] = MASK;
                }
                Event::StablePrefix { len } => {
                    assert!(len as usize <= self.decoder.output().len());
                }
                Event::Step { step, kind, .. } => assert_eq!((step, kind), (plan.step, plan.kind)),
            }
        }
        if plan.kind == ForwardKind::Sweep {
            self.n_sweeps += 1;
            assert!(self.n_sweeps <= self.params.revision.unwrap().final_sweep);
        } else {
            self.n_dense += 1;
            assert!(n_commits > 0, "every dense step commits");
            self.check_rule(block.unwrap(), predictions, &canvas_before, &stages_before);
        }
        self.stages = self.decoder.stages().to_vec();
        for pos in 0..self.resolved.n_canvas() {
            let stage = self.stages[pos as usize];
            if stage != Stage::Draft {
                assert_eq!(self.decoder.canvas()[pos as usize], replay[pos as usize]);
            }
            if stages_before[pos as usize] == Stage::Stable {
                assert_eq!(
                    (stage, self.decoder.canvas()[pos as usize]),
                    (Stage::Stable, canvas_before[pos as usize])
                );
            }
        }
        self.canvas = self.decoder.canvas().to_vec();
        assert!(self.decoder.report().revisions_made >= n_revised_before);
        assert!(self.decoder.output().len() <= self.resolved.n_gen as usize);
    }

    /// What commits reaches the threshold and confirms its draft, or is the best and alone.
    fn check_rule(
        &self,
        block: std::ops::Range<u32>,
        predictions: &[Prediction],
        canvas: &[Token],
        stages: &[Stage],
    ) {
        let CommitRule::Threshold(threshold) = self.params.cache.commit.rule else {
            return;
        };
        let of_block: Vec<&Prediction> = predictions
            .iter()
            .filter(|p| {
                block.contains(&p.pos)
                    && matches!(stages[p.pos as usize], Stage::Invisible | Stage::Draft)
            })
            .collect();
        let confirmed = |p: &Prediction| {
            stages[p.pos as usize] != Stage::Draft || canvas[p.pos as usize] == p.token
        };
        let qualified: Vec<u32> = of_block
            .iter()
            .filter(|p| p.confidence >= threshold && confirmed(p))
            .map(|p| p.pos)
            .collect();
        let now = self.decoder.stages();
        let committed: Vec<u32> = of_block
            .iter()
            .map(|p| p.pos)
            .filter(|&pos| matches!(now[pos as usize], Stage::Visible | Stage::Stable))
            .collect();
        if qualified.is_empty() {
            let best = of_block
                .iter()
                .map(|p| p.confidence)
                .fold(f32::NEG_INFINITY, f32::max);
            let first = of_block.iter().find(|p| p.confidence == best).unwrap();
            assert_eq!(committed, [first.pos]);
        } else {
            assert_eq!(committed, qualified);
        }
        for pos in block {
            assert_ne!(
                now[pos as usize],
                Stage::Draft,
                "promotion decides all drafts of the block"
            );
        }
    }

    fn check_end(&self) {
        let limit = self.limit();
        assert!(self.decoder.is_done());
        for pos in 0..limit {
            assert_eq!(
                self.stages[pos as usize],
                Stage::Stable,
                "everything is stable at the end"
            );
        }
        let text = &self.canvas[self.resolved.n_prompt as usize..limit as usize];
        let end = text
            .iter()
            .position(|&token| self.is_end(token))
            .unwrap_or(text.len());
        assert_eq!(self.decoder.output(), &text[..end]);
        let max_revisions = self
            .params
            .revision
            .map_or(0, |revision| revision.max_revisions);
        assert!(self.history.remasked.values().all(|&n| n <= max_revisions));
        let n_blocks = self.resolved.n_gen.div_ceil(self.params.cache.block_length);
        assert!(self.n_dense <= self.resolved.n_gen * (1 + max_revisions) + n_blocks);
        let report = self.decoder.report();
        assert_eq!(report.forwards_sweep, self.n_sweeps);
        assert_eq!(report.n_forwards(), self.n_dense + self.n_sweeps);
        assert!(report.drafts_kept <= report.drafts_made);
        assert!(report.revisions_replaced + report.revisions_remasked <= report.revisions_made);
    }
}

fn slots(stream: &Stream) -> impl Iterator<Item = Slot> + '_ {
    let store = stream.store.iter().cloned().flatten().map(Slot::Store);
    store.chain(stream.scratch.iter().cloned().flatten().map(Slot::Scratch))
}
