//! Commit traces: how many positions each dense forward decides, published or recorded.

use super::shape::number;
use crate::decode::plan::ForwardKind;
use crate::decode::{Event, Report, Stage};

/// Commits of one dense forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commits {
    /// Positions committed that may still change.
    pub n_visible: u32,
    /// Positions committed for good.
    pub n_stable: u32,
}

/// What one generation decided, forward by forward: a line of a trace file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Dense forwards in order.
    pub commits: Vec<Commits>,
    /// Revisions made.
    pub n_revisions: u32,
    /// Revisions that replaced a token.
    pub n_replaced: u32,
    /// Revisions that masked a token again.
    pub n_remasked: u32,
}

/// Makes a [`Recording`] of the events of a generation.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: Recording,
    step: Commits,
}

impl Recorder {
    /// Takes an event.
    pub fn event(&mut self, event: &Event) {
        match *event {
            Event::Committed {
                stage: Stage::Visible,
                ..
            } => self.step.n_visible += 1,
            Event::Committed { .. } => self.step.n_stable += 1,
            Event::Step { kind, .. } => {
                let step = std::mem::take(&mut self.step);
                if kind != ForwardKind::Sweep {
                    self.recording.commits.push(step);
                }
            }
            Event::Replaced { .. } | Event::Remasked { .. } | Event::StablePrefix { .. } => {}
        }
    }

    /// Returns what was recorded; `report` is that of the generation.
    #[must_use]
    pub fn finish(self, report: &Report) -> Recording {
        Recording {
            n_revisions: report.revisions_made,
            n_replaced: report.revisions_replaced,
            n_remasked: report.revisions_remasked,
            ..self.recording
        }
    }
}

/// A trace that nothing can be driven by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// No forward commits anything.
    #[error("no commit in it")]
    Empty,
    /// More revisions changed something than were made.
    #[error("{n_changed} revisions changed a token and {n_revisions} were made")]
    Revisions {
        /// Those that replaced or masked.
        n_changed: u64,
        /// All of them.
        n_revisions: u64,
    },
}

/// How fast positions are decided.
///
/// A position is *sure* when its confidence reaches the threshold of stable tokens. Modes without revision commit what is
/// sure; with revision more is committed, and what is not sure may still change.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pace: Pace,
    /// Shares of the revisions that replace a token, and that mask it again.
    pub(super) replaced: f64,
    pub(super) remasked: f64,
}

#[derive(Clone, Debug, PartialEq)]
enum Pace {
    /// Commits and sure commits per dense forward.
    Rates { all: f64, sure: f64 },
    /// Sums of both before each forward and after the last; the trace starts again where it ends.
    Recorded(Vec<(u64, u64)>),
}

/// Tokens per step of LLaDA-8B-Instruct on GSM8K with blocks of 32, by threshold: Fast-dLLM, arXiv 2505.22618.
const PER_STEP_AT_0_9: f64 = 3.25;
/// The same at a threshold of 0.7.
const PER_STEP_AT_0_7: f64 = 5.12;

impl Trace {
    /// Returns the published pace: at a threshold of 0.9 a step decides 3.25 tokens, at 0.7 it decides 5.12. Revisions confirm
    /// every token, which nobody has published: what they find is known of recorded traces alone.
    #[must_use]
    pub fn published() -> Self {
        Self::at(PER_STEP_AT_0_7)
    }

    /// Returns a trace of `per_step` tokens per step with revision, and fewer without in the published proportion.
    #[must_use]
    pub fn at(per_step: f64) -> Self {
        let all = per_step.max(1.0);
        let sure = (all * PER_STEP_AT_0_9 / PER_STEP_AT_0_7).max(1.0);
        Self {
            pace: Pace::Rates { all, sure },
            replaced: 0.0,
            remasked: 0.0,
        }
    }

    /// Returns the trace of one token per step.
    pub(super) fn one_by_one() -> Self {
        Self {
            pace: Pace::Rates {
                all: 1.0,
                sure: 1.0,
            },
            replaced: 0.0,
            remasked: 0.0,
        }
    }

    /// Returns the trace of recorded generations, one after the other.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn recorded(recordings: &[Recording]) -> Result<Self, TraceError> {
        let mut sums = vec![(0, 0)];
        let (mut all, mut sure) = (0, 0);
        for commits in recordings.iter().flat_map(|recording| &recording.commits) {
            all += u64::from(commits.n_visible) + u64::from(commits.n_stable);
            sure += u64::from(commits.n_stable);
            sums.push((all, sure));
        }
        if all == 0 {
            return Err(TraceError::Empty);
        }
        let total =
            |of: fn(&Recording) -> u32| recordings.iter().map(|r| u64::from(of(r))).sum::<u64>();
        let (n_revisions, n_replaced) = (total(|r| r.n_revisions), total(|r| r.n_replaced));
        let n_remasked = total(|r| r.n_remasked);
        if n_replaced + n_remasked > n_revisions {
            return Err(TraceError::Revisions {
                n_changed: n_replaced + n_remasked,
                n_revisions,
            });
        }
        let share = |n: u64| number(n) / number(n_revisions.max(1));
        Ok(Self {
            pace: Pace::Recorded(sums),
            replaced: share(n_replaced),
            remasked: share(n_remasked),
        })
    }

    /// Returns how many positions the first `n_steps` dense forwards commit, and how many of them are sure.
    pub(super) fn after(&self, n_steps: u64) -> (u64, u64) {
        match &self.pace {
            Pace::Rates { all, sure } => {
                let n = number(n_steps);
                (floor(n * all), floor(n * sure))
            }
            Pace::Recorded(sums) => {
                let period = (sums.len() - 1) as u64;
                let (all, sure) = sums[sums.len() - 1];
                let index = usize::try_from(n_steps % period).unwrap_or(0);
                let rest = sums[index];
                (
                    n_steps / period * all + rest.0,
                    n_steps / period * sure + rest.1,
                )
            }
        }
    }

    /// Returns tokens per dense forward with revision, and without.
    #[must_use]
    pub fn per_step(&self) -> (f64, f64) {
        match &self.pace {
            Pace::Rates { all, sure } => (*all, *sure),
            Pace::Recorded(sums) => {
                let (all, sure) = sums[sums.len() - 1];
                let n = number((sums.len() - 1) as u64);
                (number(all) / n, number(sure) / n)
            }
        }
    }
}

/// Rounds down; a product that is whole but for its last bits counts as whole.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative and far below 2^53"
)]
pub(super) fn floor(n: f64) -> u64 {
    (n + 1e-9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_pace_is_kept_on_average() {
        let trace = Trace::published();
        assert_eq!([0, 1, 2, 3, 4].map(|n| trace.after(n).1), [0, 3, 6, 9, 13]);
        assert_eq!(trace.after(100), (512, 325));
        assert_eq!(trace.per_step(), (5.12, 3.25));
        assert_eq!(Trace::at(1.5).per_step(), (1.5, 1.0));
    }

    #[test]
    fn a_recording_starts_again_where_it_ends() {
        let commits = |n_visible, n_stable| Commits {
            n_visible,
            n_stable,
        };
        let recording = Recording {
            commits: vec![commits(1, 2), commits(0, 4)],
            n_revisions: 4,
            n_replaced: 1,
            n_remasked: 2,
        };
        let trace = Trace::recorded(&[recording]).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|n| trace.after(n)),
            [(0, 0), (3, 2), (7, 6), (10, 8)]
        );
        assert_eq!(
            (trace.per_step(), trace.replaced, trace.remasked),
            ((3.5, 3.0), 0.25, 0.5)
        );
    }

    #[test]
    fn a_trace_without_commits_or_with_impossible_revisions_is_refused() {
        assert_eq!(Trace::recorded(&[]), Err(TraceError::Empty));
        assert_eq!(
            Trace::recorded(&[Recording::default()]),
            Err(TraceError::Empty)
        );
        let recording = Recording {
            commits: vec![Commits {
                n_visible: 0,
                n_stable: 1,
            }],
            n_replaced: 1,
            ..Recording::default()
        };
        assert_eq!(
            Trace::recorded(&[recording]),
            Err(TraceError::Revisions {
                n_changed: 1,
                n_revisions: 0
            })
        );
    }

    #[test]
    fn events_become_a_recording() {
        let mut recorder = Recorder::default();
        let commit = |pos, stage| Event::Committed {
            pos,
            token: 7,
            stage,
        };
        let step = |kind| Event::Step {
            step: 0,
            kind,
            n_masked: 1,
        };
        for event in [
            commit(0, Stage::Visible),
            commit(1, Stage::Stable),
            commit(2, Stage::Stable),
            step(ForwardKind::Prefill),
            Event::Replaced { pos: 0, token: 8 },
            commit(3, Stage::Stable),
            step(ForwardKind::Step),
            step(ForwardKind::Sweep),
        ] {
            recorder.event(&event);
        }
        let report = Report {
            revisions_made: 3,
            revisions_replaced: 1,
            ..Report::default()
        };
        let recording = recorder.finish(&report);
        assert_eq!(
            recording.commits,
            [
                Commits {
                    n_visible: 1,
                    n_stable: 2
                },
                Commits {
                    n_visible: 0,
                    n_stable: 1
                }
            ]
        );
        assert_eq!(
            (
                recording.n_revisions,
                recording.n_replaced,
                recording.n_remasked
            ),
            (3, 1, 0)
        );
    }
}
