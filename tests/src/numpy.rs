//! The NumPy reference of `tests/reference`: makes models, computes logits, decodes.
//!
//! A [`Numpy`] collects commands and runs them in one interpreter, because starting one costs as much as many forwards.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use tempfile::TempDir;

use crate::files::repository;

/// A decoding by the reference.
#[derive(Clone, Debug, Deserialize)]
pub struct Decoded {
    /// Where the reference chose it; else empty.
    #[serde(default)]
    pub prompt: Vec<i32>,
    /// All generated positions, the mask token where none was committed.
    pub tokens: Vec<i32>,
    /// Number of forwards.
    pub forwards: u32,
    /// Rows of all forwards.
    pub rows: u64,
    /// Canvas positions that each forward committed; empty when not asked for.
    #[serde(default)]
    pub commits: Vec<Vec<u32>>,
    /// Least difference of logits between a committed token and the next best.
    pub token_gap: Option<f64>,
    /// Least difference between a position that was committed and one that was not.
    pub order_gap: Option<f64>,
}

/// A directory for results, and the interpreter.
#[derive(Debug)]
pub struct Numpy {
    dir: PathBuf,
    /// Removes the directory in the end.
    _owner: Option<TempDir>,
    python: PathBuf,
    pending: Vec<Vec<String>>,
    n_files: usize,
}

impl Default for Numpy {
    fn default() -> Self {
        Self::new()
    }
}

impl Numpy {
    /// Returns an empty list of commands; the directory of the results goes with it.
    ///
    /// # Panics
    /// When there is no Python environment.
    #[must_use]
    pub fn new() -> Self {
        let owner = TempDir::new().expect("a temporary directory");
        let numpy = Self::in_directory(owner.path());
        Self {
            _owner: Some(owner),
            ..numpy
        }
    }

    /// Returns an empty list of commands whose results go to a directory that stays: for values that are never dropped.
    ///
    /// # Panics
    /// When there is no Python environment, or the directory cannot be made.
    #[must_use]
    pub fn in_directory(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("the directory can be made");
        let script = repository().join("scripts/python-env.sh");
        let output = Command::new(&script)
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", script.display()));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", script.display());
        let python = String::from_utf8(output.stdout).expect("a path");
        Self {
            dir: dir.to_owned(),
            _owner: None,
            python: PathBuf::from(python.trim_end()),
            pending: Vec::new(),
            n_files: 0,
        }
    }

    /// Returns a path in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn fresh(&mut self, suffix: &str) -> PathBuf {
        self.n_files += 1;
        self.path(&format!("{}{suffix}", self.n_files))
    }

    /// Adds a command; `arguments` are split at white space. Returns where its result will be.
    fn add(
        &mut self,
        command: &str,
        arguments: &str,
        model: Option<&Path>,
        suffix: &str,
    ) -> PathBuf {
        let out = self.fresh(suffix);
        let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
        let mut words: Vec<String> = vec![command.to_owned(), "--out".to_owned(), text(&out)];
        if let Some(model) = model {
            words.extend(["--model".to_owned(), text(model)]);
        }
        words.extend(arguments.split_whitespace().map(str::to_owned));
        self.pending.push(words);
        out
    }

    /// Adds the making of a random model with the arguments of `reference.cli make`; returns its path.
    pub fn make(&mut self, arguments: &str) -> PathBuf {
        self.add("make", arguments, None, ".gguf")
    }

    /// Adds the making of a random model in parts of at most `max_tensors` tensors, by the tool `llama-gguf-split` at
    /// `splitter`; [`first_part`] finds them.
    ///
    /// # Panics
    /// When a path is not UTF-8.
    pub fn make_split(&mut self, arguments: &str, max_tensors: usize, splitter: &Path) -> PathBuf {
        let splitter = splitter.to_str().expect("a UTF-8 path");
        self.make(&format!(
            "{arguments} --split-max-tensors {max_tensors} --splitter {splitter}"
        ))
    }

    /// Adds the relabelling of a model as its autoregressive twin; returns the twin's path.
    pub fn twin(&mut self, model: &Path) -> PathBuf {
        self.add("twin", "", Some(model), ".gguf")
    }

    /// Adds the making of a random `LoRA` adapter for a model, with the arguments of `reference.cli adapter`; returns its path.
    pub fn adapter(&mut self, model: &Path, arguments: &str) -> PathBuf {
        self.add("adapter", arguments, Some(model), ".gguf")
    }

    /// Adds one forward over tokens, by the model with `LoRA` adapters at their scales; [`rows`] reads the logits.
    ///
    /// # Panics
    /// When a path is not UTF-8.
    pub fn logits(&mut self, model: &Path, tokens: &[i32], adapters: &[(&Path, f32)]) -> PathBuf {
        let tokens: Vec<String> = tokens.iter().map(i32::to_string).collect();
        let mut arguments = format!("--tokens {}", tokens.join(","));
        for (path, scale) in adapters {
            let path = path.to_str().expect("a UTF-8 path");
            write!(arguments, " --adapter {path} {scale}")
                .expect("writing to a string cannot fail");
        }
        self.add("logits", &arguments, Some(model), ".f32")
    }

    /// Adds a list of forwards (a request of `reference.cli forward`); [`rows`] reads the logits.
    ///
    /// # Panics
    /// When the request cannot be written.
    pub fn forward(&mut self, model: &Path, request: &serde_json::Value) -> PathBuf {
        let file = self.fresh(".json");
        std::fs::write(&file, request.to_string()).expect("the request can be written");
        let file = file.to_str().expect("a UTF-8 path").to_owned();
        self.add("forward", &format!("--request {file}"), Some(model), ".f32")
    }

    /// Adds the decoding of prompts that the reference draws, without near-ties; [`decoded`] reads the results.
    pub fn golden(&mut self, model: &Path, arguments: &str) -> PathBuf {
        self.add("golden", arguments, Some(model), ".jsonl")
    }

    /// Adds the decoding of prompts; [`decoded`] reads the results.
    ///
    /// # Panics
    /// When the prompts cannot be written.
    pub fn decode(&mut self, model: &Path, prompts: &[Vec<i32>], arguments: &str) -> PathBuf {
        let file = self.fresh(".jsonl");
        let lines: String = prompts
            .iter()
            .map(|prompt| serde_json::json!(prompt).to_string() + "\n")
            .collect();
        std::fs::write(&file, lines).expect("the prompts can be written");
        let file = file.to_str().expect("a UTF-8 path").to_owned();
        self.add(
            "decode",
            &format!("--prompts {file} {arguments}"),
            Some(model),
            ".jsonl",
        )
    }

    /// Runs all commands added since the last run, one after the other.
    ///
    /// # Panics
    /// When one fails.
    pub fn run(&mut self) {
        let file = self.fresh(".commands");
        let lines: String = self
            .pending
            .drain(..)
            .map(|words| serde_json::json!(words).to_string() + "\n")
            .collect();
        std::fs::write(&file, lines).expect("the commands can be written");
        let output = Command::new(&self.python)
            .args(["-m", "reference.cli", "batch", "--commands"])
            .arg(&file)
            .env("PYTHONPATH", repository().join("tests"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .expect("Python starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the reference failed:\n{stderr}");
    }
}

/// Makes one model with random weights at `out`, with the arguments of `reference.cli make`.
///
/// # Panics
/// When there is no Python environment, the arguments are wrong, or `out` cannot be written.
pub fn random_model(arguments: &str, out: &Path) {
    let mut numpy = Numpy::new();
    let made = numpy.make(arguments);
    numpy.run();
    std::fs::copy(made, out).expect("the model can be copied");
}

/// Returns the first part of a model made in parts.
///
/// # Panics
/// When there are not at least two.
#[must_use]
pub fn first_part(whole: &Path) -> PathBuf {
    let stem = whole.file_stem().expect("a name").to_string_lossy();
    let dir = whole.parent().expect("a directory");
    let n = (2..100).find_map(|n| {
        let part = dir.join(format!("{stem}-00001-of-{n:05}.gguf"));
        part.exists().then_some(part)
    });
    n.unwrap_or_else(|| panic!("no parts of {}", whole.display()))
}

/// Returns the results of `golden` or `decode`.
///
/// # Panics
/// When the file is not what the reference writes.
#[must_use]
pub fn decoded(path: &Path) -> Vec<Decoded> {
    let text = std::fs::read_to_string(path).expect("the reference has run");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a result of the reference"))
        .collect()
}

/// Returns logits as rows of `n_vocab`.
///
/// # Panics
/// When the file is not what the reference writes.
#[must_use]
pub fn rows(path: &Path, n_vocab: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).expect("the reference has run");
    assert_eq!(bytes.len() % (4 * n_vocab), 0, "whole rows");
    let (floats, _) = bytes.as_chunks::<4>();
    let floats: Vec<f32> = floats.iter().map(|&b| f32::from_le_bytes(b)).collect();
    floats.chunks(n_vocab).map(<[f32]>::to_vec).collect()
}
