//! Generations with QNN: the library that fails on demand, and Qualcomm's emulation where its licence was accepted.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::files::trained;
use crate::host::plugin;
use crate::program::{Finished, command};

/// Seconds that a call of the emulation may take: beside other work it is slow.
const PATIENCE: &str = "600";

/// What the emulation writes to stdout by itself.
const NOISE: &str = " # LIBNATIVE";

/// A directory with `libQnnHtp.so`, and a cache of its own.
#[derive(Debug)]
pub struct Qnn {
    dir: PathBuf,
    /// Where context binaries go.
    pub cache: TempDir,
    copy: Option<TempDir>,
}

impl Qnn {
    /// Takes the library that fails on demand.
    ///
    /// # Panics
    /// When cargo did not build it beside this test.
    #[must_use]
    pub fn fault() -> Self {
        let copy = tempfile::tempdir().expect("a directory");
        let built = plugin().with_file_name("libllada_npu_qnn_fault.so");
        std::fs::copy(&built, copy.path().join("libQnnHtp.so"))
            .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        Self {
            dir: copy.path().to_owned(),
            cache: tempfile::tempdir().expect("a directory"),
            copy: Some(copy),
        }
    }

    /// Takes the library of `LLADA_NPU_QNN_DIR` that `scripts/test.sh qnn` names; `None`, said so, where its licence was
    /// not accepted.
    ///
    /// # Panics
    /// When it was accepted and the library is not there.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "a skipped test says so")]
    pub fn emulation(test: &str) -> Option<Self> {
        if std::env::var("LLADA_NPU_ACCEPT_QNN_LICENSE").as_deref() != Ok("1") {
            println!(
                "SKIPPED: {test}: needs Qualcomm's libraries; LLADA_NPU_ACCEPT_QNN_LICENSE=1 accepts their licence"
            );
            return None;
        }
        let dir = PathBuf::from(std::env::var_os("LLADA_NPU_QNN_DIR").unwrap_or_default());
        assert!(
            dir.join("libQnnHtp.so").is_file(),
            "LLADA_NPU_QNN_DIR names no directory with libQnnHtp.so; scripts/test.sh qnn sets it"
        );
        Some(Self {
            dir,
            cache: tempfile::tempdir().expect("a directory"),
            copy: None,
        })
    }

    /// Returns where the library is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sets the environment of a program so that it uses the library.
    pub fn set(&self, command: &mut Command) {
        command
            .env("LLADA_NPU_ACCEL", "qnn")
            .env("LLADA_NPU_QNN_DIR", &self.dir)
            .env("LLADA_NPU_CACHE", self.cache.path());
        if self.copy.is_none() {
            command.env("LLADA_NPU_QNN_TIMEOUT", PATIENCE);
        }
    }

    /// Starts the program with the library; everything that it logs goes to stderr.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        self.set(&mut command);
        command
    }

    /// Answers a prompt; `settings` are further variables.
    ///
    /// # Panics
    /// When the program does not start.
    #[must_use]
    pub fn answer(&self, weights: &str, prompt: &str, settings: &[(&str, &str)]) -> Answer {
        let model = trained(weights);
        let model = model.to_str().expect("a path in UTF-8");
        let mut command = self.command(&["run", "-m", model, "-n", "64", "-v", "-p", prompt]);
        command.envs(settings.iter().copied());
        Answer::of(&mut command)
    }

    /// Returns the files of context binaries.
    ///
    /// # Panics
    /// When there is no directory of them.
    #[must_use]
    pub fn contexts(&self) -> Vec<PathBuf> {
        let dir = self.cache.path().join("qnn-contexts");
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let mut files: Vec<_> = entries
            .map(|entry| entry.expect("a directory that stays").path())
            .collect();
        files.sort();
        files
    }
}

/// Answers a prompt with the CPU's kernels.
///
/// # Panics
/// When the program does not start.
#[must_use]
pub fn answer_of_host(weights: &str, prompt: &str) -> Answer {
    let model = trained(weights);
    let model = model.to_str().expect("a path in UTF-8");
    let args = ["run", "-m", model, "-n", "64", "-v", "-p", prompt];
    Answer::of(command(args).env("LLADA_NPU_ACCEL", "host"))
}

/// What a generation came to.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The program, whose stdout is the text alone.
    pub finished: Finished,
}

impl Answer {
    fn of(command: &mut Command) -> Self {
        let mut finished = Finished::from(command.output().expect("the program starts"));
        let lines = finished.stdout.split_inclusive('\n');
        finished.stdout = lines.filter(|line| !line.starts_with(NOISE)).collect();
        Self { finished }
    }

    /// Returns the text.
    ///
    /// # Panics
    /// When the program failed.
    #[must_use]
    pub fn text(&self) -> &str {
        assert_eq!(self.finished.code, Some(0), "{:?}", self.finished);
        &self.finished.stdout
    }

    /// Returns the warnings.
    #[must_use]
    pub fn warnings(&self) -> Vec<&str> {
        let lines = self.finished.stderr.lines();
        lines.filter(|line| line.starts_with("warning: ")).collect()
    }

    /// Returns a number of the report that the session logs at its end; `None` where there was no session.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        report_number(&self.finished.stderr, name)
    }
}

/// Returns a number of the report that a session wrote into a log at its end; `None` where there was no session.
#[must_use]
pub fn report_number(log: &str, name: &str) -> Option<f64> {
    let key = format!("{name}=");
    let report = log
        .lines()
        .rfind(|line| line.contains("QNN: graphs_built="))?;
    let word = report
        .split_whitespace()
        .find_map(|word| word.strip_prefix(&key))?;
    word.parse().ok()
}
