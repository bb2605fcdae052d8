//! Turns, one policy per file.

mod drop_unused;
mod lru;
mod maps;
mod naive;
mod planned;

use std::collections::BTreeSet;

use super::PlanError;
use super::limits::{Costs, Limits};
use super::residency::{Residency, check_segments, lower_bound_bytes, working_set_bytes};
use super::turn::{Counters, Place, Transfer, Turn};
use super::workload::{ObjectId, SegmentId, Workload};
use crate::knobs::Policy;
use drop_unused::DropUnused;
use lru::Lru;
use naive::Naive;
use planned::Planned;

/// What a policy answers for one segment.
#[derive(Debug, Default)]
struct Answer {
    after: Option<u64>,
    before: Vec<Transfer>,
    release: Vec<Transfer>,
    n_compactions: u64,
}

/// What a policy is asked.
struct Question<'a> {
    workload: &'a Workload,
    limits: &'a Limits,
    ticket: u64,
    segment: SegmentId,
    /// The segments of the step that follow.
    rest: &'a [SegmentId],
}

impl Question<'_> {
    fn needs(&self) -> &[ObjectId] {
        &self.workload.segment(self.segment).needs
    }
}

#[derive(Debug)]
enum State {
    Naive(Naive),
    Lru(Lru),
    DropUnused(DropUnused),
    Planned(Box<Planned>),
}

/// Decides, step by step, what is mapped when.
#[derive(Debug)]
pub struct Planner {
    workload: Workload,
    limits: Limits,
    policy: Policy,
    state: State,
    ticket: u64,
    counters: Counters,
}

impl Planner {
    /// Makes a planner; nothing is mapped yet.
    ///
    /// # Errors
    /// When a segment does not fit by itself, or the limits or sizes cannot be.
    pub fn new(
        workload: Workload,
        limits: Limits,
        policy: Policy,
        costs: Costs,
    ) -> Result<Self, PlanError> {
        limits.check(&workload)?;
        check_segments(&workload, &limits)?;
        let state = match policy {
            Policy::Naive => State::Naive(Naive::new(&limits)),
            Policy::Lru => State::Lru(Lru::new(&workload, &limits)),
            Policy::DropUnused => State::DropUnused(DropUnused::new(&limits)),
            Policy::Planned => State::Planned(Box::new(Planned::new(&workload, &limits, None)?)),
            Policy::PlannedPipeline => {
                State::Planned(Box::new(Planned::new(&workload, &limits, Some(costs))?))
            }
        };
        Ok(Self {
            workload,
            limits,
            policy,
            state,
            ticket: 0,
            counters: Counters::default(),
        })
    }

    /// Returns the workload.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns what stays and what is streamed; `None` where the policy does not choose in advance.
    #[must_use]
    pub fn residency(&self) -> Option<&Residency> {
        match &self.state {
            State::Planned(planned) => Some(planned.residency()),
            State::Naive(_) | State::Lru(_) | State::DropUnused(_) => None,
        }
    }

    /// Returns the sums over all turns so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the bytes that a step touches.
    #[must_use]
    pub fn working_set_bytes(&self) -> u64 {
        working_set_bytes(&self.workload, &self.limits)
    }

    /// Returns the bytes that must be moved in every step, whoever decides.
    #[must_use]
    pub fn lower_bound_bytes(&self) -> u64 {
        lower_bound_bytes(&self.workload, &self.limits)
    }

    /// Plans a step: some segments of the workload, in its order.
    ///
    /// # Errors
    /// When a segment does not exist, or does not lie behind the one before; nothing has changed then.
    pub fn step(&mut self, segments: &[SegmentId]) -> Result<Vec<Turn>, PlanError> {
        check_order(segments, self.workload.segments().len())?;
        self.start_step();
        Ok((0..segments.len())
            .map(|i| self.turn(segments[i], &segments[i + 1..]))
            .collect())
    }

    /// Forgets the rest of a step that was not planned to its end.
    pub(super) fn start_step(&mut self) {
        if let State::DropUnused(drop_unused) = &mut self.state {
            drop_unused.start_step();
        }
    }

    /// Plans a step of all segments.
    ///
    /// # Errors
    /// None now: as for [`Self::step`].
    pub fn step_all(&mut self) -> Result<Vec<Turn>, PlanError> {
        let all: Vec<_> = (0..self.workload.segments().len()).map(SegmentId).collect();
        self.step(&all)
    }

    /// Plans one segment of a step; `rest` are those that follow in it.
    pub(super) fn turn(&mut self, segment: SegmentId, rest: &[SegmentId]) -> Turn {
        let ticket = self.ticket;
        self.ticket += 1;
        let question = Question {
            workload: &self.workload,
            limits: &self.limits,
            ticket,
            segment,
            rest,
        };
        let answer = match &mut self.state {
            State::Naive(naive) => naive.turn(&question),
            State::Lru(lru) => lru.turn(&question),
            State::DropUnused(drop_unused) => drop_unused.turn(&question),
            State::Planned(planned) => planned.turn(&question),
        };
        self.counters.n_compactions += answer.n_compactions;
        let mut evicted = BTreeSet::new();
        for transfer in answer.before.iter().chain(&answer.release) {
            self.counters.add(transfer);
            if let Transfer::Unmap(piece) = transfer
                && let Place::Object(object) = piece.place
            {
                evicted.insert(object);
            }
        }
        self.counters.n_evictions += evicted.len() as u64;
        Turn {
            ticket,
            segment,
            after: answer.after,
            before: answer.before,
            release: answer.release,
        }
    }

    /// Ends the session: returns all maps, which may be unmapped when the last run is over. Planning may go on afterwards.
    pub fn finish(&mut self) -> Vec<Transfer> {
        let transfers = match &mut self.state {
            State::Naive(_) => Vec::new(),
            State::Lru(lru) => lru.finish(),
            State::DropUnused(drop_unused) => drop_unused.finish(),
            State::Planned(planned) => planned.finish(),
        };
        for transfer in &transfers {
            self.counters.add(transfer);
        }
        transfers
    }
}

/// Checks that segments exist and ascend.
pub(super) fn check_order(segments: &[SegmentId], n_segments: usize) -> Result<(), PlanError> {
    for (i, segment) in segments.iter().enumerate() {
        let is_behind = i == 0 || segments[i - 1] < *segment;
        if segment.0 >= n_segments || !is_behind {
            let segment = segment.0;
            return Err(PlanError::Order {
                segment,
                n_segments,
            });
        }
    }
    Ok(())
}

/// Returns the turn before: its run must be over before maps change that it may use.
fn previous(ticket: u64) -> Option<u64> {
    ticket.checked_sub(1)
}
