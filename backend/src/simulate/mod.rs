//! The simulator: what a generation would take on a phone with an NPU, predicted and never measured.
//!
//! A pure function of a model's shape, a commit trace, a memory policy and the constants of a processor:
//!
//! ```text
//! Trace ──► drive: the real decoder, without a model ──► Plans: rows of each forward ┐
//! ModelShape ────────────────────────────────────────────────────────────────────────┼─► run ─► Outcome, Timeline
//! Profile (constants with sources) ──► Machine ──────────────────────────────────────┤
//! Policy ──► memory::runtime::Planner: what is mapped when ──────────────────────────┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`constant`], [`soc`], [`machine`] | numbers with their provenance; the processors; the numbers in use |
//! | [`shape`] | models: matrices and sizes |
//! | [`trace`] | how fast positions are decided, published or recorded |
//! | [`drive`] | the decoding state machine driven by a trace |
//! | [`timeline`], [`mod@run`] | who is busy when |
//! | [`ablation`], [`published`] | the rows that add one technique each, beside what is published |
//! | [`sweep`] | over lengths, policies, map costs, paces and budgets |
//!
//! What it leaves out: norms, softmax and other small operations on the NPU, heat, other users of the memory, and everything
//! that the constants' sources leave out. It says which technique pays under which conditions, not what a phone will show.
//!
//! ```
//! use ggml_llada_npu::model::gguf::GgmlType;
//! use ggml_llada_npu::simulate::{Column, ModelShape, Setting, Soc, Stage};
//!
//! let shape = ModelShape::named("llada-8b", GgmlType::Q4_0)?;
//! let setting = Setting::new(Soc::Sm8750, Column::Today, shape);
//! let full = setting.row(Stage::Revision)?.outcome;
//! println!("{:.1} simulated tokens per second", full.tokens_per_second());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

pub mod ablation;
pub mod constant;
pub mod drive;
pub mod machine;
pub mod published;
pub mod run;
pub mod shape;
pub mod soc;
pub mod sweep;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod trace;

pub use ablation::{Row, Setting, SimulateError, Stage, headline_ratio, worst_deviation};
pub use constant::{Confidence, Constant};
pub use machine::Machine;
pub use run::{Outcome, Placement};
pub use shape::{ModelShape, ShapeError, UnknownName};
pub use soc::{Column, Profile, Soc};
pub use timeline::{Resource, Span, Timeline, Work};
pub use trace::{Recorder, Recording, Trace};
