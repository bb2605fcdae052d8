//! The panel of products with quantised tiles, as both instruction sets have it.
//!
//! A packed block of x is 32 bytes, the f32 scale (rounded through f16), and one start value for each scale of weights:
//! `-offset * sum of x`, where the integers of decoded tiles are `offset` above their values. Types with a minimum have
//! the f32 `d * sum of x` in its place.

use std::ops::Range;

use crate::F32Rows;
use crate::block::{QK, exact};

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

/// Calls `pack` with each 32 elements of `k_tiles` of each row and their place in the units.
#[inline(always)]
pub(super) fn each_block<const BLOCK: usize>(
    x: &F32Rows<'_>,
    k_tiles: Range<usize>,
    units: &mut [u8],
    mut pack: impl FnMut(&[u8; 4 * QK], &mut [u8; BLOCK]),
) {
    let unit = x.n_rows() * BLOCK;
    for (c, units) in units.chunks_mut(UNITS * unit).enumerate() {
        let first = k_tiles.start + c * UNITS;
        for row in 0..x.n_rows() {
            let blocks = &x.row(row).as_chunks().0[first..];
            for (x, unit) in blocks.iter().zip(units.chunks_exact_mut(unit)) {
                pack(x, &mut unit.as_chunks_mut().0[row]);
            }
        }
    }
}

/// Writes what follows the 32 bytes of a block: the scale, and start values made of those of both halves.
///
/// With `MIN`, the halves are the negated sums of x.
#[inline(always)]
pub(super) fn finish<const BLOCK: usize, const PARTS: usize, const MIN: bool>(
    block: &mut [u8; BLOCK],
    d: f32,
    halves: [i32; 2],
) {
    let (words, _) = block.as_chunks_mut::<4>();
    words[QK / 4] = d.to_ne_bytes();
    let sum = halves[0] + halves[1];
    if MIN {
        words[QK / 4 + 1] = (d * exact(-sum)).to_ne_bytes();
    } else if PARTS == 2 {
        words[QK / 4 + 1] = halves[0].to_ne_bytes();
        words[QK / 4 + 2] = halves[1].to_ne_bytes();
    } else {
        words[QK / 4 + 1] = sum.to_ne_bytes();
    }
}
