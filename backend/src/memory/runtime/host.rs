//! The machine's own memory, as if it were an accelerator's: tiles of weights can be read while they are mapped, and only
//! then.
//!
//! The pages of tiles in files of the repack cache are given back when they are unmapped, so that a budget limits the
//! memory of the process as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::mapping::{MapError, Mapping};
use super::turn::{Piece, Place};
use super::workload::{ObjectId, Workload};
use crate::memory::WeightStore;

/// Shows and hides tiles of a [`WeightStore`]; objects that have none are always there.
#[derive(Debug)]
pub struct HostMapping {
    store: Arc<WeightStore>,
    /// The address of each object that may have tiles, by number.
    addresses: Vec<Option<usize>>,
    n_pieces: BTreeMap<ObjectId, usize>,
}

impl HostMapping {
    /// Makes a mapping for the weights at `addresses`, by the number of their object.
    #[must_use]
    pub fn new(store: Arc<WeightStore>, addresses: Vec<Option<usize>>) -> Self {
        Self {
            store,
            addresses,
            n_pieces: BTreeMap::new(),
        }
    }

    fn weight(&self, piece: &Piece) -> Option<(ObjectId, usize)> {
        let Place::Object(object) = piece.place else {
            return None;
        };
        Some((object, self.addresses.get(object.0).copied().flatten()?))
    }
}

impl Mapping for HostMapping {
    fn map(&mut self, piece: &Piece, _workload: &Workload) -> Result<(), MapError> {
        if let Some((object, address)) = self.weight(piece) {
            let n_pieces = self.n_pieces.entry(object).or_insert(0);
            *n_pieces += 1;
            if *n_pieces == 1 {
                self.store.show(address);
            }
        }
        Ok(())
    }

    fn unmap(&mut self, piece: &Piece, _workload: &Workload) -> Result<(), MapError> {
        if let Some((object, address)) = self.weight(piece)
            && let Some(n_pieces) = self.n_pieces.get_mut(&object)
        {
            *n_pieces -= 1;
            if *n_pieces == 0 {
                self.n_pieces.remove(&object);
                self.store.hide(address);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
