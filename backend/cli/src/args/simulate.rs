//! Flags of `simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ggml_llada_npu::memory::runtime::Policy;
use ggml_llada_npu::simulate::{Column, Soc};

use super::value::{number, whole};

/// Longest prompt and output: longer than a context of any model that is worth simulating.
const MAX_N_TOKENS: i64 = 1 << 17;

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Processor: sm8650, sm8750 or sm8850
    #[arg(
        long,
        value_name = "NAME",
        default_value = "sm8750",
        allow_hyphen_values = true
    )]
    pub(crate) soc: Soc,
    /// Model: llada-8b, dream-7b, llama-8b-ar, or a GGUF file, of which the shapes count
    #[arg(
        short,
        long,
        value_name = "NAME|FILE",
        default_value = "llada-8b",
        allow_hyphen_values = true
    )]
    pub(crate) model: PathBuf,
    /// Type of the weights of a model by name, in ggml's words [default: `q4_0`]
    #[arg(long, value_name = "TYPE", allow_hyphen_values = true)]
    pub(crate) quant: Option<String>,
    /// Tokens of the prompt
    #[arg(
        long = "prompt",
        value_name = "N",
        default_value_t = 64,
        allow_hyphen_values = true,
        value_parser = whole::<u32>(0..=MAX_N_TOKENS)
    )]
    pub(crate) n_prompt: u32,
    /// Tokens to generate [default: 128]
    #[arg(long = "gen", value_name = "N", allow_hyphen_values = true, value_parser = whole::<u32>(1..=MAX_N_TOKENS))]
    pub(crate) n_gen: Option<u32>,
    /// How many tokens steps decide: published, or a FILE of `run --trace` or `eval --trace` [default: published]
    #[arg(long, value_name = "published|FILE", allow_hyphen_values = true)]
    pub(crate) trace: Option<PathBuf>,
    /// Memory policy: naive, lru, drop-unused, planned or planned+pipeline [default: planned+pipeline]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) policy: Option<Policy>,
    /// Constants: paper (calibrated on its two single steps) or today (what others measured)
    #[arg(
        long,
        value_name = "NAME",
        default_value = "today",
        allow_hyphen_values = true
    )]
    pub(crate) constants: Column,
    /// Address space of the NPU [default: the processor's]
    #[arg(long, value_name = "MiB", allow_hyphen_values = true, value_parser = whole::<u64>(1..=1 << 20))]
    pub(crate) budget: Option<u64>,
    /// Seconds to map 10⁹ bytes [default: the processor's]
    #[arg(long, value_name = "S/GB", allow_hyphen_values = true, value_parser = number(0.0..=100.0, " of seconds per GB"))]
    pub(crate) map_cost: Option<f64>,
    /// Rate of copies, 10⁹ bytes per second [default: the processor's]
    #[arg(long, value_name = "GB/S", allow_hyphen_values = true, value_parser = number(0.01..=1000.0, " of GB per second"))]
    pub(crate) copy_rate: Option<f64>,
    /// Where revision rows are computed: on the CPU beside the NPU, or in the step's forward
    #[arg(long, value_name = "NAME", default_value = "own", ignore_case = true)]
    pub(crate) revision_path: RevisionPath,
    /// Instead of the ablation, the last row over several settings
    #[arg(long, value_name = "WHAT", ignore_case = true)]
    pub(crate) sweep: Option<Sweep>,
    /// Every processor with both sets of constants, as the README has it
    #[arg(long, conflicts_with_all = [
        "soc", "constants", "budget", "map_cost", "copy_rate", "sweep", "timeline", "json"
    ])]
    pub(crate) summary: bool,
    /// Write one JSON object to stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Write who is busy when, in the last row, to FILE: a picture (.svg) or Chrome's trace format (.json)
    #[arg(
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        conflicts_with = "sweep"
    )]
    pub(crate) timeline: Option<PathBuf>,
    /// Write a line per point of the sweep to FILE
    #[arg(
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        requires = "sweep"
    )]
    pub(crate) csv: Option<PathBuf>,
    /// Draw the sweep of sensitivity into FILE, as SVG
    #[arg(
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        requires = "sweep"
    )]
    pub(crate) plot: Option<PathBuf>,
}

/// Where revision rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RevisionPath {
    /// On the CPU, beside the NPU
    Own,
    /// In the forward of the step
    Dense,
}

/// What is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sweep {
    /// Outputs of 32 to 512 tokens, beside an autoregressive model
    Length,
    /// Memory policies
    Policy,
    /// Copy rates and map costs: how much of the transfers hides behind the NPU's work
    Pipeline,
    /// Address spaces, map costs and tokens per step: which technique is missed most
    Sensitivity,
}
