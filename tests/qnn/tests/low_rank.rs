//! Low-rank additions to products, over the library that fails on demand: factors and scales change, graphs do not.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;

use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::qnn::{Qnn, Report, Session, Settings, Sums};
use ggml_llada_npu::device::{Addition, Dense, DenseKind, DenseWeight, Layout, SegmentAccelerator};
use ggml_llada_npu::knobs::{Linear, Tier};
use ggml_llada_npu::memory::store::Source;
use ggml_llada_npu::memory::{Keep, WeightStore};
use half::f16;
use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::Type;
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::session::settings;

const K: usize = 32;
const N: usize = 48;
const N_ROWS: usize = 5;
/// How far results may be from the reference: the graphs' own bound.
const MAX_NMSE: f64 = 1e-5;

/// Numbers without a pattern, most of them smaller than 1.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(state.to_le_bytes()[4].cast_signed()) / 128.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn bytes(values: &[f32], ty: Type) -> Vec<u8> {
    match ty {
        Type::F16 => {
            let halves = values.iter().map(|&x| f16::from_f32(x).to_le_bytes());
            halves.flatten().collect()
        }
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// A matrix of a model or an adapter, `n` rows of `k` elements, at an address of its own.
struct Matrix {
    values: Vec<f32>,
    bytes: Vec<u8>,
    ty: Type,
    k: usize,
    n: usize,
    region: Arc<Region>,
}

impl Matrix {
    fn new(store: &WeightStore, ty: Type, k: usize, n: usize, seed: u64) -> Self {
        let mut matrix = Self {
            values: Vec::new(),
            bytes: Vec::new(),
            ty,
            k,
            n,
            region: Arc::new(Region::anonymous(4 * k * n).unwrap()),
        };
        matrix.set(store, seed);
        matrix
    }

    /// Other numbers, as the host writes them: the store is told.
    fn set(&mut self, store: &WeightStore, seed: u64) {
        let (k, n) = (self.k, self.n);
        let values = noise(k * n, seed);
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let shrink = 1.0 / (k as f32).sqrt();
        self.values = values.iter().map(|x| x * shrink).collect();
        self.bytes = bytes(&self.values, self.ty);
        store.remove_buffer(&self.region);
        store.add_buffer(Arc::clone(&self.region), Source::Written);
    }

    fn weight(&self, node: usize) -> DenseWeight {
        DenseWeight {
            node,
            address: self.region.address(),
            size_bytes: self.bytes.len(),
            ggml_type: self.ty.0,
            k: self.k,
            n: self.n,
        }
    }

    fn apply(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.values.chunks_exact(self.k);
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        rows.map(dot).collect()
    }
}

/// What is added to a weight.
struct Adapter {
    weight: usize,
    a: Matrix,
    b: Matrix,
    scale: f32,
}

struct Segment {
    store: WeightStore,
    kind: DenseKind,
    weights: Vec<Matrix>,
    adapters: Vec<Adapter>,
}

impl Segment {
    fn new(kind: DenseKind) -> Self {
        let store = WeightStore::new(Keep::Nothing);
        let shapes = match kind {
            DenseKind::Products => vec![(K, N), (K, N)],
            DenseKind::FeedForward => vec![(K, N), (K, N), (N, K)],
        };
        let matrix = |(i, (k, n)): (usize, (usize, usize))| {
            Matrix::new(&store, Type::F16, k, n, 7 + i as u64)
        };
        let weights = shapes.into_iter().enumerate().map(matrix).collect();
        Self {
            store,
            kind,
            weights,
            adapters: Vec::new(),
        }
    }

    fn adapt(&mut self, weight: usize, rank: usize, ty: Type, scale: f32) {
        let Matrix { k, n, .. } = self.weights[weight];
        let seed = 100 + 2 * self.adapters.len() as u64;
        self.adapters.push(Adapter {
            weight,
            a: Matrix::new(&self.store, ty, k, rank, seed),
            b: Matrix::new(&self.store, ty, rank, n, seed + 1),
            scale,
        });
    }

    /// Nodes are numbered as matrices are: weights, then the factors of the adapters.
    fn matrices(&self) -> Vec<&Matrix> {
        let factors = self
            .adapters
            .iter()
            .flat_map(|adapter| [&adapter.a, &adapter.b]);
        self.weights.iter().chain(factors).collect()
    }

    fn dense(&self) -> Dense {
        let n = self.weights.len();
        let addition = |(i, adapter): (usize, &Adapter)| Addition {
            weight: adapter.weight,
            a: adapter.a.weight(n + 2 * i),
            b: adapter.b.weight(n + 2 * i + 1),
            scale: adapter.scale,
        };
        let weights = self.weights.iter().enumerate();
        Dense {
            kind: self.kind,
            x: Layout::contiguous(Type::F32, 4, [K, N_ROWS, 1, 1]),
            weights: weights.map(|(i, matrix)| matrix.weight(i)).collect(),
            additions: self.adapters.iter().enumerate().map(addition).collect(),
        }
    }

    /// Computes the segment; the outputs, or `None` where the host has to.
    fn run(&self, qnn: &mut Qnn, x: &[f32]) -> Option<Vec<Vec<f32>>> {
        let matrices = self.matrices();
        let mut read = |node: usize, body: &mut dyn FnMut(&[u8])| body(&matrices[node].bytes);
        let dense = self.dense();
        qnn.prepare(
            std::slice::from_ref(&dense),
            &self.store.plain(),
            &mut read,
            &|| false,
        );
        if !qnn.start(0, &bytes(x, Type::F32)) {
            return None;
        }
        let outputs = match self.kind {
            DenseKind::Products => self.weights.as_slice(),
            DenseKind::FeedForward => &self.weights[2..],
        };
        let finish = |(i, matrix): (usize, &Matrix)| {
            let mut out = vec![0; 4 * N_ROWS * matrix.n];
            qnn.finish(0, i, &mut out).unwrap();
            let numbers = out.as_chunks().0.iter();
            numbers.map(|&number| f32::from_le_bytes(number)).collect()
        };
        Some(outputs.iter().enumerate().map(finish).collect())
    }

    fn sum(&self, weight: usize, x: &[f64]) -> Vec<f64> {
        let mut sum = self.weights[weight].apply(x);
        for adapter in self.adapters.iter().filter(|a| a.weight == weight) {
            let more = adapter.b.apply(&adapter.a.apply(x));
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum += f64::from(adapter.scale) * more;
            }
        }
        sum
    }

    fn expected(&self, x: &[f32]) -> Vec<Vec<f64>> {
        let rows = x
            .chunks_exact(K)
            .map(|row| row.iter().map(|&x| f64::from(x)).collect());
        let rows: Vec<Vec<f64>> = rows.collect();
        match self.kind {
            DenseKind::Products => {
                let output = |i| rows.iter().flat_map(|x| self.sum(i, x)).collect();
                (0..self.weights.len()).map(output).collect()
            }
            DenseKind::FeedForward => {
                let row = |x: &Vec<f64>| {
                    let (gate, up) = (self.sum(0, x), self.sum(1, x));
                    let gated = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
                    self.sum(2, &gated.collect::<Vec<_>>())
                };
                vec![rows.iter().flat_map(row).collect()]
            }
        }
    }

    /// Runs and compares.
    fn check(&self, qnn: &mut Qnn, what: &str) -> Vec<Vec<f32>> {
        let x = noise(K * N_ROWS, 3);
        let outputs = self
            .run(qnn, &x)
            .unwrap_or_else(|| panic!("{what}: left to the host"));
        for (got, expected) in outputs.iter().zip(self.expected(&x)) {
            assert_eq!(got.len(), expected.len());
            let mut sums = Sums::default();
            for (&got, expected) in got.iter().zip(expected) {
                sums.add(f64::from(got), expected);
            }
            assert!(sums.nmse() <= MAX_NMSE, "{what}: {:e}", sums.nmse());
        }
        outputs
    }
}

fn open(settings: Settings) -> (Qnn, Arc<Session>) {
    let session = Arc::new(Session::open(settings, None).unwrap());
    (
        Qnn::new(Host::new(1).unwrap(), Arc::clone(&session)),
        session,
    )
}

#[test]
fn another_adapter_and_another_scale_are_other_inputs_of_one_graph() {
    for linear in [Linear::FullyConnected, Linear::Conv] {
        for kind in [DenseKind::Products, DenseKind::FeedForward] {
            let fault = Fault::new("");
            let (mut qnn, session) = open(Settings {
                linear,
                ..settings(&fault)
            });
            let mut segment = Segment::new(kind);
            segment.adapt(1, 4, Type::F32, 0.5);
            if kind == DenseKind::FeedForward {
                segment.adapt(0, 8, Type::F16, 2.0);
                segment.adapt(2, 16, Type::F16, -1.0);
            }
            let n_adapters = segment.adapters.len() as u64;
            let mut seen = vec![segment.check(&mut qnn, "first")];
            // The same again, from the numbers that were kept.
            assert_eq!(segment.check(&mut qnn, "again"), seen[0]);
            segment.adapters[0].scale = -3.0;
            seen.push(segment.check(&mut qnn, "another scale"));
            segment.adapters[0].a.set(&segment.store, 500);
            seen.push(segment.check(&mut qnn, "another a"));
            segment.adapters[0].b.set(&segment.store, 501);
            seen.push(segment.check(&mut qnn, "another b"));
            // Another one elsewhere, of another rank, that the graph has room for.
            let weight = segment.adapters[0].weight;
            segment.adapters.remove(0);
            segment.adapt(weight, 7, Type::F16, 1.5);
            seen.push(segment.check(&mut qnn, "another adapter"));
            for (i, outputs) in seen.iter().enumerate() {
                assert!(!seen[..i].contains(outputs), "{i}: as before");
            }
            assert_eq!(fault.calls("graphFinalize"), 1);
            let report = session.report();
            assert_eq!((report.n_graphs_built, report.n_contexts), (1, 1));
            assert_eq!(report.n_additions, n_adapters * 7, "a check, and six times");
            assert_eq!(fault.violations(), 0);
        }
    }
}

#[test]
fn several_adapters_of_a_product_are_one() {
    let fault = Fault::new("");
    let (mut qnn, session) = open(settings(&fault));
    let mut segment = Segment::new(DenseKind::Products);
    segment.adapt(0, 5, Type::F16, 1.0);
    segment.adapt(0, 11, Type::F32, 0.25);
    segment.check(&mut qnn, "two");
    segment.adapters.pop();
    segment.adapt(0, 6, Type::F32, 2.0);
    segment.check(&mut qnn, "two others");
    assert_eq!(fault.calls("graphFinalize"), 1);
    assert!(reasons(&session.report()).is_empty());
}

#[test]
fn a_slice_of_a_weight_takes_its_rows_of_a_factor() {
    let fault = Fault::new("");
    let (mut qnn, _session) = open(settings(&fault));
    let mut segment = Segment::new(DenseKind::Products);
    segment.weights.truncate(1);
    segment.weights[0] = Matrix::new(&segment.store, Type::F16, K, 16384 + 16, 9);
    segment.adapt(0, 3, Type::F16, 1.0);
    segment.check(&mut qnn, "sliced");
    assert_eq!(fault.calls("graphFinalize"), 2);
}

fn reasons(report: &Report) -> Vec<&str> {
    report.refused.keys().map(String::as_str).collect()
}

#[test]
fn what_no_graph_takes_is_the_hosts_and_counted_once() {
    let x = noise(K * N_ROWS, 3);
    for (tier, rank, reason) in [
        (
            Tier::Block,
            300,
            "an addition of rank 300, at most 256 has a graph",
        ),
        (Tier::Int8, 8, "no additions to products of 16 bits"),
    ] {
        let fault = Fault::new("");
        let (mut qnn, session) = open(Settings {
            tier,
            linear: Linear::Conv,
            ..settings(&fault)
        });
        let mut segment = Segment::new(DenseKind::Products);
        segment.adapt(0, rank, Type::F16, 1.0);
        for _ in 0..2 {
            assert_eq!(segment.run(&mut qnn, &x), None);
        }
        let report = session.report();
        assert_eq!(reasons(&report), [reason]);
        assert_eq!(report.refused[reason], 1);
        assert_eq!(fault.calls("graphFinalize"), 0);
        // Without it, the products have graphs.
        segment.adapters.clear();
        assert!(segment.run(&mut qnn, &x).is_some());
    }
}

#[test]
fn numbers_beyond_half_floats_are_the_hosts() {
    let fault = Fault::new("");
    let (mut qnn, session) = open(settings(&fault));
    let mut segment = Segment::new(DenseKind::Products);
    segment.adapt(0, 8, Type::F32, f32::INFINITY);
    let x = noise(K * N_ROWS, 3);
    assert_eq!(segment.run(&mut qnn, &x), None);
    assert_eq!(
        reasons(&session.report()),
        ["an addition with numbers that half floats do not hold"]
    );
    segment.adapters[0].scale = 1.0;
    segment.check(&mut qnn, "finite again");
    assert_eq!(fault.calls("graphFinalize"), 1);
}

#[test]
fn a_library_that_leaves_additions_out_is_found_out() {
    for kind in [DenseKind::Products, DenseKind::FeedForward] {
        for weight in 0..2 {
            let fault = Fault::new("wrong inputs");
            let (mut qnn, session) = open(settings(&fault));
            let mut segment = Segment::new(kind);
            segment.adapt(weight, 8, Type::F16, 1.0);
            assert_eq!(segment.run(&mut qnn, &noise(K * N_ROWS, 3)), None);
            assert!(reasons(&session.report())[0].starts_with("results are wrong"));
        }
    }
}
