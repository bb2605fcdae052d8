//! Cutting a list of nodes into segments.

use std::ops::Range;

/// What a node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing: inputs, views, and nodes that are not to be computed.
    Nothing,
    /// A kernel of ours.
    Native,
    /// The host's CPU backend.
    Delegated {
        /// Estimated element operations.
        cost: u64,
    },
}

/// Nodes that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// One node, by a kernel of ours.
    Native(usize),
    /// A run of nodes without a native one among them; the first and the last are delegated.
    Delegated {
        /// The nodes, those that ask for nothing included.
        nodes: Range<usize>,
        /// Sum of the costs.
        cost: u64,
        /// Delegated nodes in the run.
        n_delegated: usize,
    },
}

impl Segment {
    /// Returns its nodes, those that ask for nothing included.
    #[must_use]
    pub fn nodes(&self) -> Range<usize> {
        match self {
            Self::Native(node) => *node..node + 1,
            Self::Delegated { nodes, .. } => nodes.clone(),
        }
    }
}

/// Cuts a graph into segments, in order, in place of what `segments` has. Nodes that ask for nothing are left out at the
/// ends of runs.
pub fn cut(work: &[Work], segments: &mut Vec<Segment>) {
    segments.clear();
    for (i, &work) in work.iter().enumerate() {
        match (work, segments.last_mut()) {
            (Work::Nothing, _) => {}
            (Work::Native, _) => segments.push(Segment::Native(i)),
            (
                Work::Delegated { cost: more },
                Some(Segment::Delegated {
                    nodes,
                    cost,
                    n_delegated,
                }),
            ) => {
                nodes.end = i + 1;
                *cost = cost.saturating_add(more);
                *n_delegated += 1;
            }
            (Work::Delegated { cost }, _) => segments.push(Segment::Delegated {
                nodes: i..i + 1,
                cost,
                n_delegated: 1,
            }),
        }
    }
}

/// Element operations that are worth waking another thread of the host for.
const COST_PER_THREAD: u64 = 1 << 20;

/// Returns how many of `n_threads` a run of that cost should use: small operations finish before a second thread has
/// woken.
#[must_use]
pub fn n_threads_for(cost: u64, n_threads: u32) -> u32 {
    let useful = u32::try_from(cost / COST_PER_THREAD).unwrap_or(u32::MAX);
    useful.clamp(1, n_threads.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Work = Work::Delegated { cost: 2 };

    fn segments(work: &[Work]) -> Vec<Segment> {
        let mut segments = vec![Segment::Native(99)];
        cut(work, &mut segments);
        segments
    }

    fn run(nodes: Range<usize>, cost: u64, n_delegated: usize) -> Segment {
        Segment::Delegated {
            nodes,
            cost,
            n_delegated,
        }
    }

    #[test]
    fn runs_are_as_long_as_native_nodes_allow() {
        use Work::{Native, Nothing};
        let cases: [(&[Work], Vec<Segment>); 6] = [
            (&[], vec![]),
            (&[Nothing, Nothing], vec![]),
            (
                &[Native, Native],
                vec![Segment::Native(0), Segment::Native(1)],
            ),
            (&[SMALL, SMALL, SMALL], vec![run(0..3, 6, 3)]),
            (
                &[Nothing, SMALL, Nothing, SMALL, Nothing, Native, Nothing],
                vec![run(1..4, 4, 2), Segment::Native(5)],
            ),
            (
                &[SMALL, Native, Nothing, SMALL],
                vec![run(0..1, 2, 1), Segment::Native(1), run(3..4, 2, 1)],
            ),
        ];
        for (work, expected) in cases {
            assert_eq!(segments(work), expected, "{work:?}");
        }
    }

    #[test]
    fn every_node_with_work_is_in_one_segment_in_order() {
        // All words of length 6 over the three kinds.
        for word in 0..3_usize.pow(6) {
            let kinds = [Work::Nothing, Work::Native, SMALL];
            let work: Vec<Work> = (0..6).map(|i| kinds[word / 3_usize.pow(i) % 3]).collect();
            let mut computed = Vec::new();
            for segment in segments(&work) {
                match segment {
                    Segment::Native(i) => computed.push(i),
                    Segment::Delegated { nodes, .. } => {
                        computed.extend(nodes.filter(|&i| work[i] != Work::Nothing));
                    }
                }
            }
            let expected: Vec<usize> = (0..6).filter(|&i| work[i] != Work::Nothing).collect();
            assert_eq!(computed, expected, "{work:?}");
        }
    }

    #[test]
    fn small_runs_use_one_thread() {
        assert_eq!(n_threads_for(0, 8), 1);
        assert_eq!(n_threads_for(COST_PER_THREAD * 3, 8), 3);
        assert_eq!(n_threads_for(u64::MAX, 8), 8);
        assert_eq!(n_threads_for(u64::MAX, 0), 1);
    }
}
