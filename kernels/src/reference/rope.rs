//! Rotation of rows, pair by pair.

use super::Reference;
use crate::block::{f16_to_f32, f32_to_f16};
use crate::op::rope::{Implementation, Pairing};

impl Implementation for Reference {
    fn rotate(&self, pairing: Pairing, table: &[f32], x: Option<&[f32]>, out: &mut [f32]) {
        if let Some(x) = x {
            out.copy_from_slice(x);
        }
        let n_dims = table.len() / 2;
        for j in 0..n_dims / 2 {
            let (i, k) = match pairing {
                Pairing::Normal => (2 * j, 2 * j + 1),
                Pairing::Neox => (j, j + n_dims / 2),
            };
            let (a, b) = (out[i], out[k]);
            out[i] = a * table[i] + b * table[n_dims + i];
            out[k] = b * table[k] + a * table[n_dims + k];
        }
    }

    fn rotate_f16(&self, pairing: Pairing, table: &[f32], x: Option<&[u8]>, out: &mut [u8]) {
        let halves = x.unwrap_or(out).as_chunks().0;
        let mut row: Vec<f32> = halves.iter().map(|h| f16_to_f32(*h)).collect();
        self.rotate(pairing, table, None, &mut row);
        for (out, x) in out.as_chunks_mut().0.iter_mut().zip(row) {
            *out = f32_to_f16(x);
        }
    }
}
