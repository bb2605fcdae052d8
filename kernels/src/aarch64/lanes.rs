//! NEON as an instruction set of [`crate::lanes`].

use std::arch::aarch64::*;

use super::Neon;
use super::mem::*;
use super::rows::store_transposed;
use crate::lanes::attention::Vectors;
use crate::lanes::{Body, Lanes, float, lanes};
use crate::tile::TILE;
use crate::tile::kv::LINE_SIZE_BYTES;

/// Floats of a vector.
pub(super) const LANES: usize = 4;

/// Attention: groups of 4 rows of Q, which are packed with the factor of their scores.
pub(crate) type Attention = Vectors<Neon, LANES, 4, false>;

/// Returns it, if this CPU can run it.
pub(crate) fn attention() -> Option<Attention> {
    Neon::detect().map(Vectors)
}

/// Products with weights of `SIZE` bytes: two vectors for a group.
pub(crate) type Rows<const SIZE: usize> = float::Rows<Neon, LANES, SIZE, 8, 2, 4>;

/// Returns them, if this CPU can run them.
pub(crate) fn rows<const SIZE: usize>() -> Option<Rows<SIZE>> {
    Neon::detect().map(float::Rows)
}

lanes! {
    Neon, 4, "neon", float32x4_t, 32, 88.0;

    fn prefetch(_bytes: &[u8]) {}

    fn splat(x: f32) -> float32x4_t {
        vdupq_n_f32(x)
    }

    fn load(x: &[f32; 4]) -> float32x4_t {
        load_f32(x)
    }

    fn load_bytes(x: &[[u8; 4]; 4]) -> float32x4_t {
        load_f32_bytes(x.as_flattened().as_array().expect("16 bytes"))
    }

    fn load_halves(x: &[[u8; 2]; 4]) -> float32x4_t {
        load_f16(x.as_flattened().as_array().expect("8 bytes"))
    }

    fn store(out: &mut [f32; 4], x: float32x4_t) {
        store_f32(out, x);
    }

    fn store_bytes(out: &mut [[u8; 4]; 4], x: float32x4_t) {
        let out = out.as_flattened_mut().as_mut_array().expect("16 bytes");
        store_u8(out, vreinterpretq_u8_f32(x));
    }

    fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vaddq_f32(a, b)
    }

    fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vsubq_f32(a, b)
    }

    fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmulq_f32(a, b)
    }

    fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vdivq_f32(a, b)
    }

    fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    fn sub_product(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmsq_f32(c, a, b)
    }

    fn add_scaled(sum: float32x4_t, x: float32x4_t, scales: &[f32; 4], i: usize) -> float32x4_t {
        add_scaled(sum, x, load_f32(scales), i)
    }

    fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmaxnmq_f32(a, b)
    }

    fn clamp(x: float32x4_t, min: f32, max: f32) -> float32x4_t {
        // These are NaN where an operand is.
        vminq_f32(vmaxq_f32(x, vdupq_n_f32(min)), vdupq_n_f32(max))
    }

    fn where_differ(
        a: float32x4_t,
        b: float32x4_t,
        x: float32x4_t,
        y: float32x4_t,
    ) -> float32x4_t {
        vbslq_f32(vceqq_f32(a, b), y, x)
    }

    fn round(x: float32x4_t) -> float32x4_t {
        vrndnq_f32(x)
    }

    fn times_power(x: float32x4_t, n: float32x4_t) -> float32x4_t {
        // 2^n, normal: n is from -126 to 127.
        let bits = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
        vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32::<23>(bits)))
    }

    fn round_to_f16(x: float32x4_t) -> float32x4_t {
        round_to_f16(x)
    }

    fn sum(x: float32x4_t) -> f32 {
        vaddvq_f32(x)
    }

    fn greatest(x: float32x4_t) -> f32 {
        vmaxnmvq_f32(x)
    }

    fn transpose(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
        transpose(rows)
    }

    fn store_transposed(acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize) {
        store_transposed(acc, n_lanes, out, stride);
    }

    fn unzip(line: &[u8; LINE_SIZE_BYTES], even: &mut [f32; TILE], odd: &mut [f32; TILE]) {
        unzip_line(line, even, odd);
    }
}
