//! What a segment needs is mapped before it and unmapped after it.

use super::maps::Maps;
use super::{Answer, Question, previous};
use crate::memory::runtime::limits::Limits;

#[derive(Debug)]
pub(super) struct Naive(Maps);

impl Naive {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Maps::new(limits))
    }

    pub(super) fn turn(&mut self, question: &Question<'_>) -> Answer {
        let mut answer = Answer {
            after: previous(question.ticket),
            ..Answer::default()
        };
        let (workload, limits) = (question.workload, question.limits);
        self.0
            .map_or_compact(question.needs(), workload, limits, &mut answer.before);
        self.0.unmap_all(&mut answer.release);
        answer
    }
}
