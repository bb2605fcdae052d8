//! Files of one JSON value a line.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// A line that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: line {line}: {reason}", path.display())]
pub(crate) struct LineError {
    path: PathBuf,
    /// Line number, from 1.
    line: usize,
    reason: String,
}

impl LineError {
    /// Returns the error of a line of a file.
    pub(crate) fn new(path: &Path, (line, reason): (usize, String)) -> Self {
        Self {
            path: path.to_owned(),
            line,
            reason,
        }
    }
}

/// Parses the lines, blank ones left out, with their numbers; an error is the number of the line, from 1, and the reason.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<(usize, T)>, (usize, String)> {
    (1..)
        .zip(bytes.split(|&byte| byte == b'\n'))
        .filter(|(_, bytes)| !bytes.trim_ascii().is_empty())
        .map(|(line, bytes)| match serde_json::from_slice(bytes) {
            Ok(value) => Ok((line, value)),
            Err(error) => Err((line, without_place(&error))),
        })
        .collect()
}

/// Returns serde's message without its "at line 1 column n": lines are counted here.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _place)) => reason.to_owned(),
        None => text,
    }
}
