//! The weight types that have a tile form.

use super::TILE;
use super::block::{Q4_1_SIZE_BYTES, Q4K, Q6K, QK_K};
use crate::block::{Q4_0, Q8_0, QK};

/// Element type of a tiled weight matrix, named as the ggml type it is packed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileType {
    /// IEEE half float.
    F16,
    /// Nibbles 8 above their value, a scale per row and 32 elements.
    Q4_0,
    /// Nibbles, scale and minimum per row and 32 elements.
    Q4_1,
    /// Signed bytes, a scale per row and 32 elements.
    Q8_0,
    /// As [`Self::Q4_1`], from ggml's superblocks of 256.
    Q4K,
    /// Six bits, a scale per row and 16 elements.
    Q6K,
}

impl TileType {
    /// Every type, in the order of the enum.
    pub const ALL: [Self; 6] = [
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q6K,
    ];

    /// Returns the type with ggml's type id (the number in model files), if it has a tile form.
    pub const fn from_ggml_type(id: u32) -> Option<Self> {
        match id {
            1 => Some(Self::F16),
            2 => Some(Self::Q4_0),
            3 => Some(Self::Q4_1),
            8 => Some(Self::Q8_0),
            12 => Some(Self::Q4K),
            14 => Some(Self::Q6K),
            _ => None,
        }
    }

    /// Returns ggml's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_K",
            Self::Q6K => "q6_K",
        }
    }

    /// Returns the number of elements in one of ggml's blocks.
    pub const fn blck_size(self) -> usize {
        match self {
            Self::F16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => QK,
            Self::Q4K | Self::Q6K => QK_K,
        }
    }

    /// Returns the bytes of one of ggml's blocks.
    pub const fn type_size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::Q4_0 => Q4_0::SIZE_BYTES,
            Self::Q4_1 => Q4_1_SIZE_BYTES,
            Self::Q8_0 => Q8_0::SIZE_BYTES,
            Self::Q4K => Q4K::SIZE_BYTES,
            Self::Q6K => Q6K::SIZE_BYTES,
        }
    }

    /// Returns the bytes of `k` elements in ggml's blocks, or `None` when `k` is not whole blocks or the size overflows.
    pub const fn row_size(self, k: usize) -> Option<usize> {
        if k.is_multiple_of(self.blck_size()) {
            (k / self.blck_size()).checked_mul(self.type_size())
        } else {
            None
        }
    }

    /// Returns the bytes of a tile.
    pub const fn tile_size_bytes(self) -> usize {
        match self {
            Self::F16 => 2048,
            Self::Q4_0 => 576,
            Self::Q4_1 | Self::Q4K => 640,
            Self::Q8_0 => 1088,
            Self::Q6K => 896,
        }
    }

    /// Returns the bytes that follow the tiles of a strip for each 256 elements along k: the bases.
    ///
    /// Scales and minima of K-quants are whole multiples of a half float per row and 256 elements, which tiles hold rounded
    /// to half floats. Their bases make them exact again: those of the scales of 32 rows, then, in `Q4_K`, those of the
    /// minima.
    pub const fn bases_size_bytes(self) -> usize {
        match self {
            Self::F16 | Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => 0,
            Self::Q4K => 4 * TILE,
            Self::Q6K => 2 * TILE,
        }
    }

    /// Returns the bytes of a strip of 32 rows of `k` elements, the last tile filled up; `None` where that overflows.
    pub const fn strip_size_bytes(self, k: usize) -> Option<usize> {
        let Some(tiles) = k.div_ceil(TILE).checked_mul(self.tile_size_bytes()) else {
            return None;
        };
        tiles.checked_add(k / QK_K * self.bases_size_bytes())
    }

    /// Returns whether tiles hold the exact bits of ggml's blocks, so that [`super::TileMatrix::unpack_strip`] restores
    /// them.
    pub const fn restores_blocks(self) -> bool {
        match self {
            Self::F16 | Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => true,
            Self::Q4K | Self::Q6K => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_file_format_and_of_the_tiles() {
        for (id, ty, k, row, tile) in [
            (1, TileType::F16, 33, Some(66), 2048),
            (2, TileType::Q4_0, 64, Some(36), 576),
            (3, TileType::Q4_1, 64, Some(40), 640),
            (8, TileType::Q8_0, 64, Some(68), 1088),
            (12, TileType::Q4K, 512, Some(288), 640),
            (14, TileType::Q6K, 512, Some(420), 896),
            (2, TileType::Q4_0, 33, None, 576),
            (14, TileType::Q6K, 128, None, 896),
        ] {
            assert_eq!(TileType::from_ggml_type(id), Some(ty));
            assert_eq!(ty.row_size(k), row, "{ty:?} {k}");
            assert_eq!(ty.tile_size_bytes(), tile, "{ty:?}");
        }
        assert_eq!(TileType::from_ggml_type(0), None);
        assert_eq!(TileType::F16.row_size(usize::MAX), None);
    }

    #[test]
    fn types_of_32_elements_per_scale_have_tiles_of_the_size_of_their_blocks() {
        for ty in [TileType::Q4_0, TileType::Q4_1, TileType::Q8_0] {
            assert_eq!(
                ty.row_size(32).map(|row| 32 * row),
                Some(ty.tile_size_bytes())
            );
        }
    }
}
