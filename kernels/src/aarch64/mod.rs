//! NEON, and its products of bytes: `dotprod` (four per 32-bit lane) and `i8mm` (2 x 8 times 8 x 2).
//!
//! The bodies are safe functions with `#[target_feature]`. Unsafe are only the loads and stores of [`mem`], which take
//! arrays of the width they touch, the instructions of [`products`], which std's stable intrinsics lack, and the calls
//! into the bodies, made by types that hold a CPU feature: [`Neon`], [`Dotprod`] or [`I8mm`].

mod attention;
mod exp;
pub(crate) mod gemm;
mod mem;
mod products;
mod quantize;
mod row;

use std::arch::is_aarch64_feature_detected;

/// The CPU has `neon`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// Returns the proof, if this CPU has the feature.
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

/// The CPU has `neon` and `dotprod`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dotprod(());

impl Dotprod {
    /// Returns the proof, if this CPU has the features.
    pub(crate) fn detect() -> Option<Self> {
        (is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod"))
            .then_some(Self(()))
    }
}

/// The CPU has `neon` and `i8mm`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct I8mm(());

impl I8mm {
    /// Returns the proof, if this CPU has the features.
    pub(crate) fn detect() -> Option<Self> {
        (is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("i8mm"))
            .then_some(Self(()))
    }
}
