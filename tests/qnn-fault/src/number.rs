//! Numbers of every data type, and what quantised ones stand for.

use half::f16;

use crate::abi::{Encoding, Tensor};

const INT_32: u32 = 0x032;
const UINT_32: u32 = 0x132;
pub(crate) const FLOAT_16: u32 = 0x216;
pub(crate) const FLOAT_32: u32 = 0x232;
pub(crate) const SFIXED_8: u32 = 0x308;
const SFIXED_16: u32 = 0x316;
const SFIXED_32: u32 = 0x332;
const UFIXED_8: u32 = 0x408;
const UFIXED_16: u32 = 0x416;

/// Bytes of an element; `None` for a type that tensors cannot have.
pub(crate) fn size(data_type: u32) -> Option<usize> {
    match data_type {
        SFIXED_8 | UFIXED_8 => Some(1),
        FLOAT_16 | SFIXED_16 | UFIXED_16 => Some(2),
        FLOAT_32 | INT_32 | UINT_32 | SFIXED_32 => Some(4),
        _ => None,
    }
}

/// The stored number, before scaling.
#[expect(
    clippy::cast_precision_loss,
    reason = "indices and biases of tests are far below 2^24"
)]
fn stored(data_type: u32, bytes: &[u8]) -> f32 {
    match *bytes {
        [a] if data_type == SFIXED_8 => f32::from(a.cast_signed()),
        [a] => f32::from(a),
        [a, b] => match data_type {
            FLOAT_16 => f16::from_le_bytes([a, b]).to_f32(),
            SFIXED_16 => f32::from(i16::from_le_bytes([a, b])),
            _ => f32::from(u16::from_le_bytes([a, b])),
        },
        [a, b, c, d] => match data_type {
            FLOAT_32 => f32::from_le_bytes([a, b, c, d]),
            UINT_32 => u32::from_le_bytes([a, b, c, d]) as f32,
            _ => i32::from_le_bytes([a, b, c, d]) as f32,
        },
        _ => f32::NAN,
    }
}

/// What the bytes of a tensor stand for. `formula`: blocks by `q * scale + offset`.
pub(crate) fn decode(tensor: &Tensor, bytes: &[u8], formula: bool) -> Vec<f32> {
    let Some(size) = size(tensor.data_type) else {
        return Vec::new();
    };
    let value = |i: usize, q: f32| match &tensor.encoding {
        Encoding::Tensor(scale, offset) => scaled(q, *scale, *offset),
        Encoding::Axis(axis, values) => {
            let inner: usize = tensor.dims[axis + 1..]
                .iter()
                .map(|&dim| dim as usize)
                .product();
            let (scale, offset) = values[i / inner % values.len()];
            scaled(q, scale, offset)
        }
        Encoding::Blocks(_, block, values) => {
            let (scale, offset) = values[Blocks::new(&tensor.dims, block).of(i)];
            if formula {
                q * scale + offset
            } else {
                (q + offset) * scale
            }
        }
        Encoding::None | Encoding::Other(_) => q,
    };
    let numbers = bytes
        .chunks_exact(size)
        .map(|chunk| stored(tensor.data_type, chunk));
    numbers.enumerate().map(|(i, q)| value(i, q)).collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "offsets are those of 16-bit numbers at most"
)]
fn scaled(q: f32, scale: f32, offset: i32) -> f32 {
    (q + offset as f32) * scale
}

/// Which block an element of a matrix belongs to: the last two dimensions are the matrix, one of them has the blocks, and
/// blocks are numbered along it first.
struct Blocks {
    columns: usize,
    rows: usize,
    along_rows: bool,
    size: usize,
}

impl Blocks {
    fn new(dims: &[u32], block: &[u32]) -> Self {
        let last = dims.len() - 1;
        let along_rows = block[last] == 1 && last > 0;
        let size = if along_rows {
            block[last - 1]
        } else {
            block[last]
        };
        Self {
            columns: dims[last] as usize,
            rows: if last > 0 { dims[last - 1] as usize } else { 1 },
            along_rows,
            size: size as usize,
        }
    }

    fn of(&self, i: usize) -> usize {
        let (row, column) = (i / self.columns % self.rows, i % self.columns);
        if self.along_rows {
            column * (self.rows / self.size) + row / self.size
        } else {
            row * (self.columns / self.size) + column / self.size
        }
    }
}

/// The bytes of a tensor for these values, rounded to the nearest.
pub(crate) fn encode(tensor: &Tensor, values: &[f32]) -> Vec<u8> {
    let (scale, offset) = match tensor.encoding {
        Encoding::Tensor(scale, offset) => (scale, f64::from(offset)),
        _ => (1.0, 0.0),
    };
    let mut bytes = Vec::with_capacity(4 * values.len());
    for &value in values {
        let q = (f64::from(value) / f64::from(scale) - offset).round_ties_even();
        put(&mut bytes, tensor.data_type, value, q);
    }
    bytes
}

/// A float to integer cast of Rust saturates, which is what is wanted.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturating casts to the stored type are the operation"
)]
fn put(bytes: &mut Vec<u8>, data_type: u32, value: f32, q: f64) {
    match data_type {
        FLOAT_16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
        FLOAT_32 => bytes.extend(value.to_le_bytes()),
        SFIXED_8 => bytes.extend((q as i8).to_le_bytes()),
        UFIXED_8 => bytes.push(q as u8),
        SFIXED_16 => bytes.extend((q as i16).to_le_bytes()),
        UFIXED_16 => bytes.extend((q as u16).to_le_bytes()),
        UINT_32 => bytes.extend((q as u32).to_le_bytes()),
        _ => bytes.extend((q as i32).to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_by_output_channel() {
        let rows = Blocks::new(&[2, 64], &[1, 32]);
        assert_eq!([0, 31, 32, 64, 127].map(|i| rows.of(i)), [0, 0, 1, 2, 3]);
        let columns = Blocks::new(&[1, 1, 64, 2], &[1, 1, 32, 1]);
        assert_eq!([0, 1, 62, 64, 65].map(|i| columns.of(i)), [0, 2, 0, 1, 3]);
    }

    #[test]
    fn numbers_round_trip() {
        for (data_type, encoding) in [
            (FLOAT_16, Encoding::None),
            (FLOAT_32, Encoding::None),
            (SFIXED_8, Encoding::Tensor(0.25, 0)),
            (UFIXED_16, Encoding::Tensor(0.25, -1000)),
        ] {
            let tensor = Tensor {
                id: 0,
                name: String::new(),
                kind: 0,
                data_type,
                encoding,
                dims: vec![3],
                data: Vec::new(),
            };
            let values = [-1.5, 0.25, 2.0];
            let bytes = encode(&tensor, &values);
            assert_eq!(decode(&tensor, &bytes, false), values, "{data_type:#x}");
        }
    }
}
