//! The decoding state machine: schedules, stages and commits, turned into row plans.
//!
//! Pure: no I/O, no tensors, no clock. Randomness is a function of (seed, position, step), see [`random`]. The engine
//! executes the plans and hands back predictions:
//!
//! ```text
//! Params ── resolve(model, lengths) ──► Resolved ──► Decoder
//!                                                      │ next_plan ──► RowPlan ──► engine: forward, sampler
//!                                                      │ absorb    ◄── predictions ◄────────┘
//!                                                      └─► events, canvas, report
//! ```
//!
//! * `options`, `params`: what can be set, its syntax, and what it comes to for a model;
//! * `plan`, `event`, `report`: what goes out;
//! * `state`: the machine that all modes share; `canvas`: the text; `reference`, `cached`: one mode each.

#![deny(unsafe_code)]

mod cached;
mod canvas;
mod error;
mod options;
mod reference;
mod report;
mod state;

pub mod event;
pub mod params;
pub mod plan;
pub mod random;
#[cfg(test)]
mod tests;

pub use error::{DecodeError, ParamError};
pub use event::{Event, Stage};
pub use options::{Algorithm, Mode, OPTIONS, OptionInfo, Suffix};
pub use params::{Family, ModeParams, ModelTraits, Params, Resolved, Schedule};
pub use plan::{Measure, Prediction, RowPlan, Token};
pub use report::Report;
pub use state::Decoder;
