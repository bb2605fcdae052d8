//! Flags of `run`.

use std::path::PathBuf;

use clap::Args;

use super::GenerationArgs;

/// Flags of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Prompt; `\n`, `\t`, `\\`, `\"`, `\'` and `\xHH` are replaced
    #[arg(
        short,
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "file"
    )]
    pub(crate) prompt: Option<String>,
    /// File with the prompt ("-": standard input); a line break at its end is dropped
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) file: Option<PathBuf>,
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
    /// Write the report of the generation to FILE
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) diffusion_json: Option<PathBuf>,
    /// Show the canvas on stderr while it is decoded
    #[arg(long)]
    pub(crate) diffusion_visual: bool,
}
