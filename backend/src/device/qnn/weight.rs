//! Weights as QNN takes them: ggml's blocks as integers with a scale and an offset per block, half floats, or integers
//! with a scale per row.
//!
//! A block of ggml's has values `d * q + m`. QNN's have `(s + offset) * scale`, with `s` a signed integer of 4 or 8 bits
//! and `scale` positive; offset and scale are floats, so that no weight is quantised anew. [`Affine::of`] does the
//! arithmetic: it turns integers around where `d` is negative (half of the blocks of `Q4_0` have such a scale).

use half::f16;
use llada_npu_ffi::qnn::BlockScale;
use llada_npu_kernels::WeightType;
use llada_npu_kernels::tile::{Q4K, Q6K, TileType};

use super::{MIN_K, MIN_N};
use crate::knobs::Tier;

/// Types of weights that can be lowered: all that the host multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QnnType {
    /// ggml's `F32`, rounded to half floats.
    F32,
    /// A type with tiles, of half floats or blocks.
    Tiled(TileType),
}

/// Most elements of a group with one scale.
const MAX_GROUP: usize = 32;

/// A value that no half float holds, or that is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The weight has a NaN, an infinity, or a number beyond half floats.
    #[error("row {row}: a value that half floats do not hold")]
    Value {
        /// Row of the weight.
        row: usize,
    },
    /// The bytes are not those of the shape.
    #[error("{actual} bytes of weights, expected {expected}")]
    Length {
        /// Bytes there are.
        actual: usize,
        /// Bytes of the shape (`usize::MAX` on overflow).
        expected: usize,
    },
}

impl QnnType {
    /// Every type.
    pub const ALL: [Self; 7] = [
        Self::F32,
        Self::Tiled(TileType::F16),
        Self::Tiled(TileType::Q4_0),
        Self::Tiled(TileType::Q4_1),
        Self::Tiled(TileType::Q8_0),
        Self::Tiled(TileType::Q4K),
        Self::Tiled(TileType::Q6K),
    ];

    /// Returns the type with ggml's number; `None` where it cannot be lowered.
    #[must_use]
    pub fn from_ggml_type(type_: u32) -> Option<Self> {
        let tiled = TileType::from_ggml_type(type_).map(Self::Tiled);
        tiled.or_else(|| {
            (WeightType::from_ggml_type(type_) == Some(WeightType::F32)).then_some(Self::F32)
        })
    }

    /// Returns ggml's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => WeightType::F32.name(),
            Self::Tiled(ty) => ty.name(),
        }
    }

    /// Returns elements and bytes of one of ggml's blocks.
    const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (WeightType::F32.blck_size(), WeightType::F32.type_size()),
            Self::Tiled(ty) => (ty.blck_size(), ty.type_size()),
        }
    }

    /// Returns the bytes of a row of `k` elements; `None` where it is not whole blocks, or too long.
    #[must_use]
    pub const fn row_size(self, k: usize) -> Option<usize> {
        match self {
            Self::F32 => WeightType::F32.row_size(k),
            Self::Tiled(ty) => ty.row_size(k),
        }
    }

    /// Returns the integers that blocks hold, and how many elements share a scale; `None` for floats.
    const fn quants(self) -> Option<Quants> {
        let (lo, hi, bits, group) = match self {
            Self::F32 | Self::Tiled(TileType::F16) => return None,
            Self::Tiled(TileType::Q4_0) => (-8, 7, 4, 32),
            Self::Tiled(TileType::Q4_1 | TileType::Q4K) => (0, 15, 4, 32),
            Self::Tiled(TileType::Q8_0) => (-128, 127, 8, 32),
            Self::Tiled(TileType::Q6K) => (-32, 31, 8, 16),
        };
        Some(Quants {
            lo,
            hi,
            bits,
            group,
        })
    }

    /// Reads group `g` of a row: its integers into `q`, and `d` and `m` of `d * q + m`.
    fn group(self, row: &[u8], g: usize, q: &mut [i16]) -> (f32, f32) {
        let (len, size) = self.block();
        let per_block = len / q.len();
        let (block, s) = (&row[g / per_block * size..][..size], g % per_block);
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let low = |at: usize, i: usize| i16::from(block[at + i % 16] >> (4 * (i / 16)) & 15);
        let mut set = |value: &dyn Fn(usize) -> i16| {
            for (i, q) in q.iter_mut().enumerate() {
                *q = value(i);
            }
        };
        match self {
            Self::F32 | Self::Tiled(TileType::F16) => unreachable!("floats have no groups"),
            Self::Tiled(TileType::Q4_0) => {
                set(&|i| low(2, i) - 8);
                (half(0), 0.0)
            }
            Self::Tiled(TileType::Q4_1) => {
                set(&|i| low(4, i));
                (half(0), half(2))
            }
            Self::Tiled(TileType::Q8_0) => {
                set(&|i| i16::from(block[2 + i].cast_signed()));
                (half(0), 0.0)
            }
            Self::Tiled(TileType::Q4K) => {
                let block = Q4K(block.as_array().expect("bytes of a block"));
                set(&|i| i16::from(block.nibble(s, i)));
                let (d, m) = block.scales(s);
                (d, -m)
            }
            Self::Tiled(TileType::Q6K) => {
                let block = Q6K(block.as_array().expect("bytes of a block"));
                set(&|i| i16::from(block.q(16 * s + i)) - 32);
                (block.scale(s), 0.0)
            }
        }
    }

    /// Writes the values of a row of ggml's blocks, in f32: `d * q + m`.
    ///
    /// # Panics
    /// When `row` is not `out.len()` elements.
    pub fn dequantize_row(self, row: &[u8], out: &mut [f32]) {
        assert_eq!(Some(row.len()), self.row_size(out.len()), "bytes of a row");
        match self {
            Self::F32 => floats(row.as_chunks().0, out, f32::from_le_bytes),
            Self::Tiled(TileType::F16) => {
                floats(row.as_chunks().0, out, |b| f16::from_le_bytes(b).to_f32());
            }
            Self::Tiled(_) => {
                let group = self.quants().expect("not a float").group;
                let mut q = [0; MAX_GROUP];
                for (g, out) in out.chunks_exact_mut(group).enumerate() {
                    let (d, m) = self.group(row, g, &mut q[..group]);
                    for (out, &q) in out.iter_mut().zip(&q) {
                        *out = d * f32::from(q) + m;
                    }
                }
            }
        }
    }
}

fn floats<const N: usize>(row: &[[u8; N]], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(row) {
        *out = value(bytes);
    }
}

#[derive(Clone, Copy, Debug)]
struct Quants {
    lo: i16,
    hi: i16,
    bits: u32,
    group: usize,
}

/// Scale and offset of a block, and how its integers become those of QNN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Affine {
    scale: f32,
    offset: f32,
    /// Whether integers are turned around.
    turned: bool,
    /// All values of the block are the same: integers are 0.
    flat: bool,
    /// What is added to integers.
    shift: i16,
}

impl Affine {
    /// Finds the numbers for `d * q + m`, with `q` in `lo..=hi`: `(s + offset) * scale` for `s = shift + q`, or `shift - q`
    /// where `d` is negative. Of the shifts whose integers fit their bits it is the one with the least offset, which QNN
    /// keeps as a half float. `None` where half floats do not hold the numbers.
    fn of(quants: Quants, d: f32, m: f32) -> Option<Self> {
        let min = -(1_i16 << (quants.bits - 1));
        let turned = d < 0.0;
        let (lo, hi) = if turned {
            (-quants.hi, -quants.lo)
        } else {
            (quants.lo, quants.hi)
        };
        let (least, most) = (min - lo, -1 - min - hi);
        let wanted = m / d.abs();
        #[expect(clippy::cast_possible_truncation, reason = "clamped to a few bits")]
        let shift = (wanted.round().clamp(f32::from(least), f32::from(most))) as i16;
        let offset = wanted - f32::from(shift);
        let fits = |x: f32| x.abs() <= f16::MAX.to_f32();
        // Where `d` is none, or so small that the block has one value to three digits, the block is flat.
        let flat = f16::from_f32(d) == f16::ZERO || d.is_finite() && !fits(offset);
        let (scale, offset) = if flat {
            let value = m + d * f32::from(quants.lo + quants.hi) / 2.0;
            if value == 0.0 {
                (1.0, 0.0)
            } else {
                (value.abs(), value.signum())
            }
        } else {
            (d.abs(), offset)
        };
        (fits(scale) && fits(offset)).then_some(Self {
            scale,
            offset,
            turned,
            flat,
            shift,
        })
    }

    fn integer(&self, q: i16) -> i8 {
        let s = match (self.flat, self.turned) {
            (true, _) => 0,
            (_, true) => self.shift - q,
            (_, false) => self.shift + q,
        };
        i8::try_from(s).expect("`of` found integers that fit")
    }
}

/// A weight in QNN's terms: `n` rows of `k` elements, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Rows.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Its numbers.
    pub data: WeightData,
}

/// The numbers of a weight.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightData {
    /// Half floats, little endian.
    Half(Vec<u8>),
    /// Integers with scale and offset per group of a row: value `(s + offset) * scale`.
    Blocks {
        /// Bits of an integer, 4 or 8; each has a byte.
        bits: u32,
        /// Elements with one scale.
        group: usize,
        /// Integers.
        integers: Vec<i8>,
        /// Scales, positive, and offsets, of the groups of the first row, of the second, ….
        scales: Vec<BlockScale>,
    },
    /// Integers with one scale per row: value `s * scale`. Values are rounded.
    Channels {
        /// Integers.
        integers: Vec<i8>,
        /// Scales, positive.
        scales: Vec<f32>,
    },
}

impl Weight {
    /// Lowers rows of ggml's blocks, which follow each other without gaps.
    ///
    /// # Errors
    /// [`LowerError`].
    pub fn lower(
        ty: QnnType,
        tier: Tier,
        k: usize,
        n: usize,
        rows: &[u8],
    ) -> Result<Self, LowerError> {
        let row_size = ty.row_size(k).unwrap_or(usize::MAX);
        let expected = row_size.saturating_mul(n);
        if rows.len() != expected || k == 0 || n == 0 {
            let actual = rows.len();
            return Err(LowerError::Length { actual, expected });
        }
        let rows = rows.chunks_exact(row_size);
        let data = match (tier, ty.quants()) {
            (Tier::Block, Some(quants)) => blocks(ty, quants, k, n, rows)?,
            (Tier::Block | Tier::Half, _) => halves(ty, k, n, rows)?,
            (Tier::Int8, _) => channels(ty, k, n, rows)?,
        };
        Ok(Self { n, k, data })
    }

    /// Lays the numbers of a row apart instead of side by side: those of one element of all rows follow each other, as
    /// convolutions take weights. Scales stay.
    #[must_use]
    pub fn transposed(mut self) -> Self {
        let (n, k) = (self.n, self.k);
        match &mut self.data {
            WeightData::Half(bytes) => *bytes = transpose(bytes.as_chunks::<2>().0, n, k).concat(),
            WeightData::Blocks { integers, .. } | WeightData::Channels { integers, .. } => {
                *integers = transpose(integers, n, k);
            }
        }
        self
    }

    /// Returns the largest sum of absolute values of a row: no product with inputs of at most 1 is larger. `None` for
    /// other numbers than bytes with one scale per row.
    #[must_use]
    pub fn largest_sum(&self) -> Option<f32> {
        let WeightData::Channels { integers, scales } = &self.data else {
            return None;
        };
        let sum = |row: &[i8]| -> f32 { row.iter().map(|&s| f32::from(s).abs()).sum() };
        let rows = integers.chunks_exact(self.k).zip(scales);
        Some(rows.fold(0.0, |max: f32, (row, scale)| max.max(sum(row) * scale)))
    }

    /// Returns the bytes, about, that a weight of ggml's type takes in a context: integers, and two half floats for each
    /// scale. `None` where it is not lowered.
    #[must_use]
    pub fn context_bytes(ggml_type: u32, tier: Tier, k: usize, n: usize) -> Option<usize> {
        let ty = QnnType::from_ggml_type(ggml_type)?;
        if k < MIN_K || n < MIN_N {
            return None;
        }
        let elements = k.checked_mul(n)?;
        Some(match (tier, ty.quants()) {
            (Tier::Block, Some(quants)) => {
                elements / 8 * quants.bits as usize + 4 * elements / quants.group
            }
            (Tier::Block | Tier::Half, _) => elements.checked_mul(2)?,
            (Tier::Int8, _) => elements + 4 * n,
        })
    }

    /// Returns the bytes that lowering `n` rows of `k` elements takes.
    #[must_use]
    pub const fn lowered_bytes(ty: QnnType, tier: Tier, k: usize, n: usize) -> usize {
        match (tier, ty.quants()) {
            (Tier::Block, Some(quants)) => k * n + 8 * n * (k / quants.group),
            (Tier::Block | Tier::Half, _) => 2 * k * n,
            (Tier::Int8, _) => k * n + 4 * n,
        }
    }
}

fn blocks<'a>(
    ty: QnnType,
    quants: Quants,
    k: usize,
    n: usize,
    rows: impl Iterator<Item = &'a [u8]>,
) -> Result<WeightData, LowerError> {
    let group = quants.group;
    let mut integers = Vec::with_capacity(n * k);
    let mut scales = Vec::with_capacity(n * k / group);
    let mut q = [0; MAX_GROUP];
    for (row, bytes) in rows.enumerate() {
        for g in 0..k / group {
            let (d, m) = ty.group(bytes, g, &mut q[..group]);
            let affine = Affine::of(quants, d, m).ok_or(LowerError::Value { row })?;
            integers.extend(q[..group].iter().map(|&q| affine.integer(q)));
            scales.push(BlockScale {
                scale: affine.scale,
                offset: affine.offset,
            });
        }
    }
    Ok(WeightData::Blocks {
        bits: quants.bits,
        group,
        integers,
        scales,
    })
}

fn halves<'a>(
    ty: QnnType,
    k: usize,
    n: usize,
    rows: impl Iterator<Item = &'a [u8]>,
) -> Result<WeightData, LowerError> {
    let mut bytes = Vec::with_capacity(2 * n * k);
    let mut values = vec![0.0; k];
    for (row, blocks) in rows.enumerate() {
        ty.dequantize_row(blocks, &mut values);
        for &value in &values {
            let half = f16::from_f32(value);
            if !half.is_finite() {
                return Err(LowerError::Value { row });
            }
            bytes.extend(half.to_le_bytes());
        }
    }
    Ok(WeightData::Half(bytes))
}

fn channels<'a>(
    ty: QnnType,
    k: usize,
    n: usize,
    rows: impl Iterator<Item = &'a [u8]>,
) -> Result<WeightData, LowerError> {
    let mut integers = Vec::with_capacity(n * k);
    let mut scales = Vec::with_capacity(n);
    let mut values = vec![0.0_f32; k];
    for (row, blocks) in rows.enumerate() {
        ty.dequantize_row(blocks, &mut values);
        if !values.iter().all(|value| value.is_finite()) {
            return Err(LowerError::Value { row });
        }
        let largest = values
            .iter()
            .fold(0.0_f32, |max, value| max.max(value.abs()));
        let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
        #[expect(clippy::cast_possible_truncation, reason = "rounded, at most 127")]
        integers.extend(values.iter().map(|value| (value / scale).round() as i8));
        scales.push(scale);
    }
    Ok(WeightData::Channels { integers, scales })
}

/// Numbers without a pattern.
fn noise(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    }
}

/// Makes rows with any integers; scales of both signs and of many sizes, some 0. To try things with.
pub(super) fn example_rows(ty: QnnType, k: usize, n: usize) -> Vec<u8> {
    let (len, size) = ty.block();
    let mut byte = noise(u64::try_from(size).unwrap_or(0) + 99);
    let mut rows = Vec::new();
    for block in 0..n * k / len {
        let mut bytes: Vec<u8> = (0..size).map(|_| byte()).collect();
        let mut scale = |at: usize, positive: bool| {
            let value = f32::from(byte()) / 256.0 / 64.0 + 1e-3;
            let negative = !positive && byte() & 1 == 1;
            let value = match block % 7 {
                3 => 0.0,
                _ if negative => -value,
                _ => value,
            };
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        match ty {
            QnnType::Tiled(TileType::Q4_0 | TileType::Q8_0) => scale(0, false),
            QnnType::Tiled(TileType::Q4_1) => {
                scale(0, false);
                scale(2, false);
            }
            QnnType::Tiled(TileType::Q4K) => {
                scale(0, true);
                scale(2, true);
            }
            QnnType::Tiled(TileType::Q6K) => scale(208, false),
            QnnType::Tiled(TileType::F16) => bytes[1] &= 0xbb,
            QnnType::F32 => bytes[3] &= 0xbb,
        }
        rows.extend(bytes);
    }
    rows
}

fn transpose<T: Copy>(rows: &[T], n: usize, k: usize) -> Vec<T> {
    let mut columns = Vec::with_capacity(n * k);
    for element in 0..k {
        columns.extend((0..n).map(|row| rows[row * k + element]));
    }
    columns
}

#[cfg(test)]
#[path = "weight_tests.rs"]
mod tests;
