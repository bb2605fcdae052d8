//! `MUL_MAT` as its contract reads: x in ggml's own format, one dot product at a time.

use crate::block::{Q4_0, Q8_0, QK, f16_to_f32};
use crate::op::mul_mat::{Implementation, PanelLayout};
use crate::reference::convert;
use crate::rows::f32s;
use crate::{F32Rows, WeightRows, WeightType};

/// The reference for weights of one type. A panel row is x as f32, f16 or `Q8_0`.
#[derive(Debug)]
pub(crate) struct Reference(pub(crate) WeightType);

impl Reference {
    /// Returns the type x is converted to.
    fn vec_dot_type(&self) -> WeightType {
        match self.0 {
            WeightType::F32 | WeightType::F16 => self.0,
            WeightType::Q8_0 | WeightType::Q4_0 => WeightType::Q8_0,
        }
    }
}

impl Implementation for Reference {
    fn ty(&self) -> WeightType {
        self.0
    }

    fn layout(&self, k: usize, n_rows: usize) -> PanelLayout {
        let group_size_bytes = self
            .vec_dot_type()
            .row_size(k)
            .expect("k is whole blocks and fits memory as f32");
        PanelLayout {
            k,
            n_rows,
            lanes: 1,
            group_size_bytes,
        }
    }

    fn prepare_group(&self, _layout: &PanelLayout, x: &F32Rows<'_>, group: &mut [u8]) {
        let row: Vec<f32> = f32s(x.row(0)).collect();
        match self.vec_dot_type() {
            WeightType::F32 => group.copy_from_slice(x.row(0)),
            WeightType::F16 => convert::f32_to_f16_row(&row, group),
            WeightType::Q8_0 | WeightType::Q4_0 => convert::quantize_row_q8_0(&row, group),
        }
    }

    fn mul_mat(
        &self,
        layout: &PanelLayout,
        weights: &WeightRows<'_>,
        panel: &[u8],
        n_rows: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        for i1 in 0..n_rows {
            let x = &panel[i1 * layout.group_size_bytes..][..layout.group_size_bytes];
            for i0 in 0..weights.n_rows() {
                out[i1 * out_stride + i0] = vec_dot(self.0, weights.row(i0), x);
            }
        }
    }
}

/// Returns the dot product of a weight row with an x row of the type that goes with it.
fn vec_dot(ty: WeightType, w: &[u8], x: &[u8]) -> f32 {
    match ty {
        WeightType::F32 => f32s(w).zip(f32s(x)).map(|(w, x)| w * x).sum(),
        WeightType::F16 => {
            let f16s = |row: &[u8]| -> Vec<f32> {
                row.as_chunks().0.iter().map(|b| f16_to_f32(*b)).collect()
            };
            f16s(w).iter().zip(f16s(x)).map(|(w, x)| w * x).sum()
        }
        WeightType::Q8_0 => {
            let blocks = w.as_chunks().0.iter().zip(x.as_chunks().0);
            blocks
                .map(|(w, x)| dot_block(|i| Q8_0(w).q(i), Q8_0(w).d(), Q8_0(x)))
                .sum()
        }
        WeightType::Q4_0 => {
            let blocks = w.as_chunks().0.iter().zip(x.as_chunks().0);
            blocks
                .map(|(w, x)| dot_block(|i| Q4_0(w).q(i), Q4_0(w).d(), Q8_0(x)))
                .sum()
        }
    }
}

/// Returns the product of one block: the integer dot, times both scales.
fn dot_block(q: impl Fn(usize) -> i8, d: f32, x: Q8_0<'_>) -> f32 {
    let dot: i32 = (0..QK).map(|i| i32::from(q(i)) * i32::from(x.q(i))).sum();
    #[expect(
        clippy::cast_precision_loss,
        reason = "at most 32 * 128 * 127, exact in f32"
    )]
    let dot = dot as f32;
    dot * (d * x.d())
}
