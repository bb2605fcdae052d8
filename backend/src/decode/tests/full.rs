//! Modes `mbsd` and `full`: every invariant at every step of random decodings, the modes as special cases of each other, and
//! row by row.

use proptest::prelude::*;

use super::super::plan::{ForwardKind, Row, RowPlan, Slot};
use super::super::*;
use super::audit::Audit;
use super::machine::{EOS, MASK, Machine, Weights, params, traits};

fn share() -> impl Strategy<Value = String> {
    (0u8..=21).prop_map(|n| (f32::from(n) / 20.0).to_string())
}

/// Options that all modes with a window have.
fn common() -> impl Strategy<Value = String> {
    let suffix = prop_oneof![
        Just("none".to_owned()),
        Just("all".to_owned()),
        Just("cached".to_owned()),
        (1u32..9).prop_map(|n| n.to_string()),
    ];
    let refresh = (0u32..4, prop_oneof![3 => Just(0u32), 1 => 1u32..5]);
    (1u32..14, suffix, refresh).prop_map(|(block, suffix, (blocks, steps))| {
        format!(
            "block-length={block} suffix={suffix} refresh-blocks={blocks} refresh-steps={steps}"
        )
    })
}

fn ahead() -> impl Strategy<Value = String> {
    let cost = prop_oneof![Just("host"), Just("npu"), Just("1:1,8:2,64:3")];
    let fill = prop_oneof![Just("none"), Just("lookahead")];
    (0u32..16, 0u32..24, share(), fill, cost).prop_map(|(trigger, max, draft, fill, cost)| {
        format!("lookahead-trigger={trigger} lookahead-max={max} draft-threshold={draft} fill={fill} cost={cost}")
    })
}

fn revision() -> impl Strategy<Value = String> {
    let order = prop_oneof![Just("oldest"), Just("confidence")];
    let context = prop_oneof![Just("committed"), Just("window")];
    let limits = (0u32..5, 0u32..6, 0u32..4, 0u32..5);
    (limits, order, context, (share(), share()), (share(), 0u8..=20)).prop_map(
        |((budget, radius, max, sweep), order, context, (visible, stable), (replace, remask))| {
            let remask = f32::from(remask) / 20.0;
            format!(
                "revision-budget={budget} revision-radius={radius} max-revisions={max} final-sweep={sweep} \
                 revision-order={order} revision-context={context} tau-visible={visible} tau-stable={stable} \
                 tau-replace={replace} tau-remask={remask}"
            )
        },
    )
}

fn prompt() -> impl Strategy<Value = Vec<Token>> {
    proptest::collection::vec(3..30 as Token, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn full_keeps_every_invariant_at_every_step(
        seed in any::<u64>(),
        prompt in prompt(),
        n_gen in 1u32..40,
        options in (common(), ahead(), revision()),
        visible_fill in any::<bool>(),
        shift in any::<bool>(),
        ends in any::<bool>(),
    ) {
        let (common, ahead, revision) = options;
        let fill = if visible_fill { "fill=visible" } else { "" };
        let words = format!("mode=full {common} {ahead} {revision} {fill}");
        let run = || Audit::new(&words, shift, ends, &prompt, n_gen, seed).run();
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn mbsd_keeps_every_invariant_at_every_step(
        seed in any::<u64>(),
        prompt in prompt(),
        n_gen in 1u32..40,
        options in (common(), ahead()),
        threshold in share(),
        shift in any::<bool>(),
        ends in any::<bool>(),
    ) {
        let words = format!("mode=mbsd {} {} threshold={threshold}", options.0, options.1);
        Audit::new(&words, shift, ends, &prompt, n_gen, seed).run();
    }

    /// Threshold decoding, plan by plan.
    #[test]
    fn with_everything_off_the_modes_are_cached(
        seed in any::<u64>(),
        prompt in prompt(),
        n_gen in 1u32..40,
        common in common(),
        threshold in share(),
        trigger in 0u32..40,
        shift in any::<bool>(),
        ends in any::<bool>(),
    ) {
        let n_prompt = u32::try_from(prompt.len()).unwrap();
        let plans = |words: &str| {
            let resolved = params(words).resolve(&traits(shift, ends), n_prompt, n_gen).unwrap();
            let mut decoder = Decoder::new(resolved, &prompt, 0).unwrap();
            let mut machine = Machine::new(Weights(seed), &resolved);
            let mut log = Vec::new();
            while let Some(plan) = decoder.next_plan().unwrap() {
                let plan = plan.clone();
                let predictions = machine.execute(&plan);
                log.push((plan, decoder.absorb(&predictions).unwrap().to_vec()));
            }
            (log, *decoder.report())
        };
        let cached = plans(&format!("mode=cached {common} threshold={threshold}"));
        let off = format!("{common} lookahead-max=0 lookahead-trigger={trigger}");
        prop_assert_eq!(&plans(&format!("mode=mbsd {off} threshold={threshold}")), &cached);
        let none = format!("tau-visible={threshold} tau-stable={threshold} revision-budget=0 final-sweep=0");
        prop_assert_eq!(&plans(&format!("mode=full {off} {none}")), &cached);
        let never = format!("tau-visible={threshold} tau-stable={threshold} max-revisions=0");
        prop_assert_eq!(&plans(&format!("mode=full {off} {never}")), &cached);
    }

    /// Where nothing is visible, revision has nothing to do: only a best one below the threshold ever is.
    #[test]
    fn equal_thresholds_are_threshold_decoding(
        seed in any::<u64>(),
        prompt in prompt(),
        n_gen in 1u32..40,
        options in (common(), ahead()),
        threshold in share(),
        shift in any::<bool>(),
    ) {
        let texts = [
            format!("mode=mbsd threshold={threshold}"),
            format!("mode=full tau-visible={threshold} tau-stable={threshold} revision-budget=0 final-sweep=0"),
        ].map(|words| {
            let words = format!("{words} {} {}", options.0, options.1);
            Audit::new(&words, shift, true, &prompt, n_gen, seed).run()
        });
        prop_assert_eq!(&texts[0], &texts[1]);
    }
}

/// A decoder whose predictions the test makes.
struct Script(Decoder);

impl Script {
    fn new(words: &str, prompt: &[Token], n_gen: u32) -> Self {
        let n_prompt = u32::try_from(prompt.len()).unwrap();
        let resolved = params(words)
            .resolve(&traits(false, true), n_prompt, n_gen)
            .unwrap();
        Self(Decoder::new(resolved, prompt, 0).unwrap())
    }

    /// Answers the next plan; positions that are not named get token 9 at confidence 0.1 and probe 0.1.
    fn step(&mut self, answers: &[(u32, Token, f32)]) -> (RowPlan, Vec<Event>) {
        let plan = self.0.next_plan().unwrap().expect("not done").clone();
        let answer = |wanted: &plan::Predict| {
            let named = answers.iter().find(|&&(pos, ..)| pos == wanted.pos);
            let &(pos, token, confidence) = named.unwrap_or(&(wanted.pos, 9, 0.1));
            Prediction {
                pos,
                token,
                confidence,
                score: confidence,
                probe: if wanted.probe == Some(token) {
                    confidence
                } else {
                    0.9 - confidence
                },
            }
        };
        let predictions: Vec<_> = plan.predict.iter().map(answer).collect();
        let events = self.0.absorb(&predictions).unwrap().to_vec();
        (plan, events)
    }

    fn stages(&self) -> String {
        let letter = |stage: &Stage| match stage {
            Stage::Invisible => '.',
            Stage::Draft => 'd',
            Stage::Visible => 'v',
            Stage::Stable => 'S',
        };
        self.0.stages().iter().map(letter).collect()
    }
}

/// Rows as text: `position:token>slot`, `s` for store and `x` for scratch.
fn rows(rows: &[Row]) -> String {
    let row = |row: &Row| match row.kv {
        Some(Slot::Store(slot)) => format!("{}:{}>s{slot}", row.pos, row.token),
        Some(Slot::Scratch(slot)) => format!("{}:{}>x{slot}", row.pos, row.token),
        None => format!("{}:{}>-", row.pos, row.token),
    };
    rows.iter().map(row).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_window_slides_drafts_and_promotes() {
    let words = "mode=full block-length=3 suffix=none refresh-blocks=0 lookahead-trigger=0 revision-budget=0 final-sweep=1";
    let mut script = Script::new(words, &[5], 7);
    let (plan, _) = script.step(&[(1, 7, 0.95), (2, 7, 0.8)]);
    assert_eq!(rows(&plan.rows), "0:5>s0 1:0>x0 2:0>x1 3:0>x2");
    assert_eq!(script.stages(), "SSv.....");
    // Two are committed: the window of three takes two positions of the next block.
    let (plan, _) = script.step(&[(4, 8, 0.95), (5, 8, 0.5)]);
    assert_eq!(rows(&plan.rows), "1:7>s1 2:7>s2 3:0>x0 4:0>x1 5:0>x2");
    assert_eq!(
        script.stages(),
        "SSvvd...",
        "the best of the block commits, one draft is made"
    );
    // The next block is current: its draft is masked and predicted afresh.
    let (plan, _) = script.step(&[(4, 8, 0.75), (5, 9, 0.75)]);
    assert_eq!(plan.kind, ForwardKind::Promotion);
    assert_eq!(rows(&plan.rows), "3:9>s3 4:0>x0 5:0>x1 6:0>x2");
    assert_eq!(script.stages(), "SSvvvv..");
    assert_eq!(
        (script.0.report().drafts_made, script.0.report().drafts_kept),
        (1, 1)
    );
}

#[test]
fn a_draft_that_is_not_confirmed_is_a_mask_again() {
    let words = "mode=mbsd block-length=2 suffix=none refresh-blocks=0 lookahead-trigger=0";
    let mut script = Script::new(words, &[5], 4);
    script.step(&[(1, 7, 0.95)]);
    script.step(&[(2, 7, 0.95), (3, 8, 0.95)]);
    assert_eq!(script.stages(), "SSSd.");
    let (plan, _) = script.step(&[(3, 6, 0.99), (4, 7, 0.95)]);
    assert_eq!(plan.kind, ForwardKind::Promotion);
    assert_eq!(
        script.stages(),
        "SSS.S",
        "another token is no confirmation, however sure"
    );
    assert_eq!(script.0.report().drafts_kept, 0);
}

#[test]
fn drafts_are_fed_their_token_and_are_not_predicted() {
    let words =
        "mode=mbsd block-length=2 suffix=none refresh-blocks=0 lookahead-trigger=9 cost=npu";
    let mut script = Script::new(words, &[5], 6);
    let (plan, _) = script.step(&[(1, 7, 0.95), (3, 8, 0.95)]);
    assert_eq!(plan.predict.len(), 6, "up to the bucket");
    assert_eq!(script.stages(), "SS.d...");
    let (plan, _) = script.step(&[]);
    assert_eq!(
        rows(&plan.rows),
        "1:7>s1 2:0>x0 3:8>x1 4:0>x2 5:0>x3 6:0>x4"
    );
    let predicted: Vec<u32> = plan.predict.iter().map(|wanted| wanted.pos).collect();
    assert_eq!(predicted, [2, 4, 5, 6]);
}

#[test]
fn revision_replaces_masks_again_and_stabilises() {
    let words = "mode=full block-length=8 suffix=none lookahead-max=0 revision-budget=0 revision-radius=1 final-sweep=3";
    for (answer, stages, token) in [
        ((2, 8, 0.95), "SvvvS", 8),
        ((2, 8, 0.5), "SvvvS", 7),
        ((2, 7, 0.2), "Sv.vS", MASK),
        ((2, 8, 0.8), "Sv.vS", MASK),
        ((2, 7, 0.95), "SvSvS", 7),
        ((2, 7, 0.5), "SvvvS", 7),
    ] {
        let mut script = Script::new(words, &[5], 4);
        script.step(&[(1, 7, 0.72), (2, 7, 0.7), (3, 7, 0.8), (4, EOS, 0.95)]);
        assert_eq!(script.stages(), "SvvvS");
        let others = [answer, (1, 7, 0.5), (3, 7, 0.5)];
        let (plan, _) = script.step(&others);
        assert_eq!(plan.kind, ForwardKind::Sweep);
        assert_eq!(
            (script.stages().as_str(), script.0.canvas()[2]),
            (stages, token),
            "{answer:?}"
        );
    }
}

#[test]
fn shadow_rows_of_a_step_see_the_store_as_it_was() {
    let words = "mode=full block-length=6 suffix=none lookahead-max=0 revision-radius=1 tau-stable=0.99 final-sweep=0 \
                 refresh-blocks=0";
    let mut script = Script::new(words, &[5], 6);
    script.step(&[(1, 7, 0.8), (2, 8, 0.8)]);
    let (plan, _) = script.step(&[(4, 6, 0.8)]);
    assert_eq!(
        plan.split, None,
        "what was committed last has no K/V to revise"
    );
    // 1 is revised: real row, shadow, and 2, whose K/V has seen 1; a copy of 4 rides along.
    let (plan, events) = script.step(&[(1, 9, 0.95)]);
    let split = plan.split.unwrap().row as usize;
    assert_eq!(rows(&plan.rows[..split]), "3:0>x0 4:6>s4 5:0>x1 6:0>x2");
    assert_eq!(rows(&plan.rows[split..]), "4:6>x3 1:7>x4 1:0>x5 2:8>x6");
    let stream = |row: usize| {
        let stream = &plan.streams[usize::from(plan.rows[split + row].stream)];
        format!("{:?} {:?}", stream.store, stream.scratch)
    };
    assert_eq!(
        [0, 1, 2, 3].map(stream),
        [
            "[0..3] [3..4]",
            "[0..1, 2..3] [3..5]",
            "[0..1] [3..4, 5..7]",
            "[0..1] [3..4, 5..7]"
        ]
    );
    assert!(events.contains(&Event::Replaced { pos: 1, token: 9 }));
    // The new token enters the store by a row of the next step.
    let (plan, _) = script.step(&[]);
    let split = plan.split.unwrap().row as usize;
    assert_eq!(rows(&plan.rows[..split]), "1:9>s1 3:9>s3 5:0>x0 6:0>x1");
}

#[test]
fn what_left_the_text_is_not_merged_and_returns_with_it() {
    let words = "mode=full block-length=6 suffix=none lookahead-max=0 revision-radius=0 tau-stable=0.99 final-sweep=2 \
                 revision-order=confidence refresh-blocks=0";
    let mut script = Script::new(words, &[5], 6);
    script.step(&[(3, 7, 0.71)]);
    script.step(&[(5, 7, 0.8)]);
    // 3 is under revision while an end left of it commits.
    let (plan, events) = script.step(&[(1, 7, 0.8), (2, EOS, 0.8), (3, 9, 0.95)]);
    assert_eq!(plan.predict.last().unwrap().pos, 3);
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::Replaced { .. }))
    );
    assert_eq!(
        (script.0.canvas()[3], script.0.report().revisions_made),
        (7, 0)
    );
    // A sweep masks the end again: 3 and 5 are in the text again, and the frontier is at the end's place.
    let (plan, _) = script.step(&[(1, 7, 0.8), (2, EOS, 0.1)]);
    assert_eq!(plan.kind, ForwardKind::Sweep);
    let (plan, _) = script.step(&[(2, 8, 0.8)]);
    let dense = plan
        .split
        .map_or(plan.rows.len(), |split| split.row as usize);
    assert_eq!(rows(&plan.rows[..dense]), "2:0>x0 4:0>x1 6:0>x2");
    assert_eq!(plan.streams[0].store, [0..2, 3..4, 5..6]);
}
