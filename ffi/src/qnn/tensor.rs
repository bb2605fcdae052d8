//! Tensors: data types, quantisation, and what is checked about them.

use std::borrow::Cow;

use super::SpecError;
use super::sys;

/// Type of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// Signed integer, for indices.
    Int32,
    /// Unsigned integer, for parameters such as strides.
    Uint32,
    /// IEEE half.
    Float16,
    /// IEEE single; HTP computes with halves inside.
    Float32,
    /// Signed fixed point, 8 bits; also holds weights of fewer bits, one byte each, sign-extended.
    Sfixed8,
    /// Signed fixed point, 16 bits.
    Sfixed16,
    /// Signed fixed point, 32 bits: biases.
    Sfixed32,
    /// Unsigned fixed point, 8 bits.
    Ufixed8,
    /// Unsigned fixed point, 16 bits.
    Ufixed16,
    /// Boolean, a byte.
    Bool8,
}

impl DataType {
    /// All of them, with their numbers in the ABI and sizes in bytes.
    const ALL: &[(Self, u32, usize)] = &[
        (Self::Int32, 0x032, 4),
        (Self::Uint32, 0x132, 4),
        (Self::Float16, 0x216, 2),
        (Self::Float32, 0x232, 4),
        (Self::Sfixed8, 0x308, 1),
        (Self::Sfixed16, 0x316, 2),
        (Self::Sfixed32, 0x332, 4),
        (Self::Ufixed8, 0x408, 1),
        (Self::Ufixed16, 0x416, 2),
        (Self::Bool8, 0x508, 1),
    ];

    fn row(self) -> (Self, u32, usize) {
        let row = Self::ALL.iter().find(|row| row.0 == self);
        *row.expect("the table holds every type")
    }

    /// Bytes per element.
    pub fn size_bytes(self) -> usize {
        self.row().2
    }

    /// Number in the ABI.
    pub fn to_raw(self) -> u32 {
        self.row().1
    }

    /// The type of a number in the ABI.
    pub fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.iter().find(|row| row.1 == raw).map(|row| row.0)
    }
}

/// Scale and offset of a block of weights: a weight is `(q + offset) * scale`, with `offset` a float of any value. (Measured
/// on releases 2.47 to 2.51; a probe graph at start-up has to confirm it for others.) `scale` is above zero.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct BlockScale {
    /// Above zero and finite.
    pub scale: f32,
    /// Added to the stored number before scaling.
    pub offset: f32,
}

/// How fixed-point numbers stand for reals. Scales of a tensor with an axis or blocks are borrowed where possible.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Quantization<'d> {
    /// None: floats and integers.
    None,
    /// `(q + offset) * scale` for the whole tensor.
    PerTensor {
        /// Above zero.
        scale: f32,
        /// Added to the stored number.
        offset: i32,
    },
    /// `q * scales[c]` for channel `c` of an axis; 8 bits.
    PerChannel {
        /// The axis of the channels.
        axis: u32,
        /// A scale for each channel, above zero.
        scales: Cow<'d, [f32]>,
    },
    /// `(q + offset) * scale` for the whole tensor, with numbers of `bits` bits in bytes.
    PerTensorBits {
        /// 1 to 8; 4 is what HTP knows.
        bits: u32,
        /// Above zero.
        scale: f32,
        /// Added to the stored number.
        offset: i32,
    },
    /// `q * scales[c]` for channel `c` of an axis, with numbers of `bits` bits in bytes.
    PerChannelBits {
        /// 1 to 8; 4 is what HTP knows.
        bits: u32,
        /// The axis of the channels.
        axis: u32,
        /// A scale for each channel, above zero.
        scales: Cow<'d, [f32]>,
    },
    /// Blocks with a scale and an offset each, with numbers of `bits` bits in bytes: ggml's block quantisations as they are.
    FloatBlocks {
        /// 2, 4 or 8.
        bits: u32,
        /// Elements of a block along each dimension: 1 but for the input channels. With 4 bits a multiple of 8.
        block: Cow<'d, [u32]>,
        /// Block `b` of output channel `n` at `n * blocks + b`.
        scales: Cow<'d, [BlockScale]>,
    },
}

/// Type, shape and quantisation of a tensor. Dimensions are in QNN's order, the *last* one contiguous: ggml's `[k, n]`
/// matrix is `[n, k]` here.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorType<'d> {
    /// Type of the elements.
    pub data_type: DataType,
    /// Outermost first.
    pub dims: Vec<u32>,
    /// How fixed-point numbers stand for reals.
    pub quantization: Quantization<'d>,
}

impl<'d> TensorType<'d> {
    /// A tensor without quantisation.
    pub fn new(data_type: DataType, dims: &[u32]) -> Self {
        Self::quantized(data_type, dims, Quantization::None)
    }

    /// A tensor with quantisation.
    pub fn quantized(data_type: DataType, dims: &[u32], quantization: Quantization<'d>) -> Self {
        Self {
            data_type,
            dims: dims.to_vec(),
            quantization,
        }
    }

    /// Number of elements; 0 where a dimension is.
    pub fn n_elements(&self) -> usize {
        self.dims
            .iter()
            .try_fold(1_usize, |n, &dim| n.checked_mul(dim as usize))
            .unwrap_or(usize::MAX)
    }

    /// Bytes of its data.
    pub fn size_bytes(&self) -> usize {
        self.n_elements()
            .saturating_mul(self.data_type.size_bytes())
    }

    /// Checks what the library does not: dimensions, and that every channel and block has a scale above zero.
    ///
    /// # Errors
    /// [`SpecError::Dims`], [`SpecError::Quantization`].
    pub fn check(&self, name: &str) -> Result<(), SpecError> {
        if self.dims.is_empty()
            || self.dims.contains(&0)
            || u32::try_from(self.size_bytes()).is_err()
        {
            return Err(SpecError::Dims {
                tensor: name.to_owned(),
                dims: self.dims.clone(),
            });
        }
        self.check_quantization()
            .map_err(|what| SpecError::Quantization {
                tensor: name.to_owned(),
                what,
            })
    }

    fn check_quantization(&self) -> Result<(), &'static str> {
        match &self.quantization {
            Quantization::None => Ok(()),
            Quantization::PerTensor { scale, .. } => check_scales([*scale]),
            Quantization::PerTensorBits { bits, scale, .. } => {
                check_bits(*bits)?;
                check_scales([*scale])
            }
            Quantization::PerChannel { axis, scales } => self.check_channels(*axis, scales),
            Quantization::PerChannelBits { bits, axis, scales } => {
                check_bits(*bits)?;
                self.check_channels(*axis, scales)
            }
            Quantization::FloatBlocks {
                bits,
                block,
                scales,
            } => {
                check_bits(*bits)?;
                if block.len() != self.dims.len() {
                    return Err("the block has not as many dimensions as the tensor");
                }
                let mut blocks = 1;
                for (&dim, &size) in self.dims.iter().zip(block.iter()) {
                    if size == 0 || dim % size != 0 {
                        return Err("a dimension is not a multiple of its block");
                    }
                    blocks *= (dim / size) as usize;
                }
                if blocks != scales.len() {
                    return Err("not as many scales as blocks");
                }
                if scales.iter().any(|scale| !scale.offset.is_finite()) {
                    return Err("an offset is not finite");
                }
                check_scales(scales.iter().map(|scale| scale.scale))
            }
        }
    }

    fn check_channels(&self, axis: u32, scales: &[f32]) -> Result<(), &'static str> {
        let Some(&channels) = self.dims.get(axis as usize) else {
            return Err("the axis is not one of the tensor");
        };
        if channels as usize != scales.len() {
            return Err("not as many scales as channels");
        }
        check_scales(scales.iter().copied())
    }
}

fn check_bits(bits: u32) -> Result<(), &'static str> {
    if (1..=8).contains(&bits) {
        Ok(())
    } else {
        Err("not 1 to 8 bits")
    }
}

fn check_scales(scales: impl IntoIterator<Item = f32>) -> Result<(), &'static str> {
    if scales
        .into_iter()
        .all(|scale| scale > 0.0 && scale.is_finite())
    {
        Ok(())
    } else {
        Err("a scale is not above zero and finite")
    }
}

/// Scales in the ABI's form where that is not the description's.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    scales: Vec<sys::ScaleOffset>,
    offsets: Vec<i32>,
}

/// Quantisation in the ABI's form. It points into the description that it was made from and into `scratch`.
pub(super) fn quantize_params(
    quantization: &Quantization<'_>,
    scratch: &mut Scratch,
) -> sys::QuantizeParams {
    let mut value = sys::QuantizeValue { room: [0; 4] };
    let encoding = match quantization {
        Quantization::None => {
            return sys::QuantizeParams {
                definition: sys::UNDEFINED,
                encoding: sys::UNDEFINED,
                value,
            };
        }
        Quantization::PerTensor { scale, offset } => {
            value.scale_offset = sys::ScaleOffset {
                scale: *scale,
                offset: *offset,
            };
            sys::ENCODING_SCALE_OFFSET
        }
        Quantization::PerChannel { axis, scales } => {
            scratch.scales = scales
                .iter()
                .map(|&scale| sys::ScaleOffset { scale, offset: 0 })
                .collect();
            value.axis = sys::AxisScaleOffset {
                axis: axis.cast_signed(),
                n: length(scales.len()),
                values: scratch.scales.as_ptr(),
            };
            sys::ENCODING_AXIS_SCALE_OFFSET
        }
        Quantization::PerTensorBits {
            bits,
            scale,
            offset,
        } => {
            value.bw = sys::BwScaleOffset {
                bits: *bits,
                scale: *scale,
                offset: *offset,
            };
            sys::ENCODING_BW_SCALE_OFFSET
        }
        Quantization::PerChannelBits { bits, axis, scales } => {
            // NULL would mean zeros too, but libQnnSaver.so reads it.
            scratch.offsets = vec![0; scales.len()];
            value.bw_axis = sys::BwAxisScaleOffset {
                bits: *bits,
                axis: axis.cast_signed(),
                n: length(scales.len()),
                scales: scales.as_ptr(),
                offsets: scratch.offsets.as_ptr(),
            };
            sys::ENCODING_BW_AXIS_SCALE_OFFSET
        }
        Quantization::FloatBlocks {
            bits,
            block,
            scales,
        } => {
            value.bw_float_block = sys::BwFloatBlock {
                bits: *bits,
                block_size: block.as_ptr(),
                values: scales.as_ptr(),
            };
            sys::ENCODING_BW_FLOAT_BLOCK
        }
    };
    sys::QuantizeParams {
        definition: sys::DEFINITION_DEFINED,
        encoding,
        value,
    }
}

/// A length in the ABI; those of checked descriptions are dimensions or counts far below the limit.
pub(super) fn length(n: usize) -> u32 {
    u32::try_from(n).expect("counts of a checked description fit in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_data_type_has_its_number() {
        for &(data_type, raw, size) in DataType::ALL {
            assert_eq!(DataType::from_raw(raw), Some(data_type));
            assert_eq!(data_type.size_bytes(), size);
        }
        assert_eq!(DataType::ALL.len(), 10);
        assert_eq!(DataType::from_raw(0x304), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ones = |n: usize| Cow::Owned(vec![1.0; n]);
        let blocks = |block: &[u32], n: usize| Quantization::FloatBlocks {
            bits: 4,
            block: block.to_vec().into(),
            scales: vec![
                BlockScale {
                    scale: 1.0,
                    offset: 0.0
                };
                n
            ]
            .into(),
        };
        let dims = [4, 64];
        let cases = [
            (
                Quantization::PerChannel {
                    axis: 0,
                    scales: ones(4),
                },
                true,
            ),
            (
                Quantization::PerChannel {
                    axis: 1,
                    scales: ones(4),
                },
                false,
            ),
            (
                Quantization::PerChannel {
                    axis: 2,
                    scales: ones(4),
                },
                false,
            ),
            (
                Quantization::PerChannelBits {
                    bits: 9,
                    axis: 0,
                    scales: ones(4),
                },
                false,
            ),
            (
                Quantization::PerTensor {
                    scale: 0.0,
                    offset: 0,
                },
                false,
            ),
            (
                Quantization::PerTensorBits {
                    bits: 4,
                    scale: f32::NAN,
                    offset: 0,
                },
                false,
            ),
            (blocks(&[1, 32], 8), true),
            (blocks(&[1, 32], 7), false),
            (blocks(&[1, 48], 4), false),
            (blocks(&[32], 8), false),
            (blocks(&[1, 0], 8), false),
        ];
        for (quantization, fits) in cases {
            let tensor = TensorType::quantized(DataType::Sfixed8, &dims, quantization);
            assert_eq!(tensor.check("t").is_ok(), fits, "{tensor:?}");
        }
        assert!(TensorType::new(DataType::Float16, &[]).check("t").is_err());
        assert!(
            TensorType::new(DataType::Float16, &[3, 0])
                .check("t")
                .is_err()
        );
        assert!(
            TensorType::new(DataType::Float16, &[1 << 16, 1 << 16])
                .check("t")
                .is_err()
        );
    }
}
