//! Contexts of the device as objects of the memory runtime, over the library that fails on demand.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;
use std::time::Duration;

use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::qnn::{Qnn, Report, RowCounts, Session, Settings};
use ggml_llada_npu::device::{
    ContextMapping, Dense, DenseKind, DenseWeight, Layout, SegmentAccelerator,
};
use ggml_llada_npu::knobs::Policy;
use ggml_llada_npu::memory::runtime::{
    Class, Costs, HostMapping, Limits, Object, Planner, SegmentId, Session as Runtime,
    SessionError, Workload,
};
use ggml_llada_npu::memory::store::Source;
use ggml_llada_npu::memory::{CacheDir, Keep, WeightStore};
use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::Type;
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::linear;
use llada_npu_qnn_tests::session::settings;

const N_CONTEXTS: usize = 6;
const K: usize = 64;
const N: usize = 96;
const N_ROWS: usize = 8;
const WEIGHT_BYTES: usize = 4 * N * K;

/// A number without a pattern that half floats hold.
fn number(i: usize) -> f32 {
    ((i * 7919 + i / 31 * 104_729) % 201) as f32 / 128.0 - 0.75
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest")]
fn single(x: f64) -> f32 {
    x as f32
}

/// Feed-forward parts, each with weights and a context of its own.
struct Model {
    store: Arc<WeightStore>,
    weights: Vec<f32>,
    segments: Vec<Dense>,
    x: Vec<f32>,
}

impl Model {
    fn new() -> Self {
        let n_weights = 3 * N_CONTEXTS;
        let region = Arc::new(Region::anonymous(n_weights * WEIGHT_BYTES).unwrap());
        let store = Arc::new(WeightStore::new(Keep::Nothing));
        store.add_buffer(Arc::clone(&region), Source::Written);
        let weight = |node: usize| {
            let (k, n) = if node % 3 == 2 { (N, K) } else { (K, N) };
            DenseWeight {
                node,
                address: region.address() + node * WEIGHT_BYTES,
                size_bytes: WEIGHT_BYTES,
                ggml_type: Type::F32.0,
                k,
                n,
            }
        };
        let segment = |i: usize| Dense {
            kind: DenseKind::FeedForward,
            x: Layout::contiguous(Type::F32, 4, [K, N_ROWS, 1, 1]),
            weights: (3 * i..3 * i + 3).map(weight).collect(),
            additions: Vec::new(),
        };
        Self {
            store,
            weights: (0..n_weights * N * K).map(|i| number(i) / 4.0).collect(),
            segments: (0..N_CONTEXTS).map(segment).collect(),
            x: (0..K * N_ROWS).map(number).collect(),
        }
    }

    fn values(&self, node: usize) -> &[f32] {
        &self.weights[node * N * K..][..N * K]
    }

    fn prepare(&self, qnn: &mut Qnn) {
        let mut read = |node: usize, body: &mut dyn FnMut(&[u8])| {
            let bytes: Vec<u8> = self
                .values(node)
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect();
            body(&bytes);
        };
        qnn.prepare(&self.segments, &self.store.plain(), &mut read, &|| false);
    }

    fn start(&self, qnn: &mut Qnn, i: usize) -> bool {
        let x: Vec<u8> = self.x.iter().flat_map(|x| x.to_le_bytes()).collect();
        qnn.start(i, &x)
    }

    /// Compares the output of a segment that was started with the same in f64.
    fn check(&self, qnn: &mut Qnn, i: usize) {
        let mut bytes = vec![0; 4 * K * N_ROWS];
        qnn.finish(i, 0, &mut bytes).unwrap();
        let found: Vec<f32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect();
        let gate = linear::reference(&self.x, self.values(3 * i), K);
        let up = linear::reference(&self.x, self.values(3 * i + 1), K);
        let inner: Vec<f32> = gate
            .iter()
            .zip(up)
            .map(|(gate, up)| single(gate / (1.0 + (-gate).exp()) * up))
            .collect();
        let wanted = linear::reference(&inner, self.values(3 * i + 2), N);
        let error = linear::nmse(&found, &wanted);
        assert!(error < 1e-5, "{i}: NMSE {error:e}");
    }
}

/// The device with a memory runtime over its contexts.
struct Device {
    qnn: Qnn,
    session: Arc<Session>,
    runtime: Runtime,
    budget_bytes: u64,
}

fn open(fault: &Fault, cache: Option<&std::path::Path>) -> Arc<Session> {
    let settings = Settings {
        rows: RowCounts::new(&[8]),
        timeout: Duration::from_secs(2),
        ..settings(fault)
    };
    let cache = cache.map(|dir| CacheDir::new(dir.to_owned(), "qnn", 1 << 30));
    Arc::new(Session::open(settings, cache).unwrap())
}

/// Room for two contexts, and half of a third.
const BUDGET_BYTES: u64 = 5 * 3 * 2 * (N * K) as u64 / 2 + 4 * 4096;

impl Device {
    fn new(fault: &Fault, model: &Model, policy: Policy, cache: Option<&std::path::Path>) -> Self {
        let session = open(fault, cache);
        let mut qnn =
            Qnn::new(Host::new(1).unwrap(), Arc::clone(&session)).within(Some(BUDGET_BYTES));
        model.prepare(&mut qnn);
        let (mut workload, mut of_object) = (Workload::new(), Vec::new());
        for i in 0..N_CONTEXTS {
            let needs = qnn.needs(i).unwrap();
            let [need] = needs.as_slice() else {
                panic!("a context for each segment: {needs:?}");
            };
            let object = Object::new(format!("context {i}"), need.size_bytes, Class::LongLived);
            let object = workload.add_object(object);
            of_object.push(Some(need.context));
            workload.add_segment(format!("segment {i}"), [object]);
        }
        let limits = Limits {
            budget_bytes: BUDGET_BYTES,
            ..Limits::default()
        };
        let costs = Costs {
            map_seconds_per_gb: 0.0,
            copy_gb_per_second: 0.0,
        };
        let planner = Planner::new(workload, limits, policy, costs).unwrap();
        let host = HostMapping::new(Arc::clone(&model.store), vec![None; N_CONTEXTS]);
        let mapping = ContextMapping::new(qnn.contexts(), of_object, Box::new(host));
        Self {
            runtime: Runtime::new(planner, Box::new(mapping)).unwrap(),
            qnn,
            session,
            budget_bytes: BUDGET_BYTES,
        }
    }

    /// Runs a step up to some segment; tells which were computed, all of them right.
    fn step(&mut self, model: &Model, end: usize) -> Result<Vec<bool>, SessionError> {
        let all: Vec<_> = (0..N_CONTEXTS).map(SegmentId).collect();
        self.runtime.begin(&all)?;
        let mut computed = Vec::new();
        for i in 0..end {
            self.runtime.enter()?;
            computed.push(model.start(&mut self.qnn, i));
            if computed[i] {
                model.check(&mut self.qnn, i);
            }
            self.runtime.leave()?;
        }
        self.runtime.end();
        Ok(computed)
    }

    fn report(&self) -> Report {
        self.session.report()
    }
}

#[test]
fn the_budget_holds_whoever_decides() {
    let model = Model::new();
    for faults in ["", "memory"] {
        for policy in Policy::ALL {
            let (fault, cache) = (Fault::new(faults), tempfile::tempdir().unwrap());
            let mut device = Device::new(&fault, &model, policy, Some(cache.path()));
            assert_eq!(device.report().n_graphs_built, N_CONTEXTS as u64);
            // One at a time while they were made, and none afterwards.
            let one = fault.peak_bytes();
            assert!(one > 0 && one < device.budget_bytes / 2, "{one}");
            assert_eq!(fault.peak_bytes(), 0);
            for _ in 0..4 {
                assert_eq!(device.step(&model, N_CONTEXTS).unwrap(), [true; N_CONTEXTS]);
            }
            let peak = fault.peak_bytes();
            let report = device.report();
            assert!(peak <= device.budget_bytes, "{policy}: {peak}");
            let least = if policy == Policy::Naive { 1 } else { 2 };
            assert!(peak >= least * one, "{policy}: {peak} {one}");
            assert_eq!(report.refused.len(), 0, "{policy}");
            let n = N_CONTEXTS as u64;
            match policy {
                Policy::Naive => assert_eq!(report.n_context_maps, 4 * n),
                // One stays, the others go through the room of one.
                Policy::Planned => assert_eq!(report.n_context_maps, n + 3 * (n - 1)),
                // What comes next is what went longest ago, or there is room for two loads and no more.
                _ => assert!(report.n_context_maps <= 4 * n, "{report:?}"),
            }
            device.runtime.finish();
            let (transfers, report) = (device.runtime.report().transfers, device.report());
            assert_eq!(transfers.n_maps, report.n_context_maps, "{policy}");
            assert_eq!(report.n_context_maps, report.n_context_unmaps, "{policy}");
            assert_eq!((transfers.mapped_bytes, report.mapped_bytes), (0, 0));
            let _before_the_end = fault.peak_bytes();
            assert_eq!(fault.peak_bytes(), 0, "{policy}");
            assert_eq!(fault.shared() > 0, faults == "memory");
            drop(device);
            assert!(fault.calls("memRegister") > 0);
            let n_given_back = fault.calls("memDeRegister");
            assert_eq!(n_given_back > 0, faults == "memory");
            assert_eq!((fault.alive(), fault.violations()), (0, 0), "{policy}");
        }
    }
}

#[test]
fn a_second_start_builds_nothing_and_without_a_cache_binaries_stay_in_memory() {
    let model = Model::new();
    let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
    for n_built in [N_CONTEXTS as u64, 0] {
        let policy = Policy::PlannedPipeline;
        let mut device = Device::new(&fault, &model, policy, Some(cache.path()));
        assert_eq!(device.report().n_graphs_built, n_built);
        assert_eq!(device.step(&model, N_CONTEXTS).unwrap(), [true; N_CONTEXTS]);
    }
    let mut device = Device::new(&fault, &model, Policy::Lru, None);
    assert_eq!(device.step(&model, N_CONTEXTS).unwrap(), [true; N_CONTEXTS]);
    assert_eq!(device.report().n_graphs_loaded, 0);
}

#[test]
fn contexts_are_made_while_others_are_executed() {
    let model = Model::new();
    let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
    let mut device = Device::new(&fault, &model, Policy::PlannedPipeline, Some(cache.path()));
    device.step(&model, N_CONTEXTS).unwrap();
    fault.set("slow graphExecute 60; slow contextCreateFromBinary 60");
    let before = device.runtime.report();
    let start = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(device.step(&model, N_CONTEXTS).unwrap(), [true; N_CONTEXTS]);
    }
    let (took, after) = (start.elapsed(), device.runtime.report());
    let transfers = after.transfer - before.transfer;
    let n_runs = u32::try_from(3 * N_CONTEXTS).unwrap();
    assert!(transfers >= Duration::from_millis(60 * 6), "{transfers:?}");
    // One after the other would be the sum of both.
    let sum = n_runs * Duration::from_millis(60) + transfers;
    assert!(took < sum - transfers / 4, "{took:?} of {sum:?}");
}

#[test]
fn a_context_that_cannot_be_made_is_left_to_the_host() {
    let model = Model::new();
    for policy in Policy::ALL {
        let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
        let mut device = Device::new(&fault, &model, policy, Some(cache.path()));
        let n = fault.calls("contextCreateFromBinary");
        // All but the first fail, whenever they come.
        fault.set(&format!(
            "fail contextCreateFromBinary 1002 after {}",
            n + 1
        ));
        let computed = device.step(&model, N_CONTEXTS).unwrap();
        assert_eq!(
            computed,
            [true, false, false, false, false, false],
            "{policy}"
        );
        let report = device.report();
        let n_refused: u64 = report.refused.values().sum();
        assert_eq!((report.refused.len(), n_refused), (1, 5), "{policy}");
        let reason = report.refused.keys().next().unwrap();
        assert!(
            reason.contains("contextCreateFromBinary: error 1002"),
            "{reason}"
        );
        // They are not tried again; the other one goes on.
        fault.set("");
        assert_eq!(
            device.step(&model, N_CONTEXTS).unwrap(),
            computed,
            "{policy}"
        );
        let needs: Vec<_> = (0..N_CONTEXTS)
            .map(|i| device.qnn.needs(i).is_some())
            .collect();
        assert_eq!(needs, computed);
        drop(device);
        assert_eq!((fault.alive(), fault.violations()), (0, 0), "{policy}");
    }
}

#[test]
fn a_library_that_hangs_while_a_context_is_made_is_given_up() {
    let model = Model::new();
    for policy in [Policy::Naive, Policy::PlannedPipeline] {
        let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
        let mut device = Device::new(&fault, &model, policy, Some(cache.path()));
        let n = fault.calls("contextCreateFromBinary");
        fault.set(&format!("hang contextCreateFromBinary after {}", n + 2));
        let computed = device.step(&model, N_CONTEXTS).unwrap();
        assert!(!computed[N_CONTEXTS - 1], "{policy}: {computed:?}");
        assert!(!device.session.is_alive());
        // From now on the host computes everything, at once.
        let start = std::time::Instant::now();
        assert_eq!(
            device.step(&model, N_CONTEXTS).unwrap(),
            [false; N_CONTEXTS]
        );
        assert!(device.qnn.needs(0).is_none());
        drop(device);
        assert!(start.elapsed() < Duration::from_secs(1), "{policy}");
    }
}

#[test]
fn what_is_damaged_between_two_maps_never_reaches_the_library() {
    let model = Model::new();
    let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
    let mut device = Device::new(&fault, &model, Policy::Naive, Some(cache.path()));
    let file = std::fs::read_dir(cache.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let at = file.metadata().unwrap().len() / 2;
    // In place, as no program does.
    use std::os::unix::fs::FileExt as _;
    let damaged = std::fs::File::options()
        .write(true)
        .open(file.path())
        .unwrap();
    damaged.write_all_at(b"damaged", at).unwrap();
    let n = fault.calls("contextCreateFromBinary");
    let computed = device.step(&model, N_CONTEXTS).unwrap();
    assert_eq!(computed.iter().filter(|computed| !**computed).count(), 1);
    assert_eq!(
        fault.calls("contextCreateFromBinary"),
        n + N_CONTEXTS as u64 - 1
    );
    let report = device.report();
    let reason = report.refused.keys().next().unwrap();
    assert!(reason.contains("damaged"), "{reason}");
}

#[test]
fn steps_that_end_early_leave_nothing_behind() {
    let model = Model::new();
    for policy in Policy::ALL {
        let (fault, cache) = (Fault::new("memory"), tempfile::tempdir().unwrap());
        let mut device = Device::new(&fault, &model, policy, Some(cache.path()));
        for i in 0..200 {
            let end = i * 5 % (N_CONTEXTS + 1);
            assert_eq!(device.step(&model, end).unwrap(), vec![true; end]);
        }
        assert!(fault.peak_bytes() <= device.budget_bytes, "{policy}");
        drop(device);
        let n_made = fault.calls("contextCreate") + fault.calls("contextCreateFromBinary");
        assert_eq!(n_made, fault.calls("contextFree"), "{policy}");
        assert_eq!(
            fault.calls("memRegister"),
            fault.calls("memDeRegister"),
            "{policy}"
        );
        assert_eq!((fault.alive(), fault.violations()), (0, 0), "{policy}");
    }
}

#[test]
fn registrations_that_fail_cost_copies_and_nothing_else() {
    let model = Model::new();
    for n_before in 0..5 {
        let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
        fault.set(&format!("memory; fail memRegister 8000 after {n_before}"));
        let policy = Policy::PlannedPipeline;
        let mut device = Device::new(&fault, &model, policy, Some(cache.path()));
        for _ in 0..2 {
            assert_eq!(device.step(&model, N_CONTEXTS).unwrap(), [true; N_CONTEXTS]);
        }
        // It is not tried again.
        assert_eq!(fault.calls("memRegister"), n_before + 1);
        assert_eq!(device.report().n_registrations, n_before);
        assert_eq!(device.report().refused.len(), 0);
        drop(device);
        assert_eq!(fault.calls("memDeRegister"), n_before);
        assert_eq!((fault.alive(), fault.violations()), (0, 0));
    }
}

#[test]
fn what_can_never_fit_or_be_made_again_is_left_to_the_host() {
    let model = Model::new();
    let within = |fault: &Fault, budget_bytes: u64| {
        let session = open(fault, None);
        let mut qnn =
            Qnn::new(Host::new(1).unwrap(), Arc::clone(&session)).within(Some(budget_bytes));
        model.prepare(&mut qnn);
        let needs: Vec<_> = (0..N_CONTEXTS).map(|i| qnn.needs(i).is_some()).collect();
        assert_eq!(needs, [false; N_CONTEXTS]);
        session.report()
    };
    let fault = Fault::new("");
    let report = within(&fault, 3 * 2 * (N * K) as u64 - 1);
    let reason = report.refused.keys().next().unwrap();
    assert!(
        reason.contains("does not fit the budget of 36863"),
        "{reason}"
    );
    assert_eq!(
        (report.n_graphs_built, fault.calls("contextCreate")),
        (0, 0)
    );
    // The binary is a little larger than the weights.
    let report = within(&fault, 3 * 2 * (N * K) as u64);
    assert!(
        report
            .refused
            .keys()
            .next()
            .unwrap()
            .contains("does not fit the budget")
    );
    let fault = Fault::new("fail contextGetBinary 5000");
    let report = within(&fault, BUDGET_BYTES);
    let reason = report.refused.keys().next().unwrap();
    assert!(reason.contains("gives no binary"), "{reason}");
    assert_eq!((report.n_contexts, fault.violations()), (0, 0));
}

#[test]
fn while_one_instance_makes_segments_ready_others_do_not_wait_for_what_they_need_not() {
    let model = Model::new();
    let fault = Fault::new("slow graphFinalize 300");
    let session = open(&fault, None);
    let instance = || Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
    let (mut first, mut second, mut third) = (instance(), instance(), instance());
    std::thread::scope(|scope| {
        let making = scope.spawn(|| model.prepare(&mut first));
        while fault.calls("graphFinalize") == 0 {
            std::thread::yield_now();
        }
        // Who needs the same waits for it, and makes nothing himself.
        let waiting = scope.spawn(|| model.prepare(&mut second));
        // Questions are answered at once.
        let start = std::time::Instant::now();
        assert!(!third.is_prepared(&model.segments, &model.store.plain()));
        assert!(session.report().n_graphs_built < N_CONTEXTS as u64);
        assert!(start.elapsed() < Duration::from_secs(1));
        making.join().unwrap();
        waiting.join().unwrap();
    });
    model.prepare(&mut third);
    let all = session.report();
    assert_eq!(
        (all.n_graphs_built, all.refused.len()),
        (N_CONTEXTS as u64, 0)
    );
    for qnn in [&mut first, &mut second, &mut third] {
        assert!(model.start(qnn, N_CONTEXTS - 1));
        model.check(qnn, N_CONTEXTS - 1);
    }
    drop((first, second, third, session));
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}

#[test]
fn what_one_budget_leaves_to_the_host_others_compute() {
    let model = Model::new();
    let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
    let session = open(&fault, Some(cache.path()));
    let instance = |budget_bytes: Option<u64>| {
        let host = Host::new(1).unwrap();
        let mut qnn = Qnn::new(host, Arc::clone(&session)).within(budget_bytes);
        model.prepare(&mut qnn);
        qnn
    };
    let which = |qnn: &Qnn| -> Vec<bool> {
        let all = 0..N_CONTEXTS;
        all.map(|i| qnn.needs(i).is_some()).collect()
    };
    let small = instance(Some(1000));
    assert_eq!(which(&small), [false; N_CONTEXTS]);
    assert_eq!(fault.calls("graphFinalize"), 0);
    // It is not tried again for the same budget.
    assert_eq!(which(&instance(Some(1000))), [false; N_CONTEXTS]);
    assert_eq!(session.report().refused.values().sum::<u64>(), 6);
    let mut large = instance(Some(BUDGET_BYTES));
    assert_eq!(which(&large), [true; N_CONTEXTS]);
    large.leave(0, &"too large together");
    assert!(!model.start(&mut large, 0));
    let mut all = instance(None);
    for i in 0..N_CONTEXTS {
        assert!(model.start(&mut all, i), "{i}");
        model.check(&mut all, i);
    }
    // Contexts are there now, so that it could.
    model.prepare(&mut large);
    assert!(!model.start(&mut large, 0) && model.start(&mut large, 1));
    let n = fault.calls("graphExecute");
    fault.set(&format!("wrong nan after {n}"));
    assert!(!model.start(&mut large, 1));
    fault.set("");
    model.prepare(&mut large);
    assert_eq!(which(&large), [false, false, true, true, true, true]);
    assert!(model.start(&mut all, 0) && model.start(&mut all, 1));
    drop((small, large, all));
    drop(session);
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}

#[test]
fn instances_without_a_budget_wait_for_contexts_that_were_laid_aside() {
    let model = Model::new();
    let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
    let session = open(&fault, Some(cache.path()));
    let instance = || Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
    model.prepare(&mut instance().within(Some(BUDGET_BYTES)));
    let _while_made = fault.peak_bytes();
    assert_eq!(fault.peak_bytes(), 0);
    fault.set("slow contextCreateFromBinary 50");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut qnn = instance();
                model.prepare(&mut qnn);
                for i in 0..N_CONTEXTS {
                    assert!(model.start(&mut qnn, i), "{i}");
                    model.check(&mut qnn, i);
                }
            });
        }
    });
    let report = session.report();
    assert_eq!(report.refused.len(), 0);
    assert_eq!(report.n_context_maps, N_CONTEXTS as u64);
}

#[test]
fn contexts_of_segments_that_are_given_up_are_counted_as_freed() {
    let model = Model::new();
    let (fault, cache) = (Fault::new(""), tempfile::tempdir().unwrap());
    let mut device = Device::new(&fault, &model, Policy::Lru, Some(cache.path()));
    device.step(&model, N_CONTEXTS).unwrap();
    let n = fault.calls("graphExecute");
    fault.set(&format!("fail graphExecute 6000 after {}", n + 3));
    let computed = device.step(&model, N_CONTEXTS).unwrap();
    assert_eq!(computed, [true, true, true, false, false, false]);
    let (report, peak) = (device.report(), fault.peak_bytes());
    assert!(report.peak_mapped_bytes <= device.budget_bytes);
    assert!(report.mapped_bytes <= peak, "{report:?}");
    device.runtime.finish();
    let report = device.report();
    assert_eq!(report.n_context_maps, report.n_context_unmaps);
    assert_eq!(report.mapped_bytes, 0);
}
