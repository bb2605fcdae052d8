//! NEON, its products of bytes: `dotprod` (four per 32-bit lane) and `i8mm` (2 x 8 times 8 x 2), and its products of half
//! floats: `fhm` (exact, added in f32, four an instruction) and `fp16` (added as half floats, eight an instruction).
//!
//! The bodies are safe functions with `#[target_feature]`. Unsafe are only the loads and stores of [`mem`], which take
//! arrays of the width they touch, the instructions of [`products`], which std's stable intrinsics lack, and the calls
//! into the bodies, made by types that hold a CPU feature: [`Neon`], [`Dotprod`], [`I8mm`], [`Fp16`] or [`Fhm`].

pub(crate) mod attention;
pub(crate) mod gemm;
mod half;
pub(crate) mod lanes;
mod mem;
mod products;
mod quantize;
mod row;
pub(crate) mod rows;

use std::arch::is_aarch64_feature_detected;

/// Declares a type whose values prove that the CPU has features.
macro_rules! proof {
    ($(#[$doc:meta])* $name:ident: $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name(());

        impl $name {
            /// Returns the proof, if this CPU has the features.
            pub(crate) fn detect() -> Option<Self> {
                ($(is_aarch64_feature_detected!($feature))&&+).then_some(Self(()))
            }
        }
    };
}

proof!(
    /// The CPU has `neon`.
    Neon: "neon"
);
proof!(
    /// The CPU has `neon` and `dotprod`.
    Dotprod: "neon", "dotprod"
);
proof!(
    /// The CPU has `neon` and `i8mm`.
    I8mm: "neon", "i8mm"
);
proof!(
    /// The CPU has `neon` and `fp16`.
    Fp16: "neon", "fp16"
);
proof!(
    /// The CPU has `neon`, `fp16` and `fhm`.
    Fhm: "neon", "fp16", "fhm"
);
