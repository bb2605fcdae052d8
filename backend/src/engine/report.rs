//! What a generation did and how long it took.

use std::time::Duration;

use super::json::JsonObject;
use crate::decode::Report;

/// Report of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunReport {
    /// Counters of the decoder, and rows of the engine.
    pub counts: Report,
    /// From the first plan to the last event.
    pub total: Duration,
    /// In forwards of steps, revision rows that ride in them included.
    pub dense: Duration,
    /// In sweeps, and in forwards of the revision's own path where they took longer than that of the step.
    pub revision: Duration,
    /// In sampling.
    pub sampling: Duration,
    /// Waiting of one path for another.
    pub waiting: Duration,
}

impl RunReport {
    /// Tokens before EOS per forward of any kind; 0 without forwards.
    pub fn tokens_per_step(&self) -> f64 {
        f64::from(self.counts.n_generated) / f64::from(self.counts.n_forwards().max(1))
    }

    /// Tokens before EOS per second; 0 when no time passed.
    pub fn tokens_per_second(&self) -> f64 {
        let seconds = self.total.as_secs_f64();
        if seconds > 0.0 {
            f64::from(self.counts.n_generated) / seconds
        } else {
            0.0
        }
    }

    /// The report as one JSON object.
    pub fn to_json(&self) -> String {
        let counts = &self.counts;
        JsonObject::new()
            .uint("n_prompt", counts.n_prompt)
            .uint("n_generated", counts.n_generated)
            .uint("n_committed", counts.n_committed)
            .uint("forwards", counts.n_forwards())
            .uint("forwards_prefill", counts.forwards_prefill)
            .uint("forwards_refresh", counts.forwards_refresh)
            .uint("forwards_step", counts.forwards_step)
            .uint("forwards_promotion", counts.forwards_promotion)
            .uint("forwards_sweep", counts.forwards_sweep)
            .uint("rows_dense", counts.rows_dense)
            .uint("rows_padded", counts.rows_padded)
            .uint("rows_revision", counts.rows_revision)
            .uint("rows_logits", counts.rows_logits)
            .uint("drafts_made", counts.drafts_made)
            .uint("drafts_kept", counts.drafts_kept)
            .uint("revisions_made", counts.revisions_made)
            .uint("revisions_replaced", counts.revisions_replaced)
            .uint("revisions_remasked", counts.revisions_remasked)
            .uint("buckets", counts.buckets)
            .float("npu_ms", counts.npu_ms())
            .float("tokens_per_step", self.tokens_per_step())
            .float("tokens_per_second", self.tokens_per_second())
            .float("seconds_total", self.total.as_secs_f64())
            .float("seconds_dense", self.dense.as_secs_f64())
            .float("seconds_revision", self.revision.as_secs_f64())
            .float("seconds_sampling", self.sampling.as_secs_f64())
            .float("seconds_waiting", self.waiting.as_secs_f64())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_an_empty_run_are_zero() {
        let report = RunReport::default();
        assert_eq!(
            (report.tokens_per_step(), report.tokens_per_second()),
            (0.0, 0.0)
        );
        assert!(report.to_json().contains("\"tokens_per_second\": 0.0"));
    }

    #[test]
    fn rates_count_tokens_before_eos() {
        let counts = Report {
            n_generated: 30,
            forwards_prefill: 1,
            forwards_step: 9,
            ..Report::default()
        };
        let report = RunReport {
            counts,
            total: Duration::from_millis(500),
            ..RunReport::default()
        };
        assert_eq!(
            (report.tokens_per_step(), report.tokens_per_second()),
            (3.0, 60.0)
        );
        assert!(
            report
                .to_json()
                .starts_with(r#"{"n_prompt": 0, "n_generated": 30,"#)
        );
    }
}
