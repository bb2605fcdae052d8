//! Command line of llada-npu: `run`, `eval`, `bench`, `simulate` and `doctor`.
//!
//! Thin: it parses, calls the library and prints. What goes where:
//!
//! | module | what |
//! |---|---|
//! | [`args`], [`argv`] | the command line, in llama.cpp's spelling |
//! | [`run`], [`eval`], [`mod@bench`], [`simulate`], [`doctor`] | one subcommand each |
//! | [`generation`] | the library's model and sessions, set up from flags |
//! | [`prompt`], [`vocab`], [`utf8`] | text to tokens and back |
//! | [`answer`], [`display`], [`report`], [`output`] | what is printed, and where |
//! | [`tasks`], [`trace_file`], [`jsonl`], [`statistics`] | task files, trace files and accuracies |
//! | [`host`], [`cpu`] | the ggml and the processor underneath |
//! | [`input`], [`files`] | what is read, within a limit; files for results |
//! | [`interrupt`], [`sigint`], [`error`] | Ctrl-C; failures and their exit codes |
//!
//! The answer alone goes to stdout, everything else to stderr; a failure is one line `error: …`.

mod answer;
mod args;
mod argv;
mod bench;
mod cpu;
mod display;
mod doctor;
mod error;
mod eval;
mod files;
mod generation;
mod host;
mod input;
mod interrupt;
mod jsonl;
mod output;
mod prompt;
mod report;
mod run;
mod sigint;
mod simulate;
mod statistics;
mod tasks;
mod trace_file;
mod utf8;
mod vocab;

use std::process::ExitCode;

use args::{Parsed, Subcommands};
use error::Error;

fn main() -> ExitCode {
    match dispatch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_quiet() {
                output::error(&error);
            }
            error.exit_code()
        }
    }
}

fn dispatch() -> Result<(), Error> {
    sigint::end_at_once().map_err(|source| Error::Interrupt { source })?;
    match args::parse(std::env::args_os())? {
        Parsed::Text(text) => output::text(&text),
        Parsed::Command(Subcommands::Run(args)) => run::run(&args),
        Parsed::Command(Subcommands::Eval(args)) => eval::run(&args),
        Parsed::Command(Subcommands::Bench(args)) => bench::run(&args),
        Parsed::Command(Subcommands::Simulate(args)) => simulate::run(&args),
        Parsed::Command(Subcommands::Doctor(args)) => doctor::run(&args),
    }
}
