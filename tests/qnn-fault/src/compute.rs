//! What operations are supported, and what they compute.

use std::collections::HashMap;

use crate::abi::{Encoding, Node, STATIC, Tensor};
use crate::number::{self, FLOAT_16};

/// Values of tensors by id.
pub(crate) type Values = HashMap<u32, Vec<f32>>;

/// Answers whether a node is supported, as HTP does where that was measured.
pub(crate) fn supports(node: &Node) -> bool {
    let (inputs, outputs) = (node.inputs.as_slice(), node.outputs.as_slice());
    let [output] = outputs else {
        return false;
    };
    let all = inputs.iter().chain(outputs);
    if !all
        .clone()
        .all(|tensor| number::size(tensor.data_type).is_some() && known_encoding(tensor))
    {
        return false;
    }
    match (node.op.as_str(), inputs) {
        ("FullyConnected" | "MatMul" | "Conv2d", [x, w]) => {
            let rank_fits = node.op == "FullyConnected" || x.dims.len() == w.dims.len();
            let same_class = output.data_type == x.data_type;
            // The real library crashes on products without these.
            let params = node.op != "MatMul"
                || (node.scalar("transpose_in0") == Some(0)
                    && node.scalar("transpose_in1").is_some());
            rank_fits
                && same_class
                && params
                && weights_fit(&node.op, x, w)
                && shape(node).is_some()
        }
        (
            "ElementWiseAdd" | "ElementWiseSubtract" | "ElementWiseMultiply" | "ElementWiseDivide",
            [a, b],
        ) => {
            a.data_type == b.data_type
                && a.data_type == output.data_type
                && broadcasts(a, b, output)
        }
        ("Transpose", [x]) => perm(node).is_some_and(|perm| {
            let dims: Vec<u32> = perm.iter().map(|&from| x.dims[from]).collect();
            x.data_type == output.data_type && dims == output.dims
        }),
        // Over the last dimension alone, as it is, and of floats.
        ("Softmax", [x]) => {
            let is_plain = node
                .scalar("beta")
                .is_none_or(|beta| beta == 1.0_f32.to_bits());
            is_plain
                && node
                    .scalar("axis")
                    .is_none_or(|axis| axis as usize + 1 == x.dims.len())
                && x.data_type == FLOAT_16
                && output.data_type == FLOAT_16
                && x.dims == output.dims
        }
        ("Sigmoid" | "Tanh" | "Cast" | "Convert" | "Quantize" | "Dequantize" | "Reshape", [x]) => {
            x.n_elements() == output.n_elements()
        }
        _ => false,
    }
}

fn known_encoding(tensor: &Tensor) -> bool {
    match &tensor.encoding {
        Encoding::None | Encoding::Tensor(..) => true,
        Encoding::Axis(axis, values) => tensor
            .dims
            .get(*axis)
            .is_some_and(|&dim| dim as usize == values.len()),
        Encoding::Blocks(..) => tensor.kind == STATIC,
        Encoding::Other(_) => false,
    }
}

/// Weights in blocks: halves beside them, bytes of 2, 4 or 8 bits, blocks of a multiple of 8 along the inputs, rank 4 in products.
fn weights_fit(op: &str, x: &Tensor, w: &Tensor) -> bool {
    let Encoding::Blocks(bits, block, values) = &w.encoding else {
        return true;
    };
    let sizes: Vec<u32> = block.iter().copied().filter(|&size| size != 1).collect();
    x.data_type == FLOAT_16
        && w.data_type == number::SFIXED_8
        && [2, 4, 8].contains(bits)
        && sizes.len() == 1
        && (*bits == 8 || sizes[0].is_multiple_of(8))
        && (op == "FullyConnected" || w.dims.len() == 4)
        && values.iter().all(|value| value.0 > 0.0)
}

/// Rows, inputs and outputs of the matrices of a product, and whether weight rows are outputs.
struct Product {
    m: usize,
    k: usize,
    n: usize,
    outputs_first: bool,
}

/// Reads a product: of several matrices, where weights are as many.
fn shape(node: &Node) -> Option<Product> {
    let [x, w] = node.inputs.as_slice() else {
        return None;
    };
    let outputs_first = node.op == "FullyConnected" || node.scalar("transpose_in1") == Some(1);
    let k = *x.dims.last()? as usize;
    let [outer @ .., w_rows, w_columns] = w.dims.as_slice() else {
        return None;
    };
    let (w_k, n) = if outputs_first {
        (*w_columns, *w_rows)
    } else {
        (*w_rows, *w_columns)
    };
    let n_matrices = outer.iter().map(|&dim| dim as usize).product::<usize>();
    let is_batch = n_matrices > 1;
    let m = x.n_elements() / k / n_matrices;
    let fits = w_k as usize == k
        && (!is_batch || (node.op == "MatMul" && x.dims.starts_with(outer)))
        && node.outputs.first()?.n_elements() == n_matrices * m * n as usize;
    fits.then_some(Product {
        m,
        k,
        n: n as usize,
        outputs_first,
    })
}

/// Reads which dimension of the input each dimension of the result of a transposition is.
fn perm(node: &Node) -> Option<Vec<usize>> {
    let (_, perm) = node.tensors.iter().find(|(name, _)| name == "perm")?;
    let from = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) as usize;
    let perm: Vec<usize> = perm.data.as_chunks().0.iter().map(from).collect();
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    sorted
        .into_iter()
        .eq(0..node.inputs.first()?.dims.len())
        .then_some(perm)
}

fn broadcasts(a: &Tensor, b: &Tensor, output: &Tensor) -> bool {
    let fits = |t: &Tensor| {
        let tail = output.dims.iter().rev().zip(t.dims.iter().rev());
        t.dims.len() <= output.dims.len() && tail.clone().all(|(o, d)| d == o || *d == 1)
    };
    fits(a) && fits(b)
}

/// Computes a supported node from constants and values by id.
pub(crate) fn run(node: &Node, constants: &Values, values: &mut Values) {
    let find = |id| values.get(id).or_else(|| constants.get(id));
    let input = |i: usize| find(&node.inputs[i].id).map_or(&[][..], Vec::as_slice);
    let output = &node.outputs[0];
    let result = match node.op.as_str() {
        "FullyConnected" | "MatMul" | "Conv2d" => {
            let Some(shape) = shape(node) else {
                return;
            };
            let Product { m, k, n, .. } = shape;
            let matrices = input(0).chunks(m * k).zip(input(1).chunks(k * n));
            matrices.flat_map(|(x, w)| product(x, w, &shape)).collect()
        }
        "Transpose" => transpose(node, input(0)),
        "Softmax" => {
            let row = output.dims.last().map_or(1, |&dim| dim as usize);
            input(0).chunks_exact(row).flat_map(softmax).collect()
        }
        "ElementWiseAdd" => element_wise(node, input(0), input(1), |a, b| a + b),
        "ElementWiseSubtract" => element_wise(node, input(0), input(1), |a, b| a - b),
        "ElementWiseMultiply" => element_wise(node, input(0), input(1), |a, b| a * b),
        "ElementWiseDivide" => element_wise(node, input(0), input(1), |a, b| a / b),
        "Sigmoid" => input(0).iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        "Tanh" => input(0).iter().map(|x| x.tanh()).collect(),
        _ => input(0).to_vec(),
    };
    // As a tensor of its type would hold it.
    let rounded = number::decode(output, &number::encode(output, &result), false);
    values.insert(output.id, rounded);
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "results are rounded to the output's type anyway"
)]
fn product(x: &[f32], w: &[f32], shape: &Product) -> Vec<f32> {
    let &Product { m, k, n, .. } = shape;
    let mut y = vec![0.0; m * n];
    let rows: Vec<f32> = if shape.outputs_first {
        w.to_vec()
    } else {
        (0..n * k).map(|i| w[i % k * n + i / k]).collect()
    };
    for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
        for (w, y) in rows.chunks_exact(k).zip(y) {
            let sum: f64 = x
                .iter()
                .zip(w)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum();
            *y = sum as f32;
        }
    }
    y
}

fn transpose(node: &Node, x: &[f32]) -> Vec<f32> {
    let (Some(perm), [input], [output]) =
        (perm(node), node.inputs.as_slice(), node.outputs.as_slice())
    else {
        return Vec::new();
    };
    let stride = |dim: usize| -> usize {
        let inner = input.dims[dim + 1..].iter();
        inner.map(|&dim| dim as usize).product()
    };
    let strides: Vec<usize> = perm.iter().map(|&dim| stride(dim)).collect();
    let from = |mut i: usize| {
        let dims = output.dims.iter().zip(&strides).rev();
        dims.map(|(&dim, stride)| {
            let at = i % dim as usize * stride;
            i /= dim as usize;
            at
        })
        .sum::<usize>()
    };
    (0..output.n_elements()).map(|i| x[from(i)]).collect()
}

fn softmax(row: &[f32]) -> Vec<f32> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = row.iter().map(|x| (x - largest).exp());
    let sum: f32 = powers.clone().sum();
    powers.map(|power| power / sum).collect()
}

fn element_wise(node: &Node, a: &[f32], b: &[f32], f: fn(f32, f32) -> f32) -> Vec<f32> {
    let dims = &node.outputs[0].dims;
    let place = |operand: &Tensor, i: usize| {
        let (mut at, mut stride, mut rest) = (0, 1, i);
        let mut operand_dims = operand.dims.iter().rev();
        for &dim in dims.iter().rev() {
            let own = operand_dims.next().copied().unwrap_or(1) as usize;
            at += rest % dim as usize % own * stride;
            stride *= own;
            rest /= dim as usize;
        }
        at
    };
    let n = node.outputs[0].n_elements();
    (0..n)
        .map(|i| f(a[place(&node.inputs[0], i)], b[place(&node.inputs[1], i)]))
        .collect()
}
