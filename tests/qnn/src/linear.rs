//! Products with known answers, in every form that HTP takes.

use half::f16;
use llada_npu_ffi::qnn::{
    BlockScale, Context, Data, DataMut, DataType, Error, Graph, GraphOptions, GraphSpec,
    Quantization, TensorType,
};

/// Numbers that only depend on a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts anew.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number of 24 bits.
    pub fn next_u24(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 >> 40).unwrap_or(0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.next_u24() % n
    }

    /// A number from -1 to 1 that a half holds.
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit in a float")]
    pub fn half(&mut self) -> f32 {
        f16::from_f32(self.next_u24() as f32 / 8_388_608.0 - 1.0).to_f32()
    }
}

/// Weights in a form that QNN takes, and what they stand for.
#[derive(Debug, Clone)]
pub struct Weights {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Type of the stored numbers.
    pub data_type: DataType,
    /// `[n, k]`, as stored.
    pub bytes: Vec<u8>,
    /// `[n, k]`, as meant.
    pub values: Vec<f32>,
    /// Scales, for `[n, k]`.
    pub quantization: Quantization<'static>,
}

impl Weights {
    /// Halves.
    pub fn halves(n: usize, k: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let values: Vec<f32> = (0..n * k).map(|_| random.half()).collect();
        Self {
            n,
            k,
            data_type: DataType::Float16,
            bytes: halves(&values),
            values,
            quantization: Quantization::None,
        }
    }

    /// Blocks of `size` inputs with a scale each and, with `offsets`, an offset that is no whole number: the form of ggml's quantised
    /// types. Four bits without offsets and blocks of 32 are `Q4_0`.
    pub fn blocks(n: usize, k: usize, bits: u32, size: usize, offsets: bool, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (levels, zero) = (1 << bits, 1 << (bits - 1));
        let scales: Vec<BlockScale> = (0..n * k / size)
            .map(|_| BlockScale {
                scale: f16::from_f32(0.02 + 0.01 * random.half()).to_f32(),
                offset: if offsets { random.half() } else { 0.0 },
            })
            .collect();
        let stored: Vec<i8> = (0..n * k)
            .map(|_| small(random.below(levels)) - small(zero))
            .collect();
        let value =
            |i: usize| (f32::from(stored[i]) + scales[i / size].offset) * scales[i / size].scale;
        Self {
            n,
            k,
            data_type: DataType::Sfixed8,
            bytes: stored.iter().map(|q| q.cast_unsigned()).collect(),
            values: (0..n * k).map(value).collect(),
            quantization: Quantization::FloatBlocks {
                bits,
                block: vec![1, dim(size)].into(),
                scales: scales.into(),
            },
        }
    }

    /// Eight bits with a scale per output.
    pub fn channels(n: usize, k: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let scales: Vec<f32> = (0..n).map(|_| 0.002 + 0.001 * random.half()).collect();
        let stored: Vec<i8> = (0..n * k)
            .map(|_| small(random.below(255)).wrapping_add(1))
            .collect();
        Self {
            n,
            k,
            data_type: DataType::Sfixed8,
            bytes: stored.iter().map(|q| q.cast_unsigned()).collect(),
            values: (0..n * k)
                .map(|i| f32::from(stored[i]) * scales[i / k])
                .collect(),
            quantization: Quantization::PerChannel {
                axis: 0,
                scales: scales.into(),
            },
        }
    }

    /// The same weights with inputs as rows, `[1, 1, k, n]`, for products and convolutions.
    pub fn transposed(&self) -> (TensorType<'static>, Vec<u8>) {
        let size = self.data_type.size_bytes();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for i in 0..self.n * self.k {
            let (row, column) = (i / self.n, i % self.n);
            let at = size * (column * self.k + row);
            bytes.extend(&self.bytes[at..at + size]);
        }
        let quantization = match &self.quantization {
            Quantization::FloatBlocks {
                bits,
                block,
                scales,
            } => Quantization::FloatBlocks {
                bits: *bits,
                block: vec![1, 1, block[1], 1].into(),
                scales: scales.clone(),
            },
            Quantization::PerChannel { scales, .. } => Quantization::PerChannel {
                axis: 3,
                scales: scales.clone(),
            },
            other => other.clone(),
        };
        let dims = [1, 1, dim(self.k), dim(self.n)];
        (
            TensorType::quantized(self.data_type, &dims, quantization),
            bytes,
        )
    }

    /// Type of `[n, k]`.
    pub fn ty(&self) -> TensorType<'static> {
        TensorType::quantized(
            self.data_type,
            &[dim(self.n), dim(self.k)],
            self.quantization.clone(),
        )
    }
}

fn small(n: u32) -> i8 {
    u8::try_from(n).expect("at most 8 bits").cast_signed()
}

/// A dimension.
///
/// # Panics
/// For 4 Gi and more.
pub fn dim(n: usize) -> u32 {
    u32::try_from(n).expect("dimensions of tests are small")
}

/// Halves as bytes.
pub fn halves(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&value| f16::from_f32(value).to_le_bytes())
        .collect()
}

/// Bytes as halves.
pub fn from_halves(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(2)
        .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
        .collect()
}

/// `x · wᵀ` in f64: `x` `[m, k]`, `w` `[n, k]`.
pub fn reference(x: &[f32], w: &[f32], k: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    x.chunks_exact(k)
        .flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w)))
        .collect()
}

/// Squared error over squared reference.
///
/// # Panics
/// Where there are not as many of both.
pub fn nmse(found: &[f32], wanted: &[f64]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let square = |x: f64| x * x;
    let error: f64 = found
        .iter()
        .zip(wanted)
        .map(|(f, w)| square(f64::from(*f) - w))
        .sum();
    error / wanted.iter().map(|w| square(*w)).sum::<f64>()
}

/// `m` rows of inputs that halves hold, for a seed.
pub fn inputs(m: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed ^ 0x55);
    (0..m * k).map(|_| random.half()).collect()
}

/// Describes `FullyConnected` with halves outside: `x` `[m, k]`, `y` `[m, n]`.
///
/// # Errors
/// Those of the description.
pub fn fully_connected<'d>(
    name: &str,
    m: usize,
    w: &'d Weights,
    options: GraphOptions,
) -> Result<GraphSpec<'d>, Error> {
    let half = |dims: &[u32]| TensorType::new(DataType::Float16, dims);
    let mut spec = GraphSpec::new(name, options);
    let x = spec.input(&format!("{name}.x"), half(&[dim(m), dim(w.k)]))?;
    let weight = spec.constant(&format!("{name}.w"), w.ty(), &w.bytes)?;
    let y = spec.output(&format!("{name}.y"), half(&[dim(m), dim(w.n)]))?;
    spec.fully_connected(&format!("{name}.fc"), x, weight, y)?;
    Ok(spec)
}

/// Executes a graph with one input and one output of halves.
///
/// # Errors
/// Those of the execution.
pub fn run(graph: &mut Graph, x: &[f32]) -> Result<Vec<f32>, Error> {
    let mut y = vec![0; graph.interface().outputs()[0].size_bytes()];
    graph.execute(&[Data::Bytes(&halves(x))], &mut [DataMut::Bytes(&mut y)])?;
    Ok(from_halves(&y))
}

/// Builds [`fully_connected`], executes it, and compares: the NMSE.
///
/// # Errors
/// Those of building and executing.
pub fn error_of(context: &Context, name: &str, m: usize, w: &Weights) -> Result<f64, Error> {
    let mut graph = context.build(&fully_connected(name, m, w, GraphOptions::default())?)?;
    let x = inputs(m, w.k, 1);
    Ok(nmse(&run(&mut graph, &x)?, &reference(&x, &w.values, w.k)))
}

/// Fixed-point numbers with one scale: the bytes of the nearest, and what these stand for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a saturating cast to 16 bits is the operation"
)]
pub fn to_u16(values: &[f32], scale: f32, offset: i16) -> (Vec<u8>, Vec<f32>) {
    let offset = f32::from(offset);
    let stored = values
        .iter()
        .map(|value| (value / scale - offset).round() as u16);
    let stored: Vec<u16> = stored.collect();
    let values = stored
        .iter()
        .map(|&q| (f32::from(q) + offset) * scale)
        .collect();
    (
        stored.iter().flat_map(|q| q.to_le_bytes()).collect(),
        values,
    )
}
