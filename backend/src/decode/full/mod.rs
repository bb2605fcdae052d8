//! Modes `mbsd` and `full`: a window that slides and looks ahead, drafts, tokens that become final in stages, revision.
//!
//! ```text
//!                     masks left before the end of the text
//!      ┌───────────────────────────────────────────────────────────┐
//!      ▼                                                           │ a revision masked a token again:
//!   dense step ──► commits, drafts ──► merge of the revision ──────┤ the frontier moves back
//!   (prefill, refresh, step, promotion)                            │
//!      │                                                           │
//!      └──────── no mask left ──► sweep ──► merge ─────────────────┘
//!                                  ▲          │
//!                                  └──────────┤ visible tokens and sweeps left
//!                                             ▼
//!                                  everything is stable: done
//! ```
//!
//! * The *current block* is the block of the first masked position. Its masks commit; with revision a token is visible first,
//!   and stable at once where its confidence reaches `tau_stable`.
//! * A *dense forward* has rows for the masks of the block, for the masked positions right of it that are seen or predicted,
//!   and, once each, for committed positions without K/V: those of the last step, those whose token was replaced, those that
//!   came back when an end token went. A full one (prefill, refresh) has rows for everything committed.
//! * *Lookahead* positions are predicted too. A confident one becomes a *draft*: it is fed its token, in scratch, until its block
//!   becomes current. Then it is masked and predicted afresh (*promotion*), and commits only if the same token comes again.
//! * *Revision*, see [`revision`], runs beside steps and promotions, not beside full forwards, and alone in sweeps.
//! * Steps read K/V where [`places`] says. A committed row that is computed again beside a revision, which reads the old K/V,
//!   writes elsewhere.
//!
//! Every dense step commits, and a position is masked again at most `max_revisions` times, so dense steps are bounded by
//! `n_gen (1 + max_revisions)`.

mod fill;
mod places;
mod revision;
mod sight;
mod window;

use super::canvas::{Canvas, Change};
use super::commit::Committer;
use super::cost::{CostSource, CostTable};
use super::error::DecodeError;
use super::event::{Event, Stage};
use super::options::Fill;
use super::params::{FullParams, Resolved};
use super::plan::{ForwardKind, Prediction, RowPlan, Slot, Token};
use super::report::Report;

use places::Places;
use revision::Revision;
use window::{Window, Yield};

/// State of the modes.
///
/// # Invariants
/// A committed position of the text has its K/V where `places` says, or none and is a row of the next forward.
#[derive(Debug)]
pub(super) struct Full {
    params: FullParams,
    cost: CostTable,
    n_prompt: u32,
    shift: bool,
    committer: Committer,
    revision: Option<Revision>,
    places: Places,
    window: Window,
    yields: Yield,
    /// Index of the block of the last dense plan, and the largest there was; `None` before the first.
    block: Option<u32>,
    last_block: u32,
    /// Blocks entered since the last full forward, and dense forwards since it, that one included.
    n_blocks: u32,
    n_steps: u32,
    /// Positions of the tail that earlier rows left in scratch (suffix `cached`), and their slots.
    tail: Vec<(u32, u32)>,
    /// Committed rows of the plan and where they write.
    real: Vec<(u32, Slot)>,
    /// Scratch slots that are free again after the plan, and those that are so only then because the plan sees them.
    transient: Vec<Slot>,
    seen_last: Vec<Slot>,
    /// Masks of the plan and their slots: what context `window` sees of the forward after.
    masks: Vec<(u32, u32)>,
}

impl Full {
    pub(super) fn new(resolved: &Resolved, params: FullParams) -> Self {
        let n_canvas = resolved.n_canvas();
        let revision = |revision| Revision::new(revision, params.tau_stable, n_canvas);
        Self {
            cost: match params.cost {
                CostSource::Table(table) => table,
                // An engine puts the measured table in before it makes a decoder.
                CostSource::Measured => CostTable::HOST,
            },
            n_prompt: resolved.n_prompt,
            shift: resolved.shift_logits,
            committer: Committer::new(params.cache.commit, n_canvas),
            revision: params.revision.map(revision),
            places: Places::new(n_canvas),
            window: Window::default(),
            yields: Yield::default(),
            block: None,
            last_block: 0,
            n_blocks: 0,
            n_steps: 0,
            tail: Vec::new(),
            real: Vec::new(),
            transient: Vec::new(),
            seen_last: Vec::new(),
            masks: Vec::new(),
            params,
        }
    }

    /// Commits a text before the first forward, visible.
    ///
    /// # Errors
    /// [`DecodeError::NoRevision`].
    pub(super) fn start_with(
        &mut self,
        canvas: &mut Canvas,
        text: &[Token],
        events: &mut Vec<Event>,
    ) -> Result<(), DecodeError> {
        let revision = self.revision.as_mut().ok_or(DecodeError::NoRevision)?;
        for (pos, &token) in (self.n_prompt..).zip(text) {
            revision.committed(pos, 0, 0.0);
            canvas.change(pos, Change::CommitVisible(token), events)?;
        }
        Ok(())
    }

    pub(super) fn plan(&mut self, canvas: &Canvas, plan: &mut RowPlan) {
        plan.streams.clear();
        self.real.clear();
        let masks = std::mem::take(&mut self.masks);
        let before = std::mem::take(&mut self.transient);
        self.release(before);
        match canvas.frontier() {
            Some(frontier) => self.plan_dense(canvas, frontier, &masks, plan),
            None => self.plan_sweep(canvas, plan),
        }
        let seen = self.seen_last.drain(..);
        seen.for_each(|slot| self.places.free(slot));
    }

    /// Frees slots of the last forward; with context `window`, when the plan under way is made.
    fn release(&mut self, slots: Vec<Slot>) {
        if self.revision.as_ref().is_some_and(Revision::sees_window) {
            self.seen_last.extend(slots);
        } else {
            slots.into_iter().for_each(|slot| self.places.free(slot));
        }
    }

    fn plan_dense(
        &mut self,
        canvas: &Canvas,
        frontier: u32,
        masks: &[(u32, u32)],
        plan: &mut RowPlan,
    ) {
        let block_length = self.params.cache.block_length;
        let block = (frontier - self.n_prompt) / block_length;
        let entered = self.block != Some(block);
        let start = self.n_prompt + block * block_length;
        let range = start..start.saturating_add(block_length).min(canvas.limit());
        let promotes = range.clone().any(|pos| canvas.stage(pos) == Stage::Draft);
        plan.kind = self.kind(block, promotes);
        let full = matches!(plan.kind, ForwardKind::Prefill | ForwardKind::Refresh);
        let left = |&(pos, _): &(u32, u32)| canvas.is_masked(pos) && pos < canvas.limit();
        let kept = !entered && !full && self.tail.iter().any(left);
        if !kept {
            let tail = self.tail.drain(..);
            let tail = tail.map(|(_, slot)| Slot::Scratch(slot)).collect();
            self.release(tail);
        }
        let mut real = self.fresh(canvas, full);
        let n_real = u32::try_from(real.len()).expect("at most the canvas");
        self.window.fill(
            canvas,
            &self.params,
            &self.cost,
            (range, frontier),
            (n_real, kept),
            &self.yields,
        );
        self.add_predictors(canvas, &mut real);
        self.add_fill(canvas, &mut real);
        let revises = self.choose_revision(canvas, full, &real);
        self.fill_dense(canvas, &real, revises, kept, plan);
        if revises {
            self.fill_revision(canvas, masks, plan);
        }
        self.block = Some(block);
        self.last_block = self.last_block.max(block);
        self.n_steps = if full { 1 } else { self.n_steps + 1 };
        if full {
            self.n_blocks = 0;
        }
    }

    /// Returns why the next forward is made, and counts blocks that are new.
    fn kind(&mut self, block: u32, promotes: bool) -> ForwardKind {
        if self.block.is_none() {
            return ForwardKind::Prefill;
        }
        let (by_blocks, by_steps) = (
            self.params.cache.refresh_blocks,
            self.params.cache.refresh_steps,
        );
        let new = block.saturating_sub(self.last_block);
        self.n_blocks += new;
        let due = new > 0 && by_blocks > 0 && self.n_blocks >= by_blocks;
        if due || (by_steps > 0 && self.n_steps >= by_steps) {
            ForwardKind::Refresh
        } else if promotes {
            ForwardKind::Promotion
        } else {
            ForwardKind::Step
        }
    }

    /// Returns committed positions of the text that need a row, ascending: those without K/V, in a full forward all.
    fn fresh(&self, canvas: &Canvas, full: bool) -> Vec<u32> {
        let needs =
            |&pos: &u32| !canvas.is_masked(pos) && (full || self.places.slot(pos).is_none());
        (0..canvas.limit()).filter(needs).collect()
    }

    /// With shifted logits, adds committed predictors of the positions that are predicted.
    fn add_predictors(&self, canvas: &Canvas, real: &mut Vec<u32>) {
        if self.shift {
            let predictors = self
                .window
                .predicted(canvas)
                .filter_map(|pos| pos.checked_sub(1));
            real.extend(predictors.filter(|&pos| !canvas.is_masked(pos)));
            real.sort_unstable();
            real.dedup();
        }
    }

    /// Uses rows left over in the bucket for the visible positions with the oldest K/V.
    fn add_fill(&self, canvas: &Canvas, real: &mut Vec<u32>) {
        if self.params.fill != Fill::Visible {
            return;
        }
        let n_block = canvas.masked(self.window.block.clone()).count();
        let n_rows = real.len() + n_block + self.window.right.len();
        let padded = self.cost.padded(u32::try_from(n_rows).unwrap_or(u32::MAX)) as usize;
        let placed = revision::visible(canvas).filter(|pos| real.binary_search(pos).is_err());
        let mut oldest: Vec<(Option<u32>, u32)> =
            placed.map(|pos| (self.places.step(pos), pos)).collect();
        oldest.sort_unstable();
        real.extend(oldest.iter().take(padded - n_rows).map(|&(_, pos)| pos));
        real.sort_unstable();
    }

    /// Chooses what is revised beside this step; returns whether anything is.
    fn choose_revision(&mut self, canvas: &Canvas, full: bool, real: &[u32]) -> bool {
        match &mut self.revision {
            Some(revision) if full => {
                revision.choose_none();
                false
            }
            Some(revision) => revision.choose(canvas, &self.places, real),
            None => false,
        }
    }

    pub(super) fn absorb(
        &mut self,
        canvas: &mut Canvas,
        plan: &RowPlan,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
        report: &mut Report,
    ) -> Result<(), DecodeError> {
        for (pos, slot) in self.real.drain(..) {
            self.places.set(pos, slot, plan.step);
        }
        let n_dense = match (plan.kind, plan.split) {
            (ForwardKind::Sweep, _) => 0,
            (_, Some(split)) => split.predict as usize,
            (_, None) => predictions.len(),
        };
        let (dense, revised) = predictions.split_at(n_dense);
        if !dense.is_empty() {
            let n_block = dense.partition_point(|p| p.pos < self.window.block.end);
            let (block, ahead) = dense.split_at(n_block);
            self.commit(canvas, plan.step, block, events, report)?;
            self.draft(canvas, ahead, events, report)?;
            canvas.settle(events);
        }
        match &mut self.revision {
            Some(revision) => {
                let places = &mut self.places;
                revision.merge(canvas, places, plan.step, revised, events, report)
            }
            None => Ok(()),
        }
    }

    fn commit(
        &mut self,
        canvas: &mut Canvas,
        step: u32,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
        report: &mut Report,
    ) -> Result<(), DecodeError> {
        let is_draft = |pos| canvas.stage(pos) == Stage::Draft;
        let confirmed = |p: &Prediction| !is_draft(p.pos) || canvas.token(p.pos) == p.token;
        let choices = self.committer.choose(predictions, confirmed).to_vec();
        for choice in &choices {
            let Prediction { pos, token, .. } = predictions[choice.index];
            if canvas.stage(pos) == Stage::Draft && canvas.token(pos) == token {
                report.drafts_kept += 1;
                self.yields.n_kept += 1;
            }
            if canvas.stage(pos) == Stage::Draft {
                self.yields.n_tested += 1;
            }
            let sure = choice.confidence >= self.params.tau_stable;
            let may_change = match &mut self.revision {
                Some(revision) => revision.committed(pos, step, choice.confidence) && !sure,
                None => false,
            };
            let change = if may_change {
                Change::CommitVisible(token)
            } else {
                Change::CommitStable(token)
            };
            canvas.change(pos, change, events)?;
        }
        for pos in self.window.block.clone() {
            if canvas.stage(pos) == Stage::Draft {
                self.yields.n_tested += 1;
                canvas.change(pos, Change::Drop, events)?;
            }
        }
        self.yields.n_steps += 1;
        self.yields.n_committed += u32::try_from(choices.len()).unwrap_or(u32::MAX);
        Ok(())
    }

    fn draft(
        &mut self,
        canvas: &mut Canvas,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
        report: &mut Report,
    ) -> Result<(), DecodeError> {
        for prediction in predictions {
            self.yields.n_predicted += 1;
            if prediction.confidence >= self.params.draft_threshold {
                self.yields.n_drafted += 1;
                report.drafts_made += 1;
                canvas.change(prediction.pos, Change::Draft(prediction.token), events)?;
            }
        }
        Ok(())
    }

    /// Returns whether the decoding is over; if so, everything of the text is stable.
    ///
    /// # Errors
    /// [`DecodeError::Transition`], which would be a mistake of this module.
    pub(super) fn finish(
        &mut self,
        canvas: &mut Canvas,
        events: &mut Vec<Event>,
    ) -> Result<bool, DecodeError> {
        let sweeps = |revision: &Revision| revision.sweeps(canvas);
        if canvas.n_masked() > 0 || self.revision.as_ref().is_some_and(sweeps) {
            return Ok(false);
        }
        let positions: Vec<u32> = revision::visible(canvas).collect();
        for pos in positions {
            canvas.change(pos, Change::Stabilise, events)?;
        }
        canvas.settle(events);
        Ok(true)
    }
}
