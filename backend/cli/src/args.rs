//! The command line: subcommands, flags, their help.
//!
//! The `--diffusion-<key>` flags of the decoding mode are made from its own table, so that the two cannot differ.

mod diffusion;
mod eval;
mod run;
mod simulate;
mod value;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use ggml_llada_npu::engine::cost_file;

use crate::argv;
use crate::error::Error;
use crate::files::Named;

pub(crate) use diffusion::DiffusionArgs;
pub(crate) use eval::EvalArgs;
pub(crate) use run::{FileFormat, RunArgs};
pub(crate) use simulate::{RevisionPath, SimulateArgs, Sweep};
use value::{MAX_COUNT, MAX_N_CTX, MAX_N_THREADS, number, whole};

/// Name of the one backend there is.
pub(crate) const BACKEND: &str = "llada-npu";

const EXAMPLES: &str = "\
Examples:
  llada-npu run -m model.gguf -p \"Sort: 41 17 93 25\"
  llada-npu run -m model.gguf -f prompt.txt -n 256 --diffusion-mode reference --diffusion-json report.json
  llada-npu run -m model.gguf -f prompts.jsonl --batch 4
  llada-npu run -m model.gguf -p \"Write a story\" --temp 0.7 --seed 1 --diffusion-visual
  llada-npu eval -m model.gguf --tasks tests/tasks/validation.jsonl --modes reference,cached
  llada-npu simulate --soc sm8750 --model llada-8b --prompt 64 --gen 128
  llada-npu doctor -m model.gguf

The answer alone goes to stdout. Exit codes: 0 success, 1 failure, 2 wrong command line, 130 stopped by Ctrl-C.";

/// Generates text with diffusion language models (LLaDA, Dream) from GGUF files.
#[derive(Debug, Parser)]
#[command(name = "llada-npu", version, after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = false)]
#[command(propagate_version = true)]
#[command(max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Subcommands,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Subcommands {
    /// Answer one prompt
    #[command(args_override_self = true)]
    Run(Box<RunArgs>),
    /// Answer the prompts of a task file and count what is right
    #[command(args_override_self = true)]
    Eval(Box<EvalArgs>),
    /// Measure this machine: kernels against ggml's CPU backend
    #[command(args_override_self = true)]
    Bench(BenchArgs),
    /// Predict what a generation would take on a phone with an NPU; nothing is measured
    #[command(args_override_self = true)]
    Simulate(Box<SimulateArgs>),
    /// Show which libraries, devices and kernels are found, and why one is not used
    #[command(args_override_self = true)]
    Doctor(DoctorArgs),
}

/// What there is to measure.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Benches {
    /// Products and attention, operation by operation
    Kernels,
}

/// Flags of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    pub(crate) what: Benches,
    /// Directory of a llama.cpp's libggml.so and libggml-cpu.so (shared, `GGML_BACKEND_DL`), to compare with
    #[arg(long, value_name = "DIR", allow_hyphen_values = true)]
    pub(crate) ggml: PathBuf,
    /// Threads of both sides [default: all cores]
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<usize>(1..=MAX_N_THREADS))]
    pub(crate) threads: Option<usize>,
    /// Products with these numbers of rows, and no attention
    #[arg(long, value_name = "N", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole::<usize>(1..=4096))]
    pub(crate) rows: Vec<usize>,
    /// Products with weights of these types: `q4_0`, `q8_0`, `q4_k`, `q6_k` [default: the first two]
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub(crate) types: Vec<String>,
    /// Products with these matrices only, such as 4096x12288: elements of a row, rows
    #[arg(long, value_name = "KxN", value_delimiter = ',')]
    pub(crate) matrices: Vec<String>,
    /// Write one JSON object to stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// One small shape, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// GGUF file to look at
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) model: Option<PathBuf>,
    /// Write one JSON object to stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the log
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Try QNN's library in this process, for `doctor` itself
    #[arg(long, hide = true)]
    pub(crate) qnn_probe: bool,
}

/// Highest temperature: drawn almost evenly.
const MAX_TEMP: f32 = 1e30;

/// Flags that `run` and `eval` share.
#[derive(Debug, Args)]
pub(crate) struct GenerationArgs {
    /// GGUF file; of a split file the first part
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) model: PathBuf,
    /// Tokens to generate [default: 128, or what the context leaves]
    #[arg(
        short = 'n',
        long = "predict",
        visible_alias = "n-predict",
        value_name = "N",
        allow_hyphen_values = true,
        value_parser = whole::<u32>(1..=MAX_COUNT)
    )]
    pub(crate) n_predict: Option<u32>,
    /// Largest canvas: tokens of prompt and answer; 0 = the model's context length
    #[arg(
        short = 'c',
        long,
        value_name = "N",
        default_value_t = 0,
        allow_hyphen_values = true,
        value_parser = whole::<u32>(0..=MAX_N_CTX)
    )]
    pub(crate) ctx_size: u32,
    /// Threads; 0 or less = number of physical cores
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        allow_hyphen_values = true,
        value_parser = whole::<i32>(i64::from(i32::MIN)..=MAX_N_THREADS)
    )]
    pub(crate) threads: i32,
    /// Temperature; 0 = the most probable token
    #[arg(
        long,
        visible_alias = "temperature",
        value_name = "F",
        default_value_t = 0.0,
        allow_hyphen_values = true,
        value_parser = number(0.0_f32..=MAX_TEMP, "")
    )]
    pub(crate) temp: f32,
    /// Draw from the N most probable tokens; 0 = all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_hyphen_values = true,
        value_parser = whole::<u32>(0..=MAX_COUNT)
    )]
    pub(crate) top_k: u32,
    /// Draw from the most probable tokens that make up F; 1 = all
    #[arg(
        long,
        value_name = "F",
        default_value_t = 1.0,
        allow_hyphen_values = true,
        value_parser = number(0.0_f32..=1.0, "")
    )]
    pub(crate) top_p: f32,
    /// Seed of all randomness; -1 = a new one every time
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = -1,
        allow_hyphen_values = true,
        value_parser = whole::<i64>(-1..=i64::from(u32::MAX))
    )]
    pub(crate) seed: i64,
    /// Type of the K store [-ctk]
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f16",
        ignore_case = true,
        allow_hyphen_values = true
    )]
    pub(crate) cache_type_k: CacheType,
    /// Type of the V store [-ctv]
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f16",
        ignore_case = true,
        allow_hyphen_values = true
    )]
    pub(crate) cache_type_v: CacheType,
    /// Use the prompt as it is, without the model's chat template
    #[arg(long)]
    pub(crate) no_chat_template: bool,
    /// Backend whose decoding mode is used
    #[arg(long, value_name = "NAME", default_value = BACKEND, allow_hyphen_values = true)]
    pub(crate) backend: String,
    /// Show the log
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) diffusion: DiffusionArgs,
}

impl GenerationArgs {
    /// Returns the files that are read.
    pub(crate) fn inputs(&self) -> [Named<'_>; 2] {
        let cost = self.diffusion.0.iter().find(|(key, _)| *key == "cost");
        [
            ("--model", Some(self.model.as_path())),
            (
                "--diffusion-cost",
                cost.and_then(|(_, value)| cost_file(value)),
            ),
        ]
    }
}

/// Type of a K/V store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
}

impl CacheType {
    /// Returns ggml's name of the type.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }
}

/// What a command line comes to.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// Do this.
    Command(Subcommands),
    /// Print this help or version text.
    Text(String),
}

/// Parses a command line; the first word is the program's name.
///
/// # Errors
/// [`Error::CommandLine`] or [`Error::UnknownFlag`], in one line that names the flag.
pub(crate) fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Parsed, Error> {
    let argv = argv::normalise(&Cli::command(), argv)?;
    match Cli::try_parse_from(&argv) {
        Ok(cli) => Ok(Parsed::Command(cli.command)),
        // clap names the subcommand, too.
        Err(error) if error.kind() == ErrorKind::DisplayVersion => Ok(Parsed::Text(format!(
            "{BACKEND} {}\n",
            env!("CARGO_PKG_VERSION")
        ))),
        Err(error) if !error.use_stderr() => Ok(Parsed::Text(error.to_string())),
        Err(error) => Err(Error::CommandLine {
            message: in_one_line(&error, &argv),
        }),
    }
}

/// Returns what is wrong, without the usage that clap adds.
fn in_one_line(error: &clap::Error, argv: &[OsString]) -> String {
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(at) = argv.iter().position(|word| word.to_str().is_none())
    {
        let flag = argv[..at].last().map(|word| word.to_string_lossy());
        let flag = flag.filter(|flag| flag.starts_with('-'));
        let flag = flag.map_or(String::new(), |flag| format!("{flag}: "));
        return format!("{flag}`{}` is not UTF-8", argv[at].to_string_lossy());
    }
    let message = value::refusal(error).unwrap_or_else(|| first_paragraph(&error.to_string()));
    message + &suggestion(error)
}

/// Returns clap's guess at what was meant.
fn suggestion(error: &clap::Error) -> String {
    let guesses = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    let guess = guesses.into_iter().find_map(|kind| error.get(kind));
    let guess = guess.and_then(|guess| match guess {
        ContextValue::String(guess) => Some(guess.clone()),
        ContextValue::Strings(guesses) => guesses.first().cloned(),
        _ => None,
    });
    guess.map_or(String::new(), |guess| format!("; did you mean `{guess}`?"))
}

/// Returns clap's message in one line, without the usage that follows it.
fn first_paragraph(message: &str) -> String {
    let lines = message.lines().take_while(|line| !line.trim().is_empty());
    let text: Vec<_> = lines.map(str::trim).collect();
    let text = text.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::{Cli, Parsed, RunArgs, Subcommands, parse};

    fn parsed(words: &[&str]) -> Result<Parsed, String> {
        parse(["llada-npu"].iter().chain(words).map(OsString::from))
            .map_err(|error| error.to_string())
    }

    fn run(words: &[&str]) -> RunArgs {
        let words: Vec<_> = ["run", "-m", "x.gguf"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        match parsed(&words) {
            Ok(Parsed::Command(Subcommands::Run(args))) => *args,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_last_of_a_repeated_flag_counts() {
        let args = run(&[
            "--temp",
            "1",
            "--diffusion-threshold",
            "0.1",
            "--temp",
            "0.5",
            "--diffusion-threshold",
            "0.2",
        ]);
        assert!((args.generation.temp - 0.5).abs() < 1e-6);
        assert_eq!(
            args.generation.diffusion.0,
            [("threshold", "0.2".to_owned())]
        );
    }

    #[test]
    fn values_that_look_like_flags_reach_the_check_of_the_value() {
        let args = run(&["-p", "-x", "--diffusion-threshold", "-1", "--seed", "-1"]);
        assert_eq!(args.prompt.as_deref(), Some("-x"));
        let error = args
            .generation
            .diffusion
            .params()
            .expect_err("a negative threshold");
        assert!(
            error
                .to_string()
                .starts_with("--diffusion-threshold: `-1` is not"),
            "{error}"
        );
    }

    #[test]
    fn a_switch_without_value_is_true() {
        let args = run(&["--diffusion-logits-eos-inf", "-p", "x"]);
        assert_eq!(
            args.generation.diffusion.0,
            [("logits-eos-inf", "true".to_owned())]
        );
        assert_eq!(args.prompt.as_deref(), Some("x"));
    }

    #[test]
    fn a_wrong_command_line_is_told_in_one_line() {
        let cases: &[(&[&str], &str)] = &[
            (&[], "subcommand"),
            (&["run"], "--model <FILE>"),
            (&["run", "-m", "x", "--nonsense"], "'--nonsense'"),
            (&["run", "-m", "x", "stray"], "'stray'"),
            (
                &["run", "-m", "x", "-n", "many"],
                "--predict: `many` is not a whole number from 1",
            ),
            (&["run", "-m", "x", "-n", "-1"], "--predict: `-1` is not"),
            (&["run", "-m", "x", "-n", "0"], "--predict: `0` is not"),
            (
                &["run", "-m", "x", "--temp", "1e39"],
                "--temp: `1e39` is not a number",
            ),
            (&["run", "-m", "x", "-t", "513"], "--threads: `513` is not"),
            (&["run", "-m", "x", "--batch", "0"], "--batch: `0` is not"),
            (
                &["eval", "-m", "x", "--tasks", "x", "--jobs", "0"],
                "--jobs: `0` is not",
            ),
            (
                &["bench", "kernels", "--ggml", "x", "--rows", "8,0"],
                "--rows: `0` is not",
            ),
            (
                &["simulate", "--map-cost", "1e300"],
                "--map-cost: `1e300` is not a number of seconds per GB from 0 to 100",
            ),
            (
                &["simulate", "--soc", "sm1"],
                "--soc: `sm1` is not sm8650, sm8750 or sm8850",
            ),
            (&["run", "-m", "x", "-ctk", "q8_0"], "'q8_0'"),
            (&["run", "-m", "x", "-p", "a", "-f", "b"], "'--file <FILE>'"),
            (&["run", "-m"], "--model <FILE>"),
            (&["walk"], "'walk'"),
            (&["evla"], "did you mean `eval`?"),
            (
                &["run", "-m", "x", "--promt", "x"],
                "did you mean `--prompt`?",
            ),
        ];
        for (words, expected) in cases {
            let message = parsed(words).expect_err("a wrong command line");
            assert!(message.contains(expected), "{words:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn text_that_is_not_utf_8_is_told_with_its_flag() {
        use std::os::unix::ffi::OsStringExt;

        let words = ["llada-npu", "run", "-m", "x", "-p"].map(OsString::from);
        let bad = OsString::from_vec(vec![b'a', 0xff]);
        let error = parse(words.into_iter().chain([bad])).expect_err("no text");
        assert_eq!(error.to_string(), "-p: `a\u{fffd}` is not UTF-8");
    }

    #[test]
    fn every_subcommand_has_help_and_version() {
        for name in ["run", "eval", "bench", "simulate", "doctor"] {
            let texts = [&[name, "--help"][..], &["help", name], &[name, "--version"]].map(parsed);
            let [
                Ok(Parsed::Text(help)),
                Ok(Parsed::Text(same)),
                Ok(Parsed::Text(version)),
            ] = texts
            else {
                panic!("{name}: {texts:?}");
            };
            assert!(help.contains("Usage: llada-npu"), "{help}");
            assert_eq!(help, same);
            assert_eq!(
                version,
                concat!("llada-npu ", env!("CARGO_PKG_VERSION"), "\n")
            );
        }
    }

    #[test]
    fn help_names_every_flag_of_the_decoding_mode() {
        let Ok(Parsed::Text(help)) = parsed(&["run", "--help"]) else {
            panic!("no help");
        };
        for option in ggml_llada_npu::decode::OPTIONS {
            assert!(
                help.contains(&format!("--diffusion-{} ", option.key))
                    || help.contains(&format!("--diffusion-{}\n", option.key)),
                "{} is missing:\n{help}",
                option.key
            );
        }
    }
}
