//! Files of one JSON object a line.

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
        .map(|(line, bytes)| {
            object(bytes)
                .map(|value| (line, value))
                .map_err(|reason| (line, reason))
        })
        .collect()
}

fn object<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    // serde takes an array for a struct, too.
    match line.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(line).map_err(|error| without_place(&error)),
        _ => Err("not a JSON object".to_owned()),
    }
}

/// Returns serde's message without its "at line 1 column n": lines are counted here.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _place)) => reason.to_owned(),
        None => text,
    }
}
