//! Row operations: every kernel that this CPU runs against the reference, on lengths around the vectors', unaligned, in
//! place, and with every kind of number. The worst difference of each kernel is printed.

#![expect(clippy::cast_possible_truncation, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;

mod copy;
mod elementwise;
mod norm;
mod numbers;
mod rope;
