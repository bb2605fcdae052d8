//! Virtual time: when transfers and runs of turns happen, from how long each takes.

use std::collections::VecDeque;

use super::turn::Turn;

/// When a turn happened, in seconds since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TurnTimes {
    /// Transfers started.
    pub transfer_start: f64,
    /// The last transfer was done.
    pub transfer_end: f64,
    /// The run started.
    pub run_start: f64,
    /// The run was over.
    pub run_end: f64,
    /// How long the device stood still before the run.
    pub stall: f64,
}

/// Sums over a timeline, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Transfers took.
    pub transfer: f64,
    /// Runs took.
    pub run: f64,
    /// The device stood still.
    pub stall: f64,
}

impl Totals {
    /// Adds those of another timeline.
    pub fn add(&mut self, other: &Self) {
        self.transfer += other.transfer;
        self.run += other.run;
        self.stall += other.stall;
    }

    /// Returns the share of the transfers that nobody waited for; 1 where there are none.
    #[must_use]
    pub fn hidden_share(&self) -> f64 {
        if self.transfer > 0.0 {
            1.0 - (self.stall / self.transfer).min(1.0)
        } else {
            1.0
        }
    }
}

/// How many ends of runs are remembered: `after` never lies further back in what matters, as older runs ended before.
const REMEMBERED: usize = 4096;

/// Two clocks, one of transfers and one of runs (see the rules in the [module](super)).
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Ends of the last runs, and the ticket of the first of them.
    runs: VecDeque<f64>,
    first: u64,
    transfers_end: f64,
    runs_end: f64,
    totals: Totals,
}

impl Timeline {
    /// Starts at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next turn, whose transfers (those after its run included) and run take so many seconds.
    pub fn turn(&mut self, turn: &Turn, transfer: f64, run: f64) -> TurnTimes {
        let end_of = |ticket: u64| {
            let i = usize::try_from(ticket.checked_sub(self.first)?).ok()?;
            self.runs.get(i).copied()
        };
        let after = turn.after.and_then(end_of).unwrap_or(0.0);
        let transfer_start = if turn.before.is_empty() {
            self.transfers_end
        } else {
            self.transfers_end.max(after)
        };
        // What follows the run is counted before it, at the cost of its place in time only.
        let transfer_end = transfer_start + transfer;
        let run_start = self.runs_end.max(transfer_end);
        let times = TurnTimes {
            transfer_start,
            transfer_end,
            run_start,
            run_end: run_start + run,
            stall: run_start - self.runs_end,
        };
        if self.runs.is_empty() {
            self.first = turn.ticket;
        }
        self.runs.push_back(times.run_end);
        if self.runs.len() > REMEMBERED {
            self.runs.pop_front();
            self.first += 1;
        }
        (self.transfers_end, self.runs_end) = (transfer_end, times.run_end);
        self.totals.transfer += transfer;
        self.totals.run += run;
        self.totals.stall += times.stall;
        times
    }

    /// Lets both clocks stand still until `seconds`, as while nobody asks for a step.
    pub fn wait_until(&mut self, seconds: f64) {
        self.transfers_end = self.transfers_end.max(seconds);
        self.runs_end = self.runs_end.max(seconds);
    }

    /// Returns when the last run was over.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.runs_end
    }

    /// Returns the sums so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
