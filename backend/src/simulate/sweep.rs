//! Sweeps: output lengths, policies, and which technique matters where.

use super::ablation::{Setting, SimulateError, Stage};
use super::drive::Plans;
use super::machine::Machine;
use super::run::Outcome;
use super::trace::Trace;
use crate::memory::runtime::Policy;
use crate::model::gguf::GgmlType;

/// Output lengths of [`lengths`], in tokens.
pub const LENGTHS: [u32; 5] = [32, 64, 128, 256, 512];
/// Axes of [`sensitivity`]: seconds per 10⁹ bytes mapped.
pub const MAP_S_PER_GB: [f64; 5] = [0.1, 0.2, 0.3, 0.44, 0.6];
/// Tokens per step.
pub const PER_STEP: [f64; 5] = [1.5, 2.0, 3.0, 4.0, 5.0];
/// Address spaces in GiB.
pub const BUDGET_GIB: [f64; 4] = [2.0, 3.125, 4.0, 8.0];
/// Copy rates of [`pipeline`] in 10⁹ bytes per second.
pub const COPY_GB_S: [f64; 5] = [2.0, 3.0, 5.0, 10.0, 15.0];

/// Times at one output length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Tokens generated.
    pub n_gen: u32,
    /// CPU with prefix KV.
    pub prefix_kv_s: f64,
    /// Dense NPU with the memory runtime.
    pub memory_runtime_s: f64,
    /// Everything.
    pub full_s: f64,
    /// Llama-8B on the NPU.
    pub autoregressive_s: f64,
}

/// Predicts all output lengths.
///
/// # Errors
/// [`SimulateError`].
pub fn lengths(setting: &Setting, quant: GgmlType) -> Result<Vec<Length>, SimulateError> {
    let at = |n_gen| {
        let setting = Setting {
            n_gen,
            ..setting.clone()
        };
        let seconds = |stage| setting.row(stage).map(|row| row.outcome.seconds);
        Ok(Length {
            n_gen,
            prefix_kv_s: seconds(Stage::PrefixKv)?,
            memory_runtime_s: seconds(Stage::MemoryRuntime)?,
            full_s: seconds(Stage::Revision)?,
            autoregressive_s: setting.autoregressive(quant)?.seconds,
        })
    };
    LENGTHS.into_iter().map(at).collect()
}

/// Predicts the full mode under each policy.
///
/// # Errors
/// [`SimulateError`].
pub fn policies(setting: &Setting) -> Result<Vec<(Policy, Outcome)>, SimulateError> {
    let plans = setting.plans(Stage::Revision)?;
    let under = |policy| Ok((policy, setting.full(&plans, policy, &setting.machine)?));
    Policy::ALL.into_iter().map(under).collect()
}

/// How well transfers hide at a copy rate and a map cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Hiding {
    /// 10⁹ bytes per second.
    pub copy_gb_s: f64,
    /// Seconds per 10⁹ bytes.
    pub map_s_per_gb: f64,
    /// The full mode under the pipelined memory runtime.
    pub outcome: Outcome,
}

impl Hiding {
    /// Returns whether copies are chosen: below the break-even maps are.
    #[must_use]
    pub fn copies(&self) -> bool {
        self.outcome.copied_bytes > 0
    }
}

/// Predicts the pipelined memory runtime over copy rates and map costs.
///
/// # Errors
/// [`SimulateError`].
pub fn pipeline(setting: &Setting) -> Result<Vec<Hiding>, SimulateError> {
    let plans = setting.plans(Stage::Revision)?;
    let mut points = Vec::new();
    for copy_gb_s in COPY_GB_S {
        for map_s_per_gb in MAP_S_PER_GB {
            let machine = Machine {
                copy_bytes_per_s: copy_gb_s * 1e9,
                map_s_per_byte: map_s_per_gb * 1e-9,
                ..setting.machine
            };
            let outcome = setting.full(&plans, Policy::PlannedPipeline, &machine)?;
            points.push(Hiding {
                copy_gb_s,
                map_s_per_gb,
                outcome,
            });
        }
    }
    Ok(points)
}

/// A technique that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Technique {
    /// The memory runtime; without it maps are those of [`Policy::DropUnused`], what llama.cpp's Hexagon backend does.
    MemoryRuntime,
    /// Several tokens per step; without them one.
    Mbsd,
    /// Revision and all that it allows: a lower threshold, no tail in sight, logits only where they are needed. Without it the
    /// row of MBSD.
    Revision,
}

impl Technique {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MemoryRuntime, Self::Mbsd, Self::Revision];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryRuntime => "memory runtime",
            Self::Mbsd => "MBSD",
            Self::Revision => "revision",
        }
    }
}

/// What each technique is worth at one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// Address space in GiB.
    pub budget_gib: f64,
    /// Seconds per 10⁹ bytes mapped.
    pub map_s_per_gb: f64,
    /// Tokens per step of the full mode.
    pub per_step: f64,
    /// The full mode.
    pub full_s: f64,
    /// How many times longer it takes without each technique, by [`Technique::ALL`].
    pub gains: [f64; 3],
}

impl Worth {
    /// Returns the technique that is missed most.
    #[must_use]
    pub fn wins(&self) -> Technique {
        let [memory_runtime, mbsd, revision] = self.gains;
        if memory_runtime >= mbsd && memory_runtime >= revision {
            Technique::MemoryRuntime
        } else if mbsd >= revision {
            Technique::Mbsd
        } else {
            Technique::Revision
        }
    }
}

/// Forwards of the full mode at a pace, and of what is left when a technique is missing.
struct Variants {
    per_step: f64,
    full: Plans,
    one_by_one: Plans,
    mbsd: Plans,
}

/// Predicts what each technique is worth over budgets, map costs and tokens per step.
///
/// # Errors
/// [`SimulateError`].
pub fn sensitivity(setting: &Setting) -> Result<Vec<Worth>, SimulateError> {
    let variants = |per_step| {
        let at = |trace| Setting {
            trace,
            ..setting.clone()
        };
        let (paced, slow) = (at(Trace::at(per_step)), at(Trace::one_by_one()));
        Ok(Variants {
            per_step,
            full: paced.plans(Stage::Revision)?,
            one_by_one: slow.plans(Stage::Revision)?,
            mbsd: paced.plans(Stage::Mbsd)?,
        })
    };
    let variants = PER_STEP
        .into_iter()
        .map(variants)
        .collect::<Result<Vec<_>, SimulateError>>()?;
    let mut points = Vec::new();
    for budget_gib in BUDGET_GIB {
        for map_s_per_gb in MAP_S_PER_GB {
            let machine = Machine {
                budget_bytes: super::trace::floor(budget_gib * 1024.0) << 20,
                map_s_per_byte: map_s_per_gb * 1e-9,
                ..setting.machine
            };
            for variants in &variants {
                points.push(worth(
                    setting,
                    &machine,
                    (budget_gib, map_s_per_gb),
                    variants,
                )?);
            }
        }
    }
    Ok(points)
}

fn worth(
    setting: &Setting,
    machine: &Machine,
    (budget_gib, map_s_per_gb): (f64, f64),
    variants: &Variants,
) -> Result<Worth, SimulateError> {
    let seconds = |plans, policy| {
        setting
            .full(plans, policy, machine)
            .map(|outcome| outcome.seconds)
    };
    let full_s = seconds(&variants.full, setting.policy)?;
    let without = [
        seconds(&variants.full, Policy::DropUnused)?,
        seconds(&variants.one_by_one, setting.policy)?,
        seconds(&variants.mbsd, setting.policy)?,
    ];
    Ok(Worth {
        budget_gib,
        map_s_per_gb,
        per_step: variants.per_step,
        full_s,
        gains: without.map(|seconds| seconds / full_s),
    })
}
