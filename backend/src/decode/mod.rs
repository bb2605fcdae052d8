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
//! * `options`, `values`, `resolve`, `params`: what can be set, its syntax, and what it comes to for a model;
//! * `plan`, `event`, `report`: what goes out;
//! * `state`: the machine that all modes share; `canvas`: the text; `commit`: which predictions commit; `cost`: what rows cost;
//! * `reference`, `cached`: one mode each; `full`: modes `mbsd` and `full`.

#![deny(unsafe_code)]

mod cached;
mod canvas;
mod commit;
mod error;
mod full;
mod options;
mod reference;
mod report;
mod resolve;
mod state;
mod values;

pub mod cost;
pub mod event;
pub mod params;
pub mod plan;
pub mod random;
#[cfg(test)]
mod tests;

pub use cost::{CostSource, CostTable};
pub use error::{DecodeError, ParamError};
pub use event::{Event, Stage};
pub use options::{
    Algorithm, Fill, Mode, OPTIONS, OptionInfo, RevisionContext, RevisionOrder, RevisionPath,
    Suffix,
};
pub use params::{
    CacheParams, CommitParams, CommitRule, Family, FullParams, ModeParams, ModelTraits, Params,
    Resolved, RevisionParams, Schedule,
};
pub use plan::{Measure, Prediction, RowPlan, Split, Token};
pub use report::Report;
pub use state::Decoder;
