//! Carrying out what a planner decides, for steps that run as they come.
//!
//! ```text
//!   begin(segments) ── enter ─ run ─ leave ── enter ─ run ─ leave ── … ── end
//!                        │              │
//!                        ▼ waits for    ▼ lets go on
//!   staging thread:  transfers of turn n+1 while the run of turn n goes on
//! ```
//!
//! With [`Policy::PlannedPipeline`] a thread of its own plans turn after turn, as far ahead as free slots allow; with the other
//! policies the caller's thread does, in [`Session::enter`]. A step may be ended before its last segment; turns that were begun
//! are then carried out, so that the books stay those of the device.
//!
//! When a transfer fails, the step fails, everything is unmapped once the step has ended, and the next step starts from nothing.
//! Whatever happens, every map is returned: at the latest when the session is dropped.

mod carry;
mod stage;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::PlanError;
use super::mapping::{MapError, Mapping};
use super::planner::{Planner, check_order};
use super::turn::{Counters, Turn};
use super::workload::SegmentId;
use crate::knobs::Policy;
use carry::Core;
use stage::{Shared, stage};

/// Why a step could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A transfer failed.
    #[error("segment `{segment}`: {source}")]
    Map {
        /// The segment that it was for.
        segment: String,
        /// What happened.
        source: MapError,
    },
    /// The staging thread could not be started.
    #[error("cannot start the staging thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The staging thread has ended by a panic of its own; another session can go on.
    #[error("the staging thread has panicked")]
    Dead,
    /// A transfer of this step failed, which was said before.
    #[error("this step has failed; the next one can go on")]
    Failed,
    /// More segments were entered than begun.
    #[error("no segment is left in this step")]
    NoSegment,
}

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Transfers that were carried out.
    pub transfers: Counters,
    /// Runs that were entered.
    pub n_runs: u64,
    /// Runs that had to wait for transfers.
    pub n_stalls: u64,
    /// How long they waited.
    pub stall: Duration,
    /// How long transfers took.
    pub transfer: Duration,
    /// Times that everything was unmapped because something failed.
    pub n_failures: u64,
}

impl Report {
    /// Adds what another session has done; the peak is the higher one.
    pub fn add(&mut self, other: &Self) {
        self.transfers.join(&other.transfers);
        self.n_runs += other.n_runs;
        self.n_stalls += other.n_stalls;
        self.stall += other.stall;
        self.transfer += other.transfer;
        self.n_failures += other.n_failures;
    }
}

#[derive(Debug)]
enum Driver {
    /// The caller's thread; the turn whose run goes on, and the segments that follow, the next one last.
    Caller {
        core: Box<Core>,
        turn: Option<Turn>,
        rest: Vec<SegmentId>,
        /// The same for the planner, the next one first; kept for its memory.
        following: Vec<SegmentId>,
        n_failures: u64,
        must_return: bool,
    },
    /// A thread of its own.
    Thread {
        shared: Arc<Shared>,
        thread: Option<JoinHandle<()>>,
        /// The ticket of the next run.
        next: u64,
        /// The segments of the step that have not been entered, the next one last.
        rest: Vec<SegmentId>,
    },
}

/// Owning: a planner, a mapping, and all maps made.
#[derive(Debug)]
pub struct Session {
    driver: Driver,
    n_segments: usize,
    n_runs: u64,
    n_stalls: u64,
    stall: Duration,
}

impl Session {
    /// Starts a session; nothing is mapped yet.
    ///
    /// # Errors
    /// When the staging thread cannot be started.
    pub fn new(planner: Planner, mapping: Box<dyn Mapping>) -> Result<Self, SessionError> {
        let n_segments = planner.workload().segments().len();
        let is_pipelined = planner.policy() == Policy::PlannedPipeline;
        let core = Core::new(planner, mapping);
        let driver = if is_pipelined {
            let shared = Arc::new(Shared::default());
            let theirs = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("llada-npu stage".to_owned())
                .spawn(move || {
                    let result = catch_unwind(AssertUnwindSafe(|| stage(core, &theirs)));
                    let mut state = theirs.lock();
                    state.is_dead = true;
                    state.failure = result.err().map(|_payload| SessionError::Dead);
                    theirs.changed.notify_all();
                })
                .map_err(SessionError::Thread)?;
            Driver::Thread {
                shared,
                thread: Some(thread),
                next: 0,
                rest: Vec::new(),
            }
        } else {
            Driver::Caller {
                core: Box::new(core),
                turn: None,
                rest: Vec::new(),
                following: Vec::new(),
                n_failures: 0,
                must_return: false,
            }
        };
        Ok(Self {
            driver,
            n_segments,
            n_runs: 0,
            n_stalls: 0,
            stall: Duration::ZERO,
        })
    }

    /// Begins a step: some segments of the workload, in its order. A step that goes on is ended.
    ///
    /// # Errors
    /// When a segment does not exist, or does not lie behind the one before.
    pub fn begin(&mut self, segments: &[SegmentId]) -> Result<(), SessionError> {
        self.end();
        check_order(segments, self.n_segments)?;
        let reversed = segments.iter().rev();
        match &mut self.driver {
            Driver::Caller { core, rest, .. } => {
                core.planner.start_step();
                rest.clear();
                rest.extend(reversed);
            }
            Driver::Thread {
                shared, next, rest, ..
            } => {
                rest.clear();
                rest.extend(reversed);
                let mut state = shared.lock();
                *next = state.n_issued;
                state.rest.clone_from(rest);
                state.failure = None;
                state.is_stepping = true;
                shared.changed.notify_all();
            }
        }
        Ok(())
    }

    /// Waits until all that the next segment needs is mapped, and returns which one it is.
    ///
    /// # Errors
    /// When a transfer failed; the step cannot go on then, the next one can.
    pub fn enter(&mut self) -> Result<SegmentId, SessionError> {
        let start = Instant::now();
        let mut has_waited = false;
        let segment = match &mut self.driver {
            Driver::Caller {
                core,
                turn,
                rest,
                following,
                n_failures,
                must_return,
            } => {
                if *must_return {
                    return Err(SessionError::Failed);
                }
                let segment = rest.pop().ok_or(SessionError::NoSegment)?;
                following.clear();
                following.extend(rest.iter().rev());
                let next = core.planner.turn(segment, following);
                has_waited = !next.before.is_empty();
                if let Err(error) = core.prepare(&next) {
                    (*n_failures, *must_return) = (*n_failures + 1, true);
                    return Err(error);
                }
                *turn = Some(next);
                segment
            }
            Driver::Thread {
                shared, next, rest, ..
            } => {
                let segment = rest.pop().ok_or(SessionError::NoSegment)?;
                let mut state = shared.lock();
                // After a failure nothing is staged until the step has ended.
                while state.n_ready <= *next && !state.must_return && !state.is_dead {
                    has_waited = true;
                    state = shared.wait(state);
                }
                if state.n_ready <= *next {
                    let otherwise = if state.is_dead {
                        SessionError::Dead
                    } else {
                        SessionError::Failed
                    };
                    return Err(state.failure.take().unwrap_or(otherwise));
                }
                segment
            }
        };
        self.n_runs += 1;
        if has_waited {
            self.n_stalls += 1;
            self.stall += start.elapsed();
        }
        Ok(segment)
    }

    /// Says that the run of the segment that was entered last is over.
    ///
    /// # Errors
    /// When what it used could not be given back; the step cannot go on then, the next one can.
    pub fn leave(&mut self) -> Result<(), SessionError> {
        match &mut self.driver {
            Driver::Caller {
                core,
                turn,
                n_failures,
                must_return,
                ..
            } => {
                let Some(turn) = turn.take() else {
                    return Ok(());
                };
                core.release(&turn).inspect_err(|_| {
                    (*n_failures, *must_return) = (*n_failures + 1, true);
                })
            }
            Driver::Thread { shared, next, .. } => {
                *next += 1;
                shared.lock().n_over = *next;
                shared.changed.notify_all();
                Ok(())
            }
        }
    }

    /// Ends a step, whether or not all its segments have run. Nothing of it may run any more.
    pub fn end(&mut self) {
        match &mut self.driver {
            Driver::Caller {
                core,
                turn,
                rest,
                must_return,
                n_failures,
                ..
            } => {
                rest.clear();
                if let Some(turn) = turn.take()
                    && let Err(error) = core.release(&turn)
                {
                    log::warn!("{error}");
                    (*n_failures, *must_return) = (*n_failures + 1, true);
                }
                if std::mem::take(must_return) {
                    core.return_all();
                }
            }
            Driver::Thread { shared, rest, .. } => {
                rest.clear();
                let mut state = shared.lock();
                state.rest.clear();
                state.is_stepping = false;
                shared.changed.notify_all();
                shared.settle(state);
            }
        }
    }

    /// Ends a step that goes on, and unmaps everything. The session can go on.
    pub fn finish(&mut self) {
        self.end();
        match &mut self.driver {
            Driver::Caller { core, .. } => core.return_all(),
            Driver::Thread { shared, .. } => {
                let mut state = shared.lock();
                state.must_return = true;
                shared.changed.notify_all();
                shared.settle(state);
            }
        }
    }

    /// Returns what was done so far. Between steps, the numbers belong together.
    #[must_use]
    pub fn report(&self) -> Report {
        let (transfers, transfer, n_failures) = match &self.driver {
            Driver::Caller {
                core, n_failures, ..
            } => (core.transfers(), core.transfer, *n_failures),
            Driver::Thread { shared, .. } => {
                let state = shared.lock();
                (state.transfers, state.transfer, state.n_failures)
            }
        };
        Report {
            transfers,
            n_runs: self.n_runs,
            n_stalls: self.n_stalls,
            stall: self.stall,
            transfer,
            n_failures,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.finish();
        if let Driver::Thread { shared, thread, .. } = &mut self.driver {
            shared.lock().must_quit = true;
            shared.changed.notify_all();
            if let Some(thread) = thread.take()
                && thread.join().is_err()
            {
                log::error!("the staging thread panicked");
            }
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
