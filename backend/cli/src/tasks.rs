//! Task files: one JSON object `{"task": …, "prompt": …, "answer": …}` a line.

use std::path::Path;

use serde::Deserialize;

use crate::error::Error;
use crate::input;
use crate::jsonl::{self, LineError};

/// One prompt with its right answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    /// Name of the kind of task; accuracy is reported for each.
    pub(crate) task: String,
    /// What the user asks.
    pub(crate) prompt: String,
    /// The one right answer.
    pub(crate) answer: String,
}

/// Reads a task file, `limit` tasks at most. Every line is checked, those beyond the limit too; blank lines are skipped.
///
/// # Errors
/// [`Error`] naming the file and, where one is at fault, the line.
pub(crate) fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Task>, Error> {
    let bytes = input::read(path, false)?;
    let mut tasks = parse(&bytes).map_err(|problem| LineError::new(path, problem))?;
    if tasks.is_empty() {
        return Err(Error::Nothing {
            path: path.to_owned(),
            what: "no tasks in the file",
        });
    }
    tasks.truncate(limit.unwrap_or(usize::MAX));
    Ok(tasks)
}

/// Parses the lines; an error is the number of the line, from 1, and the reason.
fn parse(bytes: &[u8]) -> Result<Vec<Task>, (usize, String)> {
    let checked = |(line, task): (usize, Task)| {
        if task.answer.trim().is_empty() {
            Err((line, "the answer is empty".to_owned()))
        } else {
            Ok(task)
        }
    };
    jsonl::parse(bytes)?.into_iter().map(checked).collect()
}

#[cfg(test)]
mod tests {
    use super::{Task, parse};

    const GOOD: &str = r#"{"task": "add", "prompt": "Add: 1 + 1", "answer": "2"}"#;

    #[test]
    fn good_lines_are_read_in_order_and_blank_ones_skipped() {
        let second = GOOD.replace("add", "word");
        let tasks = parse(format!("{GOOD}\n\n  \r\n{second}\n").as_bytes()).expect("good lines");
        let names: Vec<_> = tasks.iter().map(|task| task.task.as_str()).collect();
        assert_eq!(names, ["add", "word"]);
        assert_eq!(
            tasks[0],
            Task {
                task: "add".into(),
                prompt: "Add: 1 + 1".into(),
                answer: "2".into()
            }
        );
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let cases: &[(&[u8], &str)] = &[
            (b"not json", "not a JSON object"),
            (b"[]", "not a JSON object"),
            (br#"["add", "x", "y"]"#, "not a JSON object"),
            (b"{not json", "key must be a string"),
            (
                br#"{"task": "add", "prompt": "x"}"#,
                "missing field `answer`",
            ),
            (
                br#"{"task": "add", "prompt": 5, "answer": "x"}"#,
                "invalid type",
            ),
            (
                br#"{"task": "a", "prompt": "x", "answer": "x", "more": 1}"#,
                "unknown field `more`",
            ),
            (
                br#"{"task": "add", "prompt": "x", "answer": " "}"#,
                "the answer is empty",
            ),
            (br#"{"task": "a"#, "EOF"),
            (
                b"{\"task\": \"\xff\", \"prompt\": \"x\", \"answer\": \"x\"}",
                "unicode",
            ),
        ];
        for (bad, expected) in cases {
            let file = [GOOD.as_bytes(), b"\n\n", bad, b"\n", GOOD.as_bytes()].concat();
            let (line, reason) = parse(&file).expect_err("a bad line");
            assert_eq!(line, 3, "{reason}");
            assert!(reason.contains(expected), "{reason:?} has no {expected:?}");
            assert!(!reason.contains("line"), "{reason:?}");
        }
    }
}
