//! Running a model whose weights do not fit the address space of an accelerator.
//!
//! An NPU sees a few GiB of addresses. What an operation reads must be mapped there before it runs; mapping costs time,
//! and a model of 8 billion parameters does not fit at once. This module decides what is mapped when.
//!
//! ```text
//!  Workload (objects, segments)   Limits   Policy   Costs
//!            └──────────────┬───────┴─────────┴───────┘
//!                           ▼
//!                       Planner ── step(segments) ──▶ Turns: what to transfer, when that may start, what then runs
//! ```
//!
//! Planning is pure: it knows neither clocks nor memory, and the same question has the same answer. Who carries the turns
//! out keeps two clocks, of transfers and of runs:
//!
//! ```text
//! transfers of turn t start   when those of turn t-1 are done and the run of turn `after` is over
//! the run of turn t starts    when its transfers are done and the run of turn t-1 is over
//! ```
//!
//! The time between the end of one run and the start of the next is a stall. With [`Policy::PlannedPipeline`] the turn in
//! `after` lies further back than the last, so that transfers go on while segments run.
//!
//! | module | what |
//! |---|---|
//! | [`workload`] | what there is to map: objects, and the segments that need them |
//! | [`limits`] | the address space, the policies, what moving bytes costs |
//! | [`space`] | free and taken addresses |
//! | [`arena`] | short-lived objects share memory: who lies where |
//! | [`residency`] | what stays mapped, and how the rest is streamed |
//! | [`planner`] | turns, one policy per file below it |
//! | [`mapping`] | who carries transfers out |
//! | [`host`] | tiles of the weight store, as objects |
//! | [`session`] | steps that run as they come, with a staging thread |
//! | [`clock`] | when turns happen, from how long transfers and runs take |
//! | [`observer`] | a mapping with such a clock |
//!
//! ```
//! use ggml_llada_npu::memory::runtime::{Class, Costs, Limits, Object, Planner, Policy, Workload};
//!
//! let mut workload = Workload::new();
//! for layer in 0..4 {
//!     let weight = Object::new(format!("blk.{layer}.ffn_up.weight"), 100 << 20, Class::LongLived);
//!     let weight = workload.add_object(weight);
//!     workload.add_segment(format!("layer {layer}"), [weight]);
//! }
//! let limits = Limits { budget_bytes: 300 << 20, ..Limits::default() };
//! let mut planner = Planner::new(workload, limits, Policy::PlannedPipeline, Costs::default())?;
//! for _ in 0..3 {
//!     for turn in planner.step_all()? {
//!         for transfer in &turn.before {
//!             println!("{transfer:?}, once the run of turn {:?} is over", turn.after);
//!         }
//!         println!("run {:?}", turn.segment);
//!     }
//! }
//! planner.finish();
//! assert_eq!(planner.counters().mapped_bytes, 0);
//! # Ok::<(), ggml_llada_npu::memory::runtime::PlanError>(())
//! ```

pub mod arena;
pub mod clock;
mod error;
pub mod host;
pub mod limits;
pub mod mapping;
pub mod observer;
pub mod planner;
pub mod residency;
pub mod session;
pub mod space;
#[cfg(test)]
mod tests;
pub mod turn;
pub mod workload;

pub use crate::knobs::Policy;
pub use error::PlanError;
pub use host::HostMapping;
pub use limits::{Costs, Limits};
pub use mapping::{MapError, Mapping};
pub use observer::{Observed, Observer};
pub use planner::Planner;
pub use session::{Report, Session, SessionError};
pub use turn::{Counters, Piece, Place, Transfer, Turn};
pub use workload::{Class, Object, ObjectId, Segment, SegmentId, Workload};
