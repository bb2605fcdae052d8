//! Turns, carried out one after the other.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::SessionError;
use crate::memory::runtime::mapping::{MapError, Mapping};
use crate::memory::runtime::planner::Planner;
use crate::memory::runtime::turn::{Counters, Piece, Place, Transfer, Turn};

/// Plans and carries out, on one thread at a time.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) planner: Planner,
    mapping: Box<dyn Mapping>,
    /// What is mapped now.
    live: BTreeMap<(Place, u64), Piece>,
    done: Counters,
    pub(super) transfer: Duration,
}

impl Core {
    /// Nothing is mapped yet.
    pub(super) fn new(planner: Planner, mapping: Box<dyn Mapping>) -> Self {
        Self {
            planner,
            mapping,
            live: BTreeMap::new(),
            done: Counters::default(),
            transfer: Duration::ZERO,
        }
    }

    fn carry_out(&mut self, transfers: &[Transfer]) -> Result<(), MapError> {
        for transfer in transfers {
            let workload = self.planner.workload();
            match transfer {
                Transfer::Map(piece) => {
                    self.mapping.map(piece, workload)?;
                    self.live
                        .insert((piece.place, piece.offset_bytes), piece.clone());
                }
                Transfer::Unmap(piece) => {
                    self.live.remove(&(piece.place, piece.offset_bytes));
                    // The piece is gone even if the device complains.
                    self.done.add(transfer);
                    self.mapping.unmap(piece, workload)?;
                    continue;
                }
                Transfer::Copy { object, range, .. } => {
                    self.mapping.copy(*object, range.clone(), workload)?;
                }
            }
            self.done.add(transfer);
        }
        Ok(())
    }

    /// Does all that comes before a run.
    pub(super) fn prepare(&mut self, turn: &Turn) -> Result<(), SessionError> {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.carry_out(&turn.before)?;
            self.mapping.describe(turn, self.planner.workload())
        }));
        self.transfer += start.elapsed();
        let result = result.unwrap_or_else(|_payload| Err(MapError::Panicked));
        result.map_err(|source| self.failed(turn, source))
    }

    fn failed(&self, turn: &Turn, source: MapError) -> SessionError {
        let segment = self.planner.workload().segment(turn.segment).name.clone();
        SessionError::Map { segment, source }
    }

    /// Does all that comes after a run.
    pub(super) fn release(&mut self, turn: &Turn) -> Result<(), SessionError> {
        let result = catch_unwind(AssertUnwindSafe(|| self.carry_out(&turn.release)));
        let result = result.unwrap_or_else(|_payload| Err(MapError::Panicked));
        result.map_err(|source| self.failed(turn, source))
    }

    /// Unmaps everything, and forgets what was planned.
    pub(super) fn return_all(&mut self) {
        self.planner.finish();
        self.planner.start_step();
        self.unmap_all();
    }

    fn unmap_all(&mut self) {
        for (_, piece) in std::mem::take(&mut self.live) {
            let (workload, mapping) = (self.planner.workload(), &mut self.mapping);
            let result = catch_unwind(AssertUnwindSafe(|| mapping.unmap(&piece, workload)));
            match result.unwrap_or_else(|_payload| Err(MapError::Panicked)) {
                Ok(()) => {}
                Err(error) => log::warn!("unmapping: {error}"),
            }
            self.done.add(&Transfer::Unmap(piece));
        }
    }

    pub(super) fn transfers(&self) -> Counters {
        let planned = self.planner.counters();
        Counters {
            n_evictions: planned.n_evictions,
            n_compactions: planned.n_compactions,
            ..self.done
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.unmap_all();
    }
}
