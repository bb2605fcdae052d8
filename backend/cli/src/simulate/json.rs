//! The ablation as one JSON object.

use ggml_llada_npu::simulate::ablation::headline_ratio;
use ggml_llada_npu::simulate::published::{HEADLINE_RATIO, MOST_OVER_AUTOREGRESSIVE};
use ggml_llada_npu::simulate::{Outcome, Profile, Resource, Row};
use serde::Serialize;

use super::Report;

#[derive(Debug, Serialize)]
struct Object {
    /// Nothing here was measured.
    simulated: bool,
    soc: &'static str,
    constants: &'static str,
    model: String,
    quant: String,
    n_prompt: u32,
    n_gen: u32,
    policy: &'static str,
    revision_path: &'static str,
    budget_bytes: u64,
    map_seconds_per_gb: f64,
    copy_gb_per_second: f64,
    /// Absent where it is one.
    tokens_per_step: Option<TokensPerStep>,
    rows: Vec<JsonRow>,
    ratio: Option<f64>,
    published_ratio: (f64, f64),
    published_most_over_autoregressive: f64,
    autoregressive: Option<JsonOutcome>,
    /// Everything, with the revision where `revision_path` does not have it.
    other_revision_path: Option<JsonOutcome>,
    /// The processor's, before any flag changed one.
    profile: Vec<JsonConstant>,
}

#[derive(Debug, Serialize)]
struct TokensPerStep {
    full: f64,
    mbsd: f64,
}

#[derive(Debug, Serialize)]
struct JsonRow {
    name: &'static str,
    #[serde(flatten)]
    outcome: JsonOutcome,
    published_seconds: Option<f64>,
    deviation: Option<f64>,
}

#[derive(Debug, Serialize)]
struct JsonConstant {
    name: &'static str,
    value: f64,
    unit: &'static str,
    source: &'static str,
    confidence: &'static str,
}

/// What came of a run.
#[derive(Debug, Serialize)]
struct JsonOutcome {
    seconds: f64,
    tokens_per_second: f64,
    forwards: u64,
    rows: u64,
    rows_computed: u64,
    rows_logits: u64,
    seconds_npu: f64,
    seconds_host_map: f64,
    seconds_cpu: f64,
    npu_busy_share: f64,
    bytes_mapped: u64,
    bytes_copied: u64,
    bytes_peak: u64,
    bytes_working_set: u64,
    bytes_lower_bound: u64,
    bytes_over_lower_bound: Option<f64>,
    seconds_stall: f64,
    hidden_share: Option<f64>,
    seconds_revision_wait: f64,
    seconds_load: f64,
    energy_joules_estimate: f64,
}

impl From<&Outcome> for JsonOutcome {
    fn from(outcome: &Outcome) -> Self {
        let busy = |resource| outcome.timeline.busy_s(resource);
        Self {
            seconds: outcome.seconds,
            tokens_per_second: outcome.tokens_per_second(),
            forwards: outcome.n_forwards,
            rows: outcome.n_rows,
            rows_computed: outcome.n_rows_computed,
            rows_logits: outcome.n_logits,
            seconds_npu: busy(Resource::Npu),
            seconds_host_map: busy(Resource::HostMap),
            seconds_cpu: busy(Resource::Cpu),
            npu_busy_share: outcome.npu_busy_share(),
            bytes_mapped: outcome.mapped_bytes,
            bytes_copied: outcome.copied_bytes,
            bytes_peak: outcome.peak_bytes,
            bytes_working_set: outcome.working_set_bytes,
            bytes_lower_bound: outcome.lower_bound_bytes,
            bytes_over_lower_bound: outcome.bytes_over_lower_bound(),
            seconds_stall: outcome.stall_s,
            hidden_share: outcome.hidden_share(),
            seconds_revision_wait: outcome.revision_wait_s,
            seconds_load: outcome.load_s,
            energy_joules_estimate: outcome.energy_j,
        }
    }
}

/// Returns the object.
pub(super) fn text(report: &Report<'_>) -> String {
    let setting = report.setting;
    let (full, mbsd) = setting.trace.per_step();
    let row = |row: &Row| JsonRow {
        name: row.stage.name(),
        outcome: (&row.outcome).into(),
        published_seconds: row.published_s,
        deviation: row.deviation(),
    };
    let constants = Profile::new(setting.soc, setting.column).all().into_iter();
    let object = Object {
        simulated: true,
        soc: setting.soc.name(),
        constants: setting.column.name(),
        model: setting.shape.name.clone(),
        quant: setting.shape.quant.clone(),
        n_prompt: setting.n_prompt,
        n_gen: setting.n_gen,
        policy: setting.policy.name(),
        revision_path: if setting.revision_rides {
            "dense"
        } else {
            "own"
        },
        budget_bytes: setting.machine.budget_bytes,
        map_seconds_per_gb: setting.machine.map_s_per_byte * 1e9,
        copy_gb_per_second: setting.machine.copy_bytes_per_s * 1e-9,
        tokens_per_step: (!setting.shape.is_autoregressive).then_some(TokensPerStep { full, mbsd }),
        rows: report.rows.iter().map(row).collect(),
        ratio: headline_ratio(&report.rows),
        published_ratio: HEADLINE_RATIO,
        published_most_over_autoregressive: MOST_OVER_AUTOREGRESSIVE,
        autoregressive: report.autoregressive.as_ref().map(Into::into),
        other_revision_path: report.other_path.as_ref().map(Into::into),
        profile: constants
            .map(|(name, constant)| JsonConstant {
                name,
                value: constant.value,
                unit: constant.unit,
                source: constant.source,
                confidence: constant.confidence.name(),
            })
            .collect(),
    };
    serde_json::to_string_pretty(&object).expect("names and numbers always serialise") + "\n"
}
