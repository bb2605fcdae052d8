//! The ablation: each row adds a technique to the row before.
//!
//! | row | plans of mode | commits | logits of | runs on | memory |
//! |---|---|---|---|---|---|
//! | CPU | `reference` | one per step | all rows | CPU | |
//! | + prefix KV | `cached` | one per step | all rows | CPU | |
//! | + dense NPU | `cached` | one per step | all rows | NPU | `naive` |
//! | + memory runtime | `cached` | one per step | all rows | NPU | as asked for |
//! | + MBSD | `mbsd` | what is sure | all rows | NPU | as asked for |
//! | + revision | `full` | what is likely | rows that predict | NPU, revision on the CPU | as asked for |
//!
//! Modes have their defaults, blocks of 32, and the cost table `npu`. The paper counts logits that are left out with its
//! revision, so that they are computed in all rows before.

use super::drive::{BLOCK, DriveError, Plans, autoregressive, drive};
use super::machine::Machine;
use super::published;
use super::run::{Outcome, Placement, run};
use super::shape::{ModelShape, ShapeError};
use super::soc::{Column, Profile, Soc};
use super::trace::Trace;
use crate::decode::{ParamError, Params};
use crate::memory::runtime::{PlanError, Policy};
use crate::model::gguf::GgmlType;

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Whole sequence every step, on the CPU.
    Cpu,
    /// With the K/V of what is committed kept.
    PrefixKv,
    /// Dense forwards on the NPU, everything mapped before use and unmapped after.
    DenseNpu,
    /// With the memory runtime.
    MemoryRuntime,
    /// With several tokens per step, a sliding window and drafts.
    Mbsd,
    /// With tokens that become final in stages, their revision, and logits where they are needed.
    Revision,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::PrefixKv,
        Self::DenseNpu,
        Self::MemoryRuntime,
        Self::Mbsd,
        Self::Revision,
    ];

    /// Those that an autoregressive model has.
    pub const AUTOREGRESSIVE: [Self; 3] = [Self::Cpu, Self::DenseNpu, Self::MemoryRuntime];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::PrefixKv => "+ prefix KV",
            Self::DenseNpu => "+ dense NPU",
            Self::MemoryRuntime => "+ memory runtime",
            Self::Mbsd => "+ MBSD",
            Self::Revision => "+ revision",
        }
    }

    /// Options of the decoding mode.
    const fn options(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Cpu => &[("mode", "reference")],
            Self::PrefixKv | Self::DenseNpu | Self::MemoryRuntime => {
                &[("mode", "cached"), ("threshold", "inf")]
            }
            Self::Mbsd => &[("mode", "mbsd"), ("cost", "npu")],
            Self::Revision => &[("mode", "full"), ("cost", "npu"), ("tau-visible", "0.7")],
        }
    }
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The processor.
    pub soc: Soc,
    /// Which constants.
    pub column: Column,
    /// The model.
    pub shape: ModelShape,
    /// Prompt length in tokens.
    pub n_prompt: u32,
    /// Tokens to generate.
    pub n_gen: u32,
    /// How fast positions are decided.
    pub trace: Trace,
    /// Who decides what is mapped, from the row of the memory runtime on.
    pub policy: Policy,
    /// Rates, powers and the address space: of the processor, or changed.
    pub machine: Machine,
    /// Whether revision rows ride in the forward of the step.
    pub revision_rides: bool,
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// The decoder takes no such generation.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The decoder fails, which would be a mistake of the simulator.
    #[error(transparent)]
    Decode(crate::decode::DecodeError),
    /// Something does not fit the address space.
    #[error(transparent)]
    Memory(#[from] PlanError),
    /// The model has no such shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

impl From<DriveError> for SimulateError {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Param(error) => Self::Param(error),
            DriveError::Decode(error) => Self::Decode(error),
        }
    }
}

/// A predicted row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which.
    pub stage: Stage,
    /// What came of it.
    pub outcome: Outcome,
    /// What is published, where this very thing was measured.
    pub published_s: Option<f64>,
}

impl Row {
    /// Returns by which part of the published time the prediction is above it (or below, negative).
    #[must_use]
    pub fn deviation(&self) -> Option<f64> {
        self.published_s
            .map(|published| self.outcome.seconds / published - 1.0)
    }
}

impl Setting {
    /// Returns a setting with the constants of a processor, 64 tokens of prompt and 128 to generate, the published trace and
    /// the pipelined memory runtime.
    #[must_use]
    pub fn new(soc: Soc, column: Column, shape: ModelShape) -> Self {
        Self {
            soc,
            column,
            shape,
            n_prompt: 64,
            n_gen: 128,
            trace: Trace::published(),
            policy: Policy::PlannedPipeline,
            machine: Machine::new(&Profile::new(soc, column)),
            revision_rides: false,
        }
    }

    /// Returns the forwards of a row.
    ///
    /// # Errors
    /// [`SimulateError::Param`] where the canvas exceeds the model's context.
    pub fn plans(&self, stage: Stage) -> Result<Plans, SimulateError> {
        if self.shape.is_autoregressive {
            return self.autoregressive_plans();
        }
        let mut plans = self.plans_with(stage, stage.options(), &self.trace)?;
        if stage != Stage::Revision {
            for forward in &mut plans.forwards {
                forward.dense.n_logits = forward.dense.n_rows;
            }
        }
        Ok(plans)
    }

    fn autoregressive_plans(&self) -> Result<Plans, SimulateError> {
        let (n_prompt, n_gen, n_ctx) = (self.n_prompt, self.n_gen, self.shape.n_ctx);
        if n_gen == 0 {
            return Err(ParamError::NothingToGenerate.into());
        }
        if n_prompt
            .checked_add(n_gen)
            .is_none_or(|n_canvas| n_canvas > n_ctx)
        {
            return Err(ParamError::Context {
                n_prompt,
                n_gen,
                n_ctx,
            }
            .into());
        }
        Ok(autoregressive(n_prompt, n_gen))
    }

    /// Returns the forwards of a mode with these options, driven by this trace.
    pub(super) fn plans_with(
        &self,
        stage: Stage,
        options: &[(&str, &str)],
        trace: &Trace,
    ) -> Result<Plans, SimulateError> {
        let mut params = Params::default();
        params.set("block-length", &BLOCK.to_string())?;
        for (key, value) in options {
            params.set(key, value)?;
        }
        let one_by_one = Trace::one_by_one();
        let trace = match stage {
            Stage::Mbsd | Stage::Revision => trace,
            _ => &one_by_one,
        };
        Ok(drive(
            &self.shape,
            &params,
            trace,
            self.n_prompt,
            self.n_gen,
        )?)
    }

    /// Returns where a row runs.
    #[must_use]
    pub fn placement(&self, stage: Stage) -> Placement {
        let npu = |policy| Placement::Npu {
            policy,
            budget_bytes: self.machine.budget_bytes,
            revision_rides: self.revision_rides,
        };
        match stage {
            Stage::Cpu | Stage::PrefixKv => Placement::Cpu,
            Stage::DenseNpu => npu(Policy::Naive),
            Stage::MemoryRuntime | Stage::Mbsd | Stage::Revision => npu(self.policy),
        }
    }

    /// Predicts a row.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub fn row(&self, stage: Stage) -> Result<Row, SimulateError> {
        let plans = self.plans(stage)?;
        let outcome = run(&self.shape, &plans, &self.machine, self.placement(stage))?;
        Ok(Row {
            stage,
            outcome,
            published_s: self.published_s(stage),
        })
    }

    fn published_s(&self, stage: Stage) -> Option<f64> {
        let same = self.shape.name == published::MODEL
            && self.shape.quant == published::QUANT
            && self.n_gen == published::N_GEN;
        if same {
            published::ablation_s(stage, self.soc)
        } else {
            None
        }
    }

    /// Predicts all rows that the model has.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub fn ablation(&self) -> Result<Vec<Row>, SimulateError> {
        let stages: &[Stage] = if self.shape.is_autoregressive {
            &Stage::AUTOREGRESSIVE
        } else {
            &Stage::ALL
        };
        stages.iter().map(|&stage| self.row(stage)).collect()
    }

    /// Predicts Llama-8B in the same type, token after token, on the same NPU with the same memory runtime.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub fn autoregressive(&self, quant: GgmlType) -> Result<Outcome, SimulateError> {
        let setting = Self {
            shape: ModelShape::named("llama-8b-ar", quant)?,
            ..self.clone()
        };
        Ok(setting.row(Stage::MemoryRuntime)?.outcome)
    }

    /// Predicts the full mode under a policy and a machine.
    pub(super) fn full(
        &self,
        plans: &Plans,
        policy: Policy,
        machine: &Machine,
    ) -> Result<Outcome, SimulateError> {
        let placement = Placement::Npu {
            policy,
            budget_bytes: machine.budget_bytes,
            revision_rides: self.revision_rides,
        };
        Ok(run(&self.shape, plans, machine, placement)?)
    }
}

/// Returns how often `rows` beats the CPU with prefix KV: full against the second row.
#[must_use]
pub fn headline_ratio(rows: &[Row]) -> Option<f64> {
    let seconds = |stage| {
        rows.iter()
            .find(|row| row.stage == stage)
            .map(|row| row.outcome.seconds)
    };
    Some(seconds(Stage::PrefixKv)? / seconds(Stage::Revision)?)
}

/// Returns the largest deviation of any row from what is published, without its sign.
#[must_use]
pub fn worst_deviation(rows: &[Row]) -> Option<f64> {
    rows.iter()
        .filter_map(Row::deviation)
        .map(f64::abs)
        .reduce(f64::max)
}
