//! The ablation as text.

use std::fmt::{Arguments, Write as _};

use ggml_llada_npu::memory::runtime::Policy;
use ggml_llada_npu::simulate::ablation::headline_ratio;
use ggml_llada_npu::simulate::published::{HEADLINE_RATIO, MOST_OVER_AUTOREGRESSIVE};
use ggml_llada_npu::simulate::sweep::LENGTHS;
use ggml_llada_npu::simulate::{Outcome, Resource, Row, Setting, Stage};

use super::Report;
use crate::args::Sweep;

/// Adds a line.
pub(super) fn line(text: &mut String, content: Arguments<'_>) {
    writeln!(text, "{content}").expect("writing to a string cannot fail");
}

/// Returns what is simulated, in one line: all that holds for the ablation, or for every point of a sweep.
pub(super) fn heading(setting: &Setting, sweep: Option<Sweep>) -> String {
    let Setting {
        soc,
        column,
        shape,
        n_prompt,
        n_gen,
        ..
    } = setting;
    let n_gen = match sweep {
        Some(Sweep::Length) => {
            let [first, .., last] = LENGTHS;
            format!("{first} to {last}")
        }
        _ => n_gen.to_string(),
    };
    let mut text = format!(
        "simulated: {} {} on {}, constants `{}`, {n_prompt} + {n_gen} tokens",
        shape.name,
        shape.quant,
        soc.name(),
        column.name()
    );
    text += &match sweep {
        Some(Sweep::Policy) => String::new(),
        Some(Sweep::Pipeline) => format!(", policy {}", Policy::PlannedPipeline),
        _ => format!(", policy {}", setting.policy),
    };
    if sweep == Some(Sweep::Sensitivity) {
        return text;
    }
    text += &format!(", {} MiB", setting.machine.budget_bytes >> 20);
    let (full, mbsd) = setting.trace.per_step();
    text + &if shape.is_autoregressive {
        "; one token per step".to_owned()
    } else {
        format!("; tokens per step {full:.2} with revision, {mbsd:.2} without")
    }
}

/// Returns the table and what drives it.
pub(super) fn text(report: &Report<'_>) -> String {
    let mut text = heading(report.setting, None) + "\n\n";
    line(
        &mut text,
        format_args!(
            "{:<16} {:>9} {:>8} {:>8} {:>7} {:>8} {:>9} {:>9} {:>8} {:>8} {:>9} {:>10} {:>9}",
            "",
            "s",
            "tokens/s",
            "forwards",
            "rows",
            "NPU busy",
            "GB mapped",
            "GB copied",
            "stall s",
            "wait s",
            "energy J",
            "published s",
            "deviation"
        ),
    );
    for row in &report.rows {
        text += &row_line(row);
    }
    text += "\nstall: the NPU waits for transfers; wait: the step waits for the revision on the CPU; energy is an estimate.\n";
    text += &drivers(report);
    text
}

fn row_line(row: &Row) -> String {
    let outcome = &row.outcome;
    let published = row
        .published_s
        .map_or("–".to_owned(), |s| format!("{s:.1}"));
    let deviation = row
        .deviation()
        .map_or("–".to_owned(), |share| format!("{:+.0} %", 100.0 * share));
    format!(
        "{:<16} {:>9.2} {:>8.2} {:>8} {:>7} {:>8.2} {:>9.2} {:>9.2} {:>8.2} {:>8.2} {:>9.0} {published:>11} {deviation:>9}\n",
        row.stage.name(),
        outcome.seconds,
        outcome.tokens_per_second(),
        outcome.n_forwards,
        outcome.n_rows,
        outcome.npu_busy_share(),
        gb(outcome.mapped_bytes),
        gb(outcome.copied_bytes),
        outcome.stall_s,
        outcome.revision_wait_s,
        outcome.energy_j,
    )
}

/// Returns 10⁹ bytes.
#[expect(clippy::cast_precision_loss, reason = "a rounded number for people")]
pub(super) fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

fn drivers(report: &Report<'_>) -> String {
    let mut text = String::new();
    let row = |stage| report.rows.iter().find(|row| row.stage == stage);
    if let (Some(ratio), Some(cpu), Some(full)) = (
        headline_ratio(&report.rows),
        row(Stage::PrefixKv),
        row(Stage::Revision),
    ) {
        let (low, high) = HEADLINE_RATIO;
        line(
            &mut text,
            format_args!(
                "ratio {ratio:.1} of everything over the CPU with prefix KV (published: {low:.0} to {high:.0}) = {:.1} times fewer forwards x \
                 {:.1} times less time each ({:.2} s and {:.2} s)",
                per(&cpu.outcome, &full.outcome, |o| count(o.n_forwards)),
                per(&cpu.outcome, &full.outcome, seconds_each),
                seconds_each(&cpu.outcome),
                seconds_each(&full.outcome),
            ),
        );
        text += &where_time_goes(&full.outcome);
        if let Some(published) = cpu.published_s {
            line(
                &mut text,
                format_args!(
                    "CPU with prefix KV: {:.0} rows per forward; the published time is that of {:.0} rows at these rates, one token per step",
                    count(cpu.outcome.n_rows) / count(cpu.outcome.n_forwards),
                    count(cpu.outcome.n_rows) / count(cpu.outcome.n_forwards) * published
                        / cpu.outcome.seconds,
                ),
            );
        }
    }
    if let (Some(other), Some(full)) = (&report.other_path, report.rows.last()) {
        let path = if report.setting.revision_rides {
            "on the CPU"
        } else {
            "in the forward of the step"
        };
        line(
            &mut text,
            format_args!(
                "with the revision {path}: {:.2} s instead of {:.2} s",
                other.seconds, full.outcome.seconds
            ),
        );
    }
    if let (Some(llama), Some(full)) = (&report.autoregressive, report.rows.last()) {
        line(
            &mut text,
            format_args!(
                "Llama-8B on the same NPU, token after token: {:.2} s, {:.2} tokens/s, {:.0} J; everything is {:.2} times as fast (published: up to {MOST_OVER_AUTOREGRESSIVE})",
                llama.seconds,
                llama.tokens_per_second(),
                llama.energy_j,
                llama.seconds / full.outcome.seconds,
            ),
        );
    }
    if let Some(full) = report.rows.last() {
        text += &memory(&full.outcome);
    }
    text
}

fn where_time_goes(full: &Outcome) -> String {
    let share = |seconds: f64| 100.0 * seconds / full.seconds;
    format!(
        "of everything's time the NPU works {:.0} %, waits for transfers {:.0} %, for the revision {:.0} %\n",
        share(full.timeline.busy_s(Resource::Npu)),
        share(full.stall_s),
        share(full.revision_wait_s),
    )
}

fn memory(full: &Outcome) -> String {
    let mut text = format!(
        "a step touches {:.2} GB and moves {:.2} GB",
        gb(full.working_set_bytes),
        gb(full.mapped_bytes + full.copied_bytes) / count(full.n_forwards)
    );
    if let Some(ratio) = full.bytes_over_lower_bound() {
        write!(text, ", {ratio:.3} times the least that anyone must")
            .expect("writing to a string cannot fail");
    }
    if let Some(hidden) = full.hidden_share() {
        write!(
            text,
            "; {:.1} % of the transfers hide behind other work",
            100.0 * hidden
        )
        .expect("writing to a string cannot fail");
    }
    text + &format!(
        "; mapped before the first forward in {:.2} s\n",
        full.load_s
    )
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(n: u64) -> f64 {
    n as f64
}

fn seconds_each(outcome: &Outcome) -> f64 {
    outcome.seconds / count(outcome.n_forwards)
}

fn per(first: &Outcome, second: &Outcome, of: fn(&Outcome) -> f64) -> f64 {
    of(first) / of(second)
}
