//! What `doctor` says about QNN. The library is tried in a process of its own: one that crashes or hangs becomes a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use ggml_llada_npu::device::qnn::{Finding, FindingKind, Settings, Weight, probe};
use ggml_llada_npu::knobs::{Accel, HostWeights, Tier};
use ggml_llada_npu::memory;
use ggml_llada_npu::model::ModelFile;
use serde::{Deserialize, Serialize};

/// What lines of the other process start with; the library writes lines of its own.
const MARK: &str = "llada-npu-qnn: ";

/// What the process that looks may take in addition to a call of the library.
const SLACK: Duration = Duration::from_secs(30);

/// What is known about QNN.
#[derive(Debug, Serialize)]
pub(super) struct Qnn {
    /// `auto`, `qnn` or `host`.
    accel: &'static str,
    /// Whether products with weights run there.
    used: bool,
    /// Why, or why not.
    reason: String,
    findings: Vec<Found>,
    contexts: Option<Contexts>,
    /// `keep` or `drop`.
    host_weights: &'static str,
}

/// What something that was tried says about the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    /// Nothing works without it.
    Needed,
    /// Products in the form that the settings choose.
    Chosen,
    /// Nothing.
    Other,
}

/// One thing that was tried.
#[derive(Debug, Deserialize, Serialize)]
struct Found {
    part: Part,
    what: String,
    works: bool,
    detail: String,
}

/// Context binaries on disk.
#[derive(Debug, Serialize)]
struct Contexts {
    dir: PathBuf,
    n_files: usize,
    size_bytes: u64,
}

/// Copies of a model's weights in memory when QNN is used.
#[derive(Debug, Serialize)]
pub(super) struct Copies {
    /// Bytes of the weights that products read, as the CPU has them.
    host_bytes: u64,
    /// Bytes of QNN's copy for each row count in use, about: integers, scales and offsets.
    qnn_bytes: u64,
}

/// Looks for QNN.
pub(super) fn look() -> Qnn {
    let settings = match Settings::read() {
        Ok(settings) => settings,
        Err(error) => {
            return Qnn {
                accel: "host",
                used: false,
                reason: error.to_string(),
                findings: Vec::new(),
                contexts: None,
                host_weights: "keep",
            };
        }
    };
    let findings = try_library(settings.timeout + SLACK);
    let broken = findings
        .iter()
        .find(|found| !found.works && found.part == Part::Needed);
    let computes = findings
        .iter()
        .any(|found| found.works && found.part == Part::Chosen);
    let emulated = cfg!(target_arch = "x86_64");
    let (used, reason) = match (settings.accel, broken) {
        (Accel::Host, _) => (false, "LLADA_NPU_ACCEL=host".to_owned()),
        (_, Some(found)) => (false, format!("{}: {}", found.what, found.detail)),
        (Accel::Auto, None) if emulated => (
            false,
            "LLADA_NPU_ACCEL=auto does not take an emulation, LLADA_NPU_ACCEL=qnn does".to_owned(),
        ),
        _ if !computes => (
            false,
            "no graph of the chosen form of weights computes what it should".to_owned(),
        ),
        _ => (true, "products with weights run there".to_owned()),
    };
    Qnn {
        accel: match settings.accel {
            Accel::Auto => "auto",
            Accel::Qnn => "qnn",
            Accel::Host => "host",
        },
        used,
        reason,
        findings,
        contexts: contexts(),
        host_weights: match settings.host_weights {
            HostWeights::Keep => "keep",
            HostWeights::Drop => "drop",
        },
    }
}

impl Part {
    fn of(kind: FindingKind, settings: &Settings) -> Self {
        match kind {
            FindingKind::Needed => Self::Needed,
            FindingKind::Product(tier, linear)
                if (tier, linear) == (settings.tier, settings.linear) =>
            {
                Self::Chosen
            }
            _ => Self::Other,
        }
    }
}

fn contexts() -> Option<Contexts> {
    let dir = memory::context_dir().ok().flatten()?;
    let contents = dir.contents().ok()?;
    Some(Contexts {
        dir: dir.path().to_owned(),
        n_files: contents.n_files,
        size_bytes: contents.size_bytes,
    })
}

/// Counts the bytes of weights that products read.
pub(super) fn copies(model: &ModelFile) -> Copies {
    let tier = Settings::read().map_or(Tier::default(), |settings| settings.tier);
    let mut copies = Copies {
        host_bytes: 0,
        qnn_bytes: 0,
    };
    for weight in model.weights().all() {
        let [k, n, n2, n3] = weight.shape().ne();
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        if let Some(bytes) = Weight::context_bytes(weight.ty().id(), tier, size(k), size(n))
            && (n2, n3) == (1, 1)
        {
            copies.host_bytes += weight.data().range().len() as u64;
            copies.qnn_bytes += bytes as u64;
        }
    }
    copies
}

/// Tries the library in a process of its own, which may not be silent for longer than `limit`.
fn try_library(limit: Duration) -> Vec<Found> {
    let ended = |detail: String| Found {
        part: Part::Needed,
        what: "process".to_owned(),
        works: false,
        detail,
    };
    let mut child = match start() {
        Ok(child) => child,
        Err(error) => return vec![ended(error.to_string())],
    };
    let (lines, received) = mpsc::channel();
    let Some(stdout) = child.stdout.take() else {
        return vec![ended("its output cannot be read".to_owned())];
    };
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let mut findings: Vec<Found> = Vec::new();
    let is_silent = loop {
        match received.recv_timeout(limit) {
            Ok(line) => {
                let found = line.strip_prefix(MARK).map(serde_json::from_str);
                findings.extend(found.and_then(Result::ok));
            }
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if is_silent {
        let _gone = child.kill();
    }
    let status = child.wait();
    drop(reader);
    let last = findings
        .last()
        .map_or("nothing", |found| found.what.as_str());
    match status {
        _ if is_silent => findings.push(ended(format!(
            "the library did not return within {} s, the last thing that it did was: {last}",
            limit.as_secs()
        ))),
        Ok(status) if status.success() => {}
        Ok(status) => {
            let how = how_it_ended(status);
            findings.push(ended(format!(
                "the library {how}, the last thing that it did was: {last}"
            )));
        }
        Err(error) => findings.push(ended(error.to_string())),
    }
    findings
}

fn start() -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["doctor", "--qnn-probe"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

fn how_it_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(libc::SIGSEGV), _) => "crashed (SIGSEGV)".to_owned(),
        (Some(libc::SIGABRT), _) => "aborted (SIGABRT)".to_owned(),
        (Some(signal), _) => format!("ended the process with signal {signal}"),
        (None, code) => format!("ended the process with code {}", code.unwrap_or(-1)),
    }
}

/// What that process does: one line per finding.
pub(super) fn child() {
    // Who started us has read the settings.
    let Ok(settings) = Settings::read() else {
        return;
    };
    let mut stdout = std::io::stdout();
    probe(&settings, &mut |finding| {
        let Finding {
            kind,
            what,
            works,
            detail,
        } = finding;
        let found = Found {
            part: Part::of(kind, &settings),
            what,
            works,
            detail,
        };
        let line = serde_json::to_string(&found).expect("texts always serialise");
        // Whoever started us reads, or is gone.
        let _gone = writeln!(stdout, "\n{MARK}{line}").and_then(|()| stdout.flush());
    });
}

/// Lines of the table.
pub(super) fn lines(qnn: &Qnn, mut line: impl FnMut(&str, String)) {
    let used = if qnn.used { "used" } else { "not used" };
    line("qnn", format!("{used}: {}", qnn.reason));
    for Found {
        what,
        works,
        detail,
        ..
    } in &qnn.findings
    {
        let works = if *works { "yes" } else { "no" };
        line("", format!("{what}: {works}, {detail}"));
    }
    if let Some(contexts) = &qnn.contexts {
        line(
            "",
            format!(
                "context binaries in {}: {}, {} bytes",
                contexts.dir.display(),
                contexts.n_files,
                contexts.size_bytes
            ),
        );
    }
}

/// The line of the table about a model's weights.
pub(super) fn copies_line(copies: &Copies, qnn: &Qnn) -> String {
    format!(
        "weights of products: {} bytes for the CPU ({}), about {} bytes for QNN per row count",
        copies.host_bytes,
        match qnn.host_weights {
            "drop" => "given back to the file where QNN holds them",
            _ => "kept",
        },
        copies.qnn_bytes
    )
}
