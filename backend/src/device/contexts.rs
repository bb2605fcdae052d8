//! Contexts of an accelerator as objects of the memory runtime, beside what the host maps.
//!
//! A context is one piece, however long: it is made when its first piece is mapped and freed when its last piece is unmapped. One that
//! cannot be made is no error of the map: the segments that need it are left to the host, which plans anew (see
//! [`Contexts::map`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::dense::Contexts;
use crate::memory::runtime::{MapError, Mapping, ObjectId, Piece, Place, Turn, Workload};

/// Makes and frees contexts; everything else is another mapping's.
#[derive(Debug)]
pub struct ContextMapping {
    contexts: Arc<dyn Contexts>,
    /// The context of each object that is one, by number.
    of_object: Vec<Option<u64>>,
    n_pieces: BTreeMap<ObjectId, usize>,
    other: Box<dyn Mapping>,
}

impl ContextMapping {
    /// Makes a mapping for the contexts of objects, by number; all other objects go to `other`.
    #[must_use]
    pub fn new(
        contexts: Arc<dyn Contexts>,
        of_object: Vec<Option<u64>>,
        other: Box<dyn Mapping>,
    ) -> Self {
        Self {
            contexts,
            of_object,
            n_pieces: BTreeMap::new(),
            other,
        }
    }

    fn context(&self, piece: &Piece) -> Option<(ObjectId, u64)> {
        let Place::Object(object) = piece.place else {
            return None;
        };
        let context = self.of_object.get(object.0).copied().flatten()?;
        Some((object, context))
    }
}

impl Mapping for ContextMapping {
    fn map(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError> {
        let Some((object, context)) = self.context(piece) else {
            return self.other.map(piece, workload);
        };
        let n_pieces = self.n_pieces.entry(object).or_insert(0);
        *n_pieces += 1;
        if *n_pieces == 1 {
            self.contexts.map(context);
        }
        Ok(())
    }

    fn unmap(&mut self, piece: &Piece, workload: &Workload) -> Result<(), MapError> {
        let Some((object, context)) = self.context(piece) else {
            return self.other.unmap(piece, workload);
        };
        let n_pieces = self.n_pieces.get_mut(&object);
        let Some(n_pieces) = n_pieces.filter(|n_pieces| **n_pieces > 0) else {
            return Ok(());
        };
        *n_pieces -= 1;
        if *n_pieces == 0 {
            self.contexts.unmap(context);
        }
        Ok(())
    }

    fn copy(
        &mut self,
        object: ObjectId,
        range: Range<u64>,
        workload: &Workload,
    ) -> Result<(), MapError> {
        self.other.copy(object, range, workload)
    }

    fn describe(&mut self, turn: &Turn, workload: &Workload) -> Result<(), MapError> {
        self.other.describe(turn, workload)
    }
}
