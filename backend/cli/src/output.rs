//! Everything that is printed: the answer on stdout, all else on stderr.
//!
//! Failing writes to stderr are ignored: there is nobody left to tell.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

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

/// Joins lines into one that does not steer the terminal, whatever names and values are quoted in it.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let shown = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    lines.join(" ").chars().map(shown).collect()
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
                note(format_args!(
                    "{level}: {}",
                    one_line(&record.args().to_string())
                ));
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
    use super::one_line;

    #[test]
    fn a_line_is_one_and_does_not_steer_the_terminal() {
        assert_eq!(one_line(" a\n\n  b\r\nc\x1b[31m\t"), "a b c\u{fffd}[31m");
    }
}
