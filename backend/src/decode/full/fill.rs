//! The rows of a plan: which token stands where, what it sees, where its K/V goes.

use super::super::canvas::Canvas;
use super::super::event::Stage;
use super::super::options::Suffix;
use super::super::plan::{ForwardKind, Predict, Row, RowPlan, Slot, Split};
use super::Full;
use super::revision::Site;
use super::sight::Sight;

impl Full {
    /// Rows of the step by position, on stream 0, and what they predict.
    pub(super) fn fill_dense(
        &mut self,
        canvas: &Canvas,
        real: &[u32],
        revises: bool,
        kept: bool,
        plan: &mut RowPlan,
    ) {
        for &pos in real {
            let slot = if revises && self.places.slot(pos).is_some() {
                self.places.other_slot(pos)
            } else {
                Slot::Store(pos)
            };
            self.real.push((pos, slot));
        }
        self.take_mask_slots(canvas, kept);
        let mut sight = Sight::of(canvas, &self.places);
        for &(pos, slot) in &self.tail {
            if canvas.is_masked(pos) && pos < canvas.limit() {
                sight.replace(pos, Slot::Scratch(slot));
            }
        }
        let masked = self
            .masks
            .iter()
            .map(|&(pos, slot)| (pos, Slot::Scratch(slot)));
        let mut rows: Vec<(u32, Slot)> = self.real.iter().copied().chain(masked).collect();
        rows.sort_unstable_by_key(|&(pos, _)| pos);
        for &(pos, slot) in &rows {
            sight.replace(pos, slot);
            let hidden = canvas.stage(pos) == Stage::Draft && self.window.block.contains(&pos);
            plan.rows.push(Row {
                token: if hidden {
                    canvas.mask()
                } else {
                    canvas.token(pos)
                },
                pos,
                stream: 0,
                kv: Some(slot),
            });
        }
        plan.streams.push(sight.stream());
        for pos in self.window.predicted(canvas) {
            let from = pos.saturating_sub(u32::from(self.shift));
            let row = rows.binary_search_by_key(&from, |&(pos, _)| pos);
            let row = row.expect("the predictor of a predicted position is a row");
            plan.predict.push(Predict {
                pos,
                row: u32::try_from(row).expect("rows are bounded"),
                uncond_row: None,
                probe: None,
            });
        }
    }

    /// Finds slots for the masked rows. A tail that later steps see comes first, so that it stays where it is.
    fn take_mask_slots(&mut self, canvas: &Canvas, kept: bool) {
        let keeps_tail = self.params.cache.suffix == Suffix::Cached && !kept;
        let stays = |&pos: &u32| keeps_tail && canvas.stage(pos) == Stage::Invisible;
        let (tail, right): (Vec<u32>, Vec<u32>) =
            self.window.right.iter().partition(|pos| stays(pos));
        for pos in tail {
            self.tail.push((pos, self.places.take()));
        }
        if keeps_tail {
            self.masks.extend(&self.tail);
        }
        for pos in canvas.masked(self.window.block.clone()).chain(right) {
            let slot = self.places.take();
            self.transient.push(Slot::Scratch(slot));
            self.masks.push((pos, slot));
        }
    }

    /// Rows of the revision beside a step.
    pub(super) fn fill_revision(
        &mut self,
        canvas: &Canvas,
        masks: &[(u32, u32)],
        plan: &mut RowPlan,
    ) {
        let Some(revision) = &mut self.revision else {
            return;
        };
        plan.split = Some(Split {
            row: u32::try_from(plan.rows.len()).expect("rows are bounded"),
            predict: u32::try_from(plan.predict.len()).expect("rows are bounded"),
        });
        let has_no_kv = |pos: &u32| self.places.slot(*pos).is_none();
        let fresh: Vec<u32> = self
            .real
            .iter()
            .map(|&(pos, _)| pos)
            .filter(has_no_kv)
            .collect();
        let masks = if revision.sees_window() { masks } else { &[] };
        revision.fill(Site {
            canvas,
            places: &mut self.places,
            transient: &mut self.transient,
            fresh: &fresh,
            masks,
            shift: self.shift,
            plan,
        });
    }

    /// Rows of a forward that only revises.
    pub(super) fn plan_sweep(&mut self, canvas: &Canvas, plan: &mut RowPlan) {
        plan.kind = ForwardKind::Sweep;
        let fresh = self.fresh(canvas, false);
        self.real
            .extend(fresh.iter().map(|&pos| (pos, Slot::Store(pos))));
        let mut sight = Sight::of(canvas, &self.places);
        for &(pos, slot) in &self.real {
            sight.add(pos, slot);
            plan.rows.push(Row {
                token: canvas.token(pos),
                pos,
                stream: 0,
                kv: Some(slot),
            });
        }
        if !fresh.is_empty() {
            plan.streams.push(sight.stream());
        }
        let revision = self.revision.as_mut();
        let site = Site {
            canvas,
            places: &mut self.places,
            transient: &mut self.transient,
            fresh: &fresh,
            masks: &[],
            shift: self.shift,
            plan,
        };
        revision
            .expect("sweeps are planned with revision alone")
            .fill_sweep(site, &self.real);
    }
}
