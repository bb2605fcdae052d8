//! Flags of `run`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::GenerationArgs;
use super::value::whole;

/// Flags of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Prompt, also an empty one; `\n`, `\t`, `\\`, `\"`, `\'` and `\xHH` are replaced
    #[arg(
        short,
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "file"
    )]
    pub(crate) prompt: Option<String>,
    /// File with the prompt or prompts ("-": standard input)
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) file: Option<PathBuf>,
    /// What is in the file [default: jsonl for a name that ends so, else text]
    #[arg(
        long,
        value_name = "FORMAT",
        ignore_case = true,
        requires = "file",
        allow_hyphen_values = true
    )]
    pub(crate) file_format: Option<FileFormat>,
    /// Prompts answered together, as rows of one forward
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true,
        value_parser = whole::<usize>(1..=256)
    )]
    pub(crate) batch: usize,
    /// System prompt [-sys]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "system_prompt_file"
    )]
    pub(crate) system_prompt: Option<String>,
    /// File with the system prompt [-sysf]
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) system_prompt_file: Option<PathBuf>,
    /// Take backslashes in the prompts as they are
    #[arg(long)]
    pub(crate) no_escape: bool,
    #[command(flatten)]
    pub(crate) generation: GenerationArgs,
    /// Write the report of the generation to FILE; of several, a line each
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) diffusion_json: Option<PathBuf>,
    /// Write how many tokens each forward commits to FILE, a line per prompt, for `simulate --trace FILE`
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) trace: Option<PathBuf>,
    /// Show the canvas on stderr while it is decoded
    #[arg(long)]
    pub(crate) diffusion_visual: bool,
}

/// What is in a file of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// One prompt; a line break at its end is dropped
    Text,
    /// A prompt a line; blank lines are left out
    Lines,
    /// {"prompt": TEXT, "system": TEXT} a line, the latter if wanted; answers are {"prompt": TEXT, "answer": TEXT}
    Jsonl,
}

impl RunArgs {
    /// Returns what is in the file of prompts: as given, or as its name says.
    pub(crate) fn file_format(&self, path: &Path) -> FileFormat {
        let by_name = if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"))
        {
            FileFormat::Jsonl
        } else {
            FileFormat::Text
        };
        self.file_format.unwrap_or(by_name)
    }
}
