//! The file of `--predictions`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use ggml_llada_npu::engine::RunReport;
use serde::Serialize;

use crate::error::Error;
use crate::files::NewFile;
use crate::tasks::Task;

/// One line.
#[derive(Debug, Serialize)]
struct Prediction<'a> {
    variant: &'a str,
    task: &'a str,
    prompt: &'a str,
    answer: &'a str,
    output: &'a str,
    right: bool,
    n_tokens: u32,
    n_forwards: u32,
    seconds: f64,
}

/// Writes answers in the order of the tasks, whatever order they come in.
#[derive(Debug)]
pub(crate) struct Predictions<'a> {
    path: &'a Path,
    file: NewFile<'a>,
    /// The file, once there is a line.
    lines: Option<File>,
    next: usize,
    /// Lines that wait for one before them.
    waiting: BTreeMap<usize, String>,
}

impl<'a> Predictions<'a> {
    /// Makes sure that the file can be written.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn create(path: &'a Path) -> Result<Self, Error> {
        Ok(Self {
            path,
            file: NewFile::create(path)?,
            lines: None,
            next: 0,
            waiting: BTreeMap::new(),
        })
    }

    /// Adds the answer whose place is `order`, counted from 0.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn add(
        &mut self,
        order: usize,
        variant: &str,
        task: &Task,
        output: &str,
        right: bool,
        report: &RunReport,
    ) -> Result<(), Error> {
        let prediction = Prediction {
            variant,
            task: &task.task,
            prompt: &task.prompt,
            answer: &task.answer,
            output,
            right,
            n_tokens: report.counts.n_generated,
            n_forwards: report.counts.n_forwards(),
            seconds: report.total.as_secs_f64(),
        };
        let line = serde_json::to_string(&prediction).expect("texts and numbers always serialise");
        self.waiting.insert(order, line);
        while let Some(line) = self.waiting.remove(&self.next) {
            self.write(&line)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Writes what still waits, after a run that ended early.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        for line in std::mem::take(&mut self.waiting).values() {
            self.write(line)?;
        }
        Ok(())
    }

    fn write(&mut self, line: &str) -> Result<(), Error> {
        let unwritable = |source| Error::unwritable(self.path, source);
        let file = match &mut self.lines {
            Some(file) => file,
            none => none.insert(self.file.open().map_err(unwritable)?),
        };
        writeln!(file, "{line}").map_err(unwritable)
    }
}
