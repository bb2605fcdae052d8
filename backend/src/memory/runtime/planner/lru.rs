//! What was used longest ago makes room.

use super::maps::Maps;
use super::{Answer, Question, previous};
use crate::memory::runtime::limits::Limits;
use crate::memory::runtime::turn::Transfer;
use crate::memory::runtime::workload::Workload;

#[derive(Debug)]
pub(super) struct Lru {
    maps: Maps,
    /// The last turn that needed each object.
    used: Vec<u64>,
}

impl Lru {
    pub(super) fn new(workload: &Workload, limits: &Limits) -> Self {
        Self {
            maps: Maps::new(limits),
            used: vec![0; workload.objects().len()],
        }
    }

    pub(super) fn turn(&mut self, question: &Question<'_>) -> Answer {
        let (workload, limits) = (question.workload, question.limits);
        let mut answer = Answer {
            after: previous(question.ticket),
            ..Answer::default()
        };
        for &object in question.needs() {
            self.used[object.0] = question.ticket;
        }
        let mut needs = question.needs().iter();
        if needs.all(|object| self.maps.is_mapped(*object)) {
            return answer;
        }
        let missing = question
            .needs()
            .iter()
            .filter(|object| !self.maps.is_mapped(**object));
        let missing: u64 = missing
            .map(|object| limits.align(workload.object(*object).size_bytes))
            .sum();
        let mut oldest = self.maps.objects();
        oldest.retain(|object| self.used[object.0] != question.ticket);
        oldest.sort_by_key(|object| self.used[object.0]);
        for object in oldest {
            if self.maps.free_bytes() >= missing {
                break;
            }
            self.maps.unmap(object, &mut answer.before);
        }
        let compacted =
            self.maps
                .map_or_compact(question.needs(), workload, limits, &mut answer.before);
        answer.n_compactions = compacted.into();
        answer
    }

    pub(super) fn finish(&mut self) -> Vec<Transfer> {
        let mut out = Vec::new();
        self.maps.unmap_all(&mut out);
        out
    }
}
