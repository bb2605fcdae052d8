//! Copies of rows that change the type, element by element.

use super::{Reference, convert};
use crate::WeightType;
use crate::op::copy::Implementation;

impl Implementation for Reference {
    fn widen(&self, x: &[u8], out: &mut [f32]) {
        convert::dequantize_row(WeightType::F16, x, out);
    }

    fn narrow(&self, x: &[f32], out: &mut [u8]) {
        convert::f32_to_f16_row(x, out);
    }

    fn dequantize(&self, ty: WeightType, row: &[u8], out: &mut [f32]) {
        convert::dequantize_row(ty, row, out);
    }
}
