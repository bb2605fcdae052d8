//! One tile of weights: where the parts of a row lie, and how they come from ggml's blocks and go back.

use super::TileType;
use super::block::{Q4_1_SIZE_BYTES, Q4K, Q6K, QK_K};
use super::half::half_index;
use crate::block::{Q4_0, Q8_0, QK, f16_to_f32, f32_to_f16};

/// Byte at which the scales of a type's tile begin.
pub(crate) const fn scales_offset(ty: TileType) -> usize {
    match ty {
        TileType::F16 => 2048,
        TileType::Q4_0 | TileType::Q4_1 | TileType::Q4K => 512,
        TileType::Q8_0 => 1024,
        TileType::Q6K => 768,
    }
}

/// Returns the integer of an element as it multiplies the scale.
///
/// # Panics
///
/// When the type is `F16`, which has none.
pub(crate) fn q(ty: TileType, tile: &[u8], row: usize, kk: usize) -> i32 {
    let (cp, odd) = (kk / 2, kk & 1);
    let nibble = || i32::from(tile[cp * 32 + row] >> (4 * odd) & 15);
    match ty {
        TileType::F16 => unreachable!("a float tile has no integers"),
        TileType::Q4_0 => nibble() - 8,
        TileType::Q4_1 | TileType::Q4K => nibble(),
        TileType::Q8_0 => i32::from(tile[cp * 64 + row * 2 + odd].cast_signed()),
        TileType::Q6K => {
            let (low, low_bit, high, high_bit) = place_q6_k(row, kk);
            i32::from(tile[low] >> low_bit & 15 | (tile[high] >> high_bit & 3) << 4) - 32
        }
    }
}

/// Returns the bases of tile `kt` among those of a strip.
pub(crate) fn bases_of(ty: TileType, bases: &[u8], kt: usize) -> &[u8] {
    let size = ty.bases_size_bytes();
    &bases[kt * QK / QK_K * size..][..size]
}

/// Returns the multiple of a base that was rounded to a half float.
pub(crate) fn multiple(rounded: f32, base: f32) -> f32 {
    if base == 0.0 {
        return 0.0;
    }
    // The integer is at most 128, and the half float off by at most 2^-11 of it.
    (rounded / base).round_ties_even() * base
}

/// Returns the factor of an element's integer; 1 for `F16`.
pub(crate) fn scale(ty: TileType, tile: &[u8], bases: &[u8], row: usize, kk: usize) -> f32 {
    let index = match ty {
        TileType::F16 => return 1.0,
        TileType::Q4_0 | TileType::Q8_0 => row,
        TileType::Q4_1 | TileType::Q4K => 2 * row,
        TileType::Q6K => 32 * (kk / 16) + row,
    };
    let scale = f16_at(tile, scales_offset(ty) + 2 * index);
    match ty {
        TileType::Q4K | TileType::Q6K => multiple(scale, f16_at(bases, 2 * row)),
        _ => scale,
    }
}

/// Returns what is added to every element of a row; 0 for types without.
pub(crate) fn min(ty: TileType, tile: &[u8], bases: &[u8], row: usize) -> f32 {
    let min = || f16_at(tile, scales_offset(ty) + 4 * row + 2);
    match ty {
        TileType::Q4_1 => min(),
        TileType::Q4K => multiple(min(), f16_at(bases, 2 * (QK + row))),
        _ => 0.0,
    }
}

/// Returns the value of an element, in f32.
pub(crate) fn value(ty: TileType, tile: &[u8], bases: &[u8], row: usize, kk: usize) -> f32 {
    if ty == TileType::F16 {
        return f16_at(tile, 2 * half_index(kk, row));
    }
    #[expect(clippy::cast_precision_loss, reason = "at most eight bits")]
    let q = q(ty, tile, row, kk) as f32;
    q * scale(ty, tile, bases, row, kk) + min(ty, tile, bases, row)
}

fn f16_at(tile: &[u8], at: usize) -> f32 {
    f16_to_f32([tile[at], tile[at + 1]])
}

/// Returns byte and bit of the low four and the high two bits of an element of a `Q6_K` tile.
fn place_q6_k(row: usize, kk: usize) -> (usize, usize, usize, usize) {
    let (g, p) = (kk / 4, row * 4 + (kk & 3));
    (
        (g / 2) * 128 + p,
        4 * (g & 1),
        512 + (g / 4) * 128 + p,
        2 * (g % 4),
    )
}

/// Makes every element of a tile 0.
pub(crate) fn clear(ty: TileType, tile: &mut [u8]) {
    tile.fill(0);
    if ty == TileType::Q4_0 {
        tile[..scales_offset(ty)].fill(0x88);
    }
}

/// Puts the bases of a row of ggml's blocks into those of a strip.
pub(crate) fn pack_bases(ty: TileType, blocks: &[u8], row: usize, bases: &mut [u8]) {
    let size = ty.bases_size_bytes();
    if size == 0 {
        return;
    }
    let blocks = blocks.chunks_exact(ty.type_size());
    for (block, bases) in blocks.zip(bases.chunks_exact_mut(size)) {
        // Half floats at the start of a `Q4_K` block, and at the end of one of `Q6_K`.
        let halves = match ty {
            TileType::Q4K => &block[..4],
            _ => &block[block.len() - 2..],
        };
        for (i, half) in halves.chunks_exact(2).enumerate() {
            bases[2 * (QK * i + row)..][..2].copy_from_slice(half);
        }
    }
}

/// Puts up to 32 elements from `32 kt` on of a row of ggml's blocks into row `row` of a cleared tile.
pub(crate) fn pack_row(ty: TileType, blocks: &[u8], kt: usize, row: usize, tile: &mut [u8]) {
    match ty {
        TileType::F16 => {
            for (kk, half) in halves(blocks, kt).iter().enumerate() {
                tile[2 * half_index(kk, row)..][..2].copy_from_slice(half);
            }
        }
        TileType::Q4_0 => {
            let block: &[u8; Q4_0::SIZE_BYTES] = &blocks.as_chunks().0[kt];
            pack_nibbles(&block[2..], row, tile);
            tile[512 + 2 * row..][..2].copy_from_slice(&block[..2]);
        }
        TileType::Q4_1 => {
            let block: &[u8; Q4_1_SIZE_BYTES] = &blocks.as_chunks().0[kt];
            pack_nibbles(&block[4..], row, tile);
            tile[512 + 4 * row..][..4].copy_from_slice(&block[..4]);
        }
        TileType::Q8_0 => {
            let block: &[u8; Q8_0::SIZE_BYTES] = &blocks.as_chunks().0[kt];
            for (cp, pair) in block[2..].as_chunks::<2>().0.iter().enumerate() {
                tile[cp * 64 + row * 2..][..2].copy_from_slice(pair);
            }
            tile[1024 + 2 * row..][..2].copy_from_slice(&block[..2]);
        }
        TileType::Q4K => pack_q4_k(blocks, kt, row, tile),
        TileType::Q6K => pack_q6_k(blocks, kt, row, tile),
    }
}

fn pack_q4_k(blocks: &[u8], kt: usize, row: usize, tile: &mut [u8]) {
    let (block, s) = (Q4K(&blocks.as_chunks().0[kt / 8]), kt % 8);
    for cp in 0..QK / 2 {
        tile[cp * 32 + row] = block.nibble(s, 2 * cp) | block.nibble(s, 2 * cp + 1) << 4;
    }
    let (d, m) = block.scales(s);
    tile[512 + 4 * row..][..2].copy_from_slice(&f32_to_f16(d));
    tile[512 + 4 * row + 2..][..2].copy_from_slice(&f32_to_f16(-m));
}

fn pack_q6_k(blocks: &[u8], kt: usize, row: usize, tile: &mut [u8]) {
    const SUBS: usize = QK_K / QK;
    let (block, s) = (Q6K(&blocks.as_chunks().0[kt / SUBS]), kt % SUBS);
    for kk in 0..QK {
        let q = block.q(QK * s + kk);
        let (low, low_bit, high, high_bit) = place_q6_k(row, kk);
        tile[low] |= (q & 15) << low_bit;
        tile[high] |= q >> 4 << high_bit;
    }
    for half in 0..2 {
        let d = f32_to_f16(block.scale(2 * s + half));
        tile[768 + 2 * (32 * half + row)..][..2].copy_from_slice(&d);
    }
}

/// Restores up to 32 elements from `32 kt` on of a row; the reverse of [`pack_row`].
///
/// # Panics
///
/// When the type does not restore blocks.
pub(crate) fn unpack_row(ty: TileType, tile: &[u8], kt: usize, row: usize, blocks: &mut [u8]) {
    match ty {
        TileType::F16 => {
            let end = blocks.len().min(64 * (kt + 1));
            let halves = blocks[64 * kt..end].as_chunks_mut::<2>().0;
            for (kk, half) in halves.iter_mut().enumerate() {
                let at = 2 * half_index(kk, row);
                *half = [tile[at], tile[at + 1]];
            }
        }
        TileType::Q4_0 => {
            let block: &mut [u8; Q4_0::SIZE_BYTES] = &mut blocks.as_chunks_mut().0[kt];
            block[..2].copy_from_slice(&tile[512 + 2 * row..][..2]);
            unpack_nibbles(tile, row, &mut block[2..]);
        }
        TileType::Q4_1 => {
            let block: &mut [u8; Q4_1_SIZE_BYTES] = &mut blocks.as_chunks_mut().0[kt];
            block[..4].copy_from_slice(&tile[512 + 4 * row..][..4]);
            unpack_nibbles(tile, row, &mut block[4..]);
        }
        TileType::Q8_0 => {
            let block: &mut [u8; Q8_0::SIZE_BYTES] = &mut blocks.as_chunks_mut().0[kt];
            block[..2].copy_from_slice(&tile[1024 + 2 * row..][..2]);
            for (cp, pair) in block[2..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                pair.copy_from_slice(&tile[cp * 64 + row * 2..][..2]);
            }
        }
        TileType::Q4K | TileType::Q6K => {
            unreachable!("{} tiles do not hold the bits of blocks", ty.name())
        }
    }
}

/// Puts 32 nibbles (elements 0..16 low, 16..32 high) of a row into a tile (even elements low, odd ones high).
fn pack_nibbles(nibbles: &[u8], row: usize, tile: &mut [u8]) {
    for (i, pair) in nibbles.as_chunks::<2>().0.iter().enumerate() {
        tile[i * 32 + row] = pair[0] & 15 | pair[1] << 4;
        tile[(8 + i) * 32 + row] = pair[0] >> 4 | pair[1] & 0xf0;
    }
}

fn unpack_nibbles(tile: &[u8], row: usize, nibbles: &mut [u8]) {
    for (i, pair) in nibbles.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let (low, high) = (tile[i * 32 + row], tile[(8 + i) * 32 + row]);
        *pair = [low & 15 | high << 4, low >> 4 | high & 0xf0];
    }
}

/// Returns the half floats of a row from `32 kt` on, at most 32.
fn halves(row: &[u8], kt: usize) -> &[[u8; 2]] {
    let halves = row.as_chunks().0;
    &halves[QK * kt..halves.len().min(QK * (kt + 1))]
}
