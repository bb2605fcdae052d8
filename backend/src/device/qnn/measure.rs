//! What products and layers of large models come to with a library: graphs, errors, times, bytes.

use std::time::{Duration, Instant};

use super::check::{self, Reference, Sums};
use super::engine::{Draft, Engine, Made};
use super::part::{Form, MAX_COLUMNS};
use super::probe::{Example, read, rows_of};
use super::settings::Settings;
use super::weight::QnnType;
use super::worker::Worker;
use crate::device::DenseKind;

/// What a product or a layer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Share of the error in the power, on samples; the worst output of a layer.
    pub nmse: f64,
    /// Graphs.
    pub n_graphs: usize,
    /// Contexts that they are in.
    pub n_contexts: usize,
    /// Time in finalising.
    pub finalize: Duration,
    /// Time in executing; the emulation's on x86-64.
    pub execute: Duration,
    /// Bytes of the context binaries.
    pub binary_bytes: usize,
    /// How much the memory of the process grew until all contexts of a layer were there.
    pub resident_bytes: u64,
}

/// Sizes of a transformer layer whose K and V are as wide as Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Elements of an embedding.
    pub n_embd: usize,
    /// Results of gate and up.
    pub n_ff: usize,
}

/// Builds and executes the product of a weight `[k, n]`, made of example blocks, with `n_rows` rows: in slices where it has
/// many rows. The contexts are freed one by one.
///
/// # Errors
/// What the library says, as text.
pub fn measure(
    settings: &Settings,
    ty: QnnType,
    (k, n): (usize, usize),
    n_rows: usize,
) -> Result<Measured, String> {
    let bench = Bench::open(settings, n_rows)?;
    let x = check::input(n_rows, k);
    let mut measured = Measured::default();
    let mut sums = Sums::default();
    for start in (0..n).step_by(MAX_COLUMNS) {
        let segment = Segment {
            kind: DenseKind::Products,
            weights: vec![Example::new(ty, k, MAX_COLUMNS.min(n - start))],
        };
        let made = bench.build(&[&segment], &mut measured)?;
        for nmse in bench.execute(&made, 0, &segment, &x, &mut measured)? {
            sums.power += nmse.power;
            sums.error += nmse.error;
        }
        bench.free(&made)?;
    }
    measured.nmse = sums.nmse();
    Ok(measured)
}

/// Builds and executes the graphs of a layer as a [`Session`](super::Session) groups them: Q, K and V beside attention's
/// output in one context, the feed-forward part in another. Inputs are such that what gate gives is of the size of 1, as in
/// a model: scales of the example blocks are not a model's. `resident` tells the memory that the process has.
///
/// # Errors
/// What the library says, as text.
pub fn measure_layer(
    settings: &Settings,
    ty: QnnType,
    LayerShape { n_embd, n_ff }: LayerShape,
    n_rows: usize,
    resident: &dyn Fn() -> u64,
) -> Result<Measured, String> {
    let bench = Bench::open(settings, n_rows)?;
    // Weights of one input differ: with gate and up the same, all that `down` multiplies would be positive.
    let segment = |kind, shapes: &[(usize, usize)]| Segment {
        kind,
        weights: (0..)
            .zip(shapes)
            .map(|(skip, &(k, n))| Example::after(ty, k, skip, n))
            .collect(),
    };
    let square = (n_embd, n_embd);
    let qkv = segment(DenseKind::Products, &[square; 3]);
    let output = segment(DenseKind::Products, &[square]);
    let shapes = [(n_embd, n_ff), (n_embd, n_ff), (n_ff, n_embd)];
    let feed_forward = segment(DenseKind::FeedForward, &shapes);
    let groups = [vec![&qkv, &output], vec![&feed_forward]];
    let mut x = check::input(n_rows, n_embd);
    let factor = feed_forward.weights[0].factor(&x[..n_embd]);
    x.iter_mut().for_each(|x| *x *= factor);
    let mut measured = Measured::default();
    let before = resident();
    let contexts: Vec<Made> = groups
        .iter()
        .map(|group| bench.build(group, &mut measured))
        .collect::<Result<_, _>>()?;
    measured.resident_bytes = resident().saturating_sub(before);
    for (made, group) in contexts.iter().zip(&groups) {
        for (graph, segment) in group.iter().enumerate() {
            for sums in bench.execute(made, graph, segment, &x, &mut measured)? {
                measured.nmse = measured.nmse.max(sums.nmse());
            }
        }
    }
    for made in &contexts {
        bench.free(made)?;
    }
    Ok(measured)
}

/// Weights of one graph.
struct Segment {
    kind: DenseKind,
    weights: Vec<Example>,
}

struct Bench<'a> {
    worker: Worker<Engine>,
    settings: &'a Settings,
    n_rows: usize,
}

impl<'a> Bench<'a> {
    fn open(settings: &'a Settings, n_rows: usize) -> Result<Self, String> {
        let options = settings.open.clone();
        let opened = Worker::start(settings.timeout, move |beat| Engine::open(&options, beat));
        let (worker, _identity) = opened
            .map_err(|gone| gone.to_string())?
            .map_err(|error| error.to_string())?;
        Ok(Self {
            worker,
            settings,
            n_rows,
        })
    }

    /// Builds a context.
    fn build(&self, segments: &[&Segment], measured: &mut Measured) -> Result<Made, String> {
        let Settings {
            tier,
            linear,
            vtcm_mb,
            ..
        } = *self.settings;
        let mut drafts = Vec::new();
        for (i, segment) in segments.iter().enumerate() {
            let weights = segment.weights.iter();
            drafts.push(Draft {
                name: format!("g{i}"),
                kind: segment.kind,
                weights: weights
                    .map(|example| example.lower(tier, linear))
                    .collect::<Result<_, _>>()?,
                form: Form {
                    n_rows: self.n_rows,
                    linear,
                    ranks: Vec::new(),
                    vtcm_mb,
                },
            });
        }
        let done = self.worker.call(move |engine, beat| {
            let made = engine
                .build(&drafts, beat)
                .map_err(|refusal| refusal.error)?;
            drop(drafts);
            let binary = engine.binary(made.context, b"")?.len();
            Ok::<_, llada_npu_ffi::qnn::Error>((made, binary))
        });
        let (made, binary) = done
            .map_err(|gone| gone.to_string())?
            .map_err(|error| error.to_string())?;
        measured.n_contexts += 1;
        measured.n_graphs += made.graphs.len();
        measured.finalize += made.finalize;
        measured.binary_bytes += binary;
        Ok(made)
    }

    /// Executes a graph; returns the sums of each output.
    fn execute(
        &self,
        made: &Made,
        graph: usize,
        segment: &Segment,
        x: &[f32],
        measured: &mut Measured,
    ) -> Result<Vec<Sums>, String> {
        let k = segment.weights[0].weight.k;
        let (input, factors) = rows_of(self.settings.tier, x, k);
        let context = made.context;
        let done = self.worker.call(move |engine, _| {
            let begin = Instant::now();
            let (outputs, _) = engine.execute_bytes(context, graph, &[input])?;
            Ok::<_, llada_npu_ffi::qnn::Error>((outputs, begin.elapsed()))
        });
        let (outputs, time) = done
            .map_err(|gone| gone.to_string())?
            .map_err(|error| error.to_string())?;
        measured.execute += time;
        let rows = check::rows(self.n_rows);
        let reference = Reference::products(x, k, &rows);
        let (reference, last) = match segment.kind {
            DenseKind::Products => (reference, &segment.weights[..]),
            DenseKind::FeedForward => {
                let [gate, up, _] = &segment.weights[..] else {
                    return Err("a feed-forward part has three weights".to_owned());
                };
                let reference = reference.feed_forward((&gate.rows(), None), (&up.rows(), None));
                (reference, &segment.weights[2..])
            }
        };
        let elements = &made.graphs[graph].outputs;
        let compare = |((example, bytes), &element): ((&Example, &Vec<u8>), &_)| {
            let n = example.weight.n;
            let results: Vec<Vec<f32>> = rows
                .iter()
                .map(|&row| read(element, &bytes[2 * row * n..], factors[row], n))
                .collect();
            let mut sums = Sums::default();
            let samples = reference.samples(&example.rows(), &(0..n), None);
            samples.compare(results.iter().map(Vec::as_slice), 0, &mut sums);
            sums
        };
        Ok(last
            .iter()
            .zip(&outputs)
            .zip(elements)
            .map(compare)
            .collect())
    }

    fn free(&self, made: &Made) -> Result<(), String> {
        let context = made.context;
        let done = self.worker.call(move |engine, _| engine.free(context));
        done.map_err(|gone| gone.to_string())
    }
}
