//! Row conversions, element by element.

use crate::WeightType;
use crate::block::{Q4_0, Q8_0, QK, Scale, f16_to_f32, f32_to_f16};
use crate::rows::f32s;
use crate::tile::TileType;

/// See [`crate::op::convert::f32_to_f16_row`].
pub(crate) fn f32_to_f16_row(x: &[f32], out: &mut [u8]) {
    for (x, out) in x.iter().zip(out.as_chunks_mut().0) {
        *out = f32_to_f16(*x);
    }
}

/// See [`crate::op::convert::quantize_row_q8_0`].
pub(crate) fn quantize_row_q8_0(x: &[f32], out: &mut [u8]) {
    for (x, out) in x
        .as_chunks()
        .0
        .iter()
        .zip(out.as_chunks_mut::<{ Q8_0::SIZE_BYTES }>().0)
    {
        let (d, q) = quantize_block_q8_0(x);
        out[..2].copy_from_slice(&d);
        out[2..].copy_from_slice(&q.map(i8::cast_unsigned));
    }
}

/// Returns the f16 scale and the integers of one block.
pub(crate) fn quantize_block_q8_0(x: &[f32; QK]) -> ([u8; 2], [i8; QK]) {
    // The bits of |x| order as the values do, with NaN above infinity.
    let amax = f32::from_bits(x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0));
    let d = f32_to_f16(amax / 127.0);
    if !amax.is_finite() || f16_to_f32(d) == 0.0 {
        return (d, [0; QK]);
    }
    let id = 127.0 / amax;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "|x * id| rounds to at most 127"
    )]
    (d, x.map(|x| (x * id).round() as i8))
}

/// Returns scale and integers of unit `k_tile` of a row of x that is multiplied with tiles of a quantised type
/// ([`crate::op::gemm`]).
pub(crate) fn quantize_unit(ty: TileType, row: &[u8], k_tile: usize) -> (f32, [i8; QK]) {
    let mut unit = [0.0; QK];
    let part = f32s(&row[4 * k_tile * QK..]);
    unit.iter_mut().zip(part).for_each(|(to, x)| *to = x);
    if !matches!(ty, TileType::Q4K | TileType::Q6K) {
        let (d, q) = quantize_block_q8_0(&unit);
        return (f16_to_f32(d), q);
    }
    let len = ty.blck_size();
    let block = f32s(&row[4 * (k_tile * QK / len * len)..]).take(len);
    let amax = f32::from_bits(block.map(|x| x.abs().to_bits()).max().unwrap_or(0));
    let Scale { d, id } = Scale::q8_k(amax);
    if id == 0.0 {
        return (d, [0; QK]);
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "|x * id| rounds to at most 127"
    )]
    (d, unit.map(|x| (x * id).round_ties_even() as i8))
}

/// See [`crate::op::convert::dequantize_row`].
pub(crate) fn dequantize_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    match ty {
        WeightType::F32 => {
            for (b, out) in row.as_chunks().0.iter().zip(out) {
                *out = f32::from_ne_bytes(*b);
            }
        }
        WeightType::F16 => {
            for (b, out) in row.as_chunks().0.iter().zip(out) {
                *out = f16_to_f32(*b);
            }
        }
        WeightType::Q8_0 => {
            for (b, out) in row.as_chunks().0.iter().zip(out.as_chunks_mut::<QK>().0) {
                let block = Q8_0(b);
                *out = std::array::from_fn(|i| block.d() * f32::from(block.q(i)));
            }
        }
        WeightType::Q4_0 => {
            for (b, out) in row.as_chunks().0.iter().zip(out.as_chunks_mut::<QK>().0) {
                let block = Q4_0(b);
                *out = std::array::from_fn(|i| block.d() * f32::from(block.q(i)));
            }
        }
    }
}
