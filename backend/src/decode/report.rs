//! Counters of one generation.

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

    pub(super) fn count(&mut self, plan: &RowPlan) {
        *match plan.kind {
            ForwardKind::Prefill => &mut self.forwards_prefill,
            ForwardKind::Refresh => &mut self.forwards_refresh,
            ForwardKind::Step => &mut self.forwards_step,
            ForwardKind::Promotion => &mut self.forwards_promotion,
            ForwardKind::Sweep => &mut self.forwards_sweep,
        } += 1;
        self.rows_dense += plan.rows.len() as u64;
        // `predict` ascends, so equal rows are neighbours.
        let mut last = None;
        for wanted in &plan.predict {
            if last != Some(wanted.row) {
                self.rows_logits += 1 + u64::from(wanted.uncond_row.is_some());
            }
            last = Some(wanted.row);
        }
    }
}
