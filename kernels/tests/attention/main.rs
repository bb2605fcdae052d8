//! Every attention kernel against exact mixtures, computed here in f64 from the definition.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;

mod case;
mod numbers_of_any_kind;
mod shapes;
