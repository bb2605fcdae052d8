//! AVX2 and AVX-512 implementations.
//!
//! The bodies are safe functions with `#[target_feature]`. Unsafe are only the loads and stores of [`mem`], which take
//! arrays of the width they touch, and the calls into the bodies, made by types that exist only after detection.

pub(crate) mod avx2;
pub(crate) mod avx512;
mod block;
mod mem;
pub(crate) mod row;

/// Declares a type whose values prove that the CPU has features.
macro_rules! proof {
    ($(#[$doc:meta])* $name:ident: $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name(());

        impl $name {
            /// Returns the proof, if this CPU has the features.
            pub(crate) fn detect() -> Option<Self> {
                ($(is_x86_feature_detected!($feature))&&+).then_some(Self(()))
            }
        }
    };
}

proof!(
    /// The CPU has `avx2`, `fma` and `f16c`.
    Avx2: "avx2", "fma", "f16c"
);
proof!(
    /// The CPU has `avx512f` (with what it implies).
    Avx512f: "avx512f"
);
