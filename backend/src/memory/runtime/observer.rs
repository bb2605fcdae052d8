//! A mapping that keeps a virtual clock, by itself or around another one.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::clock::{Timeline, Totals};
use super::limits::Costs;
use super::mapping::{MapError, Mapping};
use super::turn::{Counters, Piece, Transfer, Turn};
use super::workload::{ObjectId, SegmentId, Workload};
use crate::sync::lock;

/// What an [`Observer`] has seen.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The clocks.
    pub timeline: Timeline,
    /// The transfers that were carried out.
    pub counters: Counters,
}

impl Observed {
    /// Returns the sums of the clocks.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.timeline.totals()
    }
}

/// Seconds that the run of a segment takes.
pub type RunSeconds = Box<dyn Fn(SegmentId) -> f64 + Send>;

/// Carries transfers out on a virtual clock, and on the device behind it, if there is one.
pub struct Observer {
    inner: Option<Box<dyn Mapping>>,
    costs: Costs,
    run_seconds: RunSeconds,
    /// Of the transfers of the turn that is not described yet.
    transfer_seconds: f64,
    observed: Arc<Mutex<Observed>>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("inner", &self.inner)
            .field("costs", &self.costs)
            .finish_non_exhaustive()
    }
}

impl Observer {
    /// Observes a device that exists in numbers only.
    #[must_use]
    pub fn simulated(costs: Costs, run_seconds: RunSeconds) -> Self {
        Self {
            inner: None,
            costs,
            run_seconds,
            transfer_seconds: 0.0,
            observed: Arc::default(),
        }
    }

    /// Observes `inner`.
    #[must_use]
    pub fn around(inner: Box<dyn Mapping>, costs: Costs, run_seconds: RunSeconds) -> Self {
        Self {
            inner: Some(inner),
            ..Self::simulated(costs, run_seconds)
        }
    }

    /// Returns what is seen, now and later.
    #[must_use]
    pub fn observed(&self) -> Arc<Mutex<Observed>> {
        Arc::clone(&self.observed)
    }

    fn count(&mut self, transfer: &Transfer) {
        self.transfer_seconds += self.costs.seconds(transfer);
        let mut observed = lock(&self.observed);
        observed.counters.add(transfer);
    }
}

impl Mapping for Observer {
    fn map(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError> {
        if let Some(inner) = &mut self.inner {
            inner.map(piece, workload)?;
        }
        self.count(&Transfer::Map(piece.clone()));
        Ok(())
    }

    fn unmap(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError> {
        self.count(&Transfer::Unmap(piece.clone()));
        match &mut self.inner {
            Some(inner) => inner.unmap(piece, workload),
            None => Ok(()),
        }
    }

    fn copy(
        &mut self,
        object: ObjectId,
        range: Range<u64>,
        workload: &Workload,
    ) -> Result<(), MapError> {
        if let Some(inner) = &mut self.inner {
            inner.copy(object, range.clone(), workload)?;
        }
        // Which slot does not matter for time.
        self.count(&Transfer::Copy {
            object,
            slot: 0,
            range,
        });
        Ok(())
    }

    fn describe(&mut self, turn: &Turn, workload: &Workload) -> Result<(), MapError> {
        let transfer = std::mem::take(&mut self.transfer_seconds);
        let run = (self.run_seconds)(turn.segment);
        let mut observed = lock(&self.observed);
        observed.timeline.turn(turn, transfer, run);
        drop(observed);
        match &mut self.inner {
            Some(inner) => inner.describe(turn, workload),
            None => Ok(()),
        }
    }
}
