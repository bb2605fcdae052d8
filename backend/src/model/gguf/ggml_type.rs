//! ggml's tensor types as the file format numbers them.

/// Where a block keeps the numbers that scale it, for validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Every element is a float of the type itself.
    Element,
    /// f16 numbers at these byte offsets of each block.
    F16(&'static [usize]),
    /// f16 number spread over the high nibbles of the four u16 at this byte offset (`IQ1_M`).
    F16Nibbles(usize),
    /// One power-of-two exponent (E8M0) at this byte offset; 255 is NaN.
    E8M0(usize),
    /// f32 number at this byte offset.
    F32(usize),
    /// Nothing that could be invalid.
    None,
}

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $blck:literal, $size:literal, $scale:expr;)*) => {
        /// Type of a tensor's elements. Ids never change: they are the file format's.
        #[expect(non_camel_case_types, reason = "ggml's own names")]
        #[expect(missing_docs, reason = "the variants are ggml's type names and say all there is to say")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum GgmlType { $($(#[$doc])* $variant = $id,)* }

        impl GgmlType {
            /// Every type that exists, ids ascending.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Type with this id; `None` for ids never given, or taken back.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// ggml's name of the type.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements of one block.
            pub const fn blck_size(self) -> u64 {
                match self { $(Self::$variant => $blck,)* }
            }

            /// Bytes of one block.
            pub const fn type_size(self) -> u64 {
                match self { $(Self::$variant => $size,)* }
            }

            /// Where a block keeps its scales.
            pub const fn scale(self) -> Scale {
                match self { $(Self::$variant => $scale,)* }
            }
        }
    };
}

ggml_types! {
    F32     = 0,  "f32",     1,   4,   Scale::Element;
    F16     = 1,  "f16",     1,   2,   Scale::Element;
    Q4_0    = 2,  "q4_0",    32,  18,  Scale::F16(&[0]);
    Q4_1    = 3,  "q4_1",    32,  20,  Scale::F16(&[0, 2]);
    Q5_0    = 6,  "q5_0",    32,  22,  Scale::F16(&[0]);
    Q5_1    = 7,  "q5_1",    32,  24,  Scale::F16(&[0, 2]);
    Q8_0    = 8,  "q8_0",    32,  34,  Scale::F16(&[0]);
    Q8_1    = 9,  "q8_1",    32,  36,  Scale::F16(&[0, 2]);
    Q2_K    = 10, "q2_K",    256, 84,  Scale::F16(&[80, 82]);
    Q3_K    = 11, "q3_K",    256, 110, Scale::F16(&[108]);
    Q4_K    = 12, "q4_K",    256, 144, Scale::F16(&[0, 2]);
    Q5_K    = 13, "q5_K",    256, 176, Scale::F16(&[0, 2]);
    Q6_K    = 14, "q6_K",    256, 210, Scale::F16(&[208]);
    Q8_K    = 15, "q8_K",    256, 292, Scale::F32(0);
    IQ2_XXS = 16, "iq2_xxs", 256, 66,  Scale::F16(&[0]);
    IQ2_XS  = 17, "iq2_xs",  256, 74,  Scale::F16(&[0]);
    IQ3_XXS = 18, "iq3_xxs", 256, 98,  Scale::F16(&[0]);
    IQ1_S   = 19, "iq1_s",   256, 50,  Scale::F16(&[0]);
    IQ4_NL  = 20, "iq4_nl",  32,  18,  Scale::F16(&[0]);
    IQ3_S   = 21, "iq3_s",   256, 110, Scale::F16(&[0]);
    IQ2_S   = 22, "iq2_s",   256, 82,  Scale::F16(&[0]);
    IQ4_XS  = 23, "iq4_xs",  256, 136, Scale::F16(&[0]);
    I8      = 24, "i8",      1,   1,   Scale::None;
    I16     = 25, "i16",     1,   2,   Scale::None;
    I32     = 26, "i32",     1,   4,   Scale::None;
    I64     = 27, "i64",     1,   8,   Scale::None;
    F64     = 28, "f64",     1,   8,   Scale::Element;
    IQ1_M   = 29, "iq1_m",   256, 56,  Scale::F16Nibbles(48);
    BF16    = 30, "bf16",    1,   2,   Scale::Element;
    TQ1_0   = 34, "tq1_0",   256, 54,  Scale::F16(&[52]);
    TQ2_0   = 35, "tq2_0",   256, 66,  Scale::F16(&[64]);
    MXFP4   = 39, "mxfp4",   32,  17,  Scale::E8M0(0);
    NVFP4   = 40, "nvfp4",   64,  36,  Scale::None;
    Q1_0    = 41, "q1_0",    128, 18,  Scale::F16(&[0]);
    Q2_0    = 42, "q2_0",    64,  18,  Scale::F16(&[0]);
}

impl GgmlType {
    /// Id in the file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Whether a weight matrix may have this type: not the integer types, and not the types that only occur inside a
    /// computation.
    pub const fn is_weight(self) -> bool {
        !matches!(
            self,
            Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::F64 | Self::Q8_1 | Self::Q8_K
        )
    }

    /// Bytes of a row of `ne0` elements; `None` when the row is not whole blocks or the product overflows.
    pub const fn row_size(self, ne0: u64) -> Option<u64> {
        if !ne0.is_multiple_of(self.blck_size()) {
            return None;
        }
        (ne0 / self.blck_size()).checked_mul(self.type_size())
    }

    /// Offset of the first block of `data` with a NaN, an infinity or an invalid scale; `None` when all are sound.
    ///
    /// A last, incomplete block is not looked at.
    pub fn first_invalid_block(self, data: &[u8]) -> Option<usize> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a block has a few hundred bytes at most"
        )]
        let size = self.type_size() as usize;
        data.chunks_exact(size)
            .position(|block| !self.block_is_sound(block))
    }

    fn block_is_sound(self, block: &[u8]) -> bool {
        match self.scale() {
            Scale::Element => match self {
                Self::F32 => f32::from_le_bytes(array(block, 0)).is_finite(),
                Self::F64 => f64::from_le_bytes(array(block, 0)).is_finite(),
                Self::BF16 => half::bf16::from_le_bytes(array(block, 0)).is_finite(),
                _ => f16_is_finite(u16::from_le_bytes(array(block, 0))),
            },
            Scale::F16(offsets) => offsets
                .iter()
                .all(|&offset| f16_is_finite(u16::from_le_bytes(array(block, offset)))),
            Scale::F16Nibbles(offset) => {
                let nibble = |i: usize| u16::from_le_bytes(array(block, offset + 2 * i)) >> 12;
                f16_is_finite(nibble(0) | nibble(1) << 4 | nibble(2) << 8 | nibble(3) << 12)
            }
            Scale::E8M0(offset) => block[offset] != u8::MAX,
            Scale::F32(offset) => f32::from_le_bytes(array(block, offset)).is_finite(),
            Scale::None => true,
        }
    }
}

/// Exponent bits of an f16 all set: NaN or infinity.
const fn f16_is_finite(bits: u16) -> bool {
    bits & 0x7c00 != 0x7c00
}

/// `N` bytes of a block.
fn array<const N: usize>(block: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[offset..offset + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_types_are_inverse() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
        }
        for gone in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(GgmlType::from_id(gone), None);
        }
    }

    #[test]
    fn scales_lie_inside_their_block() {
        for &ty in GgmlType::ALL {
            let end = match ty.scale() {
                Scale::F16(offsets) => *offsets.iter().max().unwrap() as u64 + 2,
                Scale::F16Nibbles(offset) => offset as u64 + 8,
                Scale::E8M0(offset) => offset as u64 + 1,
                Scale::F32(offset) => offset as u64 + 4,
                Scale::Element | Scale::None => 0,
            };
            assert!(end <= ty.type_size(), "{}", ty.name());
        }
    }

    #[test]
    fn a_nan_or_infinite_scale_is_found_in_every_type() {
        for &ty in GgmlType::ALL {
            let size = usize::try_from(ty.type_size()).unwrap();
            let sound = vec![0_u8; 3 * size];
            assert_eq!(ty.first_invalid_block(&sound), None, "{}", ty.name());
            let mut bad = sound.clone();
            let second = &mut bad[size..2 * size];
            match ty.scale() {
                Scale::Element => match ty {
                    GgmlType::F32 => second.copy_from_slice(&f32::NAN.to_le_bytes()),
                    GgmlType::F64 => second.copy_from_slice(&f64::INFINITY.to_le_bytes()),
                    GgmlType::BF16 => second.copy_from_slice(&half::bf16::NAN.to_le_bytes()),
                    _ => second.copy_from_slice(&half::f16::NEG_INFINITY.to_le_bytes()),
                },
                Scale::F16(offsets) => {
                    let last = *offsets.last().unwrap();
                    second[last..last + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
                }
                // 0x7c00: nibbles 0, 0, c, 7.
                Scale::F16Nibbles(offset) => {
                    second[offset + 5] = 0xc0;
                    second[offset + 7] = 0x70;
                }
                Scale::E8M0(offset) => second[offset] = 255,
                Scale::F32(offset) => {
                    second[offset..offset + 4].copy_from_slice(&f32::INFINITY.to_le_bytes())
                }
                Scale::None => continue,
            }
            assert_eq!(ty.first_invalid_block(&bad), Some(1), "{}", ty.name());
        }
    }

    #[test]
    fn row_size_wants_whole_blocks() {
        assert_eq!(GgmlType::Q4_0.row_size(64), Some(36));
        assert_eq!(GgmlType::Q4_0.row_size(33), None);
        assert_eq!(GgmlType::F64.row_size(u64::MAX / 4), None);
    }
}
