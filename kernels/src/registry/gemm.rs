//! Implementations of products with tiled weights.

use super::Kernel;
#[cfg(target_arch = "aarch64")]
use crate::aarch64::gemm::{Dot, F16, Half, Long, Matrix};
#[cfg(target_arch = "aarch64")]
use crate::aarch64::{Fhm, Fp16};
use crate::generic::gemm::Generic;
use crate::op::gemm::{Gemm, Implementation};
use crate::reference::gemm::Reference;
use crate::tile::TileType;
#[cfg(target_arch = "x86_64")]
use crate::x86_64::{avx2::gemm as avx2, avx512::gemm as avx512};

/// Returns the kernels of [`crate::op::gemm`] for weights of a type: best first, the reference last.
pub fn gemm(ty: TileType) -> &'static [Kernel<Gemm>] {
    match ty {
        TileType::F16 => GEMM_F16,
        TileType::Q4_0 => GEMM_Q4_0,
        TileType::Q4_1 => GEMM_Q4_1,
        TileType::Q8_0 => GEMM_Q8_0,
        TileType::Q4K => GEMM_Q4_K,
        TileType::Q6K => GEMM_Q6_K,
    }
}

fn kernel(implementation: impl Implementation + 'static) -> Gemm {
    Gemm(Box::new(implementation))
}

/// A list of kernels for tiles of `$ty`: those given, then the two that every target has.
macro_rules! gemm {
    ($list:ident, $ty:ident, $types:literal $(, $(#[$cfg:meta])* $name:literal: $new:expr)* $(,)?) => {
        static $list: &[Kernel<Gemm>] = &[
            $(
                $(#[$cfg])*
                Kernel {
                    name: $name,
                    select: || $new.map(kernel),
                },
            )*
            Kernel {
                name: concat!("generic-", $types),
                select: || Some(kernel(Generic(TileType::$ty))),
            },
            Kernel {
                name: concat!("reference-", $types),
                select: || Some(kernel(Reference(TileType::$ty))),
            },
        ];
    };
}

gemm!(
    GEMM_F16, F16, "tile_f16",
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_f16-avx512f": avx512::F16::detect(),
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_f16-avx2fma": avx2::F16::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_f16-fhm": Half::<Fhm>::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_f16-fp16": Half::<Fp16>::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_f16-neon": F16::detect(),
);
gemm!(
    GEMM_Q4_0, Q4_0, "tile_q4_0q8_0",
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q4_0q8_0-avx512vnni": avx512::Q4_0::detect(),
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q4_0q8_0-avx2fma": avx2::Q4_0::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_0q8_0-i8mm": Matrix::detect(TileType::Q4_0),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_0q8_0-dotprod": Dot::detect(TileType::Q4_0),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_0q8_0-neon": Long::detect(TileType::Q4_0),
);
gemm!(
    GEMM_Q4_1, Q4_1, "tile_q4_1q8_0",
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q4_1q8_0-avx512vnni": avx512::Q4_1::detect(),
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q4_1q8_0-avx2fma": avx2::Q4_1::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_1q8_0-i8mm": Matrix::detect(TileType::Q4_1),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_1q8_0-dotprod": Dot::detect(TileType::Q4_1),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_1q8_0-neon": Long::detect(TileType::Q4_1),
);
gemm!(
    GEMM_Q8_0, Q8_0, "tile_q8_0q8_0",
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q8_0q8_0-avx512vnni": avx512::Q8_0::detect(),
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q8_0q8_0-avx2fma": avx2::Q8_0::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q8_0q8_0-i8mm": Matrix::detect(TileType::Q8_0),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q8_0q8_0-dotprod": Dot::detect(TileType::Q8_0),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q8_0q8_0-neon": Long::detect(TileType::Q8_0),
);
gemm!(
    GEMM_Q4_K, Q4K, "tile_q4_Kq8_0",
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q4_Kq8_0-avx512vnni": avx512::Q4K::detect(),
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q4_Kq8_0-avx2fma": avx2::Q4K::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_Kq8_0-i8mm": Matrix::detect(TileType::Q4K),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_Kq8_0-dotprod": Dot::detect(TileType::Q4K),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q4_Kq8_0-neon": Long::detect(TileType::Q4K),
);
gemm!(
    GEMM_Q6_K, Q6K, "tile_q6_Kq8_0",
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q6_Kq8_0-avx512vnni": avx512::Q6K::detect(),
    #[cfg(target_arch = "x86_64")]
    "x86_64-tile_q6_Kq8_0-avx2fma": avx2::Q6K::detect(),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q6_Kq8_0-i8mm": Matrix::detect(TileType::Q6K),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q6_Kq8_0-dotprod": Dot::detect(TileType::Q6K),
    #[cfg(target_arch = "aarch64")]
    "aarch64-tile_q6_Kq8_0-neon": Long::detect(TileType::Q6K),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_for_the_type_of_their_list_and_the_last_is_available() {
        for ty in TileType::ALL {
            let list = gemm(ty);
            assert!(
                list.last().is_some_and(|kernel| kernel.select().is_some()),
                "{ty:?}"
            );
            for kernel in list {
                let ending = format!("tile_{}", ty.name());
                assert!(kernel.name.contains(&ending), "{}", kernel.name);
                assert!(
                    kernel.select().is_none_or(|k| k.ty() == ty),
                    "{}",
                    kernel.name
                );
            }
        }
    }
}
