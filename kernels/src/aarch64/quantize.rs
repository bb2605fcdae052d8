//! `Q8_0` blocks of x.

use std::arch::aarch64::*;

use super::mem::*;
use crate::block::QK;

/// 32 floats quantised as [`crate::op::convert::quantize_row_q8_0`] says.
pub(super) struct Block {
    /// The scale, rounded through f16.
    pub(super) d: f32,
    /// The sum of the integers.
    pub(super) sum: i32,
    /// The integers.
    pub(super) q: [u8; QK],
}

/// Quantises the 32 floats with these bytes.
#[target_feature(enable = "neon")]
pub(super) fn quantize_block(x: &[u8; 4 * QK]) -> Block {
    let parts = x.as_chunks::<16>().0;
    let mut v = [vdupq_n_f32(0.0); 8];
    // The bits of |x| order as the values do, with NaN above infinity.
    let mut max = vdupq_n_u32(0);
    for i in 0..8 {
        v[i] = load_f32_bytes(&parts[i]);
        max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    let amax = f32::from_bits(vmaxvq_u32(max));
    let d = vgetq_lane_f32::<0>(round_to_f16(vdupq_n_f32(amax / 127.0)));
    let mut block = Block {
        d,
        sum: 0,
        q: [0; QK],
    };
    if !amax.is_finite() || d == 0.0 {
        return block;
    }
    let id = 127.0 / amax;
    let mut sums = vdupq_n_s32(0);
    let mut narrow = [vdup_n_s16(0); 8];
    for i in 0..8 {
        // To nearest, halves away from zero.
        let q = vcvtaq_s32_f32(vmulq_n_f32(v[i], id));
        sums = vaddq_s32(sums, q);
        narrow[i] = vmovn_s32(q);
    }
    block.sum = vaddvq_s32(sums);
    for (out, four) in block
        .q
        .as_chunks_mut::<16>()
        .0
        .iter_mut()
        .zip(narrow.as_chunks::<4>().0)
    {
        let low = vmovn_s16(vcombine_s16(four[0], four[1]));
        let high = vmovn_s16(vcombine_s16(four[2], four[3]));
        store_s8(out, vcombine_s8(low, high));
    }
    block
}

/// Returns the bytes of the 32 floats of `row` from element `start` on; behind its end come zeros.
pub(super) fn block_bytes(row: &[u8], start: usize) -> [u8; 4 * QK] {
    let rest = row.get(4 * start..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(block) => *block,
        None => {
            let mut block = [0; 4 * QK];
            block[..rest.len()].copy_from_slice(rest);
            block
        }
    }
}
