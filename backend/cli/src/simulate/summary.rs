//! All processors with both sets of constants, in Markdown; ends with the line of the bench.

use ggml_llada_npu::model::gguf::GgmlType;
use ggml_llada_npu::simulate::ablation::{headline_ratio, worst_deviation};
use ggml_llada_npu::simulate::published::{HEADLINE_RATIO, MOST_OVER_AUTOREGRESSIVE};
use ggml_llada_npu::simulate::{
    Column, Machine, Outcome, Profile, Row, Setting, SimulateError, Soc,
};

use super::table::line;
use super::{Report, report};

/// Returns the tables and the line.
///
/// # Errors
/// [`SimulateError`].
pub(super) fn text(setting: &Setting, quant: Option<GgmlType>) -> Result<String, SimulateError> {
    let at = |soc, column| Setting {
        soc,
        column,
        machine: Machine::new(&Profile::new(soc, column)),
        ..setting.clone()
    };
    let mut settings = Vec::new();
    for column in Column::ALL {
        settings.extend(Soc::ALL.map(|soc| at(soc, column)));
    }
    let mut reports = Vec::new();
    for setting in &settings {
        reports.push(report(setting, quant)?);
    }
    let find = |soc, column| {
        let is_it =
            |report: &&Report<'_>| report.setting.soc == soc && report.setting.column == column;
        reports.iter().find(is_it).expect("all of them were made")
    };
    let mut text = ablation(
        find(Soc::Sm8750, Column::Paper),
        find(Soc::Sm8750, Column::Today),
    );
    text.push('\n');
    text += &processors(&reports);
    text.push('\n');
    text += &result(&reports, find(Soc::Sm8750, Column::Paper));
    Ok(text)
}

/// The rows on one processor, both sets of constants beside what is published.
fn ablation(paper: &Report<'_>, today: &Report<'_>) -> String {
    let mut text = String::new();
    line(
        &mut text,
        format_args!(
            "| SM8750, simulated seconds | published | `paper` | off by | `today` | off by | forwards | rows |"
        ),
    );
    line(&mut text, format_args!("|---|---|---|---|---|---|---|---|"));
    let off = |row: &Row| {
        row.deviation()
            .map_or("–".to_owned(), |share| format!("{:+.0} %", 100.0 * share))
    };
    for (paper, today) in paper.rows.iter().zip(&today.rows) {
        let published = paper
            .published_s
            .map_or("–".to_owned(), |seconds| format!("{seconds:.1}"));
        line(
            &mut text,
            format_args!(
                "| {} | {published} | {:.1} | {} | {:.1} | {} | {} | {} |",
                paper.stage.name(),
                paper.outcome.seconds,
                off(paper),
                today.outcome.seconds,
                off(today),
                today.outcome.n_forwards,
                today.outcome.n_rows,
            ),
        );
    }
    text
}

/// What everything is worth on each processor.
fn processors(reports: &[Report<'_>]) -> String {
    let mut text = String::new();
    let (low, high) = HEADLINE_RATIO;
    line(
        &mut text,
        format_args!(
            "| simulated, everything | times the CPU with prefix KV ({low:.0} to {high:.0}) | the same, revision in the step's forward | times Llama-8B on the NPU \
             (up to {MOST_OVER_AUTOREGRESSIVE}) | tokens/s | NPU busy | waits for transfers | waits for revision | J per token |"
        ),
    );
    line(
        &mut text,
        format_args!("|---|---|---|---|---|---|---|---|---|"),
    );
    let or_dash =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1}"));
    for report in reports {
        let Some(full) = report.rows.last().map(|row| &row.outcome) else {
            continue;
        };
        let ratio = headline_ratio(&report.rows);
        let other = report.other_path.as_ref().zip(ratio);
        let dense = other.map(|(other, ratio)| ratio * full.seconds / other.seconds);
        let llama = report
            .autoregressive
            .as_ref()
            .map(|llama| llama.seconds / full.seconds);
        #[expect(clippy::cast_precision_loss, reason = "tokens are far below 2^53")]
        let joules = full.energy_j / full.n_gen as f64;
        line(
            &mut text,
            format_args!(
                "| {}, `{}` | {} | {} | {} | {:.1} | {:.2} | {:.2} | {:.2} | {joules:.1} |",
                report.setting.soc.name().to_uppercase(),
                report.setting.column.name(),
                or_dash(ratio),
                or_dash(dense),
                or_dash(llama),
                full.tokens_per_second(),
                full.npu_busy_share(),
                full.stall_s / full.seconds,
                full.revision_wait_s / full.seconds,
            ),
        );
    }
    text
}

/// The line of the bench, with the constants `paper`.
fn result(reports: &[Report<'_>], main: &Report<'_>) -> String {
    let ratio = |soc| {
        let is_it = |report: &&Report<'_>| {
            report.setting.soc == soc && report.setting.column == Column::Paper
        };
        let report = reports.iter().find(is_it);
        report.and_then(|report| headline_ratio(&report.rows))
    };
    let full = main.rows.last().map(|row| &row.outcome);
    let figures = [
        ("ratio_sm8650", ratio(Soc::Sm8650)),
        ("ratio_sm8750", ratio(Soc::Sm8750)),
        ("ratio_sm8850", ratio(Soc::Sm8850)),
        (
            "bytes_over_lower_bound",
            full.and_then(Outcome::bytes_over_lower_bound),
        ),
        ("hidden", full.and_then(Outcome::hidden_share)),
        ("worst_row_deviation", worst_deviation(&main.rows)),
    ];
    // What is not known of this model has no figure.
    let figures = figures
        .into_iter()
        .filter_map(|(name, value)| Some(format!(" {name}={:.4}", value?)));
    format!("RESULT{}\n", figures.collect::<String>())
}
