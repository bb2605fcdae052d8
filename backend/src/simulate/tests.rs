use super::ablation::{headline_ratio, worst_deviation};
use super::drive::{Plans, drive};
use super::run::run;
use super::trace::{Commits, Recording};
use super::*;
use crate::decode::Params;
use crate::memory::runtime::{PlanError, Policy};
use crate::model::gguf::GgmlType;

fn shape(name: &str) -> ModelShape {
    ModelShape::named(name, GgmlType::Q4_0).unwrap()
}

fn setting(soc: Soc, column: Column) -> Setting {
    Setting::new(soc, column, shape("llada-8b"))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

/// Spans of a resource do not overlap and add up; the NPU works, waits for transfers, for the revision or for the sampler, and
/// nothing else; energy is power times busy time.
fn check_laws(outcome: &Outcome, machine: &Machine, placement: Placement) {
    let mut energy = 0.0;
    for (resource, watts) in [
        (Resource::Npu, machine.npu_w),
        (Resource::HostMap, machine.host_map_w),
        (Resource::Cpu, machine.cpu_w),
    ] {
        let spans: Vec<&Span> = outcome
            .timeline
            .spans()
            .iter()
            .filter(|span| span.resource == resource)
            .collect();
        for pair in spans.windows(2) {
            assert!(pair[0].end_s <= pair[1].start_s, "{pair:?} overlap");
        }
        let busy: f64 = spans.iter().map(|span| span.end_s - span.start_s).sum();
        assert!(
            (busy - outcome.timeline.busy_s(resource)).abs() < 1e-6 * (1.0 + busy),
            "{resource:?}"
        );
        assert!(
            busy <= outcome.seconds * (1.0 + 1e-9),
            "{resource:?} is busy for longer than it takes"
        );
        energy += busy * watts;
    }
    assert!((energy - outcome.energy_j).abs() < 1e-6 * (1.0 + energy));
    if placement != Placement::Cpu {
        let sampling = of_work(outcome, Work::Sample);
        let sum = outcome.timeline.busy_s(Resource::Npu)
            + outcome.stall_s
            + outcome.revision_wait_s
            + sampling;
        assert!(
            (sum - outcome.seconds).abs() < 1e-6 * (1.0 + sum),
            "{sum} {}",
            outcome.seconds
        );
    }
}

fn of_work(outcome: &Outcome, work: Work) -> f64 {
    let spans = outcome
        .timeline
        .spans()
        .iter()
        .filter(|span| span.work == work);
    spans.map(|span| span.end_s - span.start_s).sum()
}

#[test]
fn timelines_obey_their_laws() {
    for soc in Soc::ALL {
        for column in Column::ALL {
            let setting = setting(soc, column);
            for row in setting.ablation().unwrap() {
                check_laws(&row.outcome, &setting.machine, setting.placement(row.stage));
            }
            for policy in Policy::ALL {
                let setting = Setting {
                    policy,
                    ..setting.clone()
                };
                let row = setting.row(Stage::Revision).unwrap();
                check_laws(&row.outcome, &setting.machine, setting.placement(row.stage));
                assert_eq!(
                    row,
                    setting.row(Stage::Revision).unwrap(),
                    "the same question, the same answer"
                );
            }
        }
    }
}

/// One layer of 64 x 64 and its feed-forward network, a head of 128 rows; no K/V worth speaking of.
fn tiny() -> ModelShape {
    let matrix = |name: &str, k, n| shape::Matrix {
        name: name.to_owned(),
        k,
        n,
        size_bytes: k * n * 2,
    };
    let block = |name: &str, is_head, matrices| shape::Block {
        name: name.to_owned(),
        is_head,
        matrices,
    };
    ModelShape {
        name: "tiny".to_owned(),
        quant: "f16".to_owned(),
        blocks: vec![
            block(
                "layer 0",
                false,
                vec![matrix("a", 64, 64), matrix("b", 64, 192)],
            ),
            block("head", true, vec![matrix("output.weight", 64, 128)]),
        ],
        n_layer: 1,
        n_embd: 64,
        n_embd_q: 64,
        n_embd_kv: 64,
        n_ff: 64,
        n_vocab: 128,
        n_ctx: 512,
        ..shape("llada-8b")
    }
}

fn tiny_machine() -> Machine {
    Machine {
        npu_flops_per_s: 1e6,
        npu_bytes_per_s: 1e5,
        row_quantum: 32,
        vector_rows: 4,
        dispatch_s: 0.5,
        cpu_flops_per_s: 1e5,
        cpu_bytes_per_s: 1e4,
        budget_bytes: 1 << 30,
        map_s_per_byte: 1e-5,
        copy_bytes_per_s: 1e6,
        weights_by_dma: false,
        npu_w: 2.0,
        cpu_w: 3.0,
        host_map_w: 5.0,
    }
}

/// One forward of 10 rows that see 10 slots each, 2 of them with logits.
fn one_forward() -> Plans {
    let mut plans = drive::autoregressive(10, 1);
    plans.forwards[0].dense.n_seen = 100;
    plans.forwards[0].dense.n_logits = 2;
    plans
}

#[test]
fn a_small_case_comes_out_as_by_hand() {
    let (shape, plans, machine) = (tiny(), one_forward(), tiny_machine());
    let cpu = run(&shape, &plans, &machine, Placement::Cpu).unwrap();
    // Layer: 16384 macs; 2 * 16384 * 10 + 4 * 64 * 100 operations against 32768 bytes.
    // Head: 8192 macs; 2 * 8192 * 2 operations against 16384 bytes. Logits: 2 * 128 * 4 bytes.
    let (layer, head, sample) = (353_280.0 / 1e5, 16384.0 / 1e4, 1024.0 / 1e6);
    assert!(close(cpu.seconds, layer + head + sample), "{}", cpu.seconds);
    assert!(close(cpu.energy_j, 3.0 * cpu.seconds));

    let npu = |policy| {
        let placement = Placement::Npu {
            policy,
            budget_bytes: 1 << 30,
            revision_rides: false,
        };
        run(&shape, &plans, &machine, placement).unwrap()
    };
    // 32 rows instead of 10: 2 * 16384 * 32 + 3.2 * 4 * 64 * 100 operations; the head's 2 rows take no tiles.
    let layer = 0.5 + 32768.0 / 1e5 + (1_048_576.0 + 81_920.0) / 1e6;
    let head = 0.5 + 16384.0 / 1e5;
    let planned = npu(Policy::Planned);
    assert!(
        close(planned.seconds, layer + head + sample),
        "{}",
        planned.seconds
    );
    assert_eq!(
        (
            planned.mapped_bytes,
            planned.stall_s,
            planned.hidden_share()
        ),
        (0, 0.0, None)
    );
    assert_eq!(planned.n_rows_computed, 32);

    // Pages of 4 KiB. Layer: residual stream of 2 * 32 * 64 halves 8192, weights 8192 + 24576, K and V of 11 slots 4096,
    // activations of 32 * 2 * 192 halves 24576. Head: 8192, 16384, logits of 32 * 128 floats 16384.
    let naive = npu(Policy::Naive);
    let (before_layer, before_head) = (69_632.0, 40_960.0);
    assert_eq!(naive.mapped_bytes, 110_592);
    let stall = (before_layer + before_head) * 1e-5;
    assert!(close(naive.stall_s, stall), "{}", naive.stall_s);
    assert!(close(naive.seconds, planned.seconds + stall));
    let energy = 2.0 * (layer + head) + 5.0 * stall + 3.0 * sample;
    assert!(close(naive.energy_j, energy), "{}", naive.energy_j);
}

#[test]
fn the_papers_steps_come_out_as_they_were_calibrated() {
    let setting = setting(Soc::Sm8750, Column::Paper);
    let mut plans = drive::autoregressive(128, 1);
    plans.forwards[0].dense.n_logits = 128;
    plans.forwards[0].dense.n_seen = 0;
    let cpu = run(&setting.shape, &plans, &setting.machine, Placement::Cpu).unwrap();
    assert!((of_work(&cpu, Work::Run) - soc::PAPER_CPU_STEP.value).abs() < 1e-6);
    let placement = Placement::Npu {
        policy: Policy::Planned,
        budget_bytes: 8 << 30,
        revision_rides: false,
    };
    let npu = run(&setting.shape, &plans, &setting.machine, placement).unwrap();
    assert!((of_work(&npu, Work::Run) - soc::PAPER_NPU_STEP.value).abs() < 1e-6);
}

#[test]
fn the_ablation_has_its_forwards_and_stands_beside_what_is_published() {
    let rows = setting(Soc::Sm8750, Column::Paper).ablation().unwrap();
    let forwards: Vec<u64> = rows.iter().map(|row| row.outcome.n_forwards).collect();
    // 128 tokens, one per step; 3.25 per step; 5.12 per step and the final sweeps.
    assert_eq!(forwards[..5], [128, 128, 128, 128, 40]);
    let full = &rows[5].outcome;
    assert!(
        (25..=25 + 2 + 8).contains(&full.n_forwards),
        "{}",
        full.n_forwards
    );
    assert_eq!(rows[0].outcome.n_rows, 128 * 192);
    assert!(rows.iter().all(|row| row.published_s.is_some()));
    let ratio = headline_ratio(&rows).unwrap();
    assert!((rows[1].outcome.seconds / full.seconds - ratio).abs() < 1e-12);
    assert!(worst_deviation(&rows).is_some());
    for other in [
        Setting {
            n_gen: 64,
            ..setting(Soc::Sm8750, Column::Paper)
        },
        setting(Soc::Sm8650, Column::Paper),
        Setting::new(Soc::Sm8750, Column::Paper, shape("dream-7b")),
    ] {
        let rows = other.ablation().unwrap();
        assert_eq!(worst_deviation(&rows), None, "nothing of it is published");
        assert!(headline_ratio(&rows).is_some());
    }
}

#[test]
fn what_does_not_fit_moves_little_more_than_it_must_and_hides() {
    for soc in [Soc::Sm8650, Soc::Sm8750] {
        for column in Column::ALL {
            let setting = setting(soc, column);
            for stage in [Stage::MemoryRuntime, Stage::Mbsd, Stage::Revision] {
                for policy in [Policy::Planned, Policy::PlannedPipeline] {
                    let setting = Setting {
                        policy,
                        ..setting.clone()
                    };
                    let outcome = setting.row(stage).unwrap().outcome;
                    let over = outcome.bytes_over_lower_bound().unwrap();
                    assert!(outcome.lower_bound_bytes > 1_000_000_000);
                    assert!(outcome.peak_bytes <= 3200 << 20);
                    assert!(
                        (1.0..=1.10).contains(&over),
                        "{soc:?} {column:?} {stage:?} {policy}: {over}"
                    );
                }
            }
            for point in sweep::pipeline(&setting).unwrap() {
                let outcome = &point.outcome;
                let pays = point.copy_gb_s * point.map_s_per_gb;
                let what = (soc, column, point.copy_gb_s, point.map_s_per_gb);
                if (pays - 1.0).abs() > 1e-9 {
                    assert_eq!(point.copies(), pays > 1.0, "{what:?}");
                }
                if outcome.transfer_s() <= outcome.timeline.busy_s(Resource::Npu) {
                    let hidden = outcome.hidden_share().unwrap();
                    assert!(hidden >= 0.80, "{what:?}: {hidden}");
                }
            }
        }
    }
}

#[test]
fn more_addresses_never_take_longer() {
    let setting = setting(Soc::Sm8750, Column::Today);
    for policy in [Policy::Planned, Policy::PlannedPipeline] {
        let mut last = f64::INFINITY;
        for mib in (512..=5120).step_by(256) {
            let machine = Machine {
                budget_bytes: mib << 20,
                ..setting.machine
            };
            let setting = Setting {
                policy,
                machine,
                ..setting.clone()
            };
            let seconds = setting.row(Stage::Revision).unwrap().outcome.seconds;
            assert!(
                seconds <= last * (1.0 + 1e-9),
                "{policy} {mib} MiB: {seconds} s, with less {last} s"
            );
            last = seconds;
        }
    }
}

#[test]
fn small_and_large_address_spaces_work() {
    let at = |mib: u64| {
        let setting = setting(Soc::Sm8750, Column::Today);
        let machine = Machine {
            budget_bytes: mib << 20,
            ..setting.machine
        };
        Setting { machine, ..setting }
    };
    for (policy, outcome) in sweep::policies(&at(512)).unwrap() {
        assert!(outcome.peak_bytes <= 512 << 20, "{policy}");
        assert!(outcome.stall_s > 0.0, "{policy}");
    }
    for (policy, outcome) in sweep::policies(&at(8192)).unwrap() {
        let moves = outcome.mapped_bytes + outcome.copied_bytes > 0;
        assert_eq!(moves, policy == Policy::Naive, "{policy}");
    }
    let error = at(1).row(Stage::Revision).unwrap_err();
    let SimulateError::Memory(PlanError::SegmentTooLarge { tensor_bytes, .. }) = error else {
        panic!("{error}");
    };
    assert!(tensor_bytes > 1 << 20);
}

#[test]
fn faster_parts_never_take_longer() {
    let setting = setting(Soc::Sm8750, Column::Today);
    let full = |machine| {
        Setting {
            machine,
            ..setting.clone()
        }
        .row(Stage::Revision)
        .unwrap()
        .outcome
        .seconds
    };
    let base = full(setting.machine);
    let m = setting.machine;
    for machine in [
        Machine {
            npu_flops_per_s: 2.0 * m.npu_flops_per_s,
            ..m
        },
        Machine {
            npu_bytes_per_s: 2.0 * m.npu_bytes_per_s,
            ..m
        },
        Machine {
            cpu_flops_per_s: 2.0 * m.cpu_flops_per_s,
            ..m
        },
        Machine {
            copy_bytes_per_s: 2.0 * m.copy_bytes_per_s,
            ..m
        },
        Machine {
            dispatch_s: 0.0,
            ..m
        },
    ] {
        assert!(full(machine) <= base, "{machine:?}");
    }
    let naive = |map: f64| {
        let machine = Machine {
            map_s_per_byte: map * 1e-9,
            ..m
        };
        Setting {
            policy: Policy::Naive,
            machine,
            ..setting.clone()
        }
        .row(Stage::Revision)
        .unwrap()
        .outcome
        .seconds
    };
    assert!(naive(0.1) < naive(0.3) && naive(0.3) < naive(0.6));
    let paced = |per_step| {
        Setting {
            trace: Trace::at(per_step),
            ..setting.clone()
        }
        .row(Stage::Revision)
        .unwrap()
        .outcome
    };
    let seconds: Vec<f64> = sweep::PER_STEP
        .iter()
        .map(|&per_step| paced(per_step).seconds)
        .collect();
    assert!(
        seconds.is_sorted_by(|slow, fast| slow > fast),
        "{seconds:?}"
    );
}

#[test]
fn weights_that_need_no_map_are_not_mapped() {
    let outcome = setting(Soc::Sm8850, Column::Today)
        .row(Stage::MemoryRuntime)
        .unwrap()
        .outcome;
    assert_eq!(
        (
            outcome.mapped_bytes,
            outcome.copied_bytes,
            outcome.lower_bound_bytes
        ),
        (0, 0, 0)
    );
    assert!(outcome.working_set_bytes < 1 << 30);
    assert!(
        setting(Soc::Sm8850, Column::Paper)
            .row(Stage::MemoryRuntime)
            .unwrap()
            .outcome
            .copied_bytes
            > 0
    );
}

#[test]
fn a_recorded_trace_is_followed_and_its_revisions_come_out() {
    let commits = |n_visible, n_stable| Commits {
        n_visible,
        n_stable,
    };
    let recording = Recording {
        commits: vec![commits(3, 3), commits(2, 0), commits(1, 3)],
        n_revisions: 10,
        n_replaced: 1,
        n_remasked: 1,
    };
    let trace = Trace::recorded(&[recording]).unwrap();
    assert_eq!(trace.per_step(), (4.0, 2.0));
    let mut params = Params::default();
    params.set("mode", "full").unwrap();
    let plans = drive(&shape("llada-8b"), &params, &trace, 16, 96).unwrap();
    let report = plans.report;
    assert_eq!(report.n_generated, 96);
    assert!(report.revisions_made >= 10, "{report:?}");
    assert!(
        report.revisions_replaced >= 1 && report.revisions_remasked >= 1,
        "{report:?}"
    );
    assert_eq!(
        report.n_committed,
        96 + report.revisions_remasked,
        "what was masked again is decided again"
    );
    let dense = plans.forwards.len() - report.forwards_sweep as usize;
    assert!(
        (24..=30).contains(&dense),
        "{dense} dense forwards at 4 tokens each"
    );
    params = Params::default();
    params.set("mode", "mbsd").unwrap();
    let sure = drive(&shape("llada-8b"), &params, &trace, 16, 96).unwrap();
    assert_eq!(sure.forwards.len(), 48, "2 sure tokens per forward");
}

#[test]
fn lookahead_makes_drafts_of_what_is_sure_and_keeps_them() {
    let mut params = Params::default();
    for (key, value) in [("mode", "mbsd"), ("cost", "npu")] {
        params.set(key, value).unwrap();
    }
    let plans = drive(&shape("dream-7b"), &params, &Trace::published(), 64, 128).unwrap();
    assert!(plans.report.drafts_made > 0);
    assert_eq!(plans.report.drafts_made, plans.report.drafts_kept);
    assert_eq!(plans.forwards.len(), 40);
}

#[test]
fn an_autoregressive_model_takes_a_forward_per_token() {
    let setting = Setting::new(Soc::Sm8650, Column::Today, shape("llama-8b-ar"));
    let rows = setting.ablation().unwrap();
    assert_eq!(rows.len(), 3);
    assert!(
        rows.iter()
            .all(|row| row.outcome.n_forwards == 128 && row.outcome.n_rows == 64 + 127)
    );
    assert_eq!(headline_ratio(&rows), None);
    let cpu = &rows[0].outcome;
    // 64 rows at 41 tokens per second, then 127 at 8.
    let expected = 64.0 / 41.0 + 127.0 / 8.0;
    assert!(
        (cpu.seconds / expected - 1.0).abs() < 0.05,
        "{} {expected}",
        cpu.seconds
    );
    let too_long = Setting {
        n_gen: 9000,
        ..setting
    };
    assert!(matches!(
        too_long.row(Stage::Cpu),
        Err(SimulateError::Param(_))
    ));
}

#[test]
fn sweeps_cover_their_axes() {
    let setting = setting(Soc::Sm8750, Column::Today);
    let lengths = sweep::lengths(&setting, GgmlType::Q4_0).unwrap();
    assert_eq!(
        lengths
            .iter()
            .map(|length| length.n_gen)
            .collect::<Vec<_>>(),
        sweep::LENGTHS
    );
    assert!(lengths.is_sorted_by(|a, b| a.full_s < b.full_s && a.prefix_kv_s < b.prefix_kv_s));
    let points = sweep::sensitivity(&setting).unwrap();
    let n_points = sweep::BUDGET_GIB.len() * sweep::MAP_S_PER_GB.len() * sweep::PER_STEP.len();
    assert_eq!(points.len(), n_points);
    let budget = |gib: f64| {
        points
            .iter()
            .filter(move |point| close(point.budget_gib, gib))
    };
    assert!(
        budget(8.0).all(|point| close(point.gains[0], 1.0)),
        "nothing to gain where all fits"
    );
    assert!(budget(2.0).all(|point| point.gains[0] > 1.5));
    let most_costly = |point: &&sweep::Worth| close(point.map_s_per_gb, 0.6);
    assert!(
        budget(2.0)
            .filter(most_costly)
            .all(|point| point.wins() == sweep::Technique::MemoryRuntime)
    );
}
