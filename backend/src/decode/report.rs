//! Counters of one generation.

use super::cost::BUCKET;
use super::plan::{ForwardKind, RowPlan};

/// What a generation did, times apart. The fields are those of the C interface's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Prompt length in tokens.
    pub n_prompt: u32,
    /// Final tokens before EOS.
    pub n_generated: u32,
    /// Forwards of kind [`ForwardKind::Prefill`].
    pub forwards_prefill: u32,
    /// Forwards of kind [`ForwardKind::Refresh`].
    pub forwards_refresh: u32,
    /// Forwards of kind [`ForwardKind::Step`].
    pub forwards_step: u32,
    /// Forwards of kind [`ForwardKind::Promotion`].
    pub forwards_promotion: u32,
    /// Forwards of kind [`ForwardKind::Sweep`].
    pub forwards_sweep: u32,
    /// Rows of all dense forwards.
    pub rows_dense: u64,
    /// Rows that an accelerator computed to fill a bucket; counted by the engine.
    pub rows_padded: u64,
    /// Rows of the revision path.
    pub rows_revision: u64,
    /// Rows with an output projection.
    pub rows_logits: u64,
    /// Drafts made.
    pub drafts_made: u32,
    /// Drafts kept at promotion.
    pub drafts_kept: u32,
    /// Revisions made.
    pub revisions_made: u32,
    /// Revisions that replaced a token.
    pub revisions_replaced: u32,
    /// Revisions that masked a token again.
    pub revisions_remasked: u32,
    /// Commits in all, those right of an EOS included.
    pub n_committed: u32,
    /// Forwards in buckets of 32 rows, the revision's rows among them: with the number of forwards, the time by the built-in
    /// table `npu`.
    pub buckets: u64,
}

impl Report {
    /// Returns the number of forwards of all kinds.
    pub const fn n_forwards(&self) -> u32 {
        self.forwards_prefill
            + self.forwards_refresh
            + self.forwards_step
            + self.forwards_promotion
            + self.forwards_sweep
    }

    /// Returns the milliseconds of all forwards by the built-in table `npu`; revision rows count as rows of their step.
    pub fn npu_ms(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let buckets = self.buckets as f64;
        50.0 * f64::from(self.n_forwards()) + 27.3 * buckets
    }

    pub(super) fn count(&mut self, plan: &RowPlan) {
        *match plan.kind {
            ForwardKind::Prefill => &mut self.forwards_prefill,
            ForwardKind::Refresh => &mut self.forwards_refresh,
            ForwardKind::Step => &mut self.forwards_step,
            ForwardKind::Promotion => &mut self.forwards_promotion,
            ForwardKind::Sweep => &mut self.forwards_sweep,
        } += 1;
        let n_dense = plan.n_dense_rows();
        self.rows_dense += n_dense as u64;
        self.rows_revision += (plan.rows.len() - n_dense) as u64;
        self.buckets += plan.rows.len().div_ceil(BUCKET as usize) as u64;
        // Each path's `predict` ascends, so equal rows are neighbours.
        let mut last = None;
        for wanted in &plan.predict {
            if last != Some(wanted.row) {
                self.rows_logits += 1 + u64::from(wanted.uncond_row.is_some());
            }
            last = Some(wanted.row);
        }
    }
}
