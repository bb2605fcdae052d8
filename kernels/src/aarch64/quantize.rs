//! `Q8_0` and `Q8_K` blocks of x.

use std::arch::aarch64::*;

use super::mem::*;
use crate::block::{QK, Scale};

/// 32 floats quantised.
pub(super) struct Block {
    /// The scale.
    pub(super) d: f32,
    /// The sum of the integers.
    pub(super) sum: i32,
    /// The integers.
    pub(super) q: [u8; QK],
}

/// Returns the greatest magnitude of floats with these bytes, NaN above infinity.
#[target_feature(enable = "neon")]
pub(super) fn greatest(x: &[u8]) -> f32 {
    // The bits of |x| order as the values do.
    let mut max = vdupq_n_u32(0);
    for part in x.as_chunks::<16>().0 {
        let magnitudes = vabsq_f32(load_f32_bytes(part));
        max = vmaxq_u32(max, vreinterpretq_u32_f32(magnitudes));
    }
    f32::from_bits(vmaxvq_u32(max))
}

/// Returns the `Q8_0` scale of the 32 floats with these bytes.
#[target_feature(enable = "neon")]
pub(super) fn scale_q8_0(x: &[u8; 4 * QK]) -> Scale {
    let amax = greatest(x);
    let d = vgetq_lane_f32::<0>(round_to_f16(vdupq_n_f32(amax / 127.0)));
    Scale::q8_0(amax, d)
}

/// Returns the `Q8_K` scale that the floats with these bytes share, whole vectors of them.
#[target_feature(enable = "neon")]
pub(super) fn scale_q8_k(x: &[u8]) -> Scale {
    Scale::q8_k(greatest(x))
}

/// Quantises the 32 floats with these bytes. Halves go to even numbers or, as in `Q8_0`, away from zero.
#[target_feature(enable = "neon")]
pub(super) fn quantize<const EVEN: bool>(x: &[u8; 4 * QK], scale: Scale) -> Block {
    let mut block = Block {
        d: scale.d,
        sum: 0,
        q: [0; QK],
    };
    if scale.id == 0.0 {
        return block;
    }
    let parts = x.as_chunks::<16>().0;
    let mut sums = vdupq_n_s32(0);
    let mut narrow = [vdup_n_s16(0); 8];
    for i in 0..8 {
        let v = vmulq_n_f32(load_f32_bytes(&parts[i]), scale.id);
        let q = if EVEN {
            vcvtnq_s32_f32(v)
        } else {
            vcvtaq_s32_f32(v)
        };
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
