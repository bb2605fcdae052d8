//! Some objects stay, the rest is streamed through the staging memory.
//!
//! ```text
//! addresses   0        arena          residents …           │       staging        │
//!             ├──────────┼──────────────────────────────────┼── slot 0 →  ← slot 1 ─┤
//! ```
//!
//! The arena is mapped before the first run, an object that stays before the first run that needs it. Loads take the slots
//! in turn: that of slot 0 lies at the start of the staging memory, that of slot 1 at its end. A slot is filled anew when
//! the runs that used its contents are over; where two loads do not fit side by side, the other slot is emptied as well,
//! and the pipeline stands still for a turn.

use super::maps::map_at;
use super::{Answer, Question, previous};
use crate::memory::runtime::PlanError;
use crate::memory::runtime::limits::{Costs, Limits};
use crate::memory::runtime::residency::{Residency, Staging};
use crate::memory::runtime::turn::{Piece, Place, Transfer};
use crate::memory::runtime::workload::{ObjectId, Workload};

#[derive(Clone, Debug, Default)]
struct Slot {
    objects: Vec<ObjectId>,
    /// Maps of them; none where they were copied.
    pieces: Vec<Piece>,
    size_bytes: u64,
    /// The last turn that used the contents.
    used: Option<u64>,
}

/// Chooses what stays. Where copies pay, one slot that can be copied into is better than two that must be mapped.
fn choose(
    workload: &Workload,
    limits: &Limits,
    is_pipelined: bool,
    copies_pay: bool,
) -> Option<Residency> {
    let with = |staging| Residency::choose(workload, limits, staging);
    let can_be_copied = |residency: &Residency| !residency.streams_written(workload);
    let double = if is_pipelined {
        with(Staging::Double)
    } else {
        None
    };
    if double
        .as_ref()
        .is_some_and(|double| !copies_pay || can_be_copied(double))
    {
        return double;
    }
    let single = with(Staging::Single);
    if double.is_none() || single.as_ref().is_some_and(can_be_copied) {
        return single;
    }
    double
}

#[derive(Debug)]
pub(super) struct Planned {
    residency: Residency,
    is_pipelined: bool,
    /// Streamed objects are copied into memory that stays mapped.
    copies: bool,
    /// Where each object that stays is mapped; only those that stay have one.
    homes: Vec<Option<u64>>,
    is_home: Vec<bool>,
    /// Where the staging memory starts.
    staging: u64,
    /// The arena, and the staging memory where it is copied into.
    fixed: Vec<Piece>,
    residents: Vec<Piece>,
    is_started: bool,
    slots: [Slot; 2],
    /// The slot that the next load takes.
    next: usize,
}

impl Planned {
    /// Chooses what stays; `pipeline` has the costs where streaming goes on while segments run.
    pub(super) fn new(
        workload: &Workload,
        limits: &Limits,
        pipeline: Option<Costs>,
    ) -> Result<Self, PlanError> {
        let copies_pay = pipeline.is_some_and(|costs| costs.prefers_copies());
        let residency = match choose(workload, limits, pipeline.is_some(), copies_pay) {
            Some(residency) => residency,
            None => Residency::stream_all(workload, limits)?,
        };
        let arena_bytes = residency.arena.as_ref().map_or(0, |arena| arena.size_bytes);
        let mut at = arena_bytes;
        let uses = workload.uses();
        let mut homes = vec![None; uses.len()];
        for (i, object) in workload.objects().iter().enumerate() {
            let in_arena = residency
                .arena
                .as_ref()
                .is_some_and(|arena| arena.offsets[i].is_some());
            if uses[i] > 0 && !residency.is_streamed[i] && !in_arena {
                homes[i] = Some(at);
                at += limits.align(object.size_bytes);
            }
        }
        let copies = copies_pay && !residency.streams_written(workload);
        let mut fixed: Vec<_> = map_at(Place::Arena, arena_bytes, 0, limits).collect();
        if copies {
            fixed.extend(map_at(Place::Staging, residency.staging_bytes, at, limits));
        }
        Ok(Self {
            is_pipelined: pipeline.is_some(),
            copies,
            is_home: vec![false; homes.len()],
            homes,
            staging: at,
            fixed,
            residents: Vec::new(),
            is_started: false,
            slots: Default::default(),
            next: 0,
            residency,
        })
    }

    pub(super) fn residency(&self) -> &Residency {
        &self.residency
    }

    pub(super) fn turn(&mut self, question: &Question<'_>) -> Answer {
        let mut answer = Answer::default();
        if !self.is_started {
            self.is_started = true;
            answer
                .before
                .extend(self.fixed.iter().cloned().map(Transfer::Map));
        }
        for &object in question.needs() {
            self.settle(object, question, &mut answer);
        }
        self.stream(question, &mut answer);
        if !self.is_pipelined && !answer.before.is_empty() {
            answer.after = previous(question.ticket);
        }
        answer
    }

    /// Maps an object that stays, at its first use.
    fn settle(&mut self, object: ObjectId, question: &Question<'_>, answer: &mut Answer) {
        let Some(home) = self.homes[object.0].filter(|_| !self.is_home[object.0]) else {
            return;
        };
        self.is_home[object.0] = true;
        let size_bytes = question.workload.object(object).size_bytes;
        for piece in map_at(Place::Object(object), size_bytes, home, question.limits) {
            self.residents.push(piece.clone());
            answer.before.push(Transfer::Map(piece));
        }
    }

    /// Brings what is streamed for a segment into a slot.
    fn stream(&mut self, question: &Question<'_>, answer: &mut Answer) {
        let streamed = self.residency.streamed(question.workload, question.segment);
        let streamed: Vec<_> = streamed.collect();
        let target = self.next;
        let other = 1 - target;
        let missing = |slots: &[&Slot]| -> Vec<ObjectId> {
            let is_there =
                |object: &ObjectId| slots.iter().any(|slot| slot.objects.contains(object));
            streamed
                .iter()
                .copied()
                .filter(|object| !is_there(object))
                .collect()
        };
        let size = |objects: &[ObjectId]| -> u64 {
            let sizes = objects
                .iter()
                .map(|object| question.workload.object(*object).size_bytes);
            sizes
                .map(|size_bytes| question.limits.align(size_bytes))
                .sum()
        };
        if missing(&[&self.slots[0], &self.slots[1]]).is_empty() {
            for slot in &mut self.slots {
                if slot.objects.iter().any(|object| streamed.contains(object)) {
                    slot.used = Some(question.ticket);
                }
            }
            return;
        }
        let mut load = missing(&[&self.slots[other]]);
        answer.after = self.slots[target].used;
        self.empty(target, &mut answer.before);
        if size(&load) + self.slots[other].size_bytes > self.residency.staging_bytes {
            load.clone_from(&streamed);
            answer.after = answer.after.max(self.slots[other].used);
            self.empty(other, &mut answer.before);
        } else if load.len() < streamed.len() {
            self.slots[other].used = Some(question.ticket);
        }
        self.fill(target, load, question, &mut answer.before);
        self.next = other;
    }

    fn empty(&mut self, slot: usize, out: &mut Vec<Transfer>) {
        let slot = std::mem::take(&mut self.slots[slot]);
        out.extend(slot.pieces.into_iter().map(Transfer::Unmap));
    }

    fn fill(
        &mut self,
        slot: usize,
        load: Vec<ObjectId>,
        question: &Question<'_>,
        out: &mut Vec<Transfer>,
    ) {
        let (workload, limits) = (question.workload, question.limits);
        let sizes = load
            .iter()
            .map(|object| limits.align(workload.object(*object).size_bytes));
        let size_bytes = sizes.sum();
        let mut at = match slot {
            0 => self.staging,
            _ => self.staging + self.residency.staging_bytes - size_bytes,
        };
        let mut pieces = Vec::new();
        for &object in &load {
            let size_bytes = workload.object(object).size_bytes;
            let end = at + limits.align(size_bytes);
            if self.copies {
                out.push(Transfer::Copy {
                    object,
                    slot,
                    range: at..end,
                });
            } else {
                pieces.extend(map_at(Place::Object(object), size_bytes, at, limits));
            }
            at = end;
        }
        out.extend(pieces.iter().cloned().map(Transfer::Map));
        self.slots[slot] = Slot {
            objects: load,
            pieces,
            size_bytes,
            used: Some(question.ticket),
        };
    }

    pub(super) fn finish(&mut self) -> Vec<Transfer> {
        let mut out = Vec::new();
        self.empty(0, &mut out);
        self.empty(1, &mut out);
        out.extend(self.residents.drain(..).map(Transfer::Unmap));
        if std::mem::take(&mut self.is_started) {
            out.extend(self.fixed.iter().cloned().map(Transfer::Unmap));
        }
        self.is_home.fill(false);
        self.next = 0;
        out
    }
}
