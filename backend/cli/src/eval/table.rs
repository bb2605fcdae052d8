//! The results as text.

use std::fmt::Write as _;

use super::Body;
use super::score::{Comparison, Score};
use crate::statistics::{Difference, Estimate};

/// Returns the table.
pub(crate) fn text(body: &Body) -> String {
    match body {
        Body::One(score) => one(score),
        Body::Several {
            variants,
            differences,
        } => several(variants, differences),
    }
}

/// A line per kind of task.
fn one(score: &Score) -> String {
    let mut text = format!(
        "{:<12} {:>6} {:>6} {:>9}   95 % interval\n",
        "task", "right", "of", "accuracy"
    );
    let rows = score
        .tasks
        .iter()
        .map(|(name, estimate)| (name.as_str(), estimate));
    for (name, estimate) in rows.chain([("overall", &score.overall)]) {
        let Estimate {
            n,
            n_right,
            accuracy,
            low,
            high,
        } = estimate;
        line(
            &mut text,
            format_args!("{name:<12} {n_right:>6} {n:>6} {accuracy:>9.4}   {low:.4} to {high:.4}"),
        );
    }
    text + &score.totals.lines()
}

/// Three tables, a line per variant: accuracies, costs, differences.
fn several(variants: &[Score], differences: &[Comparison]) -> String {
    let names = variants.iter().map(|score| score.name.chars().count());
    let width = names.max().unwrap_or(0).max(7);
    let mut text = format!("{:<width$}  accuracy   95 % interval   ", "variant");
    let kinds: Vec<&str> = variants
        .first()
        .map(|score| score.tasks.keys().map(String::as_str).collect())
        .unwrap_or_default();
    for kind in &kinds {
        write!(text, " {kind:>8}").expect("writing to a string cannot fail");
    }
    text.push('\n');
    for score in variants {
        let Estimate {
            accuracy,
            low,
            high,
            ..
        } = score.overall;
        write!(
            text,
            "{:<width$}  {accuracy:>8.4}   {low:.4} to {high:.4}",
            score.name
        )
        .expect("writing to a string cannot fail");
        for kind in &kinds {
            let accuracy = score.tasks.get(*kind).map_or(0.0, |task| task.accuracy);
            write!(text, " {accuracy:>8.4}").expect("writing to a string cannot fail");
        }
        text.push('\n');
    }
    line(
        &mut text,
        format_args!(
            "\n{:<width$}  {:>8} {:>10} {:>8} {:>8} {:>10} {:>10} {:>9} {:>9}",
            "variant",
            "forwards",
            "dense",
            "padded",
            "revision",
            "logits",
            "tok/step",
            "seconds",
            "npu s"
        ),
    );
    for score in variants {
        text += &score.totals.row(&format!("{:<width$}", score.name));
    }
    for score in variants {
        line(
            &mut text,
            format_args!("{}: {}", score.name, score.totals.decisions()),
        );
    }
    text.push('\n');
    for comparison in differences {
        let Difference {
            n,
            n_first_alone,
            n_second_alone,
            difference,
            low,
            high,
        } = comparison.accuracy;
        line(
            &mut text,
            format_args!(
                "{} - {}: {difference:+.4} ({low:+.4} to {high:+.4}); of {n}, right alone {n_second_alone} and {n_first_alone}; \
                 rows x {:.3}, seconds x {:.3}, npu seconds x {:.3}",
                comparison.second,
                comparison.first,
                comparison.rows_ratio,
                comparison.seconds_ratio,
                comparison.seconds_npu_ratio
            ),
        );
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}
