//! Tiles of 1024 half floats: 32 rows of 32 columns, two rows interleaved in each 128 bytes.
//!
//! One formula serves every operand ([`half_index`]); what differs is which dimension the rows are and in which order
//! tiles follow. Index of the tile that holds an element:
//!
//! | operand | matrix | row | column | tile |
//! |---|---|---|---|---|
//! | activation | `[k, m]` | `m % 32` | `k % 32` | `(m / 32) * (k_len / 32) + k / 32` |
//! | weight | `[k, n]` | `k % 32` | `n % 32` | `(n / 32) * (k_len / 32) + k / 32` |
//! | output | `[n, m]` | `m % 32` | `n % 32` | `(m / 32) * (n_len / 32) + n / 32` |
//!
//! (shapes in ggml order). An output over all of `n` is the activation of the next product. Lengths are padded to
//! multiples of 32 with zeros.

use super::TILE;
use crate::block::{f16_to_f32, f32_to_f16};

/// Halves of a tile.
pub const TILE_LEN: usize = TILE * TILE;

/// Bytes of a tile.
pub const TILE_SIZE_BYTES: usize = 2 * TILE_LEN;

/// Returns the position of an element among the halves of its tile: `(r / 2) * 64 + 2 c + (r & 1)`.
///
/// `r`, `c`: row and column, taken modulo 32.
pub const fn half_index(r: usize, c: usize) -> usize {
    let (r, c) = (r % TILE, c % TILE);
    (r >> 1) * 64 + c * 2 + (r & 1)
}

/// Returns the position of element `k` of row `m` among the halves of a tiled activation whose rows have `k_len`
/// elements. With `n` for `k`, the same of an output.
pub const fn activation_index(m: usize, k: usize, k_len: usize) -> usize {
    ((m / TILE) * k_len.div_ceil(TILE) + k / TILE) * TILE_LEN + half_index(m, k)
}

/// Returns the position of element `k` of weight row `n` among the halves of a tiled weight whose rows have `k_len`
/// elements.
pub const fn weight_index(n: usize, k: usize, k_len: usize) -> usize {
    ((n / TILE) * k_len.div_ceil(TILE) + k / TILE) * TILE_LEN + half_index(k, n)
}

/// Returns the bytes of a tiled activation or output: `m` rows of `k`.
pub const fn activation_size_bytes(m: usize, k: usize) -> usize {
    m.div_ceil(TILE) * k.div_ceil(TILE) * TILE_SIZE_BYTES
}

/// Packs rows of floats as activation tiles, rounded to f16 (to nearest, ties to even).
///
/// `x`: `[k, m]`, contiguous; `tiles`: [`activation_size_bytes`], written entirely.
///
/// # Panics
///
/// When a length does not match.
pub fn pack_activation(x: &[f32], k: usize, m: usize, tiles: &mut [u8]) {
    assert_eq!(x.len(), k * m, "elements of {m} rows of {k}");
    assert_eq!(tiles.len(), activation_size_bytes(m, k), "bytes of tiles");
    tiles.fill(0);
    let halves = tiles.as_chunks_mut().0;
    for i in 0..m {
        for j in 0..k {
            halves[activation_index(i, j, k)] = f32_to_f16(x[i * k + j]);
        }
    }
}

/// Unpacks activation or output tiles to rows of floats, exactly.
///
/// `tiles`: [`activation_size_bytes`]; `x`: `[k, m]`, contiguous.
///
/// # Panics
///
/// When a length does not match.
pub fn unpack_activation(tiles: &[u8], k: usize, m: usize, x: &mut [f32]) {
    assert_eq!(x.len(), k * m, "elements of {m} rows of {k}");
    assert_eq!(tiles.len(), activation_size_bytes(m, k), "bytes of tiles");
    let halves = tiles.as_chunks().0;
    for i in 0..m {
        for j in 0..k {
            x[i * k + j] = f16_to_f32(halves[activation_index(i, j, k)]);
        }
    }
}

#[cfg(test)]
#[path = "half_tests.rs"]
mod tests;
