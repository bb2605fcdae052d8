//! Mode `cached`: the K/V of everything committed is kept, only undecided rows are computed, and every position of the
//! block that is sure enough commits.
//!
//! * The *current block* is the block of the first masked position. It commits alone; with `suffix` its rows see masks
//!   of the tail right of it.
//! * A *full* forward (prefill or refresh) computes everything committed into the store, and the window: the masks of the
//!   current block and of the visible tail, into scratch. Its predictions are those of a step.
//! * A *step* computes the window and, once each, the positions committed by the forward before: their K/V then comes
//!   from their token and not from a mask, and goes to the store. With shifted logits the committed predictor of a masked
//!   position rides along and writes its store slot again.
//! * With suffix `cached` the tail is computed by the first forward of a block, into the first scratch slots, and seen
//!   from there by the others of that block.
//! * Positions right of the leftmost committed EOS or EoT are neither computed nor seen.

use std::ops::Range;

use super::canvas::{Canvas, Change};
use super::commit::Committer;
use super::error::DecodeError;
use super::event::Event;
use super::options::Suffix;
use super::params::{CacheParams, Resolved};
use super::plan::{ForwardKind, Predict, Prediction, Row, RowPlan, Slot, Stream};

/// State of the mode.
///
/// # Invariants
/// Every committed position below the canvas's limit has its K/V in the store or is in `fresh`.
#[derive(Debug)]
pub(super) struct Cached {
    n_prompt: u32,
    block_length: u32,
    suffix: Suffix,
    refresh_blocks: u32,
    refresh_steps: u32,
    committer: Committer,
    shift: bool,
    /// Index of the block of the last plan; `None` before the first.
    block: Option<u32>,
    /// Blocks entered since the last full forward.
    n_blocks: u32,
    /// Forwards since the last full forward, that one included.
    n_steps: u32,
    /// Positions committed by the last forward, ascending.
    fresh: Vec<u32>,
    /// Scratch slots that hold the tail of the current block (suffix `cached`).
    n_tail: u32,
    /// Positions whose token enters as a row of the plan, ascending, and what row each position is.
    real: Vec<u32>,
    row_of: Vec<Option<u32>>,
}

impl Cached {
    pub(super) fn new(resolved: &Resolved, params: CacheParams) -> Self {
        Self {
            n_prompt: resolved.n_prompt,
            block_length: params.block_length,
            suffix: params.suffix,
            refresh_blocks: params.refresh_blocks,
            refresh_steps: params.refresh_steps,
            committer: Committer::new(params.commit, resolved.n_canvas()),
            shift: resolved.shift_logits,
            block: None,
            n_blocks: 0,
            n_steps: 0,
            fresh: Vec::new(),
            n_tail: 0,
            real: Vec::new(),
            row_of: Vec::new(),
        }
    }

    pub(super) fn plan(&mut self, canvas: &Canvas, plan: &mut RowPlan) {
        let frontier = canvas
            .frontier()
            .expect("a canvas without masks is done and gets no plan");
        let block = (frontier - self.n_prompt) / self.block_length;
        let entered = self.block != Some(block);
        plan.kind = self.kind(block, entered);
        let full = plan.kind != ForwardKind::Step;
        let range = self.block_range(canvas, block);
        let tail = self.tail(canvas, range.end);
        // With suffix `cached` the tail is a set of rows in the first forward of a block and in full ones.
        let kept = self.suffix == Suffix::Cached && !entered && !full && !tail.is_empty();
        if !kept {
            self.n_tail = 0;
        }

        self.real.clear();
        if full {
            self.real
                .extend((0..canvas.limit()).filter(|&pos| !canvas.is_masked(pos)));
        } else {
            self.real.extend(
                self.fresh
                    .iter()
                    .copied()
                    .filter(|&pos| pos < canvas.limit()),
            );
            if self.shift {
                let predictors = canvas
                    .masked(range.clone())
                    .filter_map(|pos| pos.checked_sub(1));
                self.real
                    .extend(predictors.filter(|&pos| !canvas.is_masked(pos)));
                self.real.sort_unstable();
                self.real.dedup();
            }
        }
        self.fill_rows(
            canvas,
            &range,
            if kept { range.end..range.end } else { tail },
            plan,
        );
        self.fill_stream(canvas, plan);
        self.fill_predict(canvas, &range, plan);

        self.block = Some(block);
        self.n_steps = if full { 1 } else { self.n_steps + 1 };
        if full {
            self.n_blocks = 0;
        }
    }

    pub(super) fn absorb(
        &mut self,
        canvas: &mut Canvas,
        _plan: &RowPlan,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
    ) -> Result<(), DecodeError> {
        self.fresh.clear();
        for choice in self.committer.choose(predictions, |_| true) {
            let Prediction { pos, token, .. } = predictions[choice.index];
            canvas.change(pos, Change::CommitStable(token), events)?;
            self.fresh.push(pos);
        }
        Ok(())
    }

    /// Returns why the next forward is made, and counts a block that is entered.
    fn kind(&mut self, block: u32, entered: bool) -> ForwardKind {
        let Some(last) = self.block else {
            return ForwardKind::Prefill;
        };
        if entered {
            self.n_blocks += block - last;
        }
        let by_blocks = entered && self.refresh_blocks > 0 && self.n_blocks >= self.refresh_blocks;
        let by_steps = self.refresh_steps > 0 && self.n_steps >= self.refresh_steps;
        if by_blocks || by_steps {
            ForwardKind::Refresh
        } else {
            ForwardKind::Step
        }
    }

    fn block_range(&self, canvas: &Canvas, block: u32) -> Range<u32> {
        let start = self.n_prompt + block * self.block_length;
        start..start.saturating_add(self.block_length).min(canvas.limit())
    }

    /// Returns the masked positions right of the block that rows see. Nothing is committed there in this mode.
    fn tail(&self, canvas: &Canvas, start: u32) -> Range<u32> {
        let len = match self.suffix {
            Suffix::None => 0,
            Suffix::Next(n) => n,
            Suffix::All | Suffix::Cached => u32::MAX,
        };
        start..start.saturating_add(len).min(canvas.limit())
    }

    /// Lists the rows by position: `real` with store slots, masks of block and tail with scratch slots.
    fn fill_rows(
        &mut self,
        canvas: &Canvas,
        block: &Range<u32>,
        tail: Range<u32>,
        plan: &mut RowPlan,
    ) {
        let n_kept = self.n_tail;
        let n_tail_rows = tail.end - tail.start;
        // A tail that later steps will see from scratch comes first there, so that they can number their own from its end.
        let (mut block_slot, mut tail_slot) = if self.suffix == Suffix::Cached {
            (n_kept + n_tail_rows, n_kept)
        } else {
            (
                n_kept,
                n_kept + canvas.masked(block.clone()).map(|_| 1).sum::<u32>(),
            )
        };
        if self.suffix == Suffix::Cached && n_tail_rows > 0 {
            self.n_tail = n_tail_rows;
        }
        self.row_of.clear();
        self.row_of.resize(canvas.limit() as usize, None);
        let mut real = self.real.iter().copied().peekable();
        let mut push = |row: Row| {
            self.row_of[row.pos as usize] = u32::try_from(plan.rows.len()).ok();
            plan.rows.push(row);
        };
        let real_row = |pos| Row {
            token: canvas.token(pos),
            pos,
            stream: 0,
            kv: Some(Slot::Store(pos)),
        };
        let mask_row = |pos, slot: &mut u32| {
            let row = Row {
                token: canvas.mask(),
                pos,
                stream: 0,
                kv: Some(Slot::Scratch(*slot)),
            };
            *slot += 1;
            row
        };
        for pos in canvas.masked(block.clone()) {
            while let Some(before) = real.next_if(|&before| before < pos) {
                push(real_row(before));
            }
            push(mask_row(pos, &mut block_slot));
        }
        for pos in real {
            push(real_row(pos));
        }
        for pos in tail {
            push(mask_row(pos, &mut tail_slot));
        }
    }

    /// Everyone sees the committed text, the rows of the forward and the kept tail.
    fn fill_stream(&self, canvas: &Canvas, plan: &mut RowPlan) {
        plan.streams.resize_with(1, Stream::default);
        let stream = &mut plan.streams[0];
        stream.store.clear();
        for pos in (0..canvas.limit()).filter(|&pos| !canvas.is_masked(pos)) {
            match stream.store.last_mut() {
                Some(last) if last.end == pos => last.end = pos + 1,
                _ => stream.store.push(pos..pos + 1),
            }
        }
        let written = plan.rows.iter().filter_map(|row| match row.kv {
            Some(Slot::Scratch(slot)) => Some(slot + 1),
            _ => None,
        });
        let n_scratch = written.max().unwrap_or(0).max(self.n_tail);
        stream.scratch.clear();
        if n_scratch > 0 {
            stream.scratch.push(0..n_scratch);
        }
    }

    fn fill_predict(&self, canvas: &Canvas, block: &Range<u32>, plan: &mut RowPlan) {
        let shift = u32::from(self.shift);
        plan.predict.extend(canvas.masked(block.clone()).map(|pos| {
            Predict {
                pos,
                row: self.row_of[pos.saturating_sub(shift) as usize]
                    .expect("the predictor of a masked position of the block is a row"),
                uncond_row: None,
                probe: None,
            }
        }));
    }
}
