//! Mode `cached`: against a plain loop without a cache, and row by row.

#![expect(
    clippy::single_range_in_vec_init,
    reason = "lists of slot ranges are compared"
)]

use proptest::prelude::*;

use super::super::plan::{ForwardKind, RowPlan, Slot};
use super::super::*;
use super::machine::{EOS, EOT, MASK, Trace, Weights, params, run, traits};

fn decode(
    words: &str,
    shift: bool,
    ends: bool,
    prompt: &[Token],
    n_gen: u32,
    weights: Weights,
) -> (Resolved, Trace) {
    let n_prompt = u32::try_from(prompt.len()).unwrap();
    let resolved = params(&format!("mode=cached {words}"))
        .resolve(&traits(shift, ends), n_prompt, n_gen)
        .unwrap();
    (resolved, run(resolved, prompt, 0, weights))
}

/// One past the leftmost end token.
fn limit(canvas: &[Token], n_prompt: usize, ends: bool) -> usize {
    let end = (n_prompt..canvas.len()).find(|&pos| ends && [EOS, EOT].contains(&canvas[pos]));
    end.map_or(canvas.len(), |pos| pos + 1)
}

/// Threshold decoding that computes everything in sight anew every step.
fn plain(
    weights: Weights,
    prompt: &[Token],
    n_gen: usize,
    block: usize,
    threshold: f32,
    suffix: usize,
    shift: bool,
    ends: bool,
) -> Vec<Vec<(u32, Token)>> {
    let mut canvas = prompt.to_vec();
    canvas.resize(prompt.len() + n_gen, MASK);
    let mut commits = Vec::new();
    loop {
        let limit = limit(&canvas, prompt.len(), ends);
        let Some(frontier) = (prompt.len()..limit).find(|&pos| canvas[pos] == MASK) else {
            return commits;
        };
        let start = frontier - (frontier - prompt.len()) % block;
        let end = (start + block).min(limit);
        let sight = end.saturating_add(suffix).min(limit);
        let visible: Vec<u32> = (0..u32::try_from(sight).unwrap()).collect();
        let wanted: Vec<u32> = visible[start..end]
            .iter()
            .copied()
            .filter(|&pos| canvas[pos as usize] == MASK)
            .collect();
        let predictions = weights.full(&canvas, &visible, &wanted, shift);
        let best = predictions
            .iter()
            .map(|p| p.confidence)
            .fold(f32::NEG_INFINITY, f32::max);
        let first = predictions.iter().position(|p| p.confidence == best);
        let chosen: Vec<_> = predictions
            .iter()
            .enumerate()
            .filter(|&(index, p)| p.confidence >= threshold || Some(index) == first)
            .map(|(_, p)| (p.pos, p.token))
            .collect();
        for &(pos, token) in &chosen {
            canvas[pos as usize] = token;
        }
        commits.push(chosen);
    }
}

fn suffixes() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("none".to_owned()),
        Just("all".to_owned()),
        Just("cached".to_owned()),
        (1u32..9).prop_map(|n| n.to_string()),
    ]
}

fn thresholds() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("inf".to_owned()),
        (0u8..=20).prop_map(|n| (f32::from(n) / 20.0).to_string())
    ]
}

proptest! {
    #[test]
    fn one_per_step_without_cache_is_the_official_schedule(
        weights in any::<u64>().prop_map(Weights),
        prompt in proptest::collection::vec(3..30 as Token, 0..6),
        n_gen in 1u32..24,
        block in 1u32..30,
        shift in any::<bool>(),
    ) {
        let words = format!("block-length={block} threshold=inf suffix=all refresh-steps=1");
        let (_, cached) = decode(&words, shift, false, &prompt, n_gen, weights);
        let reference = format!("mode=reference block-length={block}");
        let (_, reference) = decode(&reference, shift, false, &prompt, n_gen, weights);
        prop_assert_eq!(cached.commits, reference.commits);
    }

    #[test]
    fn refresh_at_every_step_is_no_cache(
        weights in any::<u64>().prop_map(Weights),
        prompt in proptest::collection::vec(3..30 as Token, 0..6),
        n_gen in 1u32..24,
        block in 1u32..12,
        threshold in thresholds(),
        suffix in suffixes(),
        shift in any::<bool>(),
        ends in any::<bool>(),
    ) {
        let words = format!("block-length={block} threshold={threshold} suffix={suffix} refresh-steps=1");
        let (_, cached) = decode(&words, shift, ends, &prompt, n_gen, weights);
        let sight = match suffix.as_str() {
            "none" => 0,
            "all" | "cached" => usize::MAX,
            n => n.parse().unwrap(),
        };
        let threshold = threshold.parse().unwrap();
        let plain = plain(weights, &prompt, n_gen as usize, block as usize, threshold, sight, shift, ends);
        prop_assert_eq!(cached.commits, plain);
    }

    /// The machine checks every plan: K/V written before it is seen, slots and positions once, predictors.
    #[test]
    fn every_step_sees_what_the_rules_say_and_commits(
        weights in any::<u64>().prop_map(Weights),
        prompt in proptest::collection::vec(3..30 as Token, 0..6),
        n_gen in 1u32..40,
        block in 1u32..14,
        threshold in thresholds(),
        suffix in suffixes(),
        refresh_blocks in 0u32..4,
        refresh_steps in prop_oneof![Just(0u32), 1u32..5],
        shift in any::<bool>(),
        ends in any::<bool>(),
    ) {
        let words = format!(
            "block-length={block} threshold={threshold} suffix={suffix} refresh-blocks={refresh_blocks} \
             refresh-steps={refresh_steps}"
        );
        let (resolved, trace) = decode(&words, shift, ends, &prompt, n_gen, weights);
        prop_assert!(trace.kinds.len() <= n_gen as usize);
        prop_assert!(trace.commits.iter().all(|commits| !commits.is_empty()));
        prop_assert_eq!(trace.kinds[0], ForwardKind::Prefill);
        prop_assert!(trace.kinds[1..].iter().all(|&kind| kind != ForwardKind::Prefill));
        check_sight(&resolved, &trace, &prompt, &suffix, ends);
        check_refreshes(&resolved, &trace, refresh_blocks, refresh_steps, block);
        prop_assert_eq!(decode(&words, shift, ends, &prompt, n_gen, weights).1, trace);
    }
}

/// Every forward sees the committed text, the block and the tail of the suffix, up to the leftmost end.
fn check_sight(resolved: &Resolved, trace: &Trace, prompt: &[Token], suffix: &str, ends: bool) {
    let ModeParams::Cached(CacheParams { block_length, .. }) = resolved.mode else {
        panic!("mode cached")
    };
    let mut canvas = prompt.to_vec();
    canvas.resize(resolved.n_canvas() as usize, MASK);
    for (visible, commits) in trace.visible.iter().zip(&trace.commits) {
        let limit = limit(&canvas, prompt.len(), ends);
        let frontier = (prompt.len()..limit)
            .find(|&pos| canvas[pos] == MASK)
            .unwrap();
        let block = block_length as usize;
        let end = frontier - (frontier - prompt.len()) % block + block;
        let sight = match suffix {
            "none" => end,
            "all" | "cached" => usize::MAX,
            n => end + n.parse::<usize>().unwrap(),
        };
        let expected: Vec<u32> = (0..u32::try_from(sight.min(limit)).unwrap()).collect();
        assert_eq!(visible, &expected, "suffix {suffix}");
        for &(pos, token) in commits {
            assert!(
                (pos as usize) < end.min(limit),
                "position {pos} is right of the block"
            );
            canvas[pos as usize] = token;
        }
    }
}

/// Refreshes come at block starts when enough blocks have passed, and when enough forwards have.
fn check_refreshes(resolved: &Resolved, trace: &Trace, by_blocks: u32, by_steps: u32, block: u32) {
    let block_of = |commits: &[(u32, Token)]| (commits[0].0 - resolved.n_prompt) / block;
    let (mut last_block, mut last_step) = (0, 0);
    for step in 1..trace.kinds.len() {
        let now = block_of(&trace.commits[step]);
        let entered = now != block_of(&trace.commits[step - 1]);
        let due = (entered && by_blocks > 0 && now - last_block >= by_blocks)
            || (by_steps > 0 && u32::try_from(step - last_step).unwrap() >= by_steps);
        assert_eq!(
            trace.kinds[step] == ForwardKind::Refresh,
            due,
            "step {step} of {:?}",
            trace.kinds
        );
        if due {
            (last_block, last_step) = (now, step);
        }
    }
}

/// A decoder whose predictions the test makes.
struct Script {
    decoder: Decoder,
}

impl Script {
    fn new(words: &str, shift: bool, prompt: &[Token], n_gen: u32) -> Self {
        let n_prompt = u32::try_from(prompt.len()).unwrap();
        let resolved = params(&format!("mode=cached {words}"))
            .resolve(&traits(shift, true), n_prompt, n_gen)
            .unwrap();
        let decoder = Decoder::new(resolved, prompt, 0).unwrap();
        Self { decoder }
    }

    fn plan(&mut self) -> RowPlan {
        self.decoder.next_plan().unwrap().unwrap().clone()
    }

    /// Commits `commits` and nothing else of what `plan` predicts.
    fn commit(&mut self, plan: &RowPlan, commits: &[(u32, Token)]) {
        let prediction = |pos| {
            let token = commits
                .iter()
                .find(|&&(other, _)| other == pos)
                .map(|&(_, token)| token);
            Prediction {
                pos,
                token: token.unwrap_or(9),
                confidence: if token.is_some() { 1.0 } else { 0.0 },
                score: 0.0,
                probe: 0.0,
            }
        };
        let predictions: Vec<_> = plan
            .predict
            .iter()
            .map(|wanted| prediction(wanted.pos))
            .collect();
        self.decoder.absorb(&predictions).unwrap();
    }
}

/// Rows as text: `position:token>slot`, `s` for store and `x` for scratch.
fn rows(plan: &RowPlan) -> String {
    let row = |row: &plan::Row| {
        let slot = match row.kv {
            Some(Slot::Store(slot)) => format!("s{slot}"),
            Some(Slot::Scratch(slot)) => format!("x{slot}"),
            None => "-".to_owned(),
        };
        format!("{}:{}>{slot}", row.pos, row.token)
    };
    plan.rows.iter().map(row).collect::<Vec<_>>().join(" ")
}

fn predictors(plan: &RowPlan) -> Vec<(u32, u32)> {
    plan.predict
        .iter()
        .map(|wanted| (wanted.pos, plan.rows[wanted.row as usize].pos))
        .collect()
}

#[test]
fn rows_of_a_small_canvas() {
    let mut script = Script::new("block-length=3 suffix=1", false, &[5, 6], 6);
    let plan = script.plan();
    assert_eq!(plan.kind, ForwardKind::Prefill);
    assert_eq!(rows(&plan), "0:5>s0 1:6>s1 2:0>x0 3:0>x1 4:0>x2 5:0>x3");
    assert_eq!(
        (
            plan.streams[0].store.as_slice(),
            plan.streams[0].scratch.as_slice()
        ),
        ([0..2].as_slice(), [0..4].as_slice())
    );
    assert_eq!(predictors(&plan), [(2, 2), (3, 3), (4, 4)]);
    script.commit(&plan, &[(3, 8)]);

    let plan = script.plan();
    assert_eq!(plan.kind, ForwardKind::Step);
    assert_eq!(rows(&plan), "2:0>x0 3:8>s3 4:0>x1 5:0>x2");
    assert_eq!(plan.streams[0].store, [0..2, 3..4]);
    assert_eq!(predictors(&plan), [(2, 2), (4, 4)]);
    script.commit(&plan, &[(2, 7)]);

    // 3 was computed with its token already: it is seen, not computed again.
    let plan = script.plan();
    assert_eq!(rows(&plan), "2:7>s2 4:0>x0 5:0>x1");
    assert_eq!(plan.streams[0].store, [0..4]);
    script.commit(&plan, &[(4, 9)]);

    let plan = script.plan();
    assert_eq!(plan.kind, ForwardKind::Refresh);
    assert_eq!(
        rows(&plan),
        "0:5>s0 1:6>s1 2:7>s2 3:8>s3 4:9>s4 5:0>x0 6:0>x1 7:0>x2"
    );
    script.commit(&plan, &[(5, 8), (6, 8), (7, 8)]);
    assert!(script.decoder.is_done());
    assert_eq!(script.decoder.output(), [7, 8, 9, 8, 8, 8]);
    let report = script.decoder.report();
    assert_eq!(
        (
            report.forwards_prefill,
            report.forwards_step,
            report.forwards_refresh
        ),
        (1, 2, 1)
    );
    assert_eq!(
        (report.rows_dense, report.rows_logits),
        (6 + 4 + 3 + 8, 3 + 2 + 1 + 3)
    );
}

#[test]
fn a_block_without_refresh_computes_the_last_commits_of_the_block_before() {
    let mut script = Script::new(
        "block-length=2 suffix=none refresh-blocks=0",
        false,
        &[5],
        4,
    );
    let plan = script.plan();
    assert_eq!(rows(&plan), "0:5>s0 1:0>x0 2:0>x1");
    script.commit(&plan, &[(1, 7), (2, 8)]);
    let plan = script.plan();
    assert_eq!(
        (plan.kind, rows(&plan).as_str()),
        (ForwardKind::Step, "1:7>s1 2:8>s2 3:0>x0 4:0>x1")
    );
    assert_eq!(plan.streams[0].store, [0..3]);
}

#[test]
fn shifted_predictors_ride_along_once() {
    let mut script = Script::new("block-length=5 suffix=none", true, &[5, 6], 5);
    let plan = script.plan();
    assert_eq!(predictors(&plan), [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]);
    script.commit(&plan, &[(2, 7), (4, 8)]);
    // 4 was just committed and predicts 5; 2 likewise predicts 3; the prompt's last row is not needed any more.
    let plan = script.plan();
    assert_eq!(rows(&plan), "2:7>s2 3:0>x0 4:8>s4 5:0>x1 6:0>x2");
    assert_eq!(predictors(&plan), [(3, 2), (5, 4), (6, 5)]);
    script.commit(&plan, &[(6, 9)]);
    // 3 and 5 are isolated: their predictors 2 and 4 are computed again, into their store slots.
    let plan = script.plan();
    assert_eq!(rows(&plan), "2:7>s2 3:0>x0 4:8>s4 5:0>x1 6:9>s6");
    assert_eq!(predictors(&plan), [(3, 2), (5, 4)]);
    assert_eq!(plan.streams[0].store, [0..3, 4..5, 6..7]);
}

#[test]
fn the_first_position_of_a_block_has_its_predictor() {
    for refresh_blocks in [0, 1] {
        let words =
            format!("block-length=2 suffix=none refresh-blocks={refresh_blocks} threshold=inf");
        let mut script = Script::new(&words, true, &[5], 4);
        for (pos, first) in [(2, 1), (1, 1), (4, 3), (3, 3)] {
            let plan = script.plan();
            assert_eq!(predictors(&plan)[0], (first, first - 1));
            script.commit(&plan, &[(pos, 7)]);
        }
    }
}

#[test]
fn an_empty_prompt_is_predicted_from_its_own_masks() {
    for shift in [false, true] {
        let mut script = Script::new("block-length=2", shift, &[], 4);
        let plan = script.plan();
        assert_eq!(rows(&plan), "0:0>x0 1:0>x1 2:0>x2 3:0>x3");
        assert_eq!(
            predictors(&plan),
            if shift {
                [(0, 0), (1, 0)]
            } else {
                [(0, 0), (1, 1)]
            }
        );
        assert!(plan.streams[0].store.is_empty());
    }
}

#[test]
fn a_cached_tail_is_computed_by_the_first_forward_of_a_block_alone() {
    let mut script = Script::new(
        "block-length=2 suffix=cached refresh-blocks=0",
        false,
        &[5],
        6,
    );
    let plan = script.plan();
    assert_eq!(
        rows(&plan),
        "0:5>s0 1:0>x4 2:0>x5 3:0>x0 4:0>x1 5:0>x2 6:0>x3"
    );
    script.commit(&plan, &[(2, 7)]);
    let plan = script.plan();
    assert_eq!(rows(&plan), "1:0>x4 2:7>s2");
    assert_eq!(plan.streams[0].scratch, [0..5]);
    script.commit(&plan, &[(1, 7)]);
    // The next block begins with a plain step here, and computes its own tail.
    let plan = script.plan();
    assert_eq!(
        (plan.kind, rows(&plan).as_str()),
        (ForwardKind::Step, "1:7>s1 3:0>x2 4:0>x3 5:0>x0 6:0>x1")
    );
    script.commit(&plan, &[(3, EOS)]);
    assert!(script.decoder.is_done());
}

#[test]
fn everything_right_of_an_eos_leaves_at_once() {
    for suffix in ["all", "cached", "3"] {
        let mut script = Script::new(&format!("block-length=4 suffix={suffix}"), false, &[5], 8);
        let plan = script.plan();
        script.commit(&plan, &[(3, EOS), (4, 7)]);
        assert!(!script.decoder.is_done());
        let plan = script.plan();
        assert_eq!(rows(&plan), "1:0>x0 2:0>x1 3:1>s3", "suffix {suffix}");
        assert_eq!(
            (
                plan.streams[0].store.as_slice(),
                plan.streams[0].scratch.as_slice()
            ),
            ([0..1, 3..4].as_slice(), [0..2].as_slice())
        );
        // An EoT further left takes over.
        script.commit(&plan, &[(1, 7), (2, EOT)]);
        assert!(script.decoder.is_done());
        assert_eq!(script.decoder.output(), [7]);
    }
}

#[test]
fn the_threshold_is_on_the_confidence_and_the_best_always_commits() {
    let commit = |words: &str, confidences: &[f32]| {
        let n_gen = u32::try_from(confidences.len()).unwrap();
        let mut script = Script::new(words, false, &[5], n_gen);
        script.plan();
        let predictions: Vec<_> = (1u32..)
            .zip(confidences)
            .map(|(pos, &confidence)| Prediction {
                pos,
                token: 7,
                confidence,
                score: -confidence,
                probe: 0.0,
            })
            .collect();
        script.decoder.absorb(&predictions).unwrap();
        let canvas = &script.decoder.canvas()[1..];
        (0..canvas.len())
            .filter(|&place| canvas[place] == 7)
            .collect::<Vec<_>>()
    };
    assert_eq!(commit("", &[0.5, 0.9, 0.89, 0.95]), [1, 3]);
    assert_eq!(commit("threshold=0.5", &[0.5, 0.9, 0.1, 0.95]), [0, 1, 3]);
    assert_eq!(commit("", &[0.1, 0.3, 0.3, 0.2]), [1]);
    assert_eq!(commit("threshold=inf", &[1.0, 1.0, 1.0, 1.0]), [0]);
    assert_eq!(commit("threshold=1.5", &[0.2, 1.0, 1.0, 1.0]), [1]);
    assert_eq!(commit("threshold=0", &[0.0, 0.0, 0.0, 0.0]), [0, 1, 2, 3]);
}
