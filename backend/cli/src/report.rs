//! What generations cost, added up.

use serde::Serialize;

use ggml_llada_npu::engine::RunReport;

/// Counters and times of one or more generations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    /// Generations.
    n_generations: u32,
    /// Tokens kept before EOS.
    n_generated: u64,
    /// Forwards by kind.
    forwards: Forwards,
    /// Rows of all dense forwards.
    rows_dense: u64,
    /// Rows that an accelerator computed to fill a bucket.
    rows_padded: u64,
    /// Rows of the revision path.
    rows_revision: u64,
    /// Rows with an output projection.
    rows_logits: u64,
    seconds_total: f64,
    seconds_dense: f64,
    seconds_revision: f64,
    seconds_sampling: f64,
    seconds_waiting: f64,
    /// Tokens kept before EOS per forward.
    tokens_per_step: f64,
    /// Tokens kept before EOS per second.
    tokens_per_second: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Forwards {
    prefill: u64,
    refresh: u64,
    step: u64,
    promotion: u64,
    sweep: u64,
    total: u64,
}

impl Totals {
    /// Returns the totals of one generation.
    pub(crate) fn of(report: &RunReport) -> Self {
        let mut totals = Self::default();
        totals.add(report);
        totals
    }

    /// Adds a generation.
    pub(crate) fn add(&mut self, report: &RunReport) {
        let counts = &report.counts;
        self.n_generations += 1;
        self.n_generated += u64::from(counts.n_generated);
        self.forwards.prefill += u64::from(counts.forwards_prefill);
        self.forwards.refresh += u64::from(counts.forwards_refresh);
        self.forwards.step += u64::from(counts.forwards_step);
        self.forwards.promotion += u64::from(counts.forwards_promotion);
        self.forwards.sweep += u64::from(counts.forwards_sweep);
        self.forwards.total += u64::from(counts.n_forwards());
        self.rows_dense += counts.rows_dense;
        self.rows_padded += counts.rows_padded;
        self.rows_revision += counts.rows_revision;
        self.rows_logits += counts.rows_logits;
        self.seconds_total += report.total.as_secs_f64();
        self.seconds_dense += report.dense.as_secs_f64();
        self.seconds_revision += report.revision.as_secs_f64();
        self.seconds_sampling += report.sampling.as_secs_f64();
        self.seconds_waiting += report.waiting.as_secs_f64();
        self.tokens_per_step = share(self.n_generated, self.forwards.total);
        self.tokens_per_second = per_second(self.n_generated, self.seconds_total);
    }

    /// Returns the forwards by kind, kinds that did not happen left out, as `8 forwards (1 prefill, 7 step)`.
    fn forwards_text(&self) -> String {
        let Forwards {
            prefill,
            refresh,
            step,
            promotion,
            sweep,
            total,
        } = self.forwards;
        let kinds = [
            (prefill, "prefill"),
            (refresh, "refresh"),
            (step, "step"),
            (promotion, "promotion"),
            (sweep, "sweep"),
        ];
        let kinds: Vec<_> = kinds
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, name)| format!("{n} {name}"))
            .collect();
        format!("{total} forwards ({})", kinds.join(", "))
    }

    /// Returns the line that ends a run.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}, {:.2} tokens per step, {} tokens in {:.3} s, {:.1} tokens/s",
            self.forwards_text(),
            self.tokens_per_step,
            self.n_generated,
            self.seconds_total,
            self.tokens_per_second
        )
    }

    /// Returns the lines that follow a table of accuracies.
    pub(crate) fn lines(&self) -> String {
        format!(
            "{}\nrows: {} dense, {} revision, {} logits\n\
             {:.2} tokens per step; {} tokens kept in {:.3} s, {:.1} tokens/s\n\
             seconds: {:.3} dense, {:.3} revision, {:.3} sampling, {:.3} waiting\n",
            self.forwards_text(),
            self.rows_dense,
            self.rows_revision,
            self.rows_logits,
            self.tokens_per_step,
            self.n_generated,
            self.seconds_total,
            self.tokens_per_second,
            self.seconds_dense,
            self.seconds_revision,
            self.seconds_sampling,
            self.seconds_waiting
        )
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of tokens are far below 2^53"
)]
fn share(n: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / of as f64 }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of tokens are far below 2^53"
)]
fn per_second(n: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    }
}
