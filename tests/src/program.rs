//! The command line `llada-npu` as a child process.

use std::ffi::OsStr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Returns the program that cargo built beside this test.
///
/// # Panics
/// When it was not built: `cargo build --release -p llada-npu`.
#[must_use]
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("tests run in target/<profile>/deps");
    let path = profile.join("llada-npu");
    assert!(
        path.is_file(),
        "{} is missing: cargo build --release -p llada-npu",
        path.display()
    );
    path
}

/// Returns the program as a user would start it: without the library paths that cargo sets, and ended by Ctrl-C also where the
/// tests run in the background of a shell, which ignores that.
pub fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program());
    command
        .args(args)
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("GGML_BACKEND_PATH")
        .stdin(Stdio::null());
    set_sigint(&mut command, libc::SIG_DFL);
    command
}

/// Has a program start with this action for SIGINT: the default one, or that it is ignored.
pub fn set_sigint(command: &mut Command, action: libc::sighandler_t) {
    let set = move || {
        // SAFETY: both actions are the system's own; the call is async-signal-safe.
        match unsafe { libc::signal(libc::SIGINT, action) } {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: between fork and exec `set` makes one async-signal-safe call, and neither allocates nor locks.
    unsafe { command.pre_exec(set) };
}

/// What a finished program left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    /// Asserts success and returns stdout.
    ///
    /// # Panics
    /// When the program failed.
    #[must_use]
    pub fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Asserts that the program failed with a code and nothing on stdout, and that stderr ends with its one line
    /// `error: …`, which holds every one of `parts`. Nothing but warnings may stand before it.
    ///
    /// # Panics
    /// When it did not.
    pub fn failure(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let mut lines: Vec<_> = self.stderr.lines().collect();
        let last = lines.pop().unwrap_or_default();
        assert!(last.starts_with("error: "), "{self:?}");
        assert!(
            lines.iter().all(|line| line.starts_with("warning: ")),
            "{self:?}"
        );
        for part in parts {
            assert!(last.contains(part), "no {part:?} in {self:?}");
        }
    }
}

impl Finished {
    /// As [`Finished::failure`] with code 1, for a program that prints what it found before it fails.
    ///
    /// # Panics
    /// When it did not.
    pub fn failure_after_output(mut self, parts: &[&str]) {
        assert!(!std::mem::take(&mut self.stdout).is_empty(), "{self:?}");
        self.failure(1, parts);
    }
}

/// Runs the program to its end.
///
/// # Panics
/// When it cannot be started.
pub fn run(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Finished {
    let output = command(args).output().expect("the program starts");
    output.into()
}
