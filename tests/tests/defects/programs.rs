//! The two programs under test, and what a run of them left.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use llada_npu_tests::host::{patched_tool, plugin};
use llada_npu_tests::program::{Finished, command};
use llada_npu_tests::terminal;
use serde_json::Value;
use tempfile::TempDir;

/// A program that generates with our decoding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The patched `llama-diffusion-cli --backend llada-npu`, with the plug-in that cargo built.
    Tool,
    /// `llada-npu run`.
    CommandLine,
}

/// Returns the programs there are; a missing tool is said, and in CI a failure.
pub(crate) fn programs(test: &str) -> Vec<Program> {
    let mut programs = vec![Program::CommandLine];
    if patched_tool(test).is_some() {
        programs.push(Program::Tool);
    }
    programs
}

impl Program {
    /// Returns the program with arguments that both take. One thread is enough for tiny models.
    pub(crate) fn command(self, args: &[&str]) -> Command {
        let mut command = match self {
            Self::CommandLine => command(["run"]),
            Self::Tool => {
                let mut command = Command::new(patched_tool("defects").expect("it was there"));
                command
                    .args(["--backend", "llada-npu"])
                    .env_remove("LD_LIBRARY_PATH")
                    .env("GGML_BACKEND_PATH", plugin())
                    .stdin(Stdio::null());
                command
            }
        };
        command.args(["-t", "1"]).args(args);
        command
    }

    /// Runs the program with exactly these arguments.
    pub(crate) fn run(self, args: &[&str]) -> Finished {
        let output = self.command(args).output();
        output.expect("the program starts").into()
    }

    /// Runs the program on a model with the prompt `x`, untouched by any template.
    pub(crate) fn answer(self, model: &Path, args: &[&str]) -> Finished {
        let model = path_text(model);
        let first = ["-m", model, "-p", "x", "--no-chat-template"];
        self.run(&[&first, args].concat())
    }

    /// Does the same, expects success, and reads the report.
    pub(crate) fn report(self, model: &Path, args: &[&str]) -> Run {
        let directory = TempDir::new().expect("a scratch directory");
        let file = directory.path().join("report.json");
        let finished = self.answer(
            model,
            &[args, &["--diffusion-json", path_text(&file)]].concat(),
        );
        assert_eq!(finished.code, Some(0), "{self:?} {args:?}: {finished:?}");
        let text = std::fs::read_to_string(&file).expect("a report was written");
        let report = serde_json::from_str(&text).expect("the report is JSON");
        Run {
            text: answer_of(&finished),
            report,
        }
    }
}

/// What a successful run left.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The answer, without the line break that ends it.
    pub(crate) text: String,
    /// `--diffusion-json`.
    pub(crate) report: Value,
}

impl Run {
    /// Returns a counter of the report.
    pub(crate) fn count(&self, key: &str) -> u64 {
        let value = &self.report[key];
        value
            .as_u64()
            .unwrap_or_else(|| panic!("{key} is {value} in {}", self.report))
    }
}

/// Returns the answer of a successful run.
pub(crate) fn answer_of(finished: &Finished) -> String {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let text = finished.stdout.strip_suffix('\n');
    text.unwrap_or_else(|| panic!("no line break ends the answer: {finished:?}"))
        .to_owned()
}

/// Asserts that a program refused: an exit code above 0 and no signal, nothing on stdout, and one line that begins with
/// `error: ` and holds all parts.
pub(crate) fn refused(what: &str, finished: &Finished, parts: &[&str]) {
    assert!(
        finished.code.is_some_and(|code| code > 0),
        "{what}: {finished:?}"
    );
    assert_eq!(finished.stdout, "", "{what}: {finished:?}");
    let errors: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let [error] = errors[..] else {
        panic!("{what}: {} error lines: {finished:?}", errors.len());
    };
    for part in parts {
        assert!(error.contains(part), "{what}: no {part:?} in {error:?}");
    }
    assert!(
        !finished.stderr.contains("GGML_ASSERT"),
        "{what}: {finished:?}"
    );
}

/// Paths of tests are UTF-8.
pub(crate) fn path_text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// Writes a file in a directory.
pub(crate) fn write(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).expect("a writable directory");
    path
}

/// What a program wrote whose standard error is a terminal, and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    /// Standard output, which was a pipe.
    pub(crate) stdout: Vec<u8>,
    /// What came to the terminal, byte for byte.
    pub(crate) screen: Vec<u8>,
}

/// Runs a program with a terminal for its standard error.
pub(crate) fn on_terminal(mut command: Command) -> Shown {
    let (ours, theirs) = terminal::open().expect("a pseudo-terminal");
    command
        .env("TERM", "xterm")
        .stdout(Stdio::piped())
        .stderr(theirs);
    let mut child = command.spawn().expect("the program starts");
    // The command holds their end too: without it, reading ends when the program does.
    drop(command);
    let screen = std::thread::spawn(move || read_all(ours));
    let mut pipe = child.stdout.take().expect("it was asked for");
    let mut stdout = Vec::new();
    pipe.read_to_end(&mut stdout).expect("a readable pipe");
    let status = child.wait().expect("the program can be awaited");
    Shown {
        code: status.code(),
        stdout,
        screen: screen.join().expect("the reader does not panic"),
    }
}

fn read_all(mut ours: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Linux reports the closed other end as EIO; what came before is kept.
    let _end = ours.read_to_end(&mut bytes);
    bytes
}
