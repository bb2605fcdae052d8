//! Objects that are mapped, and where.

use std::collections::BTreeMap;

use crate::memory::runtime::limits::Limits;
use crate::memory::runtime::space::AddressSpace;
use crate::memory::runtime::turn::{Piece, Place, Transfer};
use crate::memory::runtime::workload::{ObjectId, Workload};

/// Returns the lengths of the maps of `size_bytes` bytes, with their offsets.
pub(super) fn pieces(size_bytes: u64, limits: &Limits) -> impl Iterator<Item = (u64, u64)> {
    let (all, one) = (limits.align(size_bytes), limits.map_bytes());
    (0..all.div_ceil(one)).map(move |i| (i * one, one.min(all - i * one)))
}

/// Maps `size_bytes` bytes of a place at `start` and what follows.
pub(super) fn map_at(
    place: Place,
    size_bytes: u64,
    start: u64,
    limits: &Limits,
) -> impl Iterator<Item = Piece> {
    pieces(size_bytes, limits).map(move |(offset_bytes, len)| Piece {
        place,
        offset_bytes,
        range: start + offset_bytes..start + offset_bytes + len,
    })
}

/// Books of mapped objects, for policies that place them as they come.
#[derive(Debug)]
pub(super) struct Maps {
    space: AddressSpace,
    mapped: BTreeMap<ObjectId, Vec<Piece>>,
}

impl Maps {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            space: AddressSpace::new(limits.usable_bytes()),
            mapped: BTreeMap::new(),
        }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    pub(super) fn is_mapped(&self, object: ObjectId) -> bool {
        self.mapped.contains_key(&object)
    }

    /// Returns the mapped objects, in ascending order.
    pub(super) fn objects(&self) -> Vec<ObjectId> {
        self.mapped.keys().copied().collect()
    }

    /// Maps an object; false, and nothing has changed, where free addresses do not suffice or do not lie together.
    pub(super) fn map(
        &mut self,
        object: ObjectId,
        workload: &Workload,
        limits: &Limits,
        out: &mut Vec<Transfer>,
    ) -> bool {
        let mut taken = Vec::new();
        for (offset_bytes, len) in pieces(workload.object(object).size_bytes, limits) {
            let Some(range) = self.space.take(len) else {
                for piece in taken {
                    let Piece { range, .. } = piece;
                    self.space.give_back(range);
                }
                return false;
            };
            let place = Place::Object(object);
            taken.push(Piece {
                place,
                offset_bytes,
                range,
            });
        }
        out.extend(taken.iter().cloned().map(Transfer::Map));
        self.mapped.insert(object, taken);
        true
    }

    /// Unmaps an object, if it is mapped.
    pub(super) fn unmap(&mut self, object: ObjectId, out: &mut Vec<Transfer>) {
        for piece in self.mapped.remove(&object).unwrap_or_default() {
            self.space.give_back(piece.range.clone());
            out.push(Transfer::Unmap(piece));
        }
    }

    /// Unmaps everything.
    pub(super) fn unmap_all(&mut self, out: &mut Vec<Transfer>) {
        for object in self.objects() {
            self.unmap(object, out);
        }
    }

    /// Maps what is missing of `needs`, which together fit the space. Where free addresses do not lie together, everything
    /// is unmapped and `needs` are mapped side by side, the largest first. Returns whether that was necessary.
    pub(super) fn map_or_compact(
        &mut self,
        needs: &[ObjectId],
        workload: &Workload,
        limits: &Limits,
        out: &mut Vec<Transfer>,
    ) -> bool {
        let (len_before, mut is_placed) = (out.len(), true);
        for &object in needs {
            if !self.is_mapped(object) && !self.map(object, workload, limits, out) {
                is_placed = false;
                break;
            }
        }
        if is_placed {
            return false;
        }
        // What was mapped in vain is not mapped at all.
        for transfer in out.split_off(len_before) {
            if let Transfer::Map(Piece {
                place: Place::Object(object),
                range,
                ..
            }) = transfer
            {
                self.mapped.remove(&object);
                self.space.give_back(range);
            }
        }
        self.unmap_all(out);
        let mut needs = needs.to_vec();
        needs.sort_by_key(|object| std::cmp::Reverse(workload.object(*object).size_bytes));
        for object in needs {
            let is_placed = self.map(object, workload, limits, out);
            debug_assert!(
                is_placed,
                "maps side by side fill an empty space without gaps"
            );
        }
        true
    }
}
