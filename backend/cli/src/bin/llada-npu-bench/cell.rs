//! One operation and shape, on both sides.

use llada_npu_ffi::ggml::{Context, Tensor, Type};

use crate::Error;
use crate::machine::Memory;
use crate::report::{Cell, Report, note};
use crate::side::{Copies, Graphs, Side};

/// Pairs of runs.
const PAIRS: usize = 9;

/// Multiplications and additions of one run: some tenths of a second.
const RUN_OPS: usize = 40_000_000_000;

/// Largest NMSE between both sides; they quantise x alike, but add in another order.
const MAX_NMSE: f64 = 1e-3;

/// Head size and heads of attention: those of an 8B model.
const HEAD: usize = 128;
const HEADS: usize = 32;

/// Types of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Weights {
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_k", alias = "q4_K")]
    Q4K,
    #[value(name = "q6_k", alias = "q6_K")]
    Q6K,
}

/// A block of weights: its elements, its bytes, and the high bytes of its half floats.
struct Block {
    elements: usize,
    bytes: usize,
    scales: &'static [usize],
}

impl Weights {
    fn ty(self) -> Type {
        match self {
            Self::Q4_0 => Type::Q4_0,
            Self::Q8_0 => Type::Q8_0,
            Self::Q4K => Type(12),
            Self::Q6K => Type(14),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "MUL_MAT q4_0",
            Self::Q8_0 => "MUL_MAT q8_0",
            Self::Q4K => "MUL_MAT q4_K",
            Self::Q6K => "MUL_MAT q6_K",
        }
    }

    fn block(self) -> Block {
        let (elements, bytes, scales): (_, _, &[usize]) = match self {
            Self::Q4_0 => (32, 18, &[1]),
            Self::Q8_0 => (32, 34, &[1]),
            Self::Q4K => (256, 144, &[1, 3]),
            Self::Q6K => (256, 210, &[209]),
        };
        Block {
            elements,
            bytes,
            scales,
        }
    }
}

impl std::fmt::Display for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().trim_start_matches("MUL_MAT "))
    }
}

/// What is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// `[k, n]` weights times `[k, rows]`.
    MulMat {
        ty: Weights,
        k: usize,
        n: usize,
        rows: usize,
    },
    /// 32 heads of 128, `rows` queries over `n_kv` f16 keys and values, all in sight.
    Attention { n_kv: usize, rows: usize },
}

fn tensor(ctx: &Context, ty: Type, ne: &[usize]) -> Tensor {
    let ne: Vec<i64> = ne
        .iter()
        .map(|&ne| i64::try_from(ne).expect("a small shape"))
        .collect();
    ctx.new_tensor(ty, &ne)
}

impl Shape {
    /// Returns how many tensors [`Self::operands`] makes.
    pub(crate) fn n_operands(&self) -> usize {
        match self {
            Self::MulMat { .. } => 1,
            Self::Attention { .. } => 2,
        }
    }

    /// Makes the operands that every run finds elsewhere: weights, or K and V.
    pub(crate) fn operands(&self, ctx: &Context) -> Vec<Tensor> {
        match *self {
            Self::MulMat { ty, k, n, .. } => vec![tensor(ctx, ty.ty(), &[k, n])],
            Self::Attention { n_kv, .. } => (0..2)
                .map(|_| tensor(ctx, Type::F16, &[HEAD, n_kv, HEADS]))
                .collect(),
        }
    }

    /// Returns how many tensors [`Self::activations`] makes.
    pub(crate) fn n_activations(&self) -> usize {
        self.n_operands()
    }

    /// Makes the operands that stay: x, or queries and mask.
    pub(crate) fn activations(&self, ctx: &Context) -> Vec<Tensor> {
        match *self {
            Self::MulMat { k, rows, .. } => vec![tensor(ctx, Type::F32, &[k, rows])],
            Self::Attention { n_kv, rows } => vec![
                tensor(ctx, Type::F32, &[HEAD, rows, HEADS]),
                tensor(ctx, Type::F16, &[n_kv, rows]),
            ],
        }
    }

    /// Returns the bytes of an activation: floats between -1 and 1; the mask hides nothing.
    pub(crate) fn activation_data(&self, tensor: &Tensor) -> Vec<u8> {
        if tensor.type_() == Type::F16 {
            return vec![0; tensor.n_bytes()];
        }
        let mut bytes = noise(tensor.n_bytes());
        for float in bytes.as_chunks_mut::<4>().0 {
            let unit = f32::from(i16::from_ne_bytes([float[0], float[1]])) / 32768.0;
            *float = unit.to_ne_bytes();
        }
        bytes
    }

    /// Builds the operation.
    pub(crate) fn op(&self, ctx: &Context, operands: &[Tensor], activations: &[Tensor]) -> Tensor {
        match self {
            Self::MulMat { .. } => ctx.mul_mat(&operands[0], &activations[0]),
            Self::Attention { .. } => {
                #[expect(clippy::cast_precision_loss, reason = "a small number")]
                let scale = (HEAD as f32).sqrt().recip();
                let (q, mask) = (&activations[0], &activations[1]);
                ctx.flash_attn_ext(q, &operands[0], &operands[1], mask, scale)
            }
        }
    }

    fn rows(&self) -> usize {
        match *self {
            Self::MulMat { rows, .. } | Self::Attention { rows, .. } => rows,
        }
    }

    /// Returns the multiplications and additions.
    fn ops(&self) -> usize {
        match *self {
            Self::MulMat { k, n, rows, .. } => 2 * k * n * rows,
            Self::Attention { n_kv, rows } => 4 * HEAD * HEADS * n_kv * rows,
        }
    }

    /// Returns the bytes of the operands in ggml's format.
    fn operand_bytes(&self) -> usize {
        match *self {
            Self::MulMat { ty, k, n, .. } => k / ty.block().elements * ty.block().bytes * n,
            Self::Attention { n_kv, .. } => 2 * 2 * HEAD * HEADS * n_kv,
        }
    }

    /// Returns bytes for any operand: noise, with scales (or values) of a usual size.
    fn operand_data(&self) -> Vec<u8> {
        let mut bytes = noise(self.operand_bytes());
        let (block, scales): (_, &[usize]) = match *self {
            Self::MulMat { ty, .. } => (ty.block().bytes, ty.block().scales),
            Self::Attention { .. } => (2, &[1]),
        };
        for block in bytes.chunks_exact_mut(block) {
            for &at in scales {
                // Exponents of numbers between 2^-8 and 1; random signs and fractions.
                block[at] = block[at] & 0x9f | 0x20;
            }
        }
        bytes
    }

    fn name(&self) -> &'static str {
        match *self {
            Self::MulMat { ty, .. } => ty.name(),
            Self::Attention { .. } => "FLASH_ATTN_EXT f16",
        }
    }

    fn describe(&self) -> Cell {
        let (k, n, rows) = match *self {
            Self::MulMat { k, n, rows, .. } => (k, n, rows),
            Self::Attention { n_kv, rows } => (HEAD, n_kv, rows),
        };
        Cell::new(self.name(), k, n, rows)
    }
}

/// Returns bytes of a fixed sequence.
fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let words = (0..n.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    });
    words.take(n).collect()
}

/// Measures shapes that share their operands and adds them to the report.
pub(crate) fn measure(
    ours: &mut Side,
    ggml: &mut Side,
    shapes: impl IntoIterator<Item = Shape>,
    cycle_bytes: usize,
    memory: &Memory,
    report: &mut Report,
) -> Result<(), Error> {
    let mut copies: Option<(Copies, Copies)> = None;
    for shape in shapes {
        if copies.is_none() {
            let n = cycle_bytes.div_ceil(shape.operand_bytes());
            let data = shape.operand_data();
            copies = Some((
                ours.copies(&shape, n, &data)?,
                ggml.copies(&shape, n, &data)?,
            ));
        }
        let Some((our_copies, ggml_copies)) = &copies else {
            unreachable!("made above");
        };
        let per_graph = (RUN_OPS / shape.ops()).max(1);
        let mut our_graphs = ours.graphs(&shape, our_copies, per_graph)?;
        let mut ggml_graphs = ggml.graphs(&shape, ggml_copies, per_graph)?;
        let mut cell = shape.describe();
        cell.ggml_buffer.clone_from(&ggml_copies.buft);
        // Every copy once, so that all are repacked; then the first results are compared.
        warm_up(ours, &mut our_graphs, our_copies)?;
        warm_up(ggml, &mut ggml_graphs, ggml_copies)?;
        cell.nmse = nmse(&our_graphs.result()?, &ggml_graphs.result()?);
        if cell.nmse.is_nan() || cell.nmse > MAX_NMSE {
            let (op, nmse) = (cell.name(), cell.nmse);
            return Err(Error::Results { op, nmse });
        }
        let mut pairs = Vec::new();
        let mut reads = Vec::new();
        for i in 0..PAIRS {
            // Each side goes first in turn.
            let mut seconds = [0.0; 2];
            for side in [i % 2, 1 - i % 2] {
                let (time, n_ops) = if side == 0 {
                    ours.run(&mut our_graphs, our_copies)?
                } else {
                    ggml.run(&mut ggml_graphs, ggml_copies)?
                };
                #[expect(clippy::cast_precision_loss, reason = "few")]
                let n_ops = n_ops as f64;
                seconds[side] = time / n_ops;
            }
            pairs.push(seconds);
            // What memory gives changes with what others on the machine do.
            if shape.rows() == 1 {
                reads.push(memory.read());
            }
        }
        cell.set_memory(reads);
        cell.set_times(&pairs, shape.ops(), shape.operand_bytes());
        note(&cell);
        report.cells.push(cell);
    }
    Ok(())
}

fn warm_up(side: &mut Side, graphs: &mut Graphs, copies: &Copies) -> Result<(), Error> {
    for _ in 0..graphs.len() {
        side.run(graphs, copies)?;
    }
    Ok(())
}

/// Returns the mean squared difference over the mean square of `b`.
fn nmse(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = a
        .iter()
        .zip(b)
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    difference / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()
}
