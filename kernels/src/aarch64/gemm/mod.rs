//! Products with tiled weights.
//!
//! A tile is [decoded](decode) once per group of rows, into signed bytes in the order in which the instructions of a
//! family take them, and stays in the first-level cache while rows of x pass by, a few at a time:
//!
//! | family | weights of one vector | x of one vector | rows at a time |
//! |---|---|---|---|
//! | [`Dot`] | 4 elements of 4 rows | 4 elements of 4 rows | 4 |
//! | [`Matrix`] | 8 elements of 2 rows | 8 elements of 2 rows | 8 |
//! | [`Long`] | 4 elements of 4 rows | 4 elements of 1 row, repeated | 1 |
//! | [`F16`] | 1 element of 4 rows, f32 | 1 element of 4 rows, f32 | 4 |
//! | [`Half`] | 1 element of 8 rows, f16 | 1 element of 8 rows, f16 | 8 |

/// Declares a family: a kernel for tiles of any quantised type that runs the module's `strip`, with units of pieces of
/// `$rows` rows, filled up to a multiple of `$granule`, in which `$run` elements of a row follow each other.
macro_rules! family {
    ($(#[$doc:meta])* $name:ident: $cpu:ident, $run:literal, $rows:expr, $granule:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            ty: TileType,
            _cpu: $cpu,
        }

        impl $name {
            /// Returns the implementation if this CPU can run it.
            ///
            /// # Panics
            ///
            /// When the type is not quantised.
            pub(crate) fn detect(ty: TileType) -> Option<Self> {
                assert_ne!(ty, TileType::F16, "quantised types");
                $cpu::detect().map(|cpu| Self { ty, _cpu: cpu })
            }
        }

        impl crate::op::gemm::Implementation for $name {
            fn ty(&self) -> TileType {
                self.ty
            }

            fn unit_size_bytes(&self, n_rows: usize) -> usize {
                unit::size_bytes(n_rows, $granule)
            }

            fn prepare(
                &self,
                x: &crate::F32Rows<'_>,
                k_tiles: std::ops::Range<usize>,
                units: &mut [u8],
            ) {
                let prepare = match self.ty {
                    TileType::Q4K | TileType::Q6K => unit::prepare::<$run, true>,
                    _ => unit::prepare::<$run, false>,
                };
                // SAFETY: `self` holds the proof that the features of the callee were detected.
                unsafe { prepare(x, k_tiles, $rows, $granule, units) }
            }

            fn strip(&self, tiles: &[u8], bases: &[u8], group: &[u8], out: &mut [[f32; TILE]]) {
                let strip = match self.ty {
                    TileType::Q4_0 => strip::<decode::Q4_0>,
                    TileType::Q4_1 => strip::<decode::Q4_1>,
                    TileType::Q8_0 => strip::<decode::Q8_0>,
                    TileType::Q4K => strip::<decode::Q4K>,
                    TileType::Q6K => strip::<decode::Q6K>,
                    TileType::F16 => unreachable!("refused when the kernel was made"),
                };
                // SAFETY: `self` holds the proof that the features of the callee were detected.
                unsafe { strip(tiles, bases, group, out) }
            }
        }
    };
}

mod decode;
mod dot;
mod float;
mod half;
mod long;
mod matrix;
mod unit;

pub(crate) use dot::Dot;
pub(crate) use float::F16;
pub(crate) use half::Half;
pub(crate) use long::Long;
pub(crate) use matrix::Matrix;
