//! Trace files: what generations committed, forward by forward, a JSON object a line.
//!
//! `{"commits": [[visible, stable], …], "revisions": n, "replaced": n, "remasked": n}`: a pair per dense forward.

use std::path::Path;

use ggml_llada_npu::simulate::trace::Commits;
use ggml_llada_npu::simulate::{Recording, Trace};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::input;
use crate::jsonl::{self, LineError};

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    commits: Vec<[u32; 2]>,
    revisions: u32,
    replaced: u32,
    remasked: u32,
}

/// Returns the line of a generation.
pub(crate) fn line(recording: &Recording) -> String {
    let pair = |commits: &Commits| [commits.n_visible, commits.n_stable];
    let line = Line {
        commits: recording.commits.iter().map(pair).collect(),
        revisions: recording.n_revisions,
        replaced: recording.n_replaced,
        remasked: recording.n_remasked,
    };
    serde_json::to_string(&line).expect("numbers always serialise") + "\n"
}

/// Reads a trace file.
///
/// # Errors
/// [`Error::File`], [`Error::TooLong`], [`Error::Line`] naming the line, [`Error::Trace`].
pub(crate) fn read(path: &Path) -> Result<Trace, Error> {
    let bytes = input::read(path, false)?;
    let lines = jsonl::parse::<Line>(&bytes).map_err(|problem| LineError::new(path, problem))?;
    let recording = |(_, line): (usize, Line)| Recording {
        commits: line
            .commits
            .into_iter()
            .map(|[n_visible, n_stable]| Commits {
                n_visible,
                n_stable,
            })
            .collect(),
        n_revisions: line.revisions,
        n_replaced: line.replaced,
        n_remasked: line.remasked,
    };
    let recordings: Vec<_> = lines.into_iter().map(recording).collect();
    Trace::recorded(&recordings).map_err(|source| Error::Trace {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let recording = Recording {
            commits: vec![
                Commits {
                    n_visible: 1,
                    n_stable: 2,
                },
                Commits {
                    n_visible: 0,
                    n_stable: 3,
                },
            ],
            n_revisions: 2,
            n_replaced: 1,
            n_remasked: 0,
        };
        let text = line(&recording);
        assert_eq!(
            text,
            "{\"commits\":[[1,2],[0,3]],\"revisions\":2,\"replaced\":1,\"remasked\":0}\n"
        );
        let lines = jsonl::parse::<Line>(text.as_bytes()).expect("its own line");
        assert_eq!(lines[0].1.commits, [[1, 2], [0, 3]]);
    }
}
