//! Tiles of quantised weights as signed bytes and f32 scales.

use std::arch::aarch64::*;

use crate::aarch64::mem::*;
use crate::tile::{TILE, TileType};

/// Bytes of a vector.
const LINE: usize = 16;

/// Vectors with four elements of all rows of a tile.
const QUAD: usize = TILE / 4;

/// A tile, decoded.
pub(super) struct Tile {
    /// Integers; the family that decodes says in which order.
    pub(super) q: [[u8; LINE]; TILE * TILE / LINE],
    /// Scales of the rows: for elements up to 16 and from there on where the type has two, else the first alone.
    pub(super) d: [[f32; TILE]; 2],
    /// What is added for each row, times the scale and the sum of x; 0 in types without minimum.
    pub(super) m: [f32; TILE],
}

impl Tile {
    pub(super) fn new() -> Self {
        Self {
            q: [[0; LINE]; TILE * TILE / LINE],
            d: [[0.0; TILE]; 2],
            m: [0.0; TILE],
        }
    }
}

/// A type of quantised tiles.
pub(super) trait Quant {
    /// The type.
    const TYPE: TileType;
    /// Scales per row.
    const PARTS: usize;
    /// Whether a minimum is added.
    const MIN: bool;

    /// Returns elements `4g .. 4g + 4` of all rows, four rows to a vector.
    ///
    /// # Safety
    ///
    /// The CPU has `neon`.
    unsafe fn quad(tile: &[u8], g: usize) -> [int8x16_t; QUAD];
}

/// Decodes integers, four elements of four rows to a vector: `q[g * 8 + v]` has elements from `4g` on of rows from `4v` on.
#[target_feature(enable = "neon")]
pub(super) fn quads<T: Quant>(tile: &[u8], bases: &[u8], out: &mut Tile) {
    // Said once, so that no load below needs a check.
    assert_eq!(tile.len(), T::TYPE.tile_size_bytes(), "bytes of a tile");
    scales::<T>(tile, bases, out);
    for (g, out) in out.q.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
        // SAFETY: this function is called where the CPU has `neon`, as its attribute says.
        let quad = unsafe { T::quad(tile, g) };
        for v in 0..QUAD {
            store_s8(&mut out[v], quad[v]);
        }
    }
}

/// Decodes integers, eight elements of two rows to a vector: `q[o * 16 + v]` has elements from `8o` on of rows from `2v` on.
#[target_feature(enable = "neon")]
pub(super) fn octets<T: Quant>(tile: &[u8], bases: &[u8], out: &mut Tile) {
    // Said once, so that no load below needs a check.
    assert_eq!(tile.len(), T::TYPE.tile_size_bytes(), "bytes of a tile");
    scales::<T>(tile, bases, out);
    let lines = out.q.as_chunks_mut::<{ 2 * QUAD }>().0;
    for (o, out) in lines.iter_mut().enumerate() {
        // SAFETY: this function is called where the CPU has `neon`, as its attribute says.
        let first = unsafe { T::quad(tile, 2 * o) };
        // SAFETY: as above.
        let second = unsafe { T::quad(tile, 2 * o + 1) };
        for v in 0..QUAD {
            let (a, b) = (
                vreinterpretq_s32_s8(first[v]),
                vreinterpretq_s32_s8(second[v]),
            );
            store_s8(&mut out[2 * v], vreinterpretq_s8_s32(vzip1q_s32(a, b)));
            store_s8(&mut out[2 * v + 1], vreinterpretq_s8_s32(vzip2q_s32(a, b)));
        }
    }
}

/// Returns the 16 bytes from `at` on.
#[inline]
#[target_feature(enable = "neon")]
fn line(tile: &[u8], at: usize) -> uint8x16_t {
    load_u8(tile[at..at + LINE].as_array().expect("16 bytes"))
}

/// Returns the multiple of bases that were rounded to half floats: integers of at most 128, 2^-11 of them off.
#[inline]
#[target_feature(enable = "neon")]
fn multiples(rounded: float32x4_t, bases: float32x4_t) -> float32x4_t {
    let inverse = vrecpeq_f32(bases);
    let inverse = vmulq_f32(inverse, vrecpsq_f32(bases, inverse));
    let inverse = vbicq_u32(vreinterpretq_u32_f32(inverse), vceqzq_f32(bases));
    let n = vrndnq_f32(vmulq_f32(rounded, vreinterpretq_f32_u32(inverse)));
    vmulq_f32(n, bases)
}

/// Makes scales or minima the multiples of their bases that they are.
#[target_feature(enable = "neon")]
fn make_exact(rounded: &mut [f32; TILE], bases: &[u8]) {
    for (i, eight) in rounded.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let bases = widen_f16(vreinterpretq_u16_u8(line(bases, LINE * i)));
        for (four, bases) in eight.as_chunks_mut().0.iter_mut().zip(bases) {
            store_f32(four, multiples(load_f32(four), bases));
        }
    }
}

/// Decodes the half floats behind the integers.
#[inline]
#[target_feature(enable = "neon")]
fn scales<T: Quant>(tile: &[u8], bases: &[u8], out: &mut Tile) {
    rounded_scales::<T>(tile, out);
    if T::TYPE.bases_size_bytes() == 0 {
        return;
    }
    for d in out.d.iter_mut().take(T::PARTS) {
        make_exact(d, bases);
    }
    if T::MIN {
        make_exact(&mut out.m, &bases[2 * TILE..]);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn rounded_scales<T: Quant>(tile: &[u8], out: &mut Tile) {
    let at = T::TYPE.tile_size_bytes() - 2 * TILE * T::PARTS * if T::MIN { 2 } else { 1 };
    let store = |out: &mut [f32; TILE], i: usize, halves: uint16x8_t| {
        let out = &mut out.as_chunks_mut().0[2 * i..];
        let [low, high] = widen_f16(halves);
        store_f32(&mut out[0], low);
        store_f32(&mut out[1], high);
    };
    for i in 0..TILE / 8 {
        if T::MIN {
            let a = vreinterpretq_u16_u8(line(tile, at + 2 * LINE * i));
            let b = vreinterpretq_u16_u8(line(tile, at + 2 * LINE * i + LINE));
            store(&mut out.d[0], i, vuzp1q_u16(a, b));
            store(&mut out.m, i, vuzp2q_u16(a, b));
        } else {
            for part in 0..T::PARTS {
                let halves = line(tile, at + part * 2 * TILE + LINE * i);
                store(&mut out.d[part], i, vreinterpretq_u16_u8(halves));
            }
        }
    }
}

/// Returns four elements of all rows from two runs of 32 bytes, each with two elements of every row as nibbles.
#[inline]
#[target_feature(enable = "neon")]
fn nibble_quad<const OFFSET: i8>(tile: &[u8], g: usize) -> [int8x16_t; QUAD] {
    let mut quad = [vdupq_n_s8(0); QUAD];
    let offset = vdupq_n_s8(OFFSET);
    for half in 0..2 {
        let at = 2 * TILE * g + LINE * half;
        // Pairs of elements, rows 0..8 and 8..16.
        let pairs = |at: usize| {
            let bytes = line(tile, at);
            let low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
            let high = vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes));
            let (low, high) = if OFFSET == 0 {
                (low, high)
            } else {
                (vsubq_s8(low, offset), vsubq_s8(high, offset))
            };
            [vzip1q_s8(low, high), vzip2q_s8(low, high)].map(|v| vreinterpretq_s16_s8(v))
        };
        let (first, second) = (pairs(at), pairs(at + TILE));
        for i in 0..2 {
            let (a, b) = (first[i], second[i]);
            quad[4 * half + 2 * i] = vreinterpretq_s8_s16(vzip1q_s16(a, b));
            quad[4 * half + 2 * i + 1] = vreinterpretq_s8_s16(vzip2q_s16(a, b));
        }
    }
    quad
}

/// Returns four elements of all rows from two runs of 64 bytes, each with two elements of every row.
#[inline]
#[target_feature(enable = "neon")]
fn byte_quad(tile: &[u8], g: usize) -> [int8x16_t; QUAD] {
    let mut quad = [vdupq_n_s8(0); QUAD];
    for i in 0..4 {
        let at = 4 * TILE * g + LINE * i;
        let a = vreinterpretq_s16_u8(line(tile, at));
        let b = vreinterpretq_s16_u8(line(tile, at + 2 * TILE));
        quad[2 * i] = vreinterpretq_s8_s16(vzip1q_s16(a, b));
        quad[2 * i + 1] = vreinterpretq_s8_s16(vzip2q_s16(a, b));
    }
    quad
}

/// Returns four elements of all rows from their low four bits and high two bits, less 32.
#[inline]
#[target_feature(enable = "neon")]
fn six_bit_quad(tile: &[u8], g: usize) -> [int8x16_t; QUAD] {
    let mut quad = [vdupq_n_s8(0); QUAD];
    let low_shift = vdupq_n_s8(if g.is_multiple_of(2) { 0 } else { -4 });
    let high_shift = vdupq_n_s8([4, 2, 0, -2][g % 4]);
    for v in 0..QUAD {
        let low = line(tile, g / 2 * 4 * TILE + LINE * v);
        let high = line(tile, 512 + g / 4 * 4 * TILE + LINE * v);
        let low = vandq_u8(vshlq_u8(low, low_shift), vdupq_n_u8(0x0f));
        let high = vandq_u8(vshlq_u8(high, high_shift), vdupq_n_u8(0x30));
        quad[v] = vsubq_s8(vreinterpretq_s8_u8(vorrq_u8(low, high)), vdupq_n_s8(32));
    }
    quad
}

/// Declares types of tiles, and a macro that calls a function with the type that a [`TileType`] names.
macro_rules! quants {
    ($($name:ident: $parts:literal, $min:literal, $quad:expr;)*) => {
        $(
            pub(super) struct $name;

            impl Quant for $name {
                const TYPE: TileType = TileType::$name;
                const PARTS: usize = $parts;
                const MIN: bool = $min;

                #[inline]
                #[target_feature(enable = "neon")]
                unsafe fn quad(tile: &[u8], g: usize) -> [int8x16_t; QUAD] {
                    $quad(tile, g)
                }
            }
        )*
    };
}

quants!(
    Q4_0: 1, false, nibble_quad::<8>;
    Q4_1: 1, true, nibble_quad::<0>;
    Q8_0: 1, false, byte_quad;
    Q4K: 1, true, nibble_quad::<0>;
    Q6K: 2, false, six_bit_quad;
);
