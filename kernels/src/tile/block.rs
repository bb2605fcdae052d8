//! Byte-level views of the ggml blocks that only tiles are made of.

use crate::block::{QK, f16_to_f32};

/// Elements of a superblock.
pub(crate) const QK_K: usize = 256;

/// Bytes of a `Q4_1` block: f16 `d`, f16 `m`, then 16 bytes of nibbles as in `Q4_0`; element `i` is
/// `d * nibble[i] + m`.
pub(crate) const Q4_1_SIZE_BYTES: usize = 4 + QK / 2;

/// Non-owning view of a `Q4_K` block: f16 `d`, f16 `dmin`, 12 bytes with eight 6-bit pairs, 128 bytes of nibbles.
///
/// Sub-block `s` of 32 elements has nibbles in bytes `32 (s / 2) ..`, low ones where `s` is even; element `i` of it is
/// `d * scale[s] * nibble - dmin * min[s]`.
#[derive(Clone, Copy, Debug)]
pub struct Q4K<'a>(pub &'a [u8; Q4K::SIZE_BYTES]);

impl Q4K<'_> {
    /// Bytes of a block.
    pub const SIZE_BYTES: usize = 4 + 12 + QK_K / 2;

    /// Returns the products `d * scale` and `dmin * min` of a sub-block.
    #[must_use]
    pub fn scales(self, s: usize) -> (f32, f32) {
        let b = &self.0[4..16];
        let (scale, min) = if s < 4 {
            (b[s] & 63, b[s + 4] & 63)
        } else {
            (
                b[s + 4] & 15 | b[s - 4] >> 6 << 4,
                b[s + 4] >> 4 | b[s] >> 6 << 4,
            )
        };
        (
            f16_to_f32([self.0[0], self.0[1]]) * f32::from(scale),
            f16_to_f32([self.0[2], self.0[3]]) * f32::from(min),
        )
    }

    /// Returns the nibble of element `i` of a sub-block.
    #[must_use]
    pub fn nibble(self, s: usize, i: usize) -> u8 {
        self.0[16 + 32 * (s / 2) + i] >> (4 * (s % 2)) & 15
    }
}

/// Non-owning view of a `Q6_K` block: 128 bytes with the low four bits of elements, 64 with the high two, 16 signed
/// factors, f16 `d`; element `i` is `d * factor[i / 16] * (q[i] - 32)`.
#[derive(Clone, Copy, Debug)]
pub struct Q6K<'a>(pub &'a [u8; Q6K::SIZE_BYTES]);

impl Q6K<'_> {
    /// Bytes of a block.
    pub const SIZE_BYTES: usize = QK_K / 2 + QK_K / 4 + QK_K / 16 + 2;

    /// Returns the product `d * factor` of 16 elements from `16 i` on.
    #[must_use]
    pub fn scale(self, i: usize) -> f32 {
        f16_to_f32([self.0[208], self.0[209]]) * f32::from(self.0[192 + i].cast_signed())
    }

    /// Returns the six bits of element `i`, 32 above its integer.
    #[must_use]
    pub fn q(self, i: usize) -> u8 {
        // Halves of 128 elements; in each, four quarters of 32 share the bytes.
        let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low = self.0[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
        let high = self.0[128 + 32 * half + l] >> (2 * quarter) & 3;
        low | high << 4
    }
}
