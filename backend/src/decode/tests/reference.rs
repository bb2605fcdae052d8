//! Mode `reference` against plain loops over a canvas, run to the end of the schedule.

#![expect(
    clippy::single_range_in_vec_init,
    reason = "lists of slot ranges are compared"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the plain loops floor as the official codes do"
)]

use proptest::prelude::*;

use super::super::plan::{ForwardKind, RowPlan};
use super::super::random::{Key, Purpose};
use super::super::*;
use super::machine::{EOS, MASK, Trace, Weights, kept, params, run, traits};

fn canvas(prompt: &[Token], n_gen: usize) -> Vec<Token> {
    let mut canvas = prompt.to_vec();
    canvas.resize(prompt.len() + n_gen, MASK);
    canvas
}

fn masked(canvas: &[Token], from: usize, to: usize) -> Vec<u32> {
    (from..to)
        .filter(|&pos| canvas[pos] == MASK)
        .map(|pos| u32::try_from(pos).unwrap())
        .collect()
}

fn everything(canvas: &[Token]) -> Vec<u32> {
    (0..u32::try_from(canvas.len()).unwrap()).collect()
}

/// The `count` best, ties to the left.
fn best(mut predictions: Vec<Prediction>, count: usize) -> Vec<Prediction> {
    predictions.sort_by(|a, b| {
        b.score
            .partial_cmp(&a.score)
            .unwrap()
            .then(a.pos.cmp(&b.pos))
    });
    predictions.truncate(count);
    predictions
}

/// LLaDA's loop: every step of every block, EOS or not.
fn plain_blocks(
    weights: Weights,
    prompt: &[Token],
    n_gen: usize,
    block: usize,
    steps: usize,
    shift: bool,
) -> Vec<Token> {
    let mut canvas = canvas(prompt, n_gen);
    let all = everything(&canvas);
    let mut start = prompt.len();
    while start < canvas.len() {
        let end = (start + block).min(canvas.len());
        let exact = steps as f64 * (end - start) as f64 / n_gen as f64;
        let n_steps = ((exact + 0.5).floor() as usize).max(1);
        let n_masked = end - start;
        for step in 0..n_steps {
            let count = n_masked / n_steps + usize::from(step < n_masked % n_steps);
            let predictions = weights.full(&canvas, &all, &masked(&canvas, start, end), shift);
            for prediction in best(predictions, count) {
                canvas[prediction.pos as usize] = prediction.token;
            }
        }
        start = end;
    }
    canvas
}

/// Dream's loop. `origin` draws per position.
fn plain_timesteps(
    weights: Weights,
    prompt: &[Token],
    n_gen: usize,
    steps: u32,
    eps: f64,
    origin: Option<u64>,
    shift: bool,
) -> Vec<Token> {
    let mut canvas = canvas(prompt, n_gen);
    let all = everything(&canvas);
    for step in 0..steps {
        let time = |i: u32| 1.0 + (eps - 1.0) * f64::from(i) / f64::from(steps);
        let share = if step + 1 == steps {
            1.0
        } else {
            1.0 - time(step + 1) / time(step)
        };
        let wanted = masked(&canvas, prompt.len(), canvas.len());
        let predictions = weights.full(&canvas, &all, &wanted, shift);
        let chosen = match origin {
            None => best(predictions, (wanted.len() as f64 * share) as usize),
            Some(seed) => predictions
                .into_iter()
                .filter(|p| Key::new(seed, p.pos, step, Purpose::Order).unit(0) < share)
                .collect(),
        };
        for prediction in chosen {
            canvas[prediction.pos as usize] = prediction.token;
        }
    }
    canvas
}

fn decode(
    words: &str,
    shift: bool,
    ends: bool,
    prompt: &[Token],
    n_gen: u32,
    seed: u64,
    weights: Weights,
) -> (Resolved, Trace) {
    let n_prompt = u32::try_from(prompt.len()).unwrap();
    let resolved = params(&format!("mode=reference {words}"))
        .resolve(&traits(shift, ends), n_prompt, n_gen)
        .unwrap();
    (resolved, run(resolved, prompt, seed, weights))
}

proptest! {
    #[test]
    fn the_block_schedule_is_the_official_one(
        weights in any::<u64>().prop_map(Weights),
        prompt in proptest::collection::vec(3..30 as Token, 0..6),
        n_gen in 1u32..24,
        block in 1u32..30,
        steps in 1u32..60,
        shift in any::<bool>(),
    ) {
        let words = format!("block-length={block} steps={steps}");
        let plain = plain_blocks(weights, &prompt, n_gen as usize, block as usize, steps as usize, shift);
        let (_, trace) = decode(&words, shift, false, &prompt, n_gen, 0, weights);
        prop_assert_eq!(&trace.canvas, &plain);
        prop_assert!(trace.commits.iter().all(|commits| !commits.is_empty()));
        // With EOS the text is the same and the forwards are not more.
        let (resolved, ended) = decode(&words, shift, true, &prompt, n_gen, 0, weights);
        prop_assert_eq!(ended.output, kept(&plain[prompt.len()..], &resolved));
        prop_assert!(ended.kinds.len() <= trace.kinds.len());
    }

    #[test]
    fn the_timestep_schedule_is_the_official_one(
        weights in any::<u64>().prop_map(Weights),
        prompt in proptest::collection::vec(3..30 as Token, 0..6),
        n_gen in 1u32..24,
        steps in 1u32..60,
        eps in prop_oneof![Just(1e-3f32), 0.001f32..0.999],
        algorithm in 0usize..5,
        shift in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let name = ["origin", "entropy", "topk_margin", "maskgit_plus", "origin"][algorithm];
        let origin = (name == "origin").then_some(seed);
        let words = format!("eps={eps} steps={steps} algorithm={name}");
        let plain = plain_timesteps(weights, &prompt, n_gen as usize, steps, f64::from(eps), origin, shift);
        let (_, trace) = decode(&words, shift, false, &prompt, n_gen, seed, weights);
        prop_assert_eq!(&trace.canvas, &plain);
        let (resolved, ended) = decode(&words, shift, true, &prompt, n_gen, seed, weights);
        prop_assert_eq!(ended.output, kept(&plain[prompt.len()..], &resolved));
    }

    #[test]
    fn every_combination_ends_with_every_block_in_order(
        weights in any::<u64>().prop_map(Weights),
        n_prompt in 0usize..5,
        n_gen in 1u32..20,
        schedule in prop_oneof![
            (1u32..12).prop_map(|n| format!("block-length={n}")),
            (0.01f32..0.9).prop_map(|eps| format!("eps={eps}")),
        ],
        steps in 1u32..40,
        algorithm in 0u32..5,
        alg_temp in prop_oneof![Just(0.0f32), 0.1f32..2.0],
        cfg in any::<bool>(),
        shift in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let alg_temp = if algorithm == 0 || algorithm == 3 { 0.0 } else { alg_temp };
        let cfg = if cfg { 2 } else { 0 };
        let words = format!("{schedule} steps={steps} algorithm={algorithm} alg-temp={alg_temp} cfg-scale={cfg}");
        let prompt = vec![9; n_prompt];
        let (resolved, trace) = decode(&words, shift, true, &prompt, n_gen, seed, weights);
        prop_assert!(trace.kinds.len() <= (n_gen as usize).min(steps.max(n_gen) as usize));
        prop_assert_eq!(trace.kinds[0], ForwardKind::Prefill);
        prop_assert!(trace.kinds[1..].iter().all(|&kind| kind == ForwardKind::Step));
        if let ModeParams::Reference { schedule: Schedule::Blocks { block_length, .. }, .. } = resolved.mode {
            let block = |pos: u32| (pos - resolved.n_prompt) / block_length;
            let blocks: Vec<u32> = trace.commits.iter().map(|commits| block(commits[0].0)).collect();
            prop_assert!(blocks.is_sorted());
            prop_assert!(trace.commits.iter().zip(&blocks).all(|(commits, &b)| commits.iter().all(|c| block(c.0) == b)));
        }
        // The same arguments give the same run.
        prop_assert_eq!(decode(&words, shift, true, &prompt, n_gen, seed, weights).1, trace);
    }
}

/// Commits per forward of a run without ends.
fn sizes(words: &str, n_gen: u32) -> Vec<usize> {
    let (_, trace) = decode(words, false, false, &[5, 6], n_gen, 0, Weights(1));
    trace.commits.iter().map(Vec::len).collect()
}

#[test]
fn blocks_share_steps_and_masks_as_the_official_code() {
    // Steps not given: one token each.
    assert_eq!(sizes("block-length=4", 9), [1; 9]);
    // 5 steps for 12 masks in one block: 12 = 3 + 3 + 2 + 2 + 2.
    assert_eq!(sizes("block-length=12 steps=5", 12), [3, 3, 2, 2, 2]);
    // Blocks of 4, 4, 2 get round(5 * 4 / 10) = 2, 2 and round(1) = 1 steps.
    assert_eq!(sizes("block-length=4 steps=5", 10), [2, 2, 2, 2, 2]);
    // More blocks than steps: one each.
    assert_eq!(sizes("block-length=2 steps=1", 6), [2, 2, 2]);
    // More steps than masks: the idle ones are not run.
    assert_eq!(sizes("block-length=4 steps=100", 8), [1; 8]);
    // 3 * 3 / 6 = 1.5 rounds up.
    assert_eq!(sizes("block-length=3 steps=3", 6), [2, 1, 2, 1]);
    // Lengths that stock cannot divide.
    assert_eq!(
        sizes("block-length=24 steps=33", 40).iter().sum::<usize>(),
        40
    );
}

#[test]
fn the_timestep_schedule_commits_late() {
    // 1 - s / t = 0.999 / (4 - 0.999 i): a quarter of 8, a third of 6 and half of 4, each a little less, then the rest.
    assert_eq!(
        sizes("eps=0.001 steps=4 algorithm=entropy", 8),
        [1, 2, 2, 3]
    );
    // Below one in the first step, which is not run but counted.
    assert_eq!(sizes("eps=0.001 steps=4 algorithm=entropy", 4), [1, 1, 2]);
}

fn first_plan(words: &str, shift: bool, prompt: &[Token], n_gen: u32) -> RowPlan {
    let n_prompt = u32::try_from(prompt.len()).unwrap();
    let resolved = params(&format!("mode=reference {words}"))
        .resolve(&traits(shift, true), n_prompt, n_gen)
        .unwrap();
    Decoder::new(resolved, prompt, 0)
        .unwrap()
        .next_plan()
        .unwrap()
        .unwrap()
        .clone()
}

#[test]
fn a_step_that_is_not_run_keeps_its_number() {
    assert_eq!(
        first_plan("eps=0.001 steps=4 algorithm=entropy", false, &[5], 4).step,
        1
    );
}

#[test]
fn steps_left_over_in_a_block_keep_their_numbers() {
    let resolved = params("mode=reference block-length=2 steps=100")
        .resolve(&traits(false, false), 0, 4)
        .unwrap();
    let mut decoder = Decoder::new(resolved, &[], 0).unwrap();
    let mut steps = Vec::new();
    while let Some(plan) = decoder.next_plan().unwrap() {
        steps.push(plan.step);
        let predictions: Vec<_> = plan.predict.iter().map(|wanted| sure(wanted.pos)).collect();
        decoder.absorb(&predictions).unwrap();
    }
    assert_eq!(steps, [0, 1, 50, 51]);
}

fn sure(pos: u32) -> Prediction {
    Prediction {
        pos,
        token: 7,
        confidence: 1.0,
        score: 1.0,
        probe: 0.0,
    }
}

#[test]
fn only_the_block_is_predicted_and_everything_is_seen() {
    let plan = first_plan("block-length=2", false, &[5, 6], 5);
    assert_eq!(plan.rows.len(), 7);
    assert_eq!(
        plan.predict
            .iter()
            .map(|wanted| (wanted.pos, wanted.row))
            .collect::<Vec<_>>(),
        [(2, 2), (3, 3)]
    );
    assert_eq!(plan.streams[0].scratch, [0..7]);
    let shifted = first_plan("block-length=2", true, &[5, 6], 5);
    assert_eq!(
        shifted
            .predict
            .iter()
            .map(|wanted| (wanted.pos, wanted.row))
            .collect::<Vec<_>>(),
        [(2, 1), (3, 2)]
    );
    let empty = first_plan("block-length=2", true, &[], 5);
    assert_eq!(
        empty
            .predict
            .iter()
            .map(|wanted| (wanted.pos, wanted.row))
            .collect::<Vec<_>>(),
        [(0, 0), (1, 0)]
    );
}

#[test]
fn guidance_adds_a_stream_with_the_prompt_masked() {
    let plan = first_plan("block-length=2 cfg-scale=1", false, &[5, 6], 3);
    let tokens: Vec<_> = plan
        .rows
        .iter()
        .map(|row| (row.stream, row.pos, row.token))
        .collect();
    let expected = [
        (0, 0, 5),
        (0, 1, 6),
        (0, 2, MASK),
        (0, 3, MASK),
        (0, 4, MASK),
        (1, 0, MASK),
        (1, 1, MASK),
        (1, 2, MASK),
        (1, 3, MASK),
        (1, 4, MASK),
    ];
    assert_eq!(tokens, expected);
    assert_eq!(
        (
            plan.streams[0].scratch.as_slice(),
            plan.streams[1].scratch.as_slice()
        ),
        ([0..5].as_slice(), [5..10].as_slice())
    );
    assert_eq!(
        plan.predict
            .iter()
            .map(|wanted| wanted.uncond_row)
            .collect::<Vec<_>>(),
        [Some(7), Some(8)]
    );
    assert!(
        first_plan("cfg-scale=0", false, &[5, 6], 3)
            .predict
            .iter()
            .all(|wanted| wanted.uncond_row.is_none())
    );
}

#[test]
fn guidance_masks_the_prompt_alone() {
    let resolved = params("mode=reference cfg-scale=1")
        .resolve(&traits(false, true), 1, 2)
        .unwrap();
    let mut decoder = Decoder::new(resolved, &[5], 0).unwrap();
    decoder.next_plan().unwrap();
    decoder.absorb(&[sure(1), sure(2)]).unwrap();
    let plan = decoder.next_plan().unwrap().unwrap();
    let tokens: Vec<_> = plan.rows.iter().map(|row| row.token).collect();
    assert_eq!(tokens, [5, 7, MASK, MASK, 7, MASK]);
}

/// Absorbs predictions of given scores and returns the committed positions, ascending.
fn chosen(words: &str, seed: u64, scores: &[f32]) -> Vec<u32> {
    let n_gen = u32::try_from(scores.len()).unwrap();
    let resolved = params(&format!("mode=reference {words}"))
        .resolve(&traits(false, true), 0, n_gen)
        .unwrap();
    let mut decoder = Decoder::new(resolved, &[], seed).unwrap();
    let wanted: Vec<u32> = decoder
        .next_plan()
        .unwrap()
        .unwrap()
        .predict
        .iter()
        .map(|wanted| wanted.pos)
        .collect();
    let predictions: Vec<_> = wanted
        .iter()
        .map(|&pos| Prediction {
            pos,
            token: 7,
            confidence: 0.5,
            score: scores[pos as usize],
            probe: 0.0,
        })
        .collect();
    let events = decoder.absorb(&predictions).unwrap();
    let mut committed: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Committed { pos, .. } => Some(*pos),
            _ => None,
        })
        .collect();
    committed.sort_unstable();
    committed
}

#[test]
fn the_highest_scores_commit_and_ties_go_to_the_left() {
    assert_eq!(chosen("steps=2", 0, &[0.1, 0.7, 0.7, 0.7]), [1, 2]);
    assert_eq!(chosen("steps=4", 0, &[-0.0, 0.0, -3.0, -1.0]), [0]);
    assert_eq!(chosen("steps=4", 0, &[f32::NEG_INFINITY; 4]), [0]);
    // Least uncertain first.
    assert_eq!(
        chosen("steps=2 algorithm=entropy", 0, &[-2.0, -0.1, -3.0, -0.2]),
        [1, 3]
    );
}

/// Share of 4000 seeds that commit each position first.
fn shares(words: &str, scores: &[f32]) -> Vec<f64> {
    let mut counts = vec![0u32; scores.len()];
    for seed in 0..4000 {
        for pos in chosen(words, seed, scores) {
            counts[pos as usize] += 1;
        }
    }
    counts
        .iter()
        .map(|&count| f64::from(count) / 4000.0)
        .collect()
}

#[test]
fn alg_temp_draws_positions_from_the_softmax_of_their_scores() {
    let scores = [0.2, 0.5, 0.9];
    let weights: Vec<f64> = scores
        .iter()
        .map(|&score| (f64::from(score) / 0.5).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    for (share, weight) in shares("alg-temp=0.5 steps=3", &scores).iter().zip(weights) {
        // Four standard errors.
        assert!(
            (share - weight / total).abs() < 0.032,
            "{share}, {}",
            weight / total
        );
    }
    assert_eq!(shares("alg-temp=0.001 steps=3", &scores), [0.0, 0.0, 1.0]);
}

#[test]
fn random_and_origin_do_not_look_at_scores() {
    for share in shares("algorithm=random steps=4", &[0.0, 0.1, 0.9, 1.0]) {
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }
    for share in shares("algorithm=random steps=2", &[0.0, 0.1, 0.9, 1.0]) {
        assert!((share - 0.5).abs() < 0.035, "{share}");
    }
    let origin = |n: usize| shares("algorithm=origin eps=0.5 steps=2", &vec![0.5; n]);
    // A quarter in the first step; where that leaves nothing, the second step takes all.
    for share in origin(8) {
        assert!((share - (0.25 + 0.75f64.powi(8))).abs() < 0.035, "{share}");
    }
}

#[test]
fn decoding_ends_when_nothing_is_masked_before_an_eos() {
    let resolved = params("mode=reference block-length=4 steps=2")
        .resolve(&traits(false, true), 1, 8)
        .unwrap();
    let mut decoder = Decoder::new(resolved, &[5], 0).unwrap();
    decoder.next_plan().unwrap();
    let predictions: Vec<_> = (1..5)
        .map(|pos| Prediction {
            pos,
            token: if pos == 3 { EOS } else { 7 },
            confidence: 1.0,
            score: 1.0,
            probe: 0.0,
        })
        .collect();
    decoder.absorb(&predictions).unwrap();
    assert_eq!(decoder.canvas(), [5, 7, 7, EOS, 7, MASK, MASK, MASK, MASK]);
    assert!(decoder.is_done() && decoder.next_plan().unwrap().is_none());
    assert_eq!(decoder.output(), [7, 7]);
    assert_eq!(
        (decoder.report().n_generated, decoder.report().n_committed),
        (2, 4)
    );
}
