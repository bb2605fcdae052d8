//! Revision of visible tokens: which, by what rows, and what comes of it.
//!
//! A wrong token agrees with itself, so the question is what the model would say if it were not there. For a position `i`:
//!
//! ```text
//!     real        token at i     sees the store with itself in place of its old K/V: refreshes the K/V
//!     shadow      MASK at i      sees the store without i and without the neighbours below, and those neighbours
//!     neighbours  tokens at j    sees what the shadow sees, the shadow too: stored K/V of j that was computed while the token
//!                                stood at i would vouch for it
//! ```
//!
//! With shifted logits a copy of row `i - 1` belongs to the shadow and predicts. Positions committed by the last step have no
//! stored K/V yet; copies of them ride along and are seen by all. Nobody outside a group sees its shadow or its neighbours.
//!
//! Beside a step, revision sees the store as it is before the step, and its results are merged after it, unless the position
//! changed meanwhile. At the end, forwards that only revise go on from the least confident.

use std::collections::BTreeSet;

use super::super::canvas::{Canvas, Change};
use super::super::cost::BUCKET;
use super::super::error::DecodeError;
use super::super::event::{Event, Stage};
use super::super::options::{RevisionContext, RevisionOrder};
use super::super::params::RevisionParams;
use super::super::plan::{Predict, Prediction, Row, RowPlan, Slot};
use super::super::report::Report;
use super::places::Places;
use super::sight::Sight;

/// A position under revision.
#[derive(Clone, Copy, Debug)]
struct Task {
    pos: u32,
    version: u32,
    /// Where its real row writes; `None` when a row of the step's own serves.
    target: Option<Slot>,
}

/// What is known of a committed position.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Step that put the token there.
    since: u32,
    /// Step that put it there or looked at it last.
    touched: u32,
    confidence: f32,
    rounds: u32,
}

/// The part of a plan that revision rows are added to.
#[derive(Debug)]
pub(super) struct Site<'a> {
    pub(super) canvas: &'a Canvas,
    pub(super) places: &'a mut Places,
    /// Scratch slots that are free again when the next plan is made.
    pub(super) transient: &'a mut Vec<Slot>,
    /// Committed positions of the text without K/V, ascending.
    pub(super) fresh: &'a [u32],
    /// Masks of the last forward and their slots, where they are seen.
    pub(super) masks: &'a [(u32, u32)],
    pub(super) shift: bool,
    pub(super) plan: &'a mut RowPlan,
}

impl Site<'_> {
    fn scratch(&mut self) -> Slot {
        let slot = Slot::Scratch(self.places.take());
        self.transient.push(slot);
        slot
    }

    fn push(&mut self, token: i32, pos: u32, slot: Slot) -> u32 {
        let stream = u16::try_from(self.plan.streams.len()).expect("revision is bounded");
        let index = u32::try_from(self.plan.rows.len()).expect("rows are bounded");
        self.plan.rows.push(Row {
            token,
            pos,
            stream,
            kv: Some(slot),
        });
        index
    }
}

/// The revision queue.
#[derive(Debug)]
pub(super) struct Revision {
    params: RevisionParams,
    tau_stable: f32,
    records: Vec<Record>,
    tasks: Vec<Task>,
    n_sweeps: u32,
}

impl Revision {
    pub(super) fn new(params: RevisionParams, tau_stable: f32, n_canvas: u32) -> Self {
        Self {
            params,
            tau_stable,
            records: vec![Record::default(); n_canvas as usize],
            tasks: Vec::new(),
            n_sweeps: 0,
        }
    }

    /// Returns whether masks of the last forward are seen.
    pub(super) fn sees_window(&self) -> bool {
        self.params.context == RevisionContext::Window
    }

    /// A position got a token. Returns whether it may still change.
    pub(super) fn committed(&mut self, pos: u32, step: u32, confidence: f32) -> bool {
        let record = &mut self.records[pos as usize];
        *record = Record {
            since: step,
            touched: step,
            confidence,
            ..*record
        };
        record.rounds < self.params.max_revisions
    }

    /// Returns whether a forward that only revises is left to do.
    pub(super) fn sweeps(&self, canvas: &Canvas) -> bool {
        self.n_sweeps < self.params.final_sweep && visible(canvas).next().is_some()
    }

    /// Chooses what is revised beside a step; `busy` positions are computed by the step itself.
    pub(super) fn choose(&mut self, canvas: &Canvas, places: &Places, busy: &[u32]) -> bool {
        let ready = |&pos: &u32| places.slot(pos).is_some() && busy.binary_search(&pos).is_err();
        let order = self.params.order;
        let mut queue = self.queue(visible(canvas).filter(ready), order);
        queue.truncate(self.params.budget as usize);
        self.set_tasks(canvas, queue);
        !self.tasks.is_empty()
    }

    /// Forgets what was chosen.
    pub(super) fn choose_none(&mut self) {
        self.tasks.clear();
    }

    /// Sorts positions, first to be revised first.
    fn queue(&self, positions: impl Iterator<Item = u32>, order: RevisionOrder) -> Vec<u32> {
        let mut queue: Vec<u32> = positions.collect();
        let record = |pos: &u32| self.records[*pos as usize];
        match order {
            RevisionOrder::Oldest => queue.sort_by_key(|pos| record(pos).touched),
            RevisionOrder::Confidence => {
                queue.sort_by(|a, b| record(a).confidence.total_cmp(&record(b).confidence));
            }
        }
        queue
    }

    fn set_tasks(&mut self, canvas: &Canvas, mut positions: Vec<u32>) {
        positions.sort_unstable();
        let task = |pos| Task {
            pos,
            version: canvas.version(pos),
            target: None,
        };
        self.tasks.clear();
        self.tasks.extend(positions.into_iter().map(task));
    }

    /// Adds the rows of what was chosen, on streams of their own.
    pub(super) fn fill(&mut self, mut site: Site<'_>) {
        let mut sight = Sight::of(site.canvas, site.places);
        for &(pos, slot) in site.masks {
            if site.canvas.stage(pos) == Stage::Invisible && pos < site.canvas.limit() {
                sight.add(pos, Slot::Scratch(slot));
            }
        }
        let copies: Vec<(u32, Slot)> = site
            .fresh
            .iter()
            .map(|&pos| (pos, site.scratch()))
            .collect();
        for &(pos, slot) in &copies {
            sight.add(pos, slot);
            site.push(site.canvas.token(pos), pos, slot);
        }
        if !copies.is_empty() {
            site.plan.streams.push(sight.stream());
        }
        for index in 0..self.tasks.len() {
            let pos = self.tasks[index].pos;
            let target = site.places.other_slot(pos);
            self.tasks[index].target = Some(target);
            self.fill_group(pos, Some(target), &sight, &mut site);
        }
    }

    /// Makes a forward that only revises: rows for positions without K/V are in the plan, as stream 0, at `slots`.
    pub(super) fn fill_sweep(&mut self, mut site: Site<'_>, slots: &[(u32, Slot)]) {
        self.n_sweeps += 1;
        let mut sight = Sight::of(site.canvas, site.places);
        for &(pos, slot) in slots {
            sight.add(pos, slot);
        }
        let queue = self.queue(visible(site.canvas), RevisionOrder::Confidence);
        let n_rows = |pos: u32| {
            let real = usize::from(site.fresh.binary_search(&pos).is_err());
            real + 1 + self.neighbours(pos, &site).len()
        };
        let mut total = site.plan.rows.len();
        let most = (total + 1).next_multiple_of(BUCKET as usize);
        let mut chosen = Vec::new();
        for pos in queue {
            total += n_rows(pos);
            if total > most && !chosen.is_empty() {
                break;
            }
            chosen.push(pos);
        }
        self.set_tasks(site.canvas, chosen);
        for index in 0..self.tasks.len() {
            let pos = self.tasks[index].pos;
            let is_fresh = site.fresh.binary_search(&pos).is_ok();
            let target = (!is_fresh).then(|| site.places.other_slot(pos));
            self.tasks[index].target = target;
            self.fill_group(pos, target, &sight, &mut site);
        }
    }

    /// Positions that are computed anew beside the shadow of `pos`, ascending.
    fn neighbours(&self, pos: u32, site: &Site<'_>) -> BTreeSet<u32> {
        let since = self.records[pos as usize].since;
        let radius = self.params.radius;
        let range = pos.saturating_sub(radius)..pos.saturating_add(radius + 1);
        let end = range.end.min(site.canvas.limit());
        let vouches = |&other: &u32| {
            other != pos
                && !site.canvas.is_masked(other)
                && site.places.step(other).is_none_or(|step| step > since)
        };
        let mut neighbours: BTreeSet<u32> = (range.start..end).filter(vouches).collect();
        if let (true, Some(predictor)) = (site.shift, pos.checked_sub(1)) {
            neighbours.insert(predictor);
        }
        neighbours
    }

    /// Adds the rows of one position.
    fn fill_group(&self, pos: u32, target: Option<Slot>, sight: &Sight, site: &mut Site<'_>) {
        let token = site.canvas.token(pos);
        if let Some(target) = target {
            site.push(token, pos, target);
            let mut real = sight.clone();
            real.replace(pos, target);
            site.plan.streams.push(real.stream());
        }
        let mut group = sight.clone();
        let slot = site.scratch();
        let shadow = site.push(site.canvas.mask(), pos, slot);
        group.replace(pos, slot);
        let mut predictor = shadow;
        for other in self.neighbours(pos, site) {
            let token = if site.canvas.is_masked(other) {
                site.canvas.mask()
            } else {
                site.canvas.token(other)
            };
            let slot = site.scratch();
            let row = site.push(token, other, slot);
            group.replace(other, slot);
            if site.shift && other + 1 == pos {
                predictor = row;
            }
        }
        site.plan.streams.push(group.stream());
        site.plan.predict.push(Predict {
            pos,
            row: predictor,
            uncond_row: None,
            probe: Some(token),
        });
    }

    /// Merges the results of the forward; drops those of positions that changed meanwhile.
    ///
    /// # Errors
    /// [`DecodeError::Transition`], which would be a mistake of this module.
    pub(super) fn merge(
        &mut self,
        canvas: &mut Canvas,
        places: &mut Places,
        step: u32,
        predictions: &[Prediction],
        events: &mut Vec<Event>,
        report: &mut Report,
    ) -> Result<(), DecodeError> {
        for (task, prediction) in self.tasks.drain(..).zip(predictions) {
            let Task {
                pos,
                version,
                target,
            } = task;
            if canvas.version(pos) != version {
                if let Some(target) = target {
                    places.free(target);
                }
                continue;
            }
            report.revisions_made += 1;
            let record = &mut self.records[pos as usize];
            record.rounds += 1;
            record.touched = step;
            if let Some(target) = target {
                places.set(pos, target, step);
            }
            let own = prediction.token == canvas.token(pos);
            if !own && prediction.confidence >= self.params.tau_replace {
                record.since = step;
                record.confidence = prediction.confidence;
                canvas.change(pos, Change::Replace(prediction.token), events)?;
                places.clear(pos);
                report.revisions_replaced += 1;
            } else if prediction.probe < self.params.tau_remask {
                canvas.change(pos, Change::Remask, events)?;
                places.clear(pos);
                report.revisions_remasked += 1;
                continue;
            } else {
                record.confidence = prediction.probe;
            }
            let is_sure = own && prediction.confidence >= self.tau_stable;
            if is_sure || record.rounds >= self.params.max_revisions {
                canvas.change(pos, Change::Stabilise, events)?;
            }
        }
        Ok(())
    }
}

/// Visible positions of the text, ascending.
pub(super) fn visible(canvas: &Canvas) -> impl Iterator<Item = u32> {
    (0..canvas.limit()).filter(|&pos| canvas.stage(pos) == Stage::Visible)
}
