//! The session of the QNN accelerator over the library that fails on demand: what is kept, freed, written and given up.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::qnn::{Qnn, Report, Session, session};
use ggml_llada_npu::device::{Dense, DenseKind, DenseWeight, Layout, SegmentAccelerator};
use ggml_llada_npu::memory::store::Source;
use ggml_llada_npu::memory::{CacheDir, Keep, WeightStore};
use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::Type;
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::session::settings;

const K: usize = 32;

/// Rows of a weight that is cut into two slices, a context each.
const N_SLICED: usize = 16384 + 16;

/// Weights in a buffer of the device, which `read` lends unless a test says otherwise.
struct Weights {
    store: WeightStore,
    region: Arc<Region>,
    bytes: Vec<u8>,
}

impl Weights {
    fn new() -> Self {
        let values = (0..N_SLICED * K).map(|i| ((i * 7 % 31) as f32 - 15.0) / 16.0);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let weights = Self {
            store: WeightStore::new(Keep::Nothing),
            region: Arc::new(Region::anonymous(bytes.len()).expect("memory")),
            bytes,
        };
        weights.add();
        weights
    }

    fn add(&self) {
        self.store
            .add_buffer(Arc::clone(&self.region), Source::Written);
    }

    /// Lets the store know that the bytes change.
    fn change(&self) {
        self.store.remove_buffer(&self.region);
        self.add();
    }

    fn segment(&self, kind: DenseKind, n: usize, n_rows: usize) -> Dense {
        let weight = |node| DenseWeight {
            node,
            address: self.region.address() + node * 4 * K * n,
            size_bytes: 4 * K * n,
            ggml_type: Type::F32.0,
            k: K,
            n,
        };
        let n_weights = if kind == DenseKind::FeedForward { 3 } else { 1 };
        Dense {
            kind,
            x: Layout {
                type_: Type::F32,
                ne: [K, n_rows, 1, 1],
                nb: [4, 4 * K, 4 * K * n_rows, 4 * K * n_rows],
            },
            weights: (0..n_weights).map(weight).collect(),
            additions: Vec::new(),
        }
    }

    fn products(&self, n: usize, n_rows: usize) -> Dense {
        self.segment(DenseKind::Products, n, n_rows)
    }

    /// Prepares segments; `lend` is told the number of each reading and says whether the bytes are lent. Returns how often
    /// they were read.
    fn prepare(
        &self,
        qnn: &mut Qnn,
        segments: &[Dense],
        mut lend: impl FnMut(usize) -> bool,
    ) -> usize {
        let mut n_reads = 0;
        let mut read = |node: usize, body: &mut dyn FnMut(&[u8])| {
            n_reads += 1;
            if lend(n_reads) {
                let size_bytes = segments[0].weights[0].size_bytes;
                body(&self.bytes[node * size_bytes..][..size_bytes]);
            }
        };
        qnn.prepare(segments, &self.store.plain(), &mut read, &|| false);
        n_reads
    }
}

fn open(fault: &Fault, cache: Option<&std::path::Path>) -> (Qnn, Arc<Session>) {
    let settings = settings(fault);
    let cache = cache.map(|dir| CacheDir::new(dir.to_owned(), "qnn", 1 << 30));
    let session = Arc::new(Session::open(settings, cache).expect("the library opens"));
    (
        Qnn::new(Host::new(1).expect("a host"), Arc::clone(&session)),
        session,
    )
}

fn reasons(report: &Report) -> Vec<&str> {
    report.refused.keys().map(String::as_str).collect()
}

fn input(n_rows: usize) -> Vec<u8> {
    [0.5_f32; K]
        .repeat(n_rows)
        .into_iter()
        .flat_map(f32::to_le_bytes)
        .collect()
}

#[test]
fn a_file_whose_graphs_are_wrong_is_made_anew() {
    let (fault, weights) = (Fault::new("wrong scale"), Weights::new());
    let dir = tempfile::tempdir().unwrap();
    let segments = [weights.products(16, 16)];
    let start = |lend: &mut dyn FnMut(usize) -> bool| {
        let (mut qnn, session) = open(&fault, Some(dir.path()));
        weights.prepare(&mut qnn, &segments, lend);
        session.report()
    };
    let n_files = || std::fs::read_dir(dir.path()).unwrap().count();
    // What is wrong is not written.
    let report = start(&mut |_| true);
    assert_eq!((report.n_graphs_built, report.refused.len()), (1, 1));
    assert_eq!((n_files(), fault.calls("contextGetBinary")), (0, 0));
    fault.set("");
    let report = start(&mut |_| true);
    assert_eq!((report.n_graphs_built, report.refused.len()), (1, 0));
    assert_eq!(n_files(), 1);
    // The file is read, and its graph is wrong until the results of the check are looked at.
    fault.set("wrong scale");
    let report = start(&mut |n_reads| {
        // The check reads before it runs the graph; the key of the one that is made anew is the next.
        if n_reads == 3 {
            fault.set("");
        }
        true
    });
    assert_eq!((report.n_graphs_loaded, report.n_graphs_built), (1, 1));
    assert_eq!((report.n_contexts, report.refused.len()), (1, 0));
    let report = start(&mut |_| true);
    assert_eq!((report.n_graphs_loaded, report.n_graphs_built), (1, 0));
    // Wrong again and again: nothing is left.
    fault.set("wrong scale");
    let report = start(&mut |_| true);
    assert_eq!((report.n_graphs_loaded, report.n_graphs_built), (1, 1));
    assert_eq!((report.n_contexts, report.refused.len()), (0, 1));
    assert_eq!(n_files(), 0);
}

#[test]
fn a_file_is_taken_for_the_same_weights_and_rows_alone() {
    let fault = Fault::new("");
    let dir = tempfile::tempdir().unwrap();
    let start = |weights: &Weights, n_rows| {
        let (mut qnn, session) = open(&fault, Some(dir.path()));
        weights.prepare(&mut qnn, &[weights.products(16, n_rows)], |_| true);
        let report = session.report();
        assert_eq!(reasons(&report), [""; 0]);
        (report.n_graphs_loaded, report.n_graphs_built)
    };
    let (weights, mut other) = (Weights::new(), Weights::new());
    // The sign of the first element.
    other.bytes[3] ^= 0x80;
    assert_eq!(start(&weights, 16), (0, 1));
    assert_eq!(start(&weights, 64), (0, 1));
    assert_eq!(start(&other, 16), (0, 1));
    for (weights, n_rows) in [(&weights, 16), (&weights, 64), (&other, 16)] {
        assert_eq!(start(weights, n_rows), (1, 0));
    }
}

#[test]
fn a_file_that_cannot_be_used_does_not_stay() {
    let (fault, weights) = (Fault::new(""), Weights::new());
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let (mut qnn, session) = open(&fault, Some(dir.path()));
        weights.prepare(&mut qnn, &[weights.products(16, 16)], |_| true);
        session.report()
    };
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    assert_eq!(start().n_graphs_built, 1);
    std::fs::write(&files()[0], b"damaged").unwrap();
    // Nothing takes its place.
    fault.set("fail graphFinalize 1002");
    let report = start();
    assert_eq!((report.n_graphs_loaded, report.refused.len()), (0, 1));
    assert_eq!(files().len(), 0);
}

#[test]
fn what_cannot_be_read_is_not_checked() {
    let weights = Weights::new();
    for (kind, n_whole) in [(DenseKind::Products, 2), (DenseKind::FeedForward, 6)] {
        // For the key, lowered, then for the check: each weight is read that often.
        for last in 0..=n_whole {
            let fault = Fault::new("");
            let (mut qnn, session) = open(&fault, None);
            let n_alive = fault.alive();
            let segments = [weights.segment(kind, K, 16)];
            weights.prepare(&mut qnn, &segments, |n_reads| n_reads <= last);
            let report = session.report();
            assert_eq!(reasons(&report), ["weights cannot be read"], "{last}");
            assert_eq!(fault.alive(), n_alive, "{last}");
            assert!(!qnn.start(0, &input(16)));
        }
    }
}

#[test]
fn contexts_of_refused_segments_are_freed() {
    let (fault, weights) = (Fault::new(""), Weights::new());
    let (mut qnn, session) = open(&fault, None);
    let n_alive = fault.alive();
    // Of two slices, each in its context, the second is refused.
    fault.set("fail graphFinalize 1002 after 1");
    weights.prepare(&mut qnn, &[weights.products(N_SLICED, 16)], |_| true);
    assert_eq!(fault.calls("graphFinalize"), 2);
    assert_eq!((fault.alive(), session.report().n_contexts), (n_alive, 0));
    // One that fails later.
    fault.set("");
    weights.prepare(&mut qnn, &[weights.products(16, 16)], |_| true);
    assert_eq!(
        (fault.alive(), session.report().n_contexts),
        (n_alive + 1, 1)
    );
    assert!(qnn.start(0, &input(16)));
    fault.set("fail graphExecute 6000");
    assert!(!qnn.start(0, &input(16)));
    let report = session.report();
    assert_eq!((fault.alive(), report.n_contexts), (n_alive, 0));
    assert_eq!(report.host_bytes, 0);
    assert_eq!(fault.violations(), 0);
}

#[test]
fn results_of_slices_and_of_padded_rows_are_where_they_belong() {
    let (fault, weights) = (Fault::new(""), Weights::new());
    let (mut qnn, session) = open(&fault, None);
    // 5 rows are padded to 16, 70 are cut into 64 and 6 that are padded.
    for n_rows in [5, 70] {
        weights.prepare(&mut qnn, &[weights.products(N_SLICED, n_rows)], |_| true);
        let factors: Vec<f32> = (0..n_rows).map(|row| (row as f32 - 2.0) / 8.0).collect();
        let x = factors.iter().flat_map(|&factor| [factor; K]);
        let x: Vec<u8> = x.flat_map(f32::to_le_bytes).collect();
        assert!(qnn.start(0, &x));
        let mut results = vec![0.0_f32; n_rows * N_SLICED];
        qnn.finish(0, 0, bytemuck::cast_slice_mut(&mut results))
            .unwrap();
        let (values, _) = weights.bytes.as_chunks();
        let values: Vec<f32> = values
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect();
        let sums: Vec<f32> = values.chunks_exact(K).map(|row| row.iter().sum()).collect();
        for (results, factor) in results.chunks_exact(N_SLICED).zip(&factors) {
            for (column, (result, sum)) in results.iter().zip(&sums).enumerate() {
                let expected = sum * factor;
                let error = (result - expected).abs();
                assert!(
                    error <= expected.abs() / 512.0,
                    "{column}: {result}, not {expected}"
                );
            }
        }
    }
    // Two slices for each of the row counts 16 and 64.
    assert_eq!(session.report().n_contexts, 4);
    assert_eq!(fault.violations(), 0);
}

#[test]
fn weights_are_counted_once_and_while_they_are_in_use() {
    let (fault, weights) = (Fault::new(""), Weights::new());
    let (mut qnn, session) = open(&fault, None);
    let n_alive = fault.alive();
    let size_bytes = 4 * 16 * K as u64;
    for n_rows in [16, 64] {
        weights.prepare(&mut qnn, &[weights.products(16, n_rows)], |_| true);
        assert_eq!(session.report().host_bytes, size_bytes);
    }
    assert_eq!(session.report().n_contexts, 2);
    weights.change();
    weights.prepare(&mut qnn, &[], |_| true);
    let report = session.report();
    assert_eq!((report.host_bytes, report.n_contexts), (0, 0));
    assert_eq!(fault.alive(), n_alive);
}

#[test]
fn a_context_lives_as_long_as_somebody_executes_it() {
    let (fault, weights) = (Fault::new(""), Weights::new());
    let (mut qnn, session) = open(&fault, None);
    let n_alive = fault.alive();
    weights.prepare(&mut qnn, &[weights.products(16, 16)], |_| true);
    fault.set("slow graphExecute 500");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| qnn.start(0, &input(16)));
        while fault.calls("graphExecute") < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Another instance sees other weights, and makes them ready.
        weights.change();
        let mut other = Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
        weights.prepare(&mut other, &[weights.products(16, 16)], |_| true);
        assert!(run.join().unwrap());
        assert!(other.start(0, &input(16)));
    });
    assert_eq!(fault.alive(), n_alive + 1);
    assert_eq!((fault.violations(), session.report().n_contexts), (0, 1));
}

#[test]
fn for_a_library_that_hangs_nothing_more_is_read() {
    let (fault, weights) = (Fault::new(""), Weights::new());
    let (mut qnn, session) = open(&fault, None);
    fault.set("hang contextCreate");
    let n_reads = weights.prepare(&mut qnn, &[weights.products(N_SLICED, 16)], |_| true);
    // The first slice, for its key and to be lowered.
    assert_eq!(n_reads, 2);
    assert!(!session.is_alive());
    assert_eq!(session.report().refused.values().sum::<u64>(), 2);
}

/// Set for a process of its own: variables are the process's.
const CHILD: &str = "LLADA_NPU_TEST_CHILD";

#[test]
fn a_library_that_hung_is_not_opened_again() {
    if std::env::var_os(CHILD).is_none() {
        let fault = Fault::new("");
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["a_library_that_hung_is_not_opened_again", "--exact"])
            .env(CHILD, "1")
            .env("LLADA_NPU_ACCEL", "qnn")
            .env("LLADA_NPU_QNN_DIR", fault.path().parent().unwrap())
            .env("LLADA_NPU_QNN_TIMEOUT", "1")
            .env("QNN_FAULT", "hang contextCreate")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let weights = Weights::new();
    let session = || session().unwrap();
    let first = session().expect("the library opens");
    assert!(session().is_some(), "instances share it");
    drop(first);
    let again = session().expect("one that was dropped alive is opened again");
    let mut qnn = Qnn::new(Host::new(1).unwrap(), Arc::clone(&again));
    weights.prepare(&mut qnn, &[weights.products(16, 16)], |_| true);
    assert!(session().is_none());
    drop((qnn, again));
    assert!(session().is_none());
}
