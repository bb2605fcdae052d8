//! What a library can do, found by trying: small graphs of every kind, their results compared.

mod attention;

use std::fmt::Display;

use half::f16;
use llada_npu_kernels::tile::TileType;

use super::check::{self, Reference, Rows, Sums};
use super::engine::{Draft, Engine, Identity};
use super::part::{Element, Form};
use super::settings::Settings;
use super::weight::{QnnType, Weight, WeightData, example_rows};
use super::worker::Worker;
use crate::device::{DenseKind, DenseWeight};
use crate::knobs::{Linear, Tier};

/// Shape of the graphs: rows, elements of a row, results of a row.
const N_ROWS: usize = 32;
const K: usize = 256;
const N: usize = 64;

/// Rank of low-rank additions.
const RANK: usize = 16;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// Something without which nothing works: library, device.
    Needed,
    /// Products of weights in this form, written down so.
    Product(Tier, Linear),
    /// Something else that is used where it works.
    Other,
}

/// Something that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// What, for people.
    pub what: String,
    /// Whether it works.
    pub works: bool,
    /// Versions, errors, reasons.
    pub detail: String,
}

/// Products to try.
const PRODUCTS: [(&str, TileType, Tier, Linear); 9] = [
    (
        "4-bit blocks (q4_0)",
        TileType::Q4_0,
        Tier::Block,
        Linear::FullyConnected,
    ),
    (
        "4-bit blocks with minima (q4_1)",
        TileType::Q4_1,
        Tier::Block,
        Linear::FullyConnected,
    ),
    (
        "4-bit blocks with minima (q4_K)",
        TileType::Q4K,
        Tier::Block,
        Linear::FullyConnected,
    ),
    (
        "8-bit blocks (q6_K)",
        TileType::Q6K,
        Tier::Block,
        Linear::FullyConnected,
    ),
    (
        "8-bit blocks (q8_0)",
        TileType::Q8_0,
        Tier::Block,
        Linear::FullyConnected,
    ),
    (
        "4-bit blocks as convolution (q4_0)",
        TileType::Q4_0,
        Tier::Block,
        Linear::Conv,
    ),
    (
        "half floats",
        TileType::F16,
        Tier::Half,
        Linear::FullyConnected,
    ),
    (
        "half floats as convolution",
        TileType::F16,
        Tier::Half,
        Linear::Conv,
    ),
    (
        "bytes per row, 16-bit activations",
        TileType::Q8_0,
        Tier::Int8,
        Linear::Conv,
    ),
];

/// Opens the library and tries what is used of it; `tell` gets every finding as it is made, so that something is known if
/// the library ends the process. Nothing is tried after a call that does not return.
pub fn probe(settings: &Settings, tell: &mut dyn FnMut(Finding)) {
    let options = settings.open.clone();
    let opened = Worker::start(settings.timeout, move |beat| Engine::open(&options, beat));
    let (worker, identity) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return tell(needed(no("library", &error))),
        Err(gone) => return tell(needed(no("library", &gone))),
    };
    for finding in identify(&identity) {
        tell(finding);
    }
    let votes = worker.call(|engine, _| engine.has_power());
    tell(match votes {
        Ok(true) => yes("performance mode", &"accepted"),
        Ok(false) => no("performance mode", &"refused"),
        Err(gone) => no("performance mode", &gone),
    });
    let prober = Prober { worker, settings };
    tell(prober.formula());
    for (what, ty, tier, linear) in PRODUCTS {
        tell(prober.product(what, ty, tier, linear));
    }
    tell(prober.feed_forward());
    tell(prober.low_rank());
    tell(prober.attention());
}

fn needed(finding: Finding) -> Finding {
    Finding {
        kind: FindingKind::Needed,
        ..finding
    }
}

fn yes(what: &str, detail: &dyn Display) -> Finding {
    Finding {
        kind: FindingKind::Other,
        what: what.to_owned(),
        works: true,
        detail: detail.to_string(),
    }
}

fn no(what: &str, detail: &dyn Display) -> Finding {
    Finding {
        works: false,
        ..yes(what, detail)
    }
}

fn identify(identity: &Identity) -> Vec<Finding> {
    let Identity {
        path,
        core_version,
        backend_version,
        build_id,
        platform,
        soc,
    } = identity;
    let library = format!(
        "{}, build {build_id}, core {core_version}, HTP {backend_version}",
        path.display()
    );
    let emulated = if cfg!(target_arch = "x86_64") {
        " (emulated; times mean nothing)"
    } else {
        ""
    };
    let chip = soc.map_or("unknown chip".to_owned(), |soc| soc.to_string());
    let device = match platform {
        Some(platform) => format!(
            "{chip}{emulated}; the library says {}, v{}, {} MiB of VTCM, {} devices",
            platform.soc, platform.arch, platform.vtcm_mb, platform.n_devices
        ),
        None => format!("{chip}{emulated}; the library says nothing about it"),
    };
    let found = [yes("library", &library), yes("device", &device)];
    found.map(needed).into()
}

struct Prober<'a> {
    worker: Worker<Engine>,
    settings: &'a Settings,
}

impl Prober<'_> {
    fn form(&self, linear: Linear) -> Form {
        Form {
            n_rows: N_ROWS,
            linear,
            ranks: Vec::new(),
            vtcm_mb: self.settings.vtcm_mb,
        }
    }

    /// Builds a graph and executes it with each list of inputs.
    fn run(
        &self,
        draft: Draft,
        runs: Vec<Vec<Vec<u8>>>,
    ) -> Result<Vec<(Element, Vec<u8>)>, String> {
        let done = self.worker.call(move |engine, beat| {
            let made = engine
                .build(&[draft], beat)
                .map_err(|refusal| refusal.error)?;
            let mut results = Vec::new();
            for inputs in &runs {
                let (mut outputs, _) = engine.execute_bytes(made.context, 0, inputs)?;
                beat.tick();
                results.push((made.graphs[0].outputs[0], outputs.swap_remove(0)));
            }
            engine.free(made.context);
            Ok::<_, llada_npu_ffi::qnn::Error>(results)
        });
        match done {
            Ok(Ok(results)) => Ok(results),
            Ok(Err(error)) => Err(error.to_string()),
            Err(gone) => Err(gone.to_string()),
        }
    }

    fn product(&self, what: &str, ty: TileType, tier: Tier, linear: Linear) -> Finding {
        let example = Example::new(QnnType::Tiled(ty), K, N);
        let max = check::max_nmse(DenseKind::Products, tier);
        let nmse = example.lower(tier, linear).and_then(|weight| {
            let draft = self.draft(vec![weight], DenseKind::Products, self.form(linear));
            let x = check::input(N_ROWS, K);
            let (input, factors) = rows_of(tier, &x, K);
            let results = self.run(draft, vec![vec![input]])?;
            Ok(example.nmse(&x, &results[0], &factors))
        });
        Finding {
            kind: FindingKind::Product(tier, linear),
            ..judge(what, nmse, max)
        }
    }

    fn draft(&self, weights: Vec<Weight>, kind: DenseKind, form: Form) -> Draft {
        Draft {
            name: "probe".to_owned(),
            kind,
            weights,
            form,
        }
    }

    /// Finds out what an offset does to the numbers of a block, which releases and their documents do not agree on.
    fn formula(&self) -> Finding {
        let what = "value of a number in a block";
        let example = Example::new(QnnType::Tiled(TileType::Q4_1), K, N);
        let done = example
            .lower(Tier::Block, Linear::FullyConnected)
            .and_then(|weight| {
                let other = added_after_scaling(&weight);
                let form = self.form(Linear::FullyConnected);
                let draft = self.draft(vec![weight], DenseKind::Products, form);
                let x = check::input(N_ROWS, K);
                let (input, factors) = rows_of(Tier::Block, &x, K);
                let results = self.run(draft, vec![vec![input]])?;
                let ours = example.nmse(&x, &results[0], &factors);
                let theirs = nmse_of(&other, &x, &results[0], &factors);
                Ok((ours, theirs))
            });
        let max = check::max_nmse(DenseKind::Products, Tier::Block);
        match done {
            Ok((ours, _)) if ours <= max => yes(what, &"(q + offset) * scale"),
            Ok((_, theirs)) if theirs <= max => no(
                what,
                &"q * scale + offset: only blocks without minima are of use",
            ),
            Ok((ours, theirs)) => no(
                what,
                &format!("unknown: errors {ours:.1e} and {theirs:.1e}"),
            ),
            Err(error) => no(what, &error),
        }
    }

    fn feed_forward(&self) -> Finding {
        let what = "feed-forward part (gate, up, SwiGLU, down)";
        let examples = [
            Example::new(QnnType::Tiled(TileType::Q4_0), K, N),
            Example::new(QnnType::Tiled(TileType::Q8_0), K, N),
            Example::new(QnnType::Tiled(TileType::Q4_0), N, K),
        ];
        let max = check::max_nmse(DenseKind::FeedForward, Tier::Block);
        let weights: Result<Vec<_>, _> = examples
            .iter()
            .map(|example| example.lower(Tier::Block, Linear::FullyConnected))
            .collect();
        let nmse = weights.and_then(|weights| {
            let form = self.form(Linear::FullyConnected);
            let draft = self.draft(weights, DenseKind::FeedForward, form);
            let x = check::input(N_ROWS, K);
            let (input, _) = rows_of(Tier::Block, &x, K);
            let (element, bytes) = self.run(draft, vec![vec![input]])?.swap_remove(0);
            let rows = check::rows(N_ROWS);
            let results: Vec<Vec<f32>> = rows
                .iter()
                .map(|row| read(element, &bytes[2 * row * K..], 1.0, K))
                .collect();
            let reference = Reference::products(&x, K, &rows)
                .feed_forward((&examples[0].rows(), None), (&examples[1].rows(), None));
            let mut sums = Sums::default();
            let samples = reference.samples(&examples[2].rows(), &(0..K), None);
            samples.compare(results.iter().map(Vec::as_slice), 0, &mut sums);
            Ok(sums.nmse())
        });
        judge(what, nmse, max)
    }

    /// Changes a low-rank addition between two executions of one graph.
    fn low_rank(&self) -> Finding {
        let what = "low-rank addition as inputs (LoRA)";
        let example = Example::new(QnnType::Tiled(TileType::Q4_0), K, N);
        let max = check::max_nmse(DenseKind::Products, Tier::Block);
        let nmse = example
            .lower(Tier::Block, Linear::FullyConnected)
            .and_then(|weight| {
                let form = Form {
                    ranks: vec![RANK],
                    ..self.form(Linear::FullyConnected)
                };
                let draft = self.draft(vec![weight], DenseKind::Products, form);
                let x = check::input(N_ROWS, K);
                let (input, factors) = rows_of(Tier::Block, &x, K);
                let adapters = [0, 1].map(|i| LowRank::new(i, K, N));
                let runs = adapters
                    .iter()
                    .map(|adapter| vec![input.clone(), adapter.a.clone(), adapter.b.clone()]);
                let results = self.run(draft, runs.collect())?;
                let mut worst: f64 = 0.0;
                for (adapter, result) in adapters.iter().zip(&results) {
                    let values = adapter.added_to(&example.values());
                    worst = worst.max(nmse_of(&values, &x, result, &factors));
                }
                Ok(worst)
            });
        judge(what, nmse, max)
    }
}

fn judge(what: &str, nmse: Result<f64, String>, max: f64) -> Finding {
    match nmse {
        Ok(nmse) if nmse <= max => yes(what, &format!("error {nmse:.1e} of the power")),
        Ok(nmse) => no(
            what,
            &format!("wrong results: error {nmse:.1e} of the power"),
        ),
        Err(reason) => no(what, &reason),
    }
}

/// Rows of an input, as the tier takes them, and the factor of each.
pub(super) fn rows_of(tier: Tier, x: &[f32], k: usize) -> (Vec<u8>, Vec<f32>) {
    let element = match tier {
        Tier::Int8 => Element::fixed_input(),
        Tier::Block | Tier::Half => Element::Half,
    };
    let mut bytes = vec![0; 2 * x.len()];
    let rows = x.chunks_exact(k).zip(bytes.chunks_exact_mut(2 * k));
    let factors = rows.map(|(row, bytes)| element.write_row(row, bytes).unwrap_or(1.0));
    let factors = factors.collect();
    (bytes, factors)
}

pub(super) fn read(element: Element, bytes: &[u8], factor: f32, n: usize) -> Vec<f32> {
    let mut row = vec![0.0; n];
    element.read_row(&bytes[..2 * n], factor, &mut row);
    row
}

/// Compares all results with products of the values of a weight, `N` rows of `K`.
fn nmse_of(
    values: &[f32],
    x: &[f32],
    (element, bytes): &(Element, Vec<u8>),
    factors: &[f32],
) -> f64 {
    let mut sums = Sums::default();
    let rows = x
        .chunks_exact(K)
        .zip(bytes.chunks_exact(2 * N))
        .zip(factors);
    for ((x, bytes), &factor) in rows {
        let results = read(*element, bytes, factor, N);
        for (result, row) in results.into_iter().zip(values.chunks_exact(K)) {
            let products = row
                .iter()
                .zip(x)
                .map(|(&w, &x)| f64::from(w) * f64::from(x));
            sums.add(f64::from(result), products.sum());
        }
    }
    sums.nmse()
}

/// A weight to try.
pub(super) struct Example {
    pub(super) weight: DenseWeight,
    ty: QnnType,
    bytes: Vec<u8>,
}

impl Example {
    pub(super) fn new(ty: QnnType, k: usize, n: usize) -> Self {
        Self::after(ty, k, 0, n)
    }

    /// Makes a weight of the rows that come after `skip` of the others.
    pub(super) fn after(ty: QnnType, k: usize, skip: usize, n: usize) -> Self {
        let mut bytes = example_rows(ty, k, skip + n);
        bytes.drain(..bytes.len() / (skip + n) * skip);
        let weight = DenseWeight {
            node: 0,
            address: 0,
            size_bytes: bytes.len(),
            // Nobody looks: the type is beside it.
            ggml_type: u32::MAX,
            k,
            n,
        };
        Self { weight, ty, bytes }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        Rows {
            weight: &self.weight,
            ty: self.ty,
            bytes: &self.bytes,
        }
    }

    pub(super) fn lower(&self, tier: Tier, linear: Linear) -> Result<Weight, String> {
        let (k, n) = (self.weight.k, self.weight.n);
        let weight = Weight::lower(self.ty, tier, k, n, &self.bytes);
        let weight = weight.map_err(|error| error.to_string())?;
        Ok(match linear {
            Linear::FullyConnected => weight,
            Linear::Conv => weight.transposed(),
        })
    }

    /// Returns the power of two that brings products with rows like `x` near 1.
    pub(super) fn factor(&self, x: &[f32]) -> f32 {
        let mut row = vec![0.0; self.weight.k];
        let size = self.bytes.len() / self.weight.n;
        self.ty.dequantize_row(&self.bytes[..size], &mut row);
        let power = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>();
        let squared = power(&row) * power(x) / self.weight.k as f32;
        (-squared.log2() / 2.0).round().exp2()
    }

    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.weight.n * self.weight.k];
        let size = self.bytes.len() / self.weight.n;
        for (row, values) in self
            .bytes
            .chunks_exact(size)
            .zip(values.chunks_exact_mut(self.weight.k))
        {
            self.ty.dequantize_row(row, values);
        }
        values
    }

    fn nmse(&self, x: &[f32], result: &(Element, Vec<u8>), factors: &[f32]) -> f64 {
        nmse_of(&self.values(), x, result, factors)
    }
}

/// Values of a lowered weight if offsets were added after scaling.
fn added_after_scaling(weight: &Weight) -> Vec<f32> {
    let WeightData::Blocks {
        group,
        integers,
        scales,
        ..
    } = &weight.data
    else {
        return Vec::new();
    };
    let value = |(i, &s): (usize, &i8)| {
        let block = scales[i / group];
        f32::from(s) * block.scale + block.offset
    };
    integers.iter().enumerate().map(value).collect()
}

/// A low-rank addition: `a` `[RANK, k]`, `b` `[n, RANK]`, half floats.
struct LowRank {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl LowRank {
    fn new(i: usize, k: usize, n: usize) -> Self {
        // Numbers without a pattern, others for every addition.
        let numbers = check::input(2, RANK * k.max(n));
        let numbers = &numbers[i * RANK * k.max(n)..];
        let halves = |len: usize, factor: f32| {
            let halves = numbers[..len].iter().map(|x| f16::from_f32(x * factor));
            halves.flat_map(f16::to_le_bytes).collect()
        };
        Self {
            a: halves(RANK * k, 1.0 / 64.0),
            b: halves(n * RANK, 1.0 / 16.0),
        }
    }

    /// Adds `b a` to a weight.
    fn added_to(&self, values: &[f32]) -> Vec<f32> {
        let half =
            |bytes: &[u8], i: usize| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32();
        let more = |i: usize| -> f32 {
            let (row, column) = (i / K, i % K);
            let of = |r: usize| half(&self.b, row * RANK + r) * half(&self.a, r * K + column);
            (0..RANK).map(of).sum()
        };
        values
            .iter()
            .enumerate()
            .map(|(i, value)| value + more(i))
            .collect()
    }
}
