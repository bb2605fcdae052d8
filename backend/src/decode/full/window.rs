//! Which positions a step computes: the current block, what is fed of its right, and how far it looks ahead.

use std::ops::Range;

use super::super::canvas::Canvas;
use super::super::cost::{BUCKET, CostTable};
use super::super::event::Stage;
use super::super::options::{Fill, Suffix};
use super::super::params::FullParams;

/// The positions of one dense step.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The current block, up to the end of the text.
    pub(super) block: Range<u32>,
    /// Masked positions right of the block that are rows, ascending: suffix, lookahead and drafts.
    pub(super) right: Vec<u32>,
    /// How many masked positions right of the block are lookahead, drafts included.
    pub(super) n_ahead: usize,
    /// One past the last lookahead position; the block's end without lookahead.
    pub(super) ahead_end: u32,
}

/// What is known of this generation so far; says what a lookahead row is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Yield {
    /// Dense steps, and positions that they committed.
    pub(super) n_steps: u32,
    pub(super) n_committed: u32,
    /// Lookahead predictions, and drafts that came of them.
    pub(super) n_predicted: u32,
    pub(super) n_drafted: u32,
    /// Drafts that were put to the test, and that were kept.
    pub(super) n_tested: u32,
    pub(super) n_kept: u32,
}

impl Yield {
    /// Expected commits that a lookahead row makes for. The first of a generation count as one of two.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^24")]
    fn of_lookahead(&self) -> f32 {
        let share = |part: u32, whole: u32| (part as f32 + 1.0) / (whole as f32 + 2.0);
        share(self.n_drafted, self.n_predicted) * share(self.n_kept, self.n_tested)
    }

    /// Commits per dense step.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^24")]
    fn per_step(&self) -> f32 {
        (self.n_committed as f32 + 1.0) / (self.n_steps as f32 + 1.0)
    }
}

impl Window {
    /// Computes the window of a step whose frontier is in `block`. `n_real` rows come besides; a tail that is `kept` from an
    /// earlier forward takes no rows.
    pub(super) fn fill(
        &mut self,
        canvas: &Canvas,
        params: &FullParams,
        cost: &CostTable,
        (block, frontier): (Range<u32>, u32),
        (n_real, kept): (u32, bool),
        yields: &Yield,
    ) {
        let masked: Vec<u32> = canvas.masked(block.end..canvas.limit()).collect();
        let n_block = count(canvas.masked(block.clone()));
        let suffix = match params.cache.suffix {
            Suffix::None => 0,
            Suffix::Next(n) => n as usize,
            Suffix::All => usize::MAX,
            Suffix::Cached if kept => 0,
            Suffix::Cached => usize::MAX,
        };
        let n_suffix = suffix.min(masked.len());
        let n_drafts_beyond = |n: usize| {
            let beyond = &masked[n.max(n_suffix)..];
            count(
                beyond
                    .iter()
                    .filter(|&&pos| canvas.stage(pos) == Stage::Draft),
            )
        };
        let rows = |n: usize| n_real + n_block + count(0..n.max(n_suffix)) + n_drafts_beyond(n);

        let most = (params.lookahead_max as usize).min(reach(canvas, &masked));
        let slide_end = frontier.saturating_add(params.cache.block_length);
        let n_slide = masked.partition_point(|&pos| pos < slide_end).min(most);
        let grow = |n: usize, target: u32| {
            let more = n..=most;
            more.take_while(|&n| rows(n) <= target).last().unwrap_or(n)
        };
        let mut n = n_slide;
        if n_block < params.lookahead_trigger {
            let wide = grow(n, rows(n).next_multiple_of(BUCKET));
            let price = cost.ms(rows(wide)) - cost.ms(rows(n));
            #[expect(
                clippy::cast_precision_loss,
                reason = "canvas lengths are far below 2^24"
            )]
            let commits = (wide - n) as f32 * yields.of_lookahead();
            if price * yields.per_step() <= commits * cost.ms(rows(n)) {
                n = wide;
            }
        }
        if params.fill == Fill::Lookahead {
            n = grow(n, cost.padded(rows(n)));
        }

        self.right.clear();
        self.right.extend(&masked[..n.max(n_suffix)]);
        let beyond = &masked[n.max(n_suffix)..];
        self.right.extend(
            beyond
                .iter()
                .filter(|&&pos| canvas.stage(pos) == Stage::Draft),
        );
        self.ahead_end = if n == 0 { block.end } else { masked[n - 1] + 1 };
        self.n_ahead = n;
        self.block = block;
    }

    /// Positions that the step predicts, ascending. Drafts are, in the block alone.
    pub(super) fn predicted<'a>(&'a self, canvas: &'a Canvas) -> impl Iterator<Item = u32> + 'a {
        let ahead = self.right.iter().copied().take(self.n_ahead);
        canvas
            .masked(self.block.clone())
            .chain(ahead.filter(|&pos| canvas.stage(pos) == Stage::Invisible))
    }
}

/// Returns how many of `masked` come before the text ends, by its drafts.
fn reach(canvas: &Canvas, masked: &[u32]) -> usize {
    let ends = |&pos: &u32| canvas.stage(pos) == Stage::Draft && canvas.is_end(canvas.token(pos));
    masked
        .iter()
        .position(ends)
        .map_or(masked.len(), |at| at + 1)
}

fn count(items: impl Iterator) -> u32 {
    u32::try_from(items.count()).expect("at most the canvas")
}
