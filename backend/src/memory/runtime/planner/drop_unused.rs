//! What llama.cpp's Hexagon backend does: segments go in batches, as many as fit the space together. Maps are kept from batch to
//! batch; when there is no room for the next one, all maps go that it does not need, and all maps where that does not help.

use std::collections::BTreeSet;

use super::maps::Maps;
use super::{Answer, Question, previous};
use crate::memory::runtime::limits::Limits;
use crate::memory::runtime::turn::Transfer;
use crate::memory::runtime::workload::ObjectId;

#[derive(Debug)]
pub(super) struct DropUnused {
    maps: Maps,
    /// Segments of the current batch that are still to come.
    n_left: usize,
}

impl DropUnused {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            maps: Maps::new(limits),
            n_left: 0,
        }
    }

    pub(super) fn turn(&mut self, question: &Question<'_>) -> Answer {
        let mut answer = Answer {
            after: previous(question.ticket),
            ..Answer::default()
        };
        if self.n_left == 0 {
            let (needs, n_segments) = batch(question);
            self.n_left = n_segments;
            self.start(&needs, question, &mut answer);
        }
        self.n_left -= 1;
        answer
    }

    /// Begins a new batch: none reaches beyond its step.
    pub(super) fn start_step(&mut self) {
        self.n_left = 0;
    }

    fn start(&mut self, needs: &[ObjectId], question: &Question<'_>, answer: &mut Answer) {
        let (workload, limits) = (question.workload, question.limits);
        let missing = needs.iter().filter(|object| !self.maps.is_mapped(**object));
        let missing: u64 = missing
            .map(|object| limits.align(workload.object(*object).size_bytes))
            .sum();
        if self.maps.free_bytes() < missing {
            for object in self.maps.objects() {
                if needs.binary_search(&object).is_err() {
                    self.maps.unmap(object, &mut answer.before);
                }
            }
        }
        let compacted = self
            .maps
            .map_or_compact(needs, workload, limits, &mut answer.before);
        answer.n_compactions = compacted.into();
    }

    pub(super) fn finish(&mut self) -> Vec<Transfer> {
        self.n_left = 0;
        let mut out = Vec::new();
        self.maps.unmap_all(&mut out);
        out
    }
}

/// Returns what the next batch needs, in ascending order, and how many segments it has: at least one.
fn batch(question: &Question<'_>) -> (Vec<ObjectId>, usize) {
    let (workload, limits) = (question.workload, question.limits);
    let mut needs: BTreeSet<_> = question.needs().iter().copied().collect();
    let size = |object: &ObjectId| limits.align(workload.object(*object).size_bytes);
    let mut size_bytes: u64 = needs.iter().map(size).sum();
    let mut n_segments = 1;
    for &segment in question.rest {
        let more = &workload.segment(segment).needs;
        let added: u64 = more
            .iter()
            .filter(|object| !needs.contains(object))
            .map(size)
            .sum();
        if size_bytes + added > limits.usable_bytes() {
            break;
        }
        size_bytes += added;
        needs.extend(more);
        n_segments += 1;
    }
    (needs.into_iter().collect(), n_segments)
}
