//! Everything that is printed: the answer on stdout, all else on stderr.
//!
//! Failing writes to stderr are ignored: there is nobody left to tell.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::error::Error;

/// Writes to stdout and flushes.
///
/// # Errors
/// [`Error::StdoutClosed`] when the reader went away, [`Error::Stdout`] otherwise.
pub(crate) fn text(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe => Error::StdoutClosed,
            _ => Error::Stdout { source },
        })
}

/// Writes one line to stderr.
pub(crate) fn note(line: impl Display) {
    raw(&format!("{line}\n"));
}

/// Writes the one line that says why the program fails.
pub(crate) fn error(error: impl Display) {
    note(format_args!("error: {}", one_line(&error.to_string())));
}

/// Writes to stderr as it is.
pub(crate) fn raw(text: &str) {
    let mut stderr = io::stderr().lock();
    let _nobody_to_tell = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

/// Returns whether stdout is a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns whether stderr is a terminal that understands escape sequences.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// A file for results that is known to be writable before anything is computed.
///
/// Until it is written nothing of it changes: a file that is there keeps its content, one that is not does not appear.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    path: &'a Path,
    /// What was there before; `None` where there was nothing.
    existing: Option<File>,
}

impl<'a> NewFile<'a> {
    /// Makes sure that the file can be written.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn create(path: &'a Path) -> Result<Self, Error> {
        let unwritable = |source| Error::unwritable(path, source);
        let existing = match File::create_new(path) {
            Ok(_empty) => {
                fs::remove_file(path).map_err(unwritable)?;
                None
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Without `truncate`. `create` for a link to nothing.
                let mut options = File::options();
                options.write(true).create(true).truncate(false);
                Some(options.open(path).map_err(unwritable)?)
            }
            Err(error) => return Err(unwritable(error)),
        };
        Ok(Self { path, existing })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn write(self, content: &str) -> Result<(), Error> {
        self.open()
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .map_err(|source| Error::unwritable(self.path, source))
    }

    /// Returns the file, empty.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn open(&self) -> io::Result<File> {
        let Some(file) = &self.existing else {
            return File::create(self.path);
        };
        // Pipes and devices have no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        file.try_clone()
    }
}

/// Opens a file for results where one is asked for.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn new_file(path: Option<&Path>) -> Result<Option<NewFile<'_>>, Error> {
    path.map(NewFile::create).transpose()
}

/// Joins lines into one.
fn one_line(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

/// Sends the `log` facade to stderr: warnings, and all of it when `verbose`.
pub(crate) fn install_log(verbose: bool) {
    struct Stderr;

    impl log::Log for Stderr {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::max_level()
        }

        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                let level = match record.level() {
                    // The line "error: …" is the program's own, printed once, at its end.
                    log::Level::Error | log::Level::Warn => "warning",
                    log::Level::Info => "info",
                    log::Level::Debug | log::Level::Trace => "debug",
                };
                note(format_args!("{level}: {}", record.args()));
            }
        }

        fn flush(&self) {}
    }

    static STDERR: Stderr = Stderr;
    // A logger is there already when a test installed one; it stays.
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(if verbose {
            log::LevelFilter::Debug
        } else {
            log::LevelFilter::Warn
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_results_changes_when_it_is_written() {
        let dir = std::env::temp_dir().join(format!("llada-npu-output-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (new, old) = (dir.join("new"), dir.join("old"));
        fs::write(&old, "what was there before").unwrap();
        for path in [&new, &old] {
            drop(NewFile::create(path).unwrap());
        }
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&old).unwrap(), "what was there before");
        for path in [&new, &old] {
            NewFile::create(path).unwrap().write("results").unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "results");
        }
        assert!(NewFile::create(&dir.join("none").join("new")).is_err());
        assert!(NewFile::create(&dir).is_err());
        NewFile::create(Path::new("/dev/null"))
            .unwrap()
            .write("results")
            .unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
