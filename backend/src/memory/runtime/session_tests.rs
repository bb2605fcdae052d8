use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::memory::runtime::{Class, Costs, Limits, Object, ObjectId, Piece, Place, Workload};
use crate::sync::lock;

/// What a device holds that refuses and panics when it is told to.
#[derive(Debug, Default)]
struct Device {
    live: Vec<Piece>,
    copied: Vec<(ObjectId, std::ops::Range<u64>)>,
    described: Vec<SegmentId>,
    /// Transfers until one fails, and until one panics.
    fails_in: Option<u32>,
    panics_in: Option<u32>,
    /// Unmaps complain.
    complains: bool,
    unmaps_panic: bool,
}

impl Device {
    fn holds(&self, object: ObjectId, workload: &Workload) -> bool {
        let size = workload.object(object).size_bytes.next_multiple_of(4096);
        let of_object = |piece: &&Piece| piece.place == Place::Object(object);
        let mapped: u64 = self
            .live
            .iter()
            .filter(of_object)
            .map(Piece::size_bytes)
            .sum();
        let in_arena = workload.object(object).class == Class::ShortLived
            && self.live.iter().any(|piece| piece.place == Place::Arena);
        size == 0 || mapped == size || in_arena || self.copied.iter().any(|(id, _)| *id == object)
    }

    fn count_down(&mut self) -> bool {
        if let Some(n) = &mut self.panics_in {
            assert!(*n > 0, "told to");
            *n -= 1;
        }
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Fake(Arc<Mutex<Device>>);

impl Fake {
    fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.0)
    }
}

impl Mapping for Fake {
    fn map(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError> {
        let mut device = self.device();
        if device.count_down() {
            let tensor = match piece.place {
                Place::Object(object) => workload.object(object).name.clone(),
                _ => "shared".to_owned(),
            };
            return Err(MapError::NoRoom {
                tensor,
                size_bytes: piece.size_bytes(),
            });
        }
        let overlaps = |other: &Piece| {
            other.range.start < piece.range.end && piece.range.start < other.range.end
        };
        assert!(!device.live.iter().any(overlaps));
        device.live.push(piece.clone());
        Ok(())
    }

    fn unmap(&mut self, piece: &Piece, _workload: &Workload) -> Result<(), MapError> {
        let mut device = self.device();
        let i = device.live.iter().position(|other| other == piece).unwrap();
        device.live.swap_remove(i);
        assert!(!device.unmaps_panic, "told to");
        if piece.place == Place::Staging {
            device.copied.clear();
        }
        if device.complains {
            let source = std::io::Error::other("complaint").into();
            return Err(MapError::Device {
                tensor: "t".into(),
                size_bytes: 1,
                source,
            });
        }
        Ok(())
    }

    fn copy(
        &mut self,
        object: ObjectId,
        range: std::ops::Range<u64>,
        workload: &Workload,
    ) -> Result<(), MapError> {
        let mut device = self.device();
        if device.count_down() {
            let tensor = workload.object(object).name.clone();
            return Err(MapError::NoRoom {
                tensor,
                size_bytes: range.end - range.start,
            });
        }
        device
            .copied
            .retain(|(_, other)| other.end <= range.start || range.end <= other.start);
        device.copied.push((object, range));
        Ok(())
    }

    fn describe(&mut self, turn: &Turn, _workload: &Workload) -> Result<(), MapError> {
        self.device().described.push(turn.segment);
        Ok(())
    }
}

/// Eight layers of two weights, K and V, and activations.
fn layers(mib: u64) -> Workload {
    let mut workload = Workload::new();
    for layer in 0..8 {
        let weight =
            |n: u64, size| Object::new(format!("blk.{layer}.w{n}"), size, Class::LongLived);
        let needs = [
            workload.add_object(weight(0, mib << 20)),
            workload.add_object(weight(1, mib << 18)),
            workload.add_object(Object::state(format!("kv.{layer}"), 1 << 20)),
            workload.add_object(Object::new(
                format!("x.{layer}"),
                1 << 20,
                Class::ShortLived,
            )),
        ];
        workload.add_segment(format!("layer {layer}"), needs);
    }
    workload
}

fn planner(budget_mib: u64, policy: Policy, costs: Costs) -> Planner {
    let limits = Limits {
        budget_bytes: budget_mib << 20,
        ..Limits::default()
    };
    Planner::new(layers(8), limits, policy, costs).unwrap()
}

fn all() -> Vec<SegmentId> {
    (0..8).map(SegmentId).collect()
}

/// Costs with which streamed objects are mapped, and copied.
const COSTS: [Costs; 2] = [
    Costs {
        map_seconds_per_gb: 0.01,
        copy_gb_per_second: 10.0,
    },
    Costs {
        map_seconds_per_gb: 0.44,
        copy_gb_per_second: 10.0,
    },
];

/// Runs a step up to `n_runs` segments: all that a run needs is there when it starts, and when it ends.
fn step(session: &mut Session, fake: &Fake, n_runs: usize) -> Result<(), SessionError> {
    let workload = layers(8);
    session.begin(&all())?;
    for i in 0..n_runs {
        let segment = session.enter()?;
        assert_eq!(segment, SegmentId(i));
        let needs = || workload.segment(segment).needs.iter();
        assert!(needs().all(|object| fake.device().holds(*object, &workload)));
        std::thread::yield_now();
        assert!(needs().all(|object| fake.device().holds(*object, &workload)));
        session.leave()?;
    }
    session.end();
    Ok(())
}

#[test]
fn every_policy_runs_with_all_that_a_segment_needs_and_returns_every_map() {
    for policy in Policy::ALL {
        for costs in COSTS {
            for budget_mib in [12, 30, 48, 200] {
                let fake = Fake::default();
                let planner = planner(budget_mib, policy, costs);
                let mut session = Session::new(planner, Box::new(fake.clone())).unwrap();
                for _ in 0..3 {
                    step(&mut session, &fake, 8).unwrap();
                }
                assert_eq!(fake.device().described.len(), 24);
                session.finish();
                assert!(fake.device().live.is_empty());
                // It goes on.
                step(&mut session, &fake, 8).unwrap();
                let report = session.report();
                assert_eq!(report.n_runs, 32);
                drop(session);
                assert!(fake.device().live.is_empty(), "{policy} {budget_mib}");
            }
        }
    }
}

#[test]
fn the_pipeline_moves_what_the_next_segment_needs_while_one_runs() {
    for costs in COSTS {
        let fake = Fake::default();
        let planner = planner(48, Policy::PlannedPipeline, costs);
        let mut session = Session::new(planner, Box::new(fake.clone())).unwrap();
        for _ in 0..3 {
            session.begin(&all()).unwrap();
            for i in 0..8 {
                let segment = session.enter().unwrap();
                // The run goes on until the next segment has been described, which is after its transfers.
                let start = Instant::now();
                while i < 7 && fake.device().described.last() <= Some(&segment) {
                    assert!(
                        start.elapsed() < Duration::from_secs(60),
                        "no overlap at {i}"
                    );
                    std::thread::sleep(Duration::from_millis(1));
                }
                session.leave().unwrap();
            }
            session.end();
            fake.device().described.clear();
        }
        let report = session.report();
        assert!(report.transfers.n_copies > 0 || report.transfers.n_evictions > 0);
    }
}

#[test]
fn a_device_that_refuses_fails_one_step_with_the_tensor_and_its_size() {
    for policy in Policy::ALL {
        let fake = Fake::default();
        let mut session =
            Session::new(planner(48, policy, COSTS[0]), Box::new(fake.clone())).unwrap();
        step(&mut session, &fake, 8).unwrap();
        for n in [0, 1, 5] {
            session.finish();
            fake.device().fails_in = Some(n);
            let error = step(&mut session, &fake, 8).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("segment `layer "), "{text}");
            assert!(
                text.contains("no address space for `") && text.contains("bytes"),
                "{text}"
            );
            // This step cannot go on, however often it is asked to.
            for _ in 0..2 {
                assert!(matches!(session.enter(), Err(SessionError::Failed)));
            }
            // The next request works.
            session.end();
            assert!(fake.device().live.is_empty());
            step(&mut session, &fake, 8).unwrap();
        }
        assert_eq!(session.report().n_failures, 3);
        drop(session);
        assert!(fake.device().live.is_empty());
    }
}

#[test]
fn a_mapping_that_panics_fails_one_step() {
    static IS_QUIET: AtomicBool = AtomicBool::new(false);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !IS_QUIET.load(Ordering::Relaxed) {
            hook(info);
        }
    }));
    for policy in [Policy::Lru, Policy::PlannedPipeline] {
        let fake = Fake::default();
        let mut session =
            Session::new(planner(48, policy, COSTS[0]), Box::new(fake.clone())).unwrap();
        fake.device().panics_in = Some(3);
        IS_QUIET.store(true, Ordering::Relaxed);
        let error = step(&mut session, &fake, 8).unwrap_err();
        IS_QUIET.store(false, Ordering::Relaxed);
        assert!(
            error.to_string().ends_with("`: a mapping panicked"),
            "{error}"
        );
        fake.device().panics_in = None;
        session.end();
        assert!(fake.device().live.is_empty());
        step(&mut session, &fake, 8).unwrap();
    }
}

#[test]
fn unmaps_that_panic_do_not_end_the_process() {
    for policy in Policy::ALL {
        let fake = Fake::default();
        let mut session =
            Session::new(planner(30, policy, COSTS[0]), Box::new(fake.clone())).unwrap();
        step(&mut session, &fake, 8).unwrap();
        session.begin(&all()).unwrap();
        session.enter().unwrap();
        fake.device().unmaps_panic = true;
        drop(session);
        assert!(fake.device().live.is_empty(), "{policy}");
    }
}

#[test]
fn a_device_that_complains_about_unmaps_loses_no_map() {
    for policy in Policy::ALL {
        let fake = Fake::default();
        let mut session =
            Session::new(planner(30, policy, COSTS[0]), Box::new(fake.clone())).unwrap();
        fake.device().complains = true;
        for _ in 0..5 {
            let _complained = step(&mut session, &fake, 8);
            session.end();
        }
        fake.device().complains = false;
        step(&mut session, &fake, 8).unwrap();
        drop(session);
        assert!(fake.device().live.is_empty(), "{policy}");
    }
}

#[test]
fn more_segments_than_begun_are_refused() {
    for policy in [Policy::Planned, Policy::PlannedPipeline] {
        let fake = Fake::default();
        let mut session = Session::new(planner(48, policy, COSTS[0]), Box::new(fake)).unwrap();
        assert!(matches!(session.enter(), Err(SessionError::NoSegment)));
        assert!(matches!(
            session.begin(&[SegmentId(8)]),
            Err(SessionError::Plan(_))
        ));
        session.begin(&[SegmentId(2)]).unwrap();
        assert_eq!(session.enter().unwrap(), SegmentId(2));
        session.leave().unwrap();
        assert!(matches!(session.enter(), Err(SessionError::NoSegment)));
    }
}

fn n_threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or(0)
}

/// One generation: some steps, each run up to some segment, and what may go wrong.
#[derive(Clone, Debug)]
struct Generation {
    budget_mib: u64,
    policy: usize,
    costs: usize,
    steps: Vec<(usize, Option<u32>)>,
    finishes: bool,
}

fn generations() -> impl Strategy<Value = Generation> {
    let step = (0..=8usize, proptest::option::weighted(0.1, 0u32..20));
    let steps = proptest::collection::vec(step, 1..6);
    (
        10u64..120,
        0..Policy::ALL.len(),
        0..2usize,
        steps,
        any::<bool>(),
    )
        .prop_map(|(budget_mib, policy, costs, steps, finishes)| {
            // Half of them with a staging thread.
            let policy = if finishes {
                policy
            } else {
                Policy::ALL.len() - 1
            };
            Generation {
                budget_mib,
                policy,
                costs,
                steps,
                finishes,
            }
        })
}

#[test]
fn a_thousand_generations_with_cancellations_and_failures_leave_nothing_behind() {
    let mut runner = TestRunner::deterministic();
    let (mut threads, mut resident) = (0, 0);
    let mut n_failed = 0;
    for i in 0..1000 {
        let generation = generations().new_tree(&mut runner).unwrap().current();
        let Generation {
            budget_mib,
            policy,
            costs,
            steps,
            finishes,
        } = generation;
        let fake = Fake::default();
        let planner = planner(budget_mib.max(12), Policy::ALL[policy], COSTS[costs]);
        let mut session = Session::new(planner, Box::new(fake.clone())).unwrap();
        for (n_runs, fails_in) in steps {
            fake.device().fails_in = fails_in;
            let result = step(&mut session, &fake, n_runs);
            fake.device().fails_in = None;
            n_failed += usize::from(result.is_err());
        }
        session.end();
        step(&mut session, &fake, 8).unwrap();
        if finishes {
            session.finish();
            assert!(fake.device().live.is_empty(), "{i}");
            let report = session.report().transfers;
            assert_eq!((report.mapped_bytes, report.n_maps), (0, report.n_unmaps));
            assert!(report.peak_bytes <= budget_mib.max(12) << 20);
        }
        drop(session);
        assert!(fake.device().live.is_empty(), "{i}");
        if i == 100 {
            (threads, resident) = (n_threads(), resident_kib());
        }
    }
    assert!(n_failed > 20, "{n_failed}");
    // Other tests run beside this one.
    assert!(
        n_threads() < threads + 32,
        "{} after {threads}",
        n_threads()
    );
    assert!(
        resident_kib() < resident + (128 << 10),
        "{} after {resident}",
        resident_kib()
    );
}
