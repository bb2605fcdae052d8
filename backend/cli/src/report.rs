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
    /// Drafts made, and kept when their block became the current one.
    drafts_made: u64,
    drafts_kept: u64,
    /// Revisions made, and what they came to where they changed something.
    revisions_made: u64,
    revisions_replaced: u64,
    revisions_remasked: u64,
    pub(crate) seconds_total: f64,
    seconds_dense: f64,
    seconds_revision: f64,
    seconds_sampling: f64,
    seconds_waiting: f64,
    /// Seconds that all forwards take by the built-in `npu` cost table.
    pub(crate) seconds_npu: f64,
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
    /// Returns the totals of generations.
    pub(crate) fn of(reports: &[RunReport]) -> Self {
        let mut totals = Self::default();
        for report in reports {
            totals.add(report);
        }
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
        self.drafts_made += u64::from(counts.drafts_made);
        self.drafts_kept += u64::from(counts.drafts_kept);
        self.revisions_made += u64::from(counts.revisions_made);
        self.revisions_replaced += u64::from(counts.revisions_replaced);
        self.revisions_remasked += u64::from(counts.revisions_remasked);
        self.seconds_total += report.total.as_secs_f64();
        self.seconds_dense += report.dense.as_secs_f64();
        self.seconds_revision += report.revision.as_secs_f64();
        self.seconds_sampling += report.sampling.as_secs_f64();
        self.seconds_waiting += report.waiting.as_secs_f64();
        self.seconds_npu += counts.npu_ms() / 1e3;
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
        if kinds.is_empty() {
            return format!("{total} forwards");
        }
        format!("{total} forwards ({})", kinds.join(", "))
    }

    /// Returns the rows of all forwards.
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of rows are far below 2^53"
    )]
    pub(crate) fn rows(&self) -> f64 {
        (self.rows_dense + self.rows_padded + self.rows_revision) as f64
    }

    /// Returns a cost divided by the tokens kept; 0 without tokens.
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of tokens are far below 2^53"
    )]
    pub(crate) fn per_token(&self, cost: f64) -> f64 {
        if self.n_generated == 0 {
            0.0
        } else {
            cost / self.n_generated as f64
        }
    }

    /// Returns every number with its name, as a table has them.
    pub(crate) fn columns(&self) -> [(&'static str, String); 22] {
        let number = |value: f64| format!("{value:.6}");
        [
            ("n_generated", self.n_generated.to_string()),
            ("forwards", self.forwards.total.to_string()),
            ("forwards_prefill", self.forwards.prefill.to_string()),
            ("forwards_refresh", self.forwards.refresh.to_string()),
            ("forwards_step", self.forwards.step.to_string()),
            ("forwards_promotion", self.forwards.promotion.to_string()),
            ("forwards_sweep", self.forwards.sweep.to_string()),
            ("rows_dense", self.rows_dense.to_string()),
            ("rows_padded", self.rows_padded.to_string()),
            ("rows_revision", self.rows_revision.to_string()),
            ("rows_logits", self.rows_logits.to_string()),
            ("drafts_made", self.drafts_made.to_string()),
            ("drafts_kept", self.drafts_kept.to_string()),
            ("revisions_made", self.revisions_made.to_string()),
            ("revisions_replaced", self.revisions_replaced.to_string()),
            ("revisions_remasked", self.revisions_remasked.to_string()),
            ("tokens_per_step", number(self.tokens_per_step)),
            ("seconds_total", number(self.seconds_total)),
            ("seconds_dense", number(self.seconds_dense)),
            ("seconds_revision", number(self.seconds_revision)),
            ("seconds_sampling", number(self.seconds_sampling)),
            ("seconds_npu", number(self.seconds_npu)),
        ]
    }

    /// Returns a line of a table of costs, `name` first.
    pub(crate) fn row(&self, name: &str) -> String {
        format!(
            "{name}  {:>8} {:>10} {:>8} {:>8} {:>10} {:>10.3} {:>9.3} {:>9.1}\n",
            self.forwards.total,
            self.rows_dense,
            self.rows_padded,
            self.rows_revision,
            self.rows_logits,
            self.tokens_per_step,
            self.seconds_total,
            self.seconds_npu
        )
    }

    /// Returns the forwards by kind, and what became of drafts and revisions.
    pub(crate) fn decisions(&self) -> String {
        format!(
            "{}; drafts: {} made, {} kept; revisions: {} made, {} replaced, {} remasked",
            self.forwards_text(),
            self.drafts_made,
            self.drafts_kept,
            self.revisions_made,
            self.revisions_replaced,
            self.revisions_remasked
        )
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
            "{}\nrows: {} dense, {} padded, {} revision, {} logits\n\
             {:.2} tokens per step; {} tokens kept in {:.3} s, {:.1} tokens/s\n\
             seconds: {:.3} dense, {:.3} revision, {:.3} sampling, {:.3} waiting; {:.1} by the npu cost table\n",
            self.decisions(),
            self.rows_dense,
            self.rows_padded,
            self.rows_revision,
            self.rows_logits,
            self.tokens_per_step,
            self.n_generated,
            self.seconds_total,
            self.tokens_per_second,
            self.seconds_dense,
            self.seconds_revision,
            self.seconds_sampling,
            self.seconds_waiting,
            self.seconds_npu
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
