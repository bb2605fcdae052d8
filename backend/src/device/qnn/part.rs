//! Parts: what one QNN graph computes, and its description for the library.
//!
//! A dense segment is one part, but for weights with very many rows (output matrices), which are sliced: their parts give
//! some columns of the output each.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::f16;
use llada_npu_ffi::qnn::{
    DataType, GraphOptions, GraphSpec, Quantization, SpecError, TensorId, TensorType,
};

use super::low_rank::{Factors, rooms};
use super::weight::{Weight, WeightData};
use crate::device::{Dense, DenseKind, DenseWeight};
use crate::knobs::Linear;

/// Most rows of a weight in one graph.
pub(super) const MAX_COLUMNS: usize = 16384;

/// Rows of a weight that a part has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartWeight {
    /// The weight among those of the segment.
    pub(super) index: usize,
    pub(super) rows: Range<usize>,
    /// Rank of additions to the product that the graph has room for; 0: none.
    pub(super) rank: usize,
}

/// A part of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub(super) kind: DenseKind,
    pub(super) weights: Vec<PartWeight>,
}

impl Part {
    /// Tells whether it is a slice of a weight.
    pub(super) fn is_slice(&self, weights: &[DenseWeight]) -> bool {
        self.weights
            .iter()
            .any(|part| part.rows.len() < weights[part.index].n)
    }

    /// Returns the columns of each output: which output of the segment, and which of its columns.
    pub(super) fn outputs(&self) -> impl Iterator<Item = (usize, &Range<usize>)> {
        let (skip, first) = match self.kind {
            DenseKind::Products => (0, None),
            DenseKind::FeedForward => (2, Some(0)),
        };
        let weights = self.weights.iter().skip(skip);
        weights.map(move |part| (first.unwrap_or(part.index), &part.rows))
    }
}

/// Bytes of an input.
pub(super) type Input = (Arc<Vec<u8>>, Range<usize>);

impl Part {
    /// Returns the inputs of its graph after the first: what is added to products, whose factors are given by weight of the
    /// segment.
    pub(super) fn factors(&self, factors: &[Option<Factors>]) -> Vec<Input> {
        let of = |part: &PartWeight| {
            let factors = factors.get(part.index).and_then(Option::as_ref);
            let factors = factors.filter(|_| part.rank > 0)?;
            let row = 2 * part.rank;
            Some([
                (Arc::clone(&factors.a), 0..factors.a.len()),
                (
                    Arc::clone(&factors.b),
                    part.rows.start * row..part.rows.end * row,
                ),
            ])
        };
        self.weights.iter().filter_map(of).flatten().collect()
    }
}

/// Cuts a segment into parts.
pub(super) fn parts(segment: &Dense) -> Vec<Part> {
    let ranks = rooms(segment);
    let whole = |(index, weight): (usize, &DenseWeight)| PartWeight {
        index,
        rows: 0..weight.n,
        rank: ranks[index],
    };
    let kind = segment.kind;
    if kind == DenseKind::FeedForward {
        let weights = segment.weights.iter().enumerate().map(whole).collect();
        return vec![Part { kind, weights }];
    }
    let (small, large): (Vec<_>, Vec<_>) = segment
        .weights
        .iter()
        .enumerate()
        .partition(|(_, weight)| weight.n <= MAX_COLUMNS);
    let mut parts = Vec::new();
    if !small.is_empty() {
        let weights = small.into_iter().map(whole).collect();
        parts.push(Part { kind, weights });
    }
    for (index, weight) in large {
        for start in (0..weight.n).step_by(MAX_COLUMNS) {
            let rows = start..weight.n.min(start + MAX_COLUMNS);
            let rank = ranks[index];
            let weights = vec![PartWeight { index, rows, rank }];
            parts.push(Part { kind, weights });
        }
    }
    parts
}

/// How elements of inputs and outputs are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Element {
    /// Half floats.
    Half,
    /// 16 bits: `(q - 32768) * scale`, of rows that were divided by their largest absolute value.
    Fixed {
        /// Value of one step.
        scale: f32,
    },
}

/// What is added to a number of 16 bits.
const FIXED_OFFSET: i32 = -32768;

/// Steps from 0 to the largest number.
const FIXED_STEPS: f32 = 32767.0;

impl Element {
    /// Returns how inputs in 16 bits are kept.
    pub(super) fn fixed_input() -> Self {
        Self::Fixed {
            scale: 1.0 / FIXED_STEPS,
        }
    }

    /// Reads it from a tensor of a graph; `None` for what we do not make.
    pub(super) fn of(ty: &TensorType<'_>) -> Option<Self> {
        match (ty.data_type, &ty.quantization) {
            (DataType::Float16, Quantization::None) => Some(Self::Half),
            (DataType::Ufixed16, Quantization::PerTensor { scale, offset })
                if *offset == FIXED_OFFSET =>
            {
                Some(Self::Fixed { scale: *scale })
            }
            _ => None,
        }
    }

    /// Writes a row of an input, two bytes an element. Returns the factor that the results of the row are to be multiplied with; `None`
    /// where the numbers do not hold it.
    pub(super) fn write_row(self, row: &[f32], bytes: &mut [u8]) -> Option<f32> {
        let elements = bytes.as_chunks_mut().0;
        match self {
            Self::Half => {
                for (out, &x) in elements.iter_mut().zip(row) {
                    *out = f16::from_f32(x).to_le_bytes();
                }
                all_finite(bytes).then_some(1.0)
            }
            Self::Fixed { scale } => {
                let largest = row.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                if !row.iter().all(|x| x.is_finite()) {
                    return None;
                }
                let factor = if largest > 0.0 { largest } else { 1.0 };
                for (out, x) in elements.iter_mut().zip(row) {
                    #[expect(clippy::cast_possible_truncation, reason = "rounded, at most 32767")]
                    let steps = (x / factor / scale).round() as i32 - FIXED_OFFSET;
                    let steps = u16::try_from(steps.clamp(0, 65535)).unwrap_or(u16::MAX);
                    *out = steps.to_le_bytes();
                }
                Some(factor)
            }
        }
    }

    /// Writes a row of results, times `factor`.
    pub(super) fn read_row(self, bytes: &[u8], factor: f32, row: &mut [f32]) {
        let elements = bytes.as_chunks().0;
        match self {
            Self::Half => {
                for (out, &bytes) in row.iter_mut().zip(elements) {
                    *out = f16::from_le_bytes(bytes).to_f32();
                }
            }
            Self::Fixed { scale } => {
                for (out, &bytes) in row.iter_mut().zip(elements) {
                    #[expect(clippy::cast_precision_loss, reason = "17 bits")]
                    let steps = (i32::from(u16::from_le_bytes(bytes)) + FIXED_OFFSET) as f32;
                    *out = steps * scale * factor;
                }
            }
        }
    }

    /// Tells whether no number is infinite or none.
    pub(super) fn is_finite(self, bytes: &[u8]) -> bool {
        self != Self::Half || all_finite(bytes)
    }
}

pub(super) fn all_finite(halves: &[u8]) -> bool {
    halves
        .as_chunks::<2>()
        .0
        .iter()
        .all(|half| half[1] & 0x7c != 0x7c)
}

/// What a description is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// Rows of the input.
    pub n_rows: usize,
    /// How products are written down.
    pub linear: Linear,
    /// Room for low-rank additions, by weight: their rank, 0 or missing where there is none. The matrices `a`, `rank` rows as long as
    /// those of the weight, and `b`, as many rows as the weight has, of `rank` elements, are inputs after `x`, those of the first
    /// such weight before those of the second; the product is then `W x + b (a x)`.
    pub ranks: Vec<usize>,
    /// Fast memory to use, in MiB; 0: all.
    pub vtcm_mb: Option<u32>,
}

/// Describes a graph for lowered weights. `linear` says how they lie: transposed for convolutions.
///
/// # Errors
/// [`SpecError`] for shapes that do not fit.
pub fn describe<'d>(
    name: &str,
    kind: DenseKind,
    weights: &'d [Weight],
    form: &Form,
) -> Result<GraphSpec<'d>, SpecError> {
    let options = GraphOptions {
        precision: Some(llada_npu_ffi::qnn::Precision::Float16),
        vtcm_mb: form.vtcm_mb,
        ..GraphOptions::default()
    };
    let k = weights.first().map_or(0, |weight| weight.k);
    let mut builder = Builder {
        spec: GraphSpec::new(name, options),
        form: form.clone(),
        fixed: matches!(
            weights.first(),
            Some(Weight {
                data: WeightData::Channels { .. },
                ..
            })
        ),
    };
    let scale = 1.0 / FIXED_STEPS;
    let ty = builder.activation(k, scale);
    let x = builder.spec.input("x", ty)?;
    match (kind, weights) {
        (DenseKind::FeedForward, [gate, up, down]) => builder.feed_forward(x, gate, up, down)?,
        _ => builder.products(x, weights)?,
    }
    Ok(builder.spec)
}

struct Builder<'d> {
    spec: GraphSpec<'d>,
    form: Form,
    fixed: bool,
}

impl<'d> Builder<'d> {
    fn dims(&self, rows: usize, columns: usize) -> Vec<u32> {
        let [m, n] = [rows, columns].map(dim);
        match self.form.linear {
            Linear::FullyConnected => vec![m, n],
            Linear::Conv => vec![1, 1, m, n],
        }
    }

    fn activation(&self, columns: usize, scale: f32) -> TensorType<'static> {
        let dims = self.dims(self.form.n_rows, columns);
        if !self.fixed {
            return TensorType::new(DataType::Float16, &dims);
        }
        let offset = FIXED_OFFSET;
        let quantization = Quantization::PerTensor { scale, offset };
        TensorType::quantized(DataType::Ufixed16, &dims, quantization)
    }

    /// Adds a product of a weight.
    fn linear(
        &mut self,
        name: &str,
        x: TensorId,
        weight: &'d Weight,
        y: TensorId,
    ) -> Result<(), SpecError> {
        let is_conv = self.form.linear == Linear::Conv;
        let [n, k] = [weight.n, weight.k].map(dim);
        let dims = if is_conv {
            vec![1, 1, k, n]
        } else {
            vec![n, k]
        };
        let (ty, data): (_, &'d [u8]) = match &weight.data {
            WeightData::Half(bytes) => (TensorType::new(DataType::Float16, &dims), bytes),
            WeightData::Blocks {
                bits,
                group,
                integers,
                scales,
            } => {
                let group = dim(*group);
                let block = if is_conv {
                    vec![1, 1, group, 1]
                } else {
                    vec![1, group]
                };
                let quantization = Quantization::FloatBlocks {
                    bits: *bits,
                    block: block.into(),
                    scales: Cow::Borrowed(scales),
                };
                let ty = TensorType::quantized(DataType::Sfixed8, &dims, quantization);
                (ty, bytemuck::cast_slice(integers))
            }
            WeightData::Channels { integers, scales } => {
                let axis = if is_conv { 3 } else { 0 };
                let scales = Cow::Borrowed(scales.as_slice());
                let quantization = Quantization::PerChannel { axis, scales };
                let ty = TensorType::quantized(DataType::Sfixed8, &dims, quantization);
                (ty, bytemuck::cast_slice(integers))
            }
        };
        let w = self.spec.constant(&format!("{name}_w"), ty, data)?;
        if is_conv {
            self.spec.conv2d_1x1(name, x, w, y)
        } else {
            self.spec.fully_connected(name, x, w, y)
        }
    }

    fn products(&mut self, x: TensorId, weights: &'d [Weight]) -> Result<(), SpecError> {
        for (i, weight) in weights.iter().enumerate() {
            // No result of rows with elements of at most 1 is larger; a little more for what rounding adds.
            let bound = weight.largest_sum().unwrap_or(1.0).max(f32::MIN_POSITIVE) * 1.001;
            let ty = self.activation(weight.n, bound / FIXED_STEPS);
            let y = self.spec.output(&format!("y{i}"), ty)?;
            self.sum(&format!("fc{i}"), i, x, weight, y)?;
        }
        Ok(())
    }

    /// Adds the product of weight `i`, and what is added to it.
    fn sum(
        &mut self,
        name: &str,
        i: usize,
        x: TensorId,
        weight: &'d Weight,
        y: TensorId,
    ) -> Result<(), SpecError> {
        let rank = self.form.ranks.get(i).copied().unwrap_or(0);
        if rank == 0 {
            return self.linear(name, x, weight, y);
        }
        let named = |part: &str| format!("{name}_{part}");
        let half = |dims: &[u32]| TensorType::new(DataType::Float16, dims);
        let m = self.form.n_rows;
        let a = half(&self.dims(rank, weight.k));
        let b = half(&self.dims(weight.n, rank));
        let low = half(&self.dims(m, rank));
        let more = half(&self.dims(m, weight.n));
        let product = self.spec.native(&named("product"), more.clone())?;
        self.linear(name, x, weight, product)?;
        let spec = &mut self.spec;
        let a = spec.input(&named("a"), a)?;
        let b = spec.input(&named("b"), b)?;
        let low = spec.native(&named("low"), low)?;
        let more = spec.native(&named("more"), more)?;
        spec.mat_mul(&named("ax"), x, a, true, low)?;
        spec.mat_mul(&named("bax"), low, b, true, more)?;
        spec.node(&named("sum"), "ElementWiseAdd", &[], &[product, more], &[y])
    }

    fn feed_forward(
        &mut self,
        x: TensorId,
        gate: &'d Weight,
        up: &'d Weight,
        down: &'d Weight,
    ) -> Result<(), SpecError> {
        let inner = self.activation(gate.n, 1.0);
        let mut native = |name: &str| self.spec.native(name, inner.clone());
        let (g, u, silu, h) = (native("g")?, native("u")?, native("silu")?, native("h")?);
        self.sum("gate", 0, x, gate, g)?;
        self.sum("up", 1, x, up, u)?;
        self.spec.silu("op_silu", g, silu)?;
        let none = &[];
        self.spec
            .node("glu", "ElementWiseMultiply", none, &[silu, u], &[h])?;
        let ty = self.activation(down.n, 1.0);
        let y = self.spec.output("y0", ty)?;
        self.sum("down", 2, h, down, y)
    }
}

/// A dimension in QNN's type; those of checked weights fit.
fn dim(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Layout;
    use llada_npu_ffi::ggml::Type;

    fn segment(kind: DenseKind, shapes: &[(usize, usize)]) -> Dense {
        let weight = |(node, &(k, n)): (usize, &(usize, usize))| DenseWeight {
            node,
            address: node,
            size_bytes: 1,
            ggml_type: 2,
            k,
            n,
        };
        Dense {
            kind,
            x: Layout::contiguous(Type::F32, 4, [shapes[0].0, 4, 1, 1]),
            weights: shapes.iter().enumerate().map(weight).collect(),
            additions: Vec::new(),
        }
    }

    #[test]
    fn large_weights_are_sliced_and_nothing_is_left_out() {
        let head = segment(DenseKind::Products, &[(64, 3 * MAX_COLUMNS + 5), (64, 100)]);
        let found = parts(&head);
        assert_eq!(found.len(), 5);
        for (output, weight) in head.weights.iter().enumerate() {
            let columns: Vec<_> = found
                .iter()
                .flat_map(Part::outputs)
                .filter(|(of, _)| *of == output)
                .collect();
            let mut next = 0;
            for (_, columns) in columns {
                assert_eq!(columns.start, next);
                next = columns.end;
            }
            assert_eq!(next, weight.n);
        }
        assert!(!found[0].is_slice(&head.weights) && found[1].is_slice(&head.weights));
        let feed = segment(
            DenseKind::FeedForward,
            &[
                (64, 3 * MAX_COLUMNS),
                (64, 3 * MAX_COLUMNS),
                (3 * MAX_COLUMNS, 64),
            ],
        );
        let found = parts(&feed);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].outputs().collect::<Vec<_>>(), [(0, &(0..64))]);
    }

    #[test]
    fn rows_come_back_from_their_elements() {
        let row = [0.5_f32, -2.0, 0.0, 1.25];
        for (element, bound) in [
            (Element::Half, 0.0),
            (
                Element::Fixed {
                    scale: 1.0 / FIXED_STEPS,
                },
                1e-4,
            ),
        ] {
            let mut bytes = [0; 8];
            let factor = element.write_row(&row, &mut bytes).unwrap();
            let mut back = [0.0; 4];
            element.read_row(&bytes, factor, &mut back);
            for (a, b) in row.iter().zip(back) {
                assert!((a - b).abs() <= bound, "{element:?}: {a} {b}");
            }
            assert!(element.is_finite(&bytes));
            for bad in [f32::NAN, f32::INFINITY] {
                assert_eq!(element.write_row(&[1.0, bad], &mut [0; 4]), None);
            }
        }
        assert_eq!(Element::Half.write_row(&[1e6], &mut [0; 2]), None);
    }

    #[test]
    fn every_form_is_a_graph_that_fits() {
        let half = |n: usize, k: usize| Weight {
            n,
            k,
            data: WeightData::Half(vec![0; 2 * n * k]),
        };
        let weights = [half(96, 64), half(96, 64), half(64, 96)];
        for linear in [Linear::FullyConnected, Linear::Conv] {
            let form = Form {
                n_rows: 8,
                linear,
                ..Form::default()
            };
            describe("ff", DenseKind::FeedForward, &weights, &form)
                .unwrap()
                .check()
                .unwrap();
            describe("qkv", DenseKind::Products, &weights[..2], &form)
                .unwrap()
                .check()
                .unwrap();
        }
        for linear in [Linear::FullyConnected, Linear::Conv] {
            let form = Form {
                n_rows: 8,
                linear,
                ranks: vec![16, 0, 8],
                ..Form::default()
            };
            describe("lora", DenseKind::Products, &weights[..2], &form)
                .unwrap()
                .check()
                .unwrap();
            describe("ff lora", DenseKind::FeedForward, &weights, &form)
                .unwrap()
                .check()
                .unwrap();
        }
    }
}
