//! Executes row plans: builds the graph of a forward, runs it on the device, samples its logits.
//!
//! ```text
//!     path ── Model::load ──► Model (weights as tensors, shared)
//!                               │ Session::new
//!                               ▼
//!     prompt ── generate ──► Session: decode::Decoder ──► RowPlan ──► forward ──► Logits ──► sample ──► decoder
//!                               └─► events, output, report
//! ```
//!
//! * `target`, `model`: where weights lie; `slot`, `kv`: the K/V of a session;
//! * `check`, `graph`, `lane`, `forward`: from a plan to logits; `sample`: from logits to predictions;
//! * `session`: the loop; `batch`: the loop over several canvases in one forward;
//! * `cost`: what forwards of this device take; `report`, `json`: what it cost.
//!
//! The engine knows one device through ggml's own interface. Modes are not its business: it runs any plan that
//! [`decode::plan`](crate::decode::plan) can express.

#![deny(unsafe_code)]

mod batch;
mod check;
mod cost;
mod error;
mod forward;
mod graph;
mod json;
mod kv;
mod lane;
mod model;
mod report;
pub mod sample;
mod session;
mod slot;
mod target;
mod thread;

pub use batch::{BatchOutcome, BatchPrompt, MAX_N_SEATS};
pub use cost::{cost_file, option_value};
pub use error::{EngineError, PlanError};
pub use forward::{Delay, Logits, Path};
pub use kv::KvType;
pub use model::{LoadOptions, Model};
pub use report::RunReport;
pub use session::{CanvasView, Control, Session, SessionParams};
pub use target::{Adopt, Target};
pub use thread::n_physical_cores;
