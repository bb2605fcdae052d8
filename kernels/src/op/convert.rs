//! Conversions of whole rows. Off the hot path: one implementation each.

use crate::WeightType;
use crate::block::{Q8_0, QK};
use crate::reference::convert;

/// Rounds `x` to half floats (to nearest, ties to even) into `out`, little endian.
///
/// # Panics
///
/// When `out` is not two bytes per element.
pub fn f32_to_f16_row(x: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * x.len(), "bytes of {} half floats", x.len());
    convert::f32_to_f16_row(x, out);
}

/// Quantises `x` to `Q8_0` blocks.
///
/// Per block `d = max|x| / 127`, stored as f16; `q = round(x * (127 / max|x|))`, halves away from zero. A block whose
/// `d` rounds to zero has all `q` zero. A block with an infinity or NaN has that as its `d`, and all `q` zero, so that
/// every product with it is NaN.
///
/// # Panics
///
/// When `x` is not whole blocks or `out` is not 34 bytes for each.
pub fn quantize_row_q8_0(x: &[f32], out: &mut [u8]) {
    assert!(
        x.len().is_multiple_of(QK),
        "{} elements are not whole blocks",
        x.len()
    );
    assert_eq!(
        out.len(),
        x.len() / QK * Q8_0::SIZE_BYTES,
        "bytes of {} elements",
        x.len()
    );
    convert::quantize_row_q8_0(x, out);
}

/// Writes the f32 values of a weight row; exact.
///
/// # Panics
///
/// When `row` is not `out.len()` elements of the type.
pub fn dequantize_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(row.len()),
        ty.row_size(out.len()),
        "bytes of {} elements of {}",
        out.len(),
        ty.name()
    );
    convert::dequantize_row(ty, row, out);
}
