//! The panel of products with quantised tiles, as both instruction sets have it.
//!
//! A packed block of x is 32 bytes, the f32 scale (rounded through f16), and one start value for each scale of weights:
//! `-offset * sum of x`, where the integers of decoded tiles are `offset` above their values. Types with a minimum have
//! the f32 `d * sum of x` in its place; `Q4_K` the sum alone.

use std::ops::Range;

use crate::F32Rows;
use crate::block::{QK, Scale, exact};

/// Units packed at a time for one row of x, so that a row is read in pieces worth fetching.
const UNITS: usize = 8;

/// Order of x within eight elements that goes with tiles in natural order.
pub(super) const NATURAL: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Order of x within eight elements that goes with nibbles: the low ones of four bytes are even elements, the high ones
/// odd.
pub(super) const NIBBLES: [u8; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Returns an order within eight elements as the control of a byte shuffle in 128-bit parts.
pub(super) fn shuffle(order: [u8; 8]) -> [u8; 32] {
    std::array::from_fn(|i| order[i % 8] + if i % 16 < 8 { 0 } else { 8 })
}

/// Calls `pack` with each 32 elements of `k_tiles` of each row, their scale, and their place in the units. `SHARED` blocks
/// have one scale.
#[inline(always)]
pub(super) fn each_block<const BLOCK: usize, const SHARED: usize>(
    x: &F32Rows<'_>,
    k_tiles: Range<usize>,
    units: &mut [u8],
    scale: impl Fn(&[[u8; 4 * QK]; SHARED]) -> Scale,
    mut pack: impl FnMut(&[u8; 4 * QK], Scale, &mut [u8; BLOCK]),
) {
    let unit = x.n_rows() * BLOCK;
    for (c, units) in units.chunks_mut(UNITS * unit).enumerate() {
        let first = k_tiles.start + c * UNITS;
        for row in 0..x.n_rows() {
            let shared = x.row(row).as_chunks().0.as_chunks().0;
            let mut at = first;
            let mut units = units.chunks_exact_mut(unit);
            while units.len() > 0 {
                let blocks = &shared[at / SHARED];
                let scale = scale(blocks);
                for (x, unit) in blocks[at % SHARED..].iter().zip(&mut units) {
                    pack(x, scale, &mut unit.as_chunks_mut().0[row]);
                    at += 1;
                }
            }
        }
    }
}

/// Writes what follows the 32 bytes of a block: the scale, and start values made of those of both halves.
///
/// With `MIN`, the halves are the negated sums of x, which is stored `unit` times.
#[inline(always)]
pub(super) fn finish<const BLOCK: usize, const PARTS: usize, const MIN: bool>(
    block: &mut [u8; BLOCK],
    d: f32,
    unit: f32,
    halves: [i32; 2],
) {
    let (words, _) = block.as_chunks_mut::<4>();
    words[QK / 4] = d.to_ne_bytes();
    let sum = halves[0] + halves[1];
    if MIN {
        words[QK / 4 + 1] = (unit * exact(-sum)).to_ne_bytes();
    } else if PARTS == 2 {
        words[QK / 4 + 1] = halves[0].to_ne_bytes();
        words[QK / 4 + 2] = halves[1].to_ne_bytes();
    } else {
        words[QK / 4 + 1] = sum.to_ne_bytes();
    }
}

/// Returns word `i` of a block of x.
#[inline(always)]
pub(super) fn word<const BLOCK: usize>(x: &[u8; BLOCK], i: usize) -> i32 {
    i32::from_ne_bytes(x.as_chunks().0[i])
}

/// Defines, for an instruction set, the type of a kernel for tiles of one type, and how it becomes an
/// [`Implementation`](crate::op::gemm::Implementation): with functions that a value of the module's `Cpu` makes safe to
/// call.
macro_rules! implementation {
    ($name:ident, $block:literal, $prepare:expr, $strip:expr) => {
        #[doc = concat!("`", stringify!($name), "` tiles.")]
        #[derive(Debug)]
        pub(crate) struct $name(Cpu);

        impl $name {
            /// Returns the implementation if this CPU can run it.
            pub(crate) fn detect() -> Option<Self> {
                Cpu::detect().map(Self)
            }
        }

        impl Implementation for $name {
            fn ty(&self) -> TileType {
                TileType::$name
            }

            fn unit_size_bytes(&self, n_rows: usize) -> usize {
                n_rows * $block
            }

            fn prepare(&self, x: &F32Rows<'_>, k_tiles: Range<usize>, units: &mut [u8]) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { ($prepare)(x, k_tiles, units) }
            }

            fn strip(&self, tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                // SAFETY: `self` holds a `Cpu`, made only where the features of the callee were detected.
                unsafe { ($strip)(tiles, bases, group, out) }
            }
        }
    };
}
pub(super) use implementation;

/// Defines `prepare`, which packs units of x quantised by the module's functions, and `prepare_k`, which does so with the
/// scales of K-quants.
macro_rules! prepare {
    ($features:literal, $offset:ty) => {
        #[target_feature(enable = $features)]
        pub(super) fn prepare<
            const BLOCK: usize,
            const PARTS: usize,
            const MIN: bool,
            const OFFSET: $offset,
        >(
            x: &F32Rows<'_>,
            k_tiles: Range<usize>,
            units: &mut [u8],
            order: [u8; 8],
        ) {
            let order = load_256(&shuffle(order));
            let scale = |[x]: &[[u8; 4 * QK]; 1]| scale_q8_0(x);
            each_block(x, k_tiles, units, scale, |x, scale, block| {
                let q = quantize::<OFFSET, false>(x, scale);
                pack::<BLOCK, PARTS, MIN>(block, scale.d, scale.d, q, order);
            });
        }

        #[target_feature(enable = $features)]
        pub(super) fn prepare_k<
            const BLOCK: usize,
            const PARTS: usize,
            const MIN: bool,
            const OFFSET: $offset,
        >(
            x: &F32Rows<'_>,
            k_tiles: Range<usize>,
            units: &mut [u8],
            order: [u8; 8],
        ) {
            let order = load_256(&shuffle(order));
            let scale = |x: &[[u8; 4 * QK]; QK_K / QK]| scale_q8_k(x);
            each_block(x, k_tiles, units, scale, |x, scale, block| {
                let q = quantize::<OFFSET, true>(x, scale);
                pack::<BLOCK, PARTS, MIN>(block, scale.d, 1.0, q, order);
            });
        }

        /// Writes a block of x with its start values and bytes.
        #[inline]
        #[target_feature(enable = $features)]
        fn pack<const BLOCK: usize, const PARTS: usize, const MIN: bool>(
            block: &mut [u8; BLOCK],
            d: f32,
            unit: f32,
            (starts, q): (__m256i, __m256i),
            order: __m256i,
        ) {
            let bytes = block
                .first_chunk_mut()
                .expect("a block starts with 32 bytes");
            store_256(bytes, _mm256_shuffle_epi8(q, order));
            let halves = [
                sum(_mm256_castsi256_si128(starts)),
                sum(_mm256_extracti128_si256::<1>(starts)),
            ];
            finish::<BLOCK, PARTS, MIN>(block, d, unit, halves);
        }

        /// Returns the sum of four lanes.
        #[inline]
        #[target_feature(enable = $features)]
        fn sum(v: __m128i) -> i32 {
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
        }
    };
}
pub(super) use prepare;
