//! The decoding state machine: schedules, stages and commits, turned into row plans.
//!
//! Pure: no I/O, no tensors, no clock, no randomness of its own. The engine executes the plans and hands back
//! predictions.

#![deny(unsafe_code)]

pub mod event;
pub mod plan;
