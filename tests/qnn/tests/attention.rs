//! Attention over the library that fails on demand: K and V in registered memory, and every way back to the host.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;
use std::sync::Arc;

use ggml_llada_npu::device::SegmentAccelerator;
use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::qnn::{Qnn, Report, Session};
use ggml_llada_npu::knobs;
use ggml_llada_npu::memory::CacheDir;
use llada_npu_qnn_tests::attention::{Attention, Sizes};
use llada_npu_qnn_tests::session::settings;
use llada_npu_qnn_tests::{Fault, linear};

/// Half floats between the operations, which this library computes exactly.
const MAX_NMSE: f64 = 2e-6;

/// The CPU's kernels, and a little more.
const MAX_HOST_NMSE: f64 = 1e-6;

fn open(fault: &Fault, cache: Option<&Path>) -> (Qnn, Arc<Session>) {
    let mut settings = settings(fault);
    settings.attention = knobs::Attention::Npu;
    let cache = cache.map(|dir| CacheDir::new(dir.to_owned(), "qnn", 1 << 30));
    let session = Arc::new(Session::open(settings, cache).unwrap());
    let qnn = Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
    (qnn, session)
}

fn operands(n_tokens: usize, n_kv: usize) -> Attention {
    Attention::new(Sizes::new([n_tokens, n_kv], [4, 2], 32), 1)
}

fn assert_offloaded(qnn: &mut Qnn, operands: &Attention, what: &str) {
    let found = operands.offload(qnn);
    let found = found.unwrap_or_else(|| panic!("{what}: the library did not compute it"));
    let error = linear::nmse(&found, &operands.reference());
    assert!(error <= MAX_NMSE, "{what}: NMSE {error:e}");
}

fn reasons(report: &Report) -> Vec<&str> {
    report.refused.keys().map(String::as_str).collect()
}

#[test]
fn k_and_v_lie_in_registered_memory_and_all_of_it_is_given_back() {
    let fault = Fault::new("memory");
    let (mut qnn, session) = open(&fault, None);
    let mut n = 0;
    for (n_tokens, n_kv) in [(5, 20), (16, 32), (3, 100), (40, 100), (90, 33)] {
        n += if n_tokens > 64 { 2 } else { 1 };
        assert_offloaded(&mut qnn, &operands(n_tokens, n_kv), "rows of a cache");
    }
    n += 1;
    assert_offloaded(&mut qnn, &operands(5, 96).tiled(), "tiles");
    let report = session.report();
    // 16 rows over 32 and 128 positions, 64 rows over 64 and 128.
    assert_eq!((report.n_graphs_built, report.n_contexts), (4, 4));
    // Each was run once more for its check. Q, K, V, the mask and the result are shared in every execution.
    assert_eq!(report.n_attentions, n);
    assert_eq!(
        (report.n_shared, fault.shared()),
        (5 * (n + 4), 5 * (n + 4))
    );
    assert_eq!(
        (report.n_registrations, fault.calls("memRegister")),
        (20, 20)
    );
    drop((qnn, session));
    assert_eq!(fault.calls("memDeRegister"), 20);
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}

#[test]
fn batches_and_masks_far_from_zero() {
    let fault = Fault::new("");
    let (mut qnn, _session) = open(&fault, None);
    let sizes = Sizes {
        n3: 3,
        d_v: 64,
        ..Sizes::new([20, 40], [4, 2], 32)
    };
    assert_offloaded(&mut qnn, &Attention::new(sizes, 2), "batches");
    let mut far = operands(5, 40);
    let mask = linear::from_halves(far.mask.as_ref().unwrap());
    let mask: Vec<f32> = mask.iter().map(|x| x - 30000.0).collect();
    far.mask = Some(linear::halves(&mask));
    assert_offloaded(&mut qnn, &far, "a mask of -30000");
}

#[test]
fn memory_that_is_not_registered_is_copied() {
    let fault = Fault::new("memory; fail memRegister 8000");
    let (mut qnn, session) = open(&fault, None);
    assert_offloaded(&mut qnn, &operands(5, 20), "plain memory");
    let report = session.report();
    assert_eq!((report.n_shared, report.n_registrations), (0, 0));
    assert_eq!(report.refused.len(), 0);
}

#[test]
fn every_fault_ends_in_the_right_result() {
    for fault_text in [
        "fail contextCreate 5000",
        "null contextCreate",
        "fail backendValidateOpConfig 3110",
        "fail backendValidateOpConfig 3110 after 9",
        "fail graphCreate 6003",
        "null graphCreate",
        "fail tensorCreateGraphTensor 7004",
        "fail graphAddNode 6005",
        "fail graphFinalize 1002",
        "fail graphExecute 6000",
        "fail graphExecute 6000 after 1",
        "wrong scale",
        "wrong row",
        "wrong nan",
        "wrong inputs",
        "hang graphFinalize",
        "hang graphExecute",
        "hang graphExecute after 1",
        "memory; wrong inputs",
        "memory; hang graphExecute after 1",
    ] {
        let fault = Fault::new(fault_text);
        let (mut qnn, session) = open(&fault, None);
        let operands = operands(5, 40);
        assert!(operands.offload(&mut qnn).is_none(), "{fault_text}");
        let found = operands.run(&mut qnn);
        let error = linear::nmse(&found, &operands.reference());
        assert!(error <= MAX_HOST_NMSE, "{fault_text}: NMSE {error:e}");
        let report = session.report();
        // Once, however often it is asked for.
        assert_eq!(
            report.refused.values().sum::<u64>(),
            1,
            "{fault_text}: {report}"
        );
        assert_eq!(report.n_attentions, 0, "{fault_text}");
    }
    // What becomes wrong later is none where a number is none.
    let fault = Fault::new("wrong nan after 2");
    let (mut qnn, session) = open(&fault, None);
    assert_offloaded(&mut qnn, &operands(5, 40), "before");
    assert!(operands(5, 40).offload(&mut qnn).is_none());
    assert_eq!(session.report().n_overflows, 1);
}

#[test]
fn what_no_graph_takes_is_the_hosts_with_its_reason() {
    let fault = Fault::new("");
    let (mut qnn, session) = open(&fault, None);
    let mut sloped = operands(5, 40);
    sloped.params.max_bias = 8.0;
    let mut capped = operands(5, 40);
    capped.params.softcap = 10.0;
    for operands in [&sloped, &capped, &operands(1, 4097)] {
        assert!(operands.offload(&mut qnn).is_none());
    }
    let report = session.report();
    assert_eq!(report.refused.values().sum::<u64>(), 3);
    assert!(
        reasons(&report)
            .iter()
            .any(|reason| reason.contains("4097 positions"))
    );
    assert_eq!((report.n_graphs_built, report.n_overflows), (0, 0));
    // Numbers that half floats do not hold, scores that lose their digits, a mask that is no number.
    let numbers: [&dyn Fn(&mut Attention); 4] = [
        &|it| it.q[0] = 1e6,
        &|it| it.params.scale = 100.0,
        &|it| it.v[..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes()),
        &|it| it.mask.as_mut().unwrap()[..2].copy_from_slice(&half::f16::NAN.to_le_bytes()),
    ];
    for (i, change) in numbers.iter().enumerate() {
        let mut operands = operands(5, 40);
        change(&mut operands);
        assert!(operands.offload(&mut qnn).is_none(), "{i}");
        assert_eq!(session.report().n_overflows, i as u64 + 1);
    }
    assert_offloaded(&mut qnn, &operands(5, 40), "the same graph");
}

#[test]
fn what_nobody_sees_may_hold_anything() {
    let fault = Fault::new("");
    let (mut qnn, _session) = open(&fault, None);
    let mut operands = operands(6, 40);
    let hidden = 17;
    let mask = operands.mask.as_mut().unwrap();
    for row in mask.chunks_exact_mut(2 * 40) {
        row[2 * hidden..][..2].copy_from_slice(&half::f16::NEG_INFINITY.to_le_bytes());
    }
    let expected = operands.reference();
    let nan = half::f16::NAN.to_le_bytes();
    for rows in [&mut operands.k, &mut operands.v] {
        for element in rows[2 * 64 * hidden..][..2 * 64].as_chunks_mut().0 {
            *element = nan;
        }
    }
    let found = operands.offload(&mut qnn).unwrap();
    assert!(linear::nmse(&found, &expected) <= MAX_NMSE);
}

#[test]
fn a_second_start_builds_no_graph_and_wrong_files_are_made_anew() {
    let fault = Fault::new("");
    let dir = tempfile::tempdir().unwrap();
    let start = |faults: &str| {
        fault.set(faults);
        let (mut qnn, session) = open(&fault, Some(dir.path()));
        let found = operands(5, 40).run(&mut qnn);
        let error = linear::nmse(&found, &operands(5, 40).reference());
        assert!(error <= MAX_NMSE, "{faults}: NMSE {error:e}");
        session.report()
    };
    let graphs = |report: &Report| (report.n_graphs_built, report.n_graphs_loaded);
    let n_files = || std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(graphs(&start("wrong scale")), (1, 0));
    assert_eq!(n_files(), 0);
    assert_eq!(graphs(&start("")), (1, 0));
    assert_eq!(graphs(&start("")), (0, 1));
    assert_eq!(graphs(&start("build v9.9.9")), (1, 0));
    assert_eq!(n_files(), 2);
    // A file is not to blame for ever: it goes, and another one comes when results are right again.
    let report = start("wrong scale");
    assert_eq!((graphs(&report), report.refused.len()), ((1, 1), 1));
    assert_eq!(report.n_contexts, 0);
    assert_eq!(n_files(), 1);
    assert_eq!(graphs(&start("")), (1, 0));
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap();
    std::fs::write(file.unwrap().path(), b"damaged").unwrap();
    start("");
    start("build v9.9.9");
    assert_eq!(n_files(), 2);
}

#[test]
fn attention_stays_with_the_host_unless_it_is_wanted() {
    let fault = Fault::new("");
    let session = Arc::new(Session::open(settings(&fault), None).unwrap());
    let mut qnn = Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
    assert!(operands(5, 40).offload(&mut qnn).is_none());
    // Within a budget, before a memory runtime has its context there.
    let (qnn, within) = open(&fault, None);
    let mut qnn = qnn.within(Some(1 << 30));
    assert!(operands(5, 40).offload(&mut qnn).is_none());
    for session in [session, within] {
        let report = session.report();
        assert_eq!((report.n_graphs_built, report.refused.len()), (0, 0));
    }
}

#[test]
fn within_a_budget_graphs_come_and_go() {
    let fault = Fault::new("memory");
    let (qnn, session) = open(&fault, None);
    let mut qnn = qnn.within(Some(1 << 20));
    let operands = operands(70, 40);
    let specs = [operands.spec()];
    assert!(!qnn.is_prepared_alone(&specs));
    let needs = qnn.prepare_alone(&specs).swap_remove(0).unwrap();
    assert!(qnn.is_prepared_alone(&specs));
    // For 64 rows and for 16.
    assert_eq!(needs.len(), 2);
    assert!(needs.iter().all(|need| need.size_bytes > 0));
    let contexts = qnn.contexts();
    for _ in 0..2 {
        assert!(operands.offload(&mut qnn).is_none(), "no context is there");
        needs.iter().for_each(|need| contexts.map(need.context));
        assert_offloaded(&mut qnn, &operands, "both are there");
        needs.iter().for_each(|need| contexts.unmap(need.context));
    }
    let report = session.report();
    assert_eq!((report.n_context_maps, report.n_context_unmaps), (4, 4));
    assert_eq!((report.n_graphs_built, report.refused.len()), (2, 0));
    // One that cannot be made again is the host's.
    fault.set("memory; fail contextCreateFromBinary 5000");
    contexts.map(needs[0].context);
    assert!(operands.offload(&mut qnn).is_none());
    assert_eq!(qnn.prepare_alone(&specs), [None]);
    assert_eq!(session.report().refused.values().sum::<u64>(), 1);
    drop((qnn, session, contexts));
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}

#[test]
fn what_is_too_large_for_one_budget_others_compute() {
    let fault = Fault::new("");
    let (qnn, session) = open(&fault, None);
    let mut small = qnn.within(Some(16));
    let operands = operands(5, 40);
    let specs = [operands.spec()];
    assert_eq!(small.prepare_alone(&specs), [None]);
    assert!(small.is_prepared_alone(&specs));
    let report = session.report();
    assert!(reasons(&report)[0].contains("does not fit the budget of 16"));
    let other = || Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
    assert!(other().within(Some(1 << 20)).prepare_alone(&specs)[0].is_some());
    assert_offloaded(&mut other(), &operands, "no budget");
    // What one without a budget has there, a memory runtime does not free.
    let mut large = other().within(Some(1 << 20));
    let needs = large.prepare_alone(&specs).swap_remove(0).unwrap();
    let contexts = large.contexts();
    contexts.map(needs[0].context);
    contexts.unmap(needs[0].context);
    assert_offloaded(&mut other(), &operands, "still there");
}

#[test]
fn instances_share_graphs() {
    let fault = Fault::new("");
    let (_, session) = open(&fault, None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut qnn = Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
            scope.spawn(move || assert_offloaded(&mut qnn, &operands(5, 40), "side by side"));
        }
    });
    let report = session.report();
    assert_eq!((report.n_graphs_built, report.n_attentions), (1, 4));
}
