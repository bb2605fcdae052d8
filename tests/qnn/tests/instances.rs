//! Segments of the device over the library that fails on demand: each test in a process of its own, with a session of its own.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::Arc;

use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::qnn::{Qnn, Session, session};
use ggml_llada_npu::device::{Accelerator, Dense, DenseKind, DenseWeight, Layout};
use ggml_llada_npu::memory::store::Source;
use ggml_llada_npu::memory::{Keep, WeightStore};
use half::f16;
use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::Type;
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::case::{alone, directory};

const K: usize = 64;
const N_ROWS: usize = 8;
const WEIGHT_BYTES: usize = 2 * K * K;

/// A store with a buffer of weights, feed-forward parts over it, and an input.
struct Model {
    store: WeightStore,
    segments: Vec<Dense>,
    weight: Vec<u8>,
    x: Vec<u8>,
}

impl Model {
    fn new(n_segments: usize) -> Self {
        let store = WeightStore::new(Keep::Nothing);
        let region = Arc::new(Region::anonymous(1 << 20).unwrap());
        store.add_buffer(Arc::clone(&region), Source::Written);
        let weight = |i: usize| DenseWeight {
            node: i,
            address: region.address() + i * WEIGHT_BYTES,
            size_bytes: WEIGHT_BYTES,
            ggml_type: 1,
            k: K,
            n: K,
        };
        let segment = |i: usize| Dense {
            kind: DenseKind::FeedForward,
            x: Layout::contiguous(Type::F32, 4, [K, N_ROWS, 1, 1]),
            weights: (3 * i..3 * i + 3).map(weight).collect(),
            additions: Vec::new(),
        };
        let number = |i: usize| (i * 37 % 101) as f32 / 101.0 - 0.4;
        Self {
            segments: (0..n_segments).map(segment).collect(),
            weight: (0..K * K)
                .flat_map(|i| f16::from_f32(number(i)).to_le_bytes())
                .collect(),
            x: (0..K * N_ROWS)
                .flat_map(|i| number(i).to_le_bytes())
                .collect(),
            store,
        }
    }

    fn prepare(&self, qnn: &mut Qnn, is_aborted: &dyn Fn() -> bool) {
        let mut read = |_: usize, body: &mut dyn FnMut(&[u8])| body(&self.weight);
        let device = qnn.segments().unwrap();
        device.prepare(&self.segments, &self.store.plain(), &mut read, is_aborted);
    }

    fn start(&self, qnn: &mut Qnn, i: usize) -> bool {
        qnn.segments().unwrap().start(i, &self.x)
    }
}

/// Writes the output of a feed-forward part that was started.
fn finish(qnn: &mut Qnn, i: usize) -> Vec<f32> {
    let device = qnn.segments().expect("what is started ends");
    let mut bytes = vec![0; 4 * K * N_ROWS];
    device.finish(i, 0, &mut bytes).unwrap();
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Runs a test with a session over a library that does nothing wrong yet.
fn with_session(name: &str, body: impl FnOnce(&Arc<Session>, &Fault)) {
    let fault = Fault::new("");
    let dir = fault.path().parent().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let variables = [
        ("LLADA_NPU_ACCEL", OsStr::new("qnn")),
        ("LLADA_NPU_QNN_DIR", dir.as_os_str()),
        ("LLADA_NPU_CACHE", cache.path().as_os_str()),
        ("LLADA_NPU_QNN_TIMEOUT", OsStr::new("2")),
    ];
    alone(name, &variables, || {
        let session = session().unwrap().expect("a library that works");
        body(
            &session,
            &Fault::at(directory().unwrap().join("libQnnHtp.so")),
        );
    });
}

fn instance(session: &Arc<Session>) -> Qnn {
    Qnn::new(Host::new(1).unwrap(), Arc::clone(session))
}

#[test]
fn what_is_started_ends_though_another_instance_loses_the_library() {
    let name = "what_is_started_ends_though_another_instance_loses_the_library";
    with_session(name, |session, fault| {
        let model = Model::new(1);
        let (mut a, mut b) = (instance(session), instance(session));
        for qnn in [&mut a, &mut b] {
            model.prepare(qnn, &|| false);
        }
        assert!(model.start(&mut b, 0));
        let expected = finish(&mut b, 0);
        assert!(expected.iter().any(|&y| y != 0.0));
        // Gate and up of one are left out; then the library hangs, under the other.
        assert!(model.start(&mut a, 0));
        fault.set("hang graphExecute");
        assert!(!model.start(&mut b, 0));
        assert!(!session.is_alive());
        assert_eq!(finish(&mut a, 0), expected);
        // From now on the host computes.
        model.prepare(&mut a, &|| false);
        assert!(!model.start(&mut a, 0));
    });
}

#[test]
fn preparing_ends_where_it_is_aborted_and_goes_on_later() {
    let name = "preparing_ends_where_it_is_aborted_and_goes_on_later";
    with_session(name, |session, _fault| {
        let model = Model::new(3);
        let mut qnn = instance(session);
        let n_asked = Cell::new(0);
        model.prepare(&mut qnn, &|| n_asked.replace(n_asked.get() + 1) == 1);
        // The same weights three times: built once, and then found on disk.
        let n_made = || session.report().n_graphs_built + session.report().n_graphs_loaded;
        assert_eq!(n_made(), 1);
        assert!(model.start(&mut qnn, 0));
        assert!(!model.start(&mut qnn, 1));
        model.prepare(&mut qnn, &|| false);
        assert_eq!(n_made(), 3);
        assert!(model.start(&mut qnn, 1));
    });
}

#[test]
fn weights_that_change_unseen_are_not_taken() {
    let name = "weights_that_change_unseen_are_not_taken";
    with_session(name, |session, _fault| {
        let mut model = Model::new(2);
        // In memory that is not the device's.
        model.segments[0].weights[2].address = model.weight.as_ptr() as usize;
        let mut qnn = instance(session);
        model.prepare(&mut qnn, &|| false);
        assert!(!model.start(&mut qnn, 0));
        assert!(model.start(&mut qnn, 1));
        assert_eq!(session.report().n_graphs_built, 1);
    });
}
