//! What is right, what it cost, and how the variants differ.

use std::collections::BTreeMap;

use ggml_llada_npu::engine::RunReport;
use serde::Serialize;

use super::variant::Variant;
use crate::report::Totals;
use crate::statistics::{Difference, Estimate, Pairs, Share};
use crate::tasks::Task;

/// Results of one variant.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Score {
    /// The mode, and the options changed.
    pub(crate) name: String,
    /// The mode.
    pub(crate) mode: String,
    /// Options changed by `--sweep`.
    pub(crate) options: BTreeMap<&'static str, String>,
    /// Tasks answered, all kinds together.
    pub(crate) overall: Estimate,
    /// By kind of task.
    pub(crate) tasks: BTreeMap<String, Estimate>,
    /// What it cost.
    #[serde(flatten)]
    pub(crate) totals: Totals,
}

/// Two variants on the same tasks; fractions of 1.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// Name of the first.
    pub(crate) first: String,
    /// Name of the second.
    pub(crate) second: String,
    /// Accuracy of the second less that of the first.
    #[serde(flatten)]
    pub(crate) accuracy: Difference,
    /// Rows of the second over those of the first.
    pub(crate) rows_ratio: f64,
    /// Seconds of the second over those of the first.
    pub(crate) seconds_ratio: f64,
    /// Seconds by the `npu` cost table, of the second over the first.
    pub(crate) seconds_npu_ratio: f64,
}

/// Counts under way.
#[derive(Debug)]
pub(crate) struct Scores {
    /// Kind of every task.
    kinds: Vec<String>,
    variants: Vec<Counts>,
}

#[derive(Clone, Debug)]
struct Counts {
    /// By task; `None` while it is not answered.
    right: Vec<Option<bool>>,
    totals: Totals,
}

impl Scores {
    /// Returns counts of nothing.
    pub(crate) fn new(n_variants: usize, tasks: &[Task]) -> Self {
        let counts = Counts {
            right: vec![None; tasks.len()],
            totals: Totals::default(),
        };
        Self {
            kinds: tasks.iter().map(|task| task.task.clone()).collect(),
            variants: vec![counts; n_variants],
        }
    }

    /// Counts an answer.
    pub(crate) fn count(&mut self, variant: usize, task: usize, right: bool, report: &RunReport) {
        let counts = &mut self.variants[variant];
        counts.right[task] = Some(right);
        counts.totals.add(report);
    }

    /// Returns the number of answers.
    pub(crate) fn n_answers(&self) -> usize {
        self.answers().count()
    }

    /// Returns the number of right answers.
    pub(crate) fn n_right(&self) -> usize {
        self.answers().filter(|&right| right).count()
    }

    fn answers(&self) -> impl Iterator<Item = bool> {
        self.variants
            .iter()
            .flat_map(|counts| counts.right.iter().flatten().copied())
    }

    /// Returns the results of every variant.
    pub(crate) fn finish(&self, variants: &[Variant]) -> Vec<Score> {
        let score = |(variant, counts): (&Variant, &Counts)| {
            let mut overall = Share::default();
            let mut tasks: BTreeMap<String, Share> = BTreeMap::new();
            for (kind, right) in self.kinds.iter().zip(&counts.right) {
                if let Some(right) = *right {
                    overall.count(right);
                    tasks.entry(kind.clone()).or_default().count(right);
                }
            }
            Score {
                name: variant.name.clone(),
                mode: variant.mode.clone(),
                options: variant.options.clone(),
                overall: overall.estimate(),
                tasks: tasks
                    .into_iter()
                    .map(|(kind, share)| (kind, share.estimate()))
                    .collect(),
                totals: counts.totals.clone(),
            }
        };
        variants.iter().zip(&self.variants).map(score).collect()
    }

    /// Compares two variants on the tasks that both answered.
    pub(crate) fn compare(&self, scored: &[Score], first: usize, second: usize) -> Comparison {
        let [one, other] = [first, second].map(|index| &scored[index]);
        let (a, b) = (&one.totals, &other.totals);
        Comparison {
            first: one.name.clone(),
            second: other.name.clone(),
            accuracy: self.difference(first, second),
            rows_ratio: ratio(b.rows(), a.rows()),
            seconds_ratio: ratio(b.seconds_total, a.seconds_total),
            seconds_npu_ratio: ratio(b.seconds_npu, a.seconds_npu),
        }
    }

    /// Returns the differences between every variant and the first.
    pub(crate) fn against_first(&self) -> Vec<Difference> {
        (0..self.variants.len())
            .map(|second| self.difference(0, second))
            .collect()
    }

    fn difference(&self, first: usize, second: usize) -> Difference {
        let [first, second] = [first, second].map(|index| &self.variants[index].right);
        let mut pairs = Pairs::default();
        for (first, second) in first.iter().zip(second) {
            if let (Some(first), Some(second)) = (*first, *second) {
                pairs.count(first, second);
            }
        }
        pairs.difference()
    }
}

fn ratio(value: f64, of: f64) -> f64 {
    if of > 0.0 { value / of } else { 0.0 }
}
