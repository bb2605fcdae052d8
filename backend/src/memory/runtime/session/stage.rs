//! The staging thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::SessionError;
use super::carry::Core;
use crate::memory::runtime::turn::Counters;
use crate::memory::runtime::workload::SegmentId;
use crate::sync::lock;

/// What caller and staging thread tell each other.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Segments of the step that nobody has planned yet, the next one last.
    pub(super) rest: Vec<SegmentId>,
    /// Turns planned, turns whose transfers are done, turns whose run is over.
    pub(super) n_issued: u64,
    pub(super) n_ready: u64,
    pub(super) n_over: u64,
    pub(super) is_stepping: bool,
    /// The thread is at work.
    pub(super) is_busy: bool,
    pub(super) failure: Option<SessionError>,
    /// Everything is to be unmapped when the step has ended.
    pub(super) must_return: bool,
    pub(super) must_quit: bool,
    /// The thread is gone.
    pub(super) is_dead: bool,
    pub(super) n_failures: u64,
    pub(super) transfers: Counters,
    pub(super) transfer: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has nothing to do any more.
    pub(super) fn settle(&self, mut state: MutexGuard<'_, State>) {
        while !state.is_dead && (state.is_busy || state.must_return) {
            state = self.wait(state);
        }
        state.n_over = state.n_issued;
    }
}

/// The staging thread: turn after turn, until it is told to quit.
pub(super) fn stage(mut core: Core, shared: &Shared) {
    let mut following = Vec::new();
    let mut state = shared.lock();
    loop {
        if !state.is_stepping && state.must_return {
            state.is_busy = true;
            drop(state);
            core.return_all();
            state = shared.lock();
            state.must_return = false;
        } else if !state.is_stepping && state.must_quit {
            return;
        } else if !state.must_return
            && let Some(segment) = state.rest.pop()
        {
            following.clear();
            following.extend(state.rest.iter().rev());
            state.is_busy = true;
            drop(state);
            let turn = core.planner.turn(segment, &following);
            state = shared.lock();
            state.n_issued = turn.ticket + 1;
            // When the step has ended, nothing runs any more.
            while state.is_stepping && turn.after.is_some_and(|after| state.n_over <= after) {
                state = shared.wait(state);
            }
            drop(state);
            let result = core.prepare(&turn);
            debug_assert!(
                turn.release.is_empty(),
                "streamed objects are unmapped before a run"
            );
            state = shared.lock();
            match result {
                Ok(()) => state.n_ready = turn.ticket + 1,
                Err(error) => {
                    state.failure = Some(error);
                    state.must_return = true;
                    state.n_failures += 1;
                }
            }
        } else {
            state = shared.wait(state);
            continue;
        }
        state.is_busy = false;
        state.transfers = core.transfers();
        state.transfer = core.transfer;
        shared.changed.notify_all();
    }
}
