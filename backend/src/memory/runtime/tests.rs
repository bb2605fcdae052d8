use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::memory::runtime::residency::{check_segments, lower_bound_bytes};

/// What a planner's transfers amount to, with every rule checked at every one of them.
#[derive(Default)]
struct Audit {
    mapped: BTreeMap<(Place, u64), Piece>,
    copied: BTreeMap<ObjectId, std::ops::Range<u64>>,
    mapped_bytes: u64,
}

impl Audit {
    fn apply(&mut self, transfer: &Transfer, planner: &Planner) {
        let (limits, workload) = (planner.limits(), planner.workload());
        match transfer {
            Transfer::Map(piece) => {
                let range = &piece.range;
                assert!(
                    range.start < range.end && range.end <= limits.budget_bytes,
                    "{piece:?}"
                );
                assert!(piece.size_bytes() <= limits.max_map_bytes);
                assert!(range.start.is_multiple_of(limits.alignment_bytes));
                assert!(range.end.is_multiple_of(limits.alignment_bytes));
                let overlaps =
                    |other: &Piece| other.range.start < range.end && range.start < other.range.end;
                assert!(!self.mapped.values().any(overlaps), "{piece:?} overlaps");
                self.mapped_bytes += piece.size_bytes();
                assert!(self.mapped_bytes <= limits.budget_bytes);
                let key = (piece.place, piece.offset_bytes);
                assert!(
                    self.mapped.insert(key, piece.clone()).is_none(),
                    "{piece:?} twice"
                );
            }
            Transfer::Unmap(piece) => {
                let was = self.mapped.remove(&(piece.place, piece.offset_bytes));
                assert_eq!(was.as_ref(), Some(piece), "unmapped what was not mapped");
                self.mapped_bytes -= piece.size_bytes();
            }
            Transfer::Copy { object, range, .. } => {
                assert!(!workload.object(*object).is_written, "a copy would be lost");
                let staging = self
                    .mapped
                    .values()
                    .filter(|piece| piece.place == Place::Staging);
                let covered: u64 = staging
                    .map(|piece| {
                        let (start, end) = (piece.range.start, piece.range.end);
                        end.min(range.end).saturating_sub(start.max(range.start))
                    })
                    .sum();
                assert_eq!(
                    covered,
                    range.end - range.start,
                    "a copy outside the staging memory"
                );
                self.copied
                    .retain(|_, other| other.end <= range.start || range.end <= other.start);
                self.copied.insert(*object, range.clone());
            }
        }
    }

    fn is_visible(&self, object: ObjectId, planner: &Planner) -> bool {
        let size = planner
            .limits()
            .align(planner.workload().object(object).size_bytes);
        let visible = |place: Place| -> u64 {
            let pieces = self.mapped.range((place, 0)..=(place, u64::MAX));
            pieces.map(|(_, piece)| piece.size_bytes()).sum()
        };
        let arena = planner
            .residency()
            .and_then(|residency| residency.arena.as_ref());
        let in_arena = arena.and_then(|arena| Some((arena.offsets[object.0]?, arena.size_bytes)));
        if let Some((offset, arena_bytes)) = in_arena {
            return offset + size <= arena_bytes && visible(Place::Arena) == arena_bytes;
        }
        visible(Place::Object(object)) == size
            || self
                .copied
                .get(&object)
                .is_some_and(|range| range.end - range.start == size)
    }
}

/// Runs a trace, with every rule checked, once in the order of the turns and once with transfers as early as they may be.
fn run(planner: &mut Planner, trace: &[Vec<SegmentId>]) -> Vec<Vec<Turn>> {
    let mut audit = Audit::default();
    let mut steps = Vec::new();
    for step in trace {
        let turns = planner.step(step).unwrap();
        for turn in &turns {
            assert!(turn.after.is_none_or(|after| after < turn.ticket));
            for transfer in &turn.before {
                audit.apply(transfer, planner);
            }
            for &object in &planner.workload().segment(turn.segment).needs {
                let size = planner.workload().object(object).size_bytes;
                assert!(
                    size == 0 || audit.is_visible(object, planner),
                    "{object:?} is not there"
                );
            }
            for transfer in &turn.release {
                audit.apply(transfer, planner);
            }
        }
        steps.push(turns);
    }
    for transfer in planner.finish() {
        audit.apply(&transfer, planner);
    }
    assert!(audit.mapped.is_empty(), "{:?} not returned", audit.mapped);
    assert_eq!(planner.counters().mapped_bytes, 0);
    assert_eq!(planner.counters().n_maps, planner.counters().n_unmaps);
    assert!(planner.counters().peak_bytes <= planner.limits().budget_bytes);
    check_early(planner, &steps);
    steps
}

/// Carries transfers out as early as `after` and the order of transfers allow: no run may lose what it needs.
fn check_early(planner: &Planner, steps: &[Vec<Turn>]) {
    let turns: Vec<_> = steps.iter().flatten().collect();
    let mut audit = Audit::default();
    let mut moved = 0;
    for (i, turn) in turns.iter().enumerate() {
        // Runs before this one are over.
        while let Some(next) = turns.get(moved) {
            let may_start = next.after.is_none_or(|after| after < i as u64);
            let is_released = turns[..moved]
                .last()
                .is_none_or(|last| last.release.is_empty() || last.ticket < i as u64);
            if !(may_start && is_released) {
                break;
            }
            for transfer in turns[..moved]
                .last()
                .into_iter()
                .flat_map(|last| &last.release)
            {
                audit.apply(transfer, planner);
            }
            for transfer in &next.before {
                audit.apply(transfer, planner);
            }
            moved += 1;
        }
        assert!(moved > i, "turn {i} waits for itself");
        for &object in &planner.workload().segment(turn.segment).needs {
            let size = planner.workload().object(object).size_bytes;
            assert!(
                size == 0 || audit.is_visible(object, planner),
                "{object:?} went too early"
            );
        }
    }
}

const PAGE: u64 = 4096;

#[derive(Clone, Debug)]
struct Case {
    workload: Workload,
    limits: Limits,
    trace: Vec<Vec<SegmentId>>,
    policy: Policy,
    costs: Costs,
}

fn cases() -> impl Strategy<Value = Case> {
    let objects = proptest::collection::vec((0u64..9 * PAGE, 0u8..8), 1..10);
    let segments = proptest::collection::vec(any::<u16>(), 1..8);
    let trace = proptest::collection::vec(any::<u8>(), 1..5);
    let limits = (1u64..40, 1u64..12, 0u64..PAGE);
    (
        objects,
        segments,
        trace,
        limits,
        0..Policy::ALL.len(),
        0.01f64..0.6,
    )
        .prop_map(
            |(objects, segments, trace, (pages, map, rest), policy, map_cost)| {
                let mut workload = Workload::new();
                for (i, (size, kind)) in objects.iter().enumerate() {
                    let name = format!("t{i}");
                    workload.add_object(match kind {
                        0 => Object::state(name, *size),
                        1 | 2 => Object::new(name, *size, Class::ShortLived),
                        _ => Object::new(name, *size, Class::LongLived),
                    });
                }
                for (i, bits) in segments.iter().enumerate() {
                    let needs = (0..objects.len())
                        .filter(|object| bits >> object & 1 == 1)
                        .map(ObjectId);
                    workload.add_segment(format!("s{i}"), needs);
                }
                // The first and the last step are whole, so that steps repeat.
                let whole = u8::MAX;
                let trace = std::iter::once(whole)
                    .chain(trace)
                    .chain([whole, whole])
                    .map(|bits| {
                        let some = (0..segments.len()).filter(|segment| bits >> segment & 1 == 1);
                        some.map(SegmentId).collect()
                    });
                Case {
                    trace: trace.collect(),
                    limits: Limits {
                        budget_bytes: pages * PAGE + rest,
                        max_map_bytes: map * PAGE + rest,
                        alignment_bytes: PAGE,
                    },
                    workload,
                    policy: Policy::ALL[policy],
                    costs: Costs {
                        map_seconds_per_gb: map_cost,
                        ..Costs::default()
                    },
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_plan_keeps_the_rules_and_there_is_one_whenever_segments_fit(case in cases()) {
        let Case { workload, limits, trace, policy, costs } = case;
        let fits = check_segments(&workload, &limits);
        let page_sum = |segment: &Segment| -> u64 {
            let size = |object: &ObjectId| workload.object(*object).size_bytes.div_ceil(PAGE);
            segment.needs.iter().map(size).sum()
        };
        let pages = limits.budget_bytes / PAGE;
        let expected = workload.segments().iter().all(|segment| page_sum(segment) <= pages);
        prop_assert_eq!(fits.is_ok(), expected);
        match Planner::new(workload, limits, policy, costs) {
            Err(error) => {
                prop_assert_eq!(Some(error.clone()), fits.err());
                let text = error.to_string();
                prop_assert!(text.contains("`s") && text.contains("`t"), "{}", text);
            }
            Ok(mut planner) => {
                prop_assert!(fits.is_ok());
                let steps = run(&mut planner, &trace);
                let last = steps.last().unwrap().iter();
                let moved: u64 = last.map(|turn| turn.mapped_bytes() + turn.copied_bytes()).sum();
                let bound = lower_bound_bytes(planner.workload(), planner.limits());
                prop_assert!(policy == Policy::DropUnused || moved >= bound, "{} < {}", moved, bound);
            }
        }
    }
}

/// LLaDA-8B with weights in `Q4_0`, a layer per segment, `n_tokens` tokens of K and V, logits for `n_logits` rows.
fn llada_8b(n_tokens: u64, n_rows: u64, n_logits: u64) -> Workload {
    const EMBD: u64 = 4096;
    const FFN: u64 = 12288;
    const VOCAB: u64 = 126_464;
    let q4_0 = |elements: u64| elements / 32 * 18;
    let mut workload = Workload::new();
    let activations = |workload: &mut Workload, name: &str, columns: u64, rows: u64| {
        workload.add_object(Object::new(name, 4 * columns * rows, Class::ShortLived))
    };
    let mut stream = activations(&mut workload, "inp_embd", EMBD, n_rows);
    for layer in 0..32 {
        let mut needs = vec![stream];
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            let name = format!("blk.{layer}.{name}.weight");
            needs.push(workload.add_object(Object::new(name, q4_0(EMBD * EMBD), Class::LongLived)));
        }
        for name in ["ffn_gate", "ffn_up", "ffn_down"] {
            let name = format!("blk.{layer}.{name}.weight");
            needs.push(workload.add_object(Object::new(name, q4_0(EMBD * FFN), Class::LongLived)));
        }
        let kv = Object::state(format!("cache_kv.{layer}"), 2 * 2 * EMBD * n_tokens);
        needs.push(workload.add_object(kv));
        for (name, columns) in [("q", EMBD), ("ffn", FFN), ("out", EMBD)] {
            stream = activations(&mut workload, &format!("l{layer}.{name}"), columns, n_rows);
            needs.push(stream);
        }
        workload.add_segment(format!("layer {layer}"), needs);
    }
    let head = Object::new("output.weight", q4_0(EMBD * VOCAB), Class::LongLived);
    let head = workload.add_object(head);
    let logits = activations(&mut workload, "logits", VOCAB, n_logits);
    workload.add_segment("output", [stream, head, logits]);
    workload
}

/// Bytes moved in one of many steps.
fn steady_bytes(planner: &mut Planner) -> u64 {
    for _ in 0..3 {
        planner.step_all().unwrap();
    }
    let before = planner.counters().moved_bytes();
    for _ in 0..4 {
        planner.step_all().unwrap();
    }
    (planner.counters().moved_bytes() - before) / 4
}

#[test]
fn llada_8b_moves_little_more_than_it_must() {
    for (budget_mib, at_most) in [(3200, 1.10), (512, 1.12), (8192, 0.0)] {
        let limits = Limits {
            budget_bytes: budget_mib << 20,
            ..Limits::default()
        };
        for policy in Policy::ALL {
            let workload = llada_8b(192, 64, 32);
            let mut planner = Planner::new(workload, limits, policy, Costs::default()).unwrap();
            let (bound, moved) = (planner.lower_bound_bytes(), steady_bytes(&mut planner));
            let (bound, moved) = (bound as f64, moved as f64);
            println!(
                "{budget_mib} MiB, {policy}: {:.3} GB per step, {:.3} GB at least",
                moved * 1e-9,
                bound * 1e-9
            );
            if matches!(policy, Policy::Planned | Policy::PlannedPipeline) {
                assert!(moved <= at_most * bound, "{moved} > {at_most} * {bound}");
            }
            let workload = planner.workload().clone();
            let mut planner = Planner::new(workload, limits, policy, Costs::default()).unwrap();
            let step: Vec<_> = (0..33).map(SegmentId).collect();
            run(&mut planner, &[step.clone(), step]);
        }
    }
}

#[test]
fn a_segment_that_does_not_fit_is_named_with_its_sizes() {
    let limits = Limits {
        budget_bytes: 64 << 20,
        ..Limits::default()
    };
    for policy in Policy::ALL {
        let error =
            Planner::new(llada_8b(64, 32, 32), limits, policy, Costs::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`layer 0`"), "{text}");
        assert!(
            text.contains("blk.0.ffn_down.weight") && text.contains("28311552"),
            "{text}"
        );
        assert!(text.contains("67108864"), "{text}");
    }
}

#[test]
fn impossible_limits_and_sizes_are_refused() {
    let new = |limits, size| {
        let mut workload = Workload::new();
        for i in 0..2 {
            workload.add_object(Object::new(format!("t{i}"), size, Class::LongLived));
        }
        Planner::new(workload, limits, Policy::Planned, Costs::default()).map(|_| ())
    };
    let limits = Limits::default();
    assert_eq!(new(limits, 1), Ok(()));
    for size in [u64::MAX, u64::MAX / 2, u64::MAX / 4] {
        assert!(
            matches!(new(limits, size), Err(PlanError::Overflow { .. })),
            "{size}"
        );
    }
    for bad in [
        Limits {
            alignment_bytes: 3000,
            ..limits
        },
        Limits {
            alignment_bytes: 0,
            ..limits
        },
        Limits {
            max_map_bytes: 4095,
            ..limits
        },
        Limits {
            budget_bytes: 0,
            ..limits
        },
        Limits {
            budget_bytes: u64::MAX,
            ..limits
        },
    ] {
        assert!(
            matches!(new(bad, 1), Err(PlanError::Limits { .. })),
            "{bad:?}"
        );
    }
}

#[test]
fn segments_out_of_order_are_refused_and_change_nothing() {
    let limits = Limits::default();
    let mut planner =
        Planner::new(llada_8b(64, 32, 32), limits, Policy::Lru, Costs::default()).unwrap();
    for bad in [vec![33], vec![1, 1], vec![2, 1]] {
        let bad: Vec<_> = bad.into_iter().map(SegmentId).collect();
        assert!(
            matches!(planner.step(&bad), Err(PlanError::Order { .. })),
            "{bad:?}"
        );
    }
    assert_eq!(planner.counters(), &Counters::default());
}

#[test]
fn policies_are_found_by_their_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    assert!("planned pipeline".parse::<Policy>().is_err());
}

#[test]
fn four_fifths_of_what_can_hide_are_hidden() {
    let limits = Limits::default();
    let mut n_hideable = 0;
    for (map_cost, copy_rate) in [
        (0.1, 2.0),
        (0.1, 15.0),
        (0.25, 2.0),
        (0.6, 2.0),
        (0.6, 15.0),
    ] {
        let costs = Costs {
            map_seconds_per_gb: map_cost,
            copy_gb_per_second: copy_rate,
        };
        for run in [0.16 / 33.0, 0.68 / 33.0] {
            let workload = llada_8b(192, 64, 32);
            let mut planner =
                Planner::new(workload, limits, Policy::PlannedPipeline, costs).unwrap();
            let mut timeline = clock::Timeline::new();
            let mut last = clock::Totals::default();
            for step in 0..6 {
                for turn in planner.step_all().unwrap() {
                    let transfer = turn
                        .before
                        .iter()
                        .map(|transfer| costs.seconds(transfer))
                        .sum();
                    let times = timeline.turn(&turn, transfer, run);
                    assert!(times.run_start >= times.transfer_end && times.stall >= 0.0);
                }
                if step == 2 {
                    last = timeline.totals();
                }
            }
            let totals = timeline.totals();
            let steady = clock::Totals {
                transfer: totals.transfer - last.transfer,
                run: totals.run - last.run,
                stall: totals.stall - last.stall,
            };
            println!(
                "{map_cost} s/GB, {copy_rate} GB/s: transfers {:.0} ms, runs {:.0} ms, hidden {:.3}",
                steady.transfer * 1e3 / 3.0,
                steady.run * 1e3 / 3.0,
                steady.hidden_share()
            );
            if steady.transfer <= steady.run {
                n_hideable += 1;
                assert!(
                    steady.hidden_share() >= 0.8,
                    "{map_cost} {copy_rate}: {steady:?}"
                );
            }
        }
    }
    assert!(n_hideable >= 4, "{n_hideable}");
}
