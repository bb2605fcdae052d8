//! Flags of `eval`.

use std::path::PathBuf;

use clap::Args;

use super::GenerationArgs;
use super::value::{MAX_COUNT, whole};

/// Flags of `eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Task file: a line is {"task": NAME, "prompt": TEXT, "answer": TEXT}
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) tasks: PathBuf,
    /// Stop after N tasks
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<usize>(1..=MAX_COUNT))]
    pub(crate) limit: Option<usize>,
    /// Answer every task in each of these decoding modes, in turns, and compare them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) modes: Vec<String>,
    /// Answer every task with each combination of these options too, "KEY=VALUE,VALUE… KEY=VALUE…"; several times: the
    /// combinations of each, not of all
    #[arg(long, value_name = "GRID", action = clap::ArgAction::Append)]
    pub(crate) sweep: Vec<String>,
    /// Tasks answered at a time, by sessions with --threads threads each; times are then those of sessions side by side
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true,
        value_parser = whole::<usize>(1..=256)
    )]
    pub(crate) jobs: usize,
    /// Write one JSON object to stdout instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a line per mode and combination of options to FILE
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) csv: Option<PathBuf>,
    /// Draw accuracy against rows and against time into FILE, as SVG
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) plot: Option<PathBuf>,
    /// Write every answer to FILE as it comes, a JSON object a line
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) predictions: Option<PathBuf>,
    /// Write how many tokens each forward commits to FILE, a line per task, for `simulate --trace FILE`; of one mode
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) generation: GenerationArgs,
}
