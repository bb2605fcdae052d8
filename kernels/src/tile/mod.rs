//! Matrices in the tile formats of the Hexagon matrix unit (HMX): tiles of 32 x 32 elements, each one piece of memory.
//!
//! * [`TileType`], [`TileMatrix`] — a weight matrix as a sequence of tiles, packed from ggml's rows a strip of 32 rows at a
//!   time and, where the format allows it, restored to the very same bytes.
//! * [`half`] — fp16 tiles of activations, weights and outputs.
//! * [`kv`] — fp16 tiles of keys and values.
//! * [`int8`] — tiles of bytes and nibbles as the integer unit takes them.
//! * `block` — how ggml's blocks read, element by element; `quant` — one tile of quantised weights.
//!
//! # Weight tiles
//!
//! The matrix is ggml's: `n` rows of `k` elements. Both are padded to multiples of 32. The tile of rows `32 ct ..` and
//! elements `32 kt ..` has index `ct * (k / 32) + kt`: the tiles of a *strip* of 32 rows follow each other along k. With
//! `row = n % 32`, `kk = k % 32`, `cp = kk / 2`:
//!
//! | type | bytes | body | scales |
//! |---|---|---|---|
//! | `F16` | 2048 | half `cp * 64 + row * 2 + (kk & 1)` | |
//! | `Q4_0` | 576 | byte `cp * 32 + row`: low nibble is `kk = 2 cp`, high is `2 cp + 1`; 8 above the value | at 512: 32 halves `d[row]` |
//! | `Q4_1`, `Q4_K` | 640 | nibbles as `Q4_0`, as they are | at 512: per row the halves `d`, `m`; value `d * q + m` |
//! | `Q8_0` | 1088 | byte `cp * 64 + row * 2 + (kk & 1)`, signed | at 1024: 32 halves `d[row]` |
//! | `Q6_K` | 896 | `g = kk / 4`, `p = row * 4 + (kk & 3)`: low four bits in byte `(g / 2) * 128 + p`, low nibble where `g` is even; high two in byte `512 + (g / 4) * 128 + p` at bit `2 * (g % 4)`; 32 above the value | at 768: 32 halves for `kk < 16`, then 32 for the others |
//!
//! Rows and elements that pad have value 0: nibbles 8 in `Q4_0`, all bytes and scales 0 otherwise.
//!
//! # What comes back
//!
//! `F16`, `Q4_0`, `Q4_1` and `Q8_0` tiles hold exactly the bits of ggml's blocks ([`TileType::restores_blocks`]). `Q4_K`
//! and `Q6_K` tiles do not: a superblock's f16 scale and its 6- or 8-bit factors become one product per row and 32 (or
//! 16) elements, rounded to f16. The integers of the elements survive, the factors do not; a value differs by at most
//! `2^-11` of each rounded product it is made of (plus `2^-25` times its integer, where a product is below f16's normal
//! range). Who must return the original bytes of those types has to keep them.

pub(crate) mod block;
pub mod half;
pub mod int8;
pub mod kv;
mod matrix;
pub(crate) mod quant;
mod tile_type;

pub use block::{Q4K, Q6K};
pub use matrix::{TileError, TileMatrix};
pub use tile_type::TileType;

/// Rows, and elements of a row, of a weight tile.
pub const TILE: usize = 32;
