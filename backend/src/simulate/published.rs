//! What the paper publishes of its own system, beside which the prediction is printed. No row is fitted to it, with
//! two exceptions that its readers have to know: the cost of a map on `SM8750` (`map_s_per_gb`, which `+ memory runtime` and the rows
//! below it depend on) was derived by its source from the step between [`Stage::DenseNpu`] and [`Stage::MemoryRuntime`] below, so that
//! the two deviations are not independent of each other; and the column `paper` is calibrated on two single steps of the same system.
//!
//! Source of all of it: arXiv 2606.13740 (LLaDA-8B-Instruct `Q4_0`, GSM8K, 128 tokens, `SM8750`), read at second hand: the
//! paper's text was not available, the labels of the rows are reconstructed, and the seconds are printed as milliseconds
//! in one summary.

use super::ablation::Stage;
use super::soc::Soc;

/// Seconds of the rows of the ablation.
const ABLATION_S: [(Stage, f64); 6] = [
    (Stage::Cpu, 2996.2),
    (Stage::PrefixKv, 607.0),
    (Stage::DenseNpu, 341.2),
    (Stage::MemoryRuntime, 87.0),
    (Stage::Mbsd, 71.6),
    (Stage::Revision, 16.1),
];

/// The range of "full against CPU with prefix KV" over phones and tasks.
pub const HEADLINE_RATIO: (f64, f64) = (17.0, 42.0);

/// The most that full is faster than Llama-3-8B on the same NPU, on `SM8750` and `SM8850`.
pub const MOST_OVER_AUTOREGRESSIVE: f64 = 3.9;

/// What the ablation was measured with.
pub(super) const MODEL: &str = "llada-8b";
pub(super) const QUANT: &str = "q4_0";
pub(super) const N_GEN: u32 = 128;

/// Returns the published seconds of a row.
pub(super) fn ablation_s(stage: Stage, soc: Soc) -> Option<f64> {
    let row = ABLATION_S.iter().find(|row| row.0 == stage)?;
    (soc == Soc::Sm8750).then_some(row.1)
}
