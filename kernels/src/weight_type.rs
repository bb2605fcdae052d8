//! The weight types a native kernel exists for.

use crate::block::{Q4_0, Q8_0, QK};

/// Element type of a weight matrix, named as in ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 32-bit float.
    F32,
    /// IEEE half float.
    F16,
    /// Blocks of 32: an f16 scale and 32 signed bytes.
    Q8_0,
    /// Blocks of 32: an f16 scale and 32 nibbles, each 8 above its value.
    Q4_0,
}

impl WeightType {
    /// Every type, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Q8_0, Self::Q4_0];

    /// Returns the type with ggml's type id (the number in model files), if kernels exist for it.
    pub const fn from_ggml_type(id: u32) -> Option<Self> {
        match id {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            2 => Some(Self::Q4_0),
            8 => Some(Self::Q8_0),
            _ => None,
        }
    }

    /// Returns ggml's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Returns the number of elements in a block.
    pub const fn blck_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q8_0 | Self::Q4_0 => QK,
        }
    }

    /// Returns the bytes of a block.
    pub const fn type_size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => Q8_0::SIZE_BYTES,
            Self::Q4_0 => Q4_0::SIZE_BYTES,
        }
    }

    /// Returns the bytes of `k` elements, or `None` when `k` is not whole blocks or the size overflows.
    pub const fn row_size(self, k: usize) -> Option<usize> {
        if k.is_multiple_of(self.blck_size()) {
            (k / self.blck_size()).checked_mul(self.type_size())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_file_format() {
        for (id, k, size) in [
            (0, 3, Some(12)),
            (1, 3, Some(6)),
            (2, 64, Some(36)),
            (8, 64, Some(68)),
            (2, 33, None),
        ] {
            let ty = WeightType::from_ggml_type(id).expect("a listed id");
            assert_eq!(ty.row_size(k), size, "{ty:?} {k}");
        }
        assert_eq!(WeightType::from_ggml_type(12), None);
        assert_eq!(WeightType::F32.row_size(usize::MAX), None);
    }
}
