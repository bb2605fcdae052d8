//! `doctor`: what this program is made of and what it finds.

mod model;
mod qnn;
mod settings;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use ggml_llada_npu::abi;
use ggml_llada_npu::device::host::{Family, Host};
use ggml_llada_npu::memory::{self, Keep};
use ggml_llada_npu::model::ModelFile;
use llada_npu_ffi::ggml::Api;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::cpu;
use crate::error::Error;
use crate::host;
use crate::output;

/// File name of the plug-in.
const PLUGIN: &str = "libggml-llada-npu.so";
/// Environment variable by which llama.cpp's tools find a plug-in.
const PLUGIN_PATH: &str = "GGML_BACKEND_PATH";

#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    settings: settings::Settings,
    ggml: Ggml,
    cpu: cpu::Cpu,
    backend: Backend,
    devices: Vec<host::Device>,
    kernels: Vec<Kernels>,
    /// Why the kernels are not those that were asked for.
    kernels_error: Option<String>,
    repack: RepackFindings,
    qnn: qnn::Qnn,
    plugin: Plugin,
    model: Option<model::Model>,
}

/// The ggml of this process.
#[derive(Debug, Serialize)]
struct Ggml {
    version: Option<String>,
    commit: String,
    api_version: Option<i32>,
    /// Why it cannot be used.
    error: Option<String>,
    /// Files it was loaded from.
    objects: Vec<String>,
}

/// The kernels of one operation.
#[derive(Debug, Serialize)]
struct Kernels {
    op: &'static str,
    /// Type of the weights, of products.
    weights: Option<&'static str>,
    used: &'static str,
    /// Kernels that could be used instead.
    others: Vec<&'static str>,
    /// Kernels that this CPU cannot run.
    unavailable: Vec<&'static str>,
}

/// Where repacked weights are kept.
#[derive(Debug, Serialize)]
struct RepackFindings {
    /// `off`, `memory` or `cache`.
    kept: &'static str,
    dir: Option<PathBuf>,
    n_files: usize,
    size_bytes: u64,
    max_bytes: u64,
    /// Why it is not as the settings have it, or cannot be read.
    error: Option<String>,
}

/// Our device in this process.
#[derive(Debug, Serialize)]
struct Backend {
    available: bool,
    reason: Option<String>,
}

/// The plug-in for llama.cpp's tools.
#[derive(Debug, Serialize)]
struct Plugin {
    path: Option<PathBuf>,
    /// Which of the two places it was found in.
    found_by: Option<&'static str>,
    loads: bool,
    reason: Option<String>,
}

/// Looks around and prints what is there.
///
/// # Errors
/// After the output: [`Error::Knob`], [`Error::Init`] or [`Error::Device`] when settings or the host keep the device from
/// working, [`Error::Model`] when the model cannot be used.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    if args.qnn_probe {
        qnn::child();
        return Ok(());
    }
    output::install_log(args.verbose);
    host::init();
    let opened = args
        .model
        .as_deref()
        .map(|path| (path, ModelFile::open(path)));
    let registered = abi::register();
    // With a setting that names no kernel, the list of those that there are is of use all the more.
    let (host, kernels_error) = match Host::new(1) {
        Ok(host) => (Some(host), None),
        Err(error) => (Host::with_kernels(1, &[]).ok(), Some(error)),
    };
    let families = host.iter().flat_map(Host::families);
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        settings: settings::look(),
        ggml: ggml(),
        cpu: cpu::Cpu::detect(),
        backend: Backend {
            available: registered.is_ok(),
            reason: registered.as_ref().err().map(ToString::to_string),
        },
        devices: host::devices(),
        kernels: families.map(kernels).collect(),
        kernels_error: kernels_error.as_ref().map(ToString::to_string),
        repack: repack(),
        qnn: qnn::look(),
        plugin: plugin(),
        model: opened
            .as_ref()
            .map(|(path, result)| model::of(path, result.as_ref())),
    };
    output::text(&if args.json {
        serde_json::to_string_pretty(&findings).expect("names and numbers always serialise") + "\n"
    } else {
        table(&findings)
    })?;
    if let Some(error) = findings.settings.error {
        return Err(error.into());
    }
    registered?;
    if let Some(error) = kernels_error {
        return Err(error.into());
    }
    match opened {
        Some((_, Err(error))) => Err(error.into()),
        _ => Ok(()),
    }
}

fn ggml() -> Ggml {
    let (api, error) = match Api::get() {
        Ok(api) => (Some(api), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ggml {
        version: api.map(|api| api.version().to_string_lossy().into_owned()),
        commit: host::ggml_commit(),
        api_version: api.map(Api::host_api_version),
        error,
        objects: loaded_objects(),
    }
}

/// Returns the files named `libggml*` and `libllama*` that are mapped into this process; none where there is no /proc.
fn loaded_objects() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths: BTreeSet<_> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.starts_with("libggml") || name.starts_with("libllama")
        })
        .map(str::to_owned)
        .collect();
    paths.into_iter().collect()
}

/// Looks at the settings and at the directory of the cache.
fn repack() -> RepackFindings {
    let mut findings = RepackFindings {
        kept: "off",
        dir: None,
        n_files: 0,
        size_bytes: 0,
        max_bytes: 0,
        error: None,
    };
    match memory::keep() {
        Ok(Keep::Nothing) => {}
        Ok(Keep::Memory) => findings.kept = "memory",
        Ok(Keep::Cache(cache)) => {
            findings.kept = "cache";
            findings.dir = Some(cache.dir().to_owned());
            findings.max_bytes = cache.max_bytes();
            match cache.contents() {
                Ok(contents) => {
                    findings.n_files = contents.n_files;
                    findings.size_bytes = contents.size_bytes;
                }
                Err(error) => findings.error = Some(error.to_string()),
            }
        }
        Err(error) => findings.error = Some(error.to_string()),
    }
    findings
}

fn kernels(family: Family) -> Kernels {
    let Family {
        op,
        weights,
        used,
        others,
        unavailable,
    } = family;
    Kernels {
        op,
        weights,
        used,
        others,
        unavailable,
    }
}

/// Finds the plug-in as llama.cpp's tools do and tries to load it.
fn plugin() -> Plugin {
    let by_environment =
        std::env::var_os(PLUGIN_PATH).map(|path| (PathBuf::from(path), PLUGIN_PATH));
    let beside = || {
        let path = std::env::current_exe().ok()?.with_file_name(PLUGIN);
        path.exists().then_some((path, "beside the executable"))
    };
    match by_environment.or_else(beside) {
        None => Plugin {
            path: None,
            found_by: None,
            loads: false,
            reason: Some(format!(
                "no {PLUGIN} beside the executable, {PLUGIN_PATH} is not set"
            )),
        },
        Some((path, found_by)) => {
            let result = host::load_plugin(&path);
            Plugin {
                path: Some(path),
                found_by: Some(found_by),
                loads: result.is_ok(),
                reason: result.err().map(|error| error.to_string()),
            }
        }
    }
}

fn table(findings: &Findings) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<12} {value}").expect("writing to a string cannot fail");
    };
    let Ggml {
        version,
        commit,
        api_version,
        error,
        objects,
    } = &findings.ggml;
    line("llada-npu", findings.version.to_owned());
    settings::lines(&findings.settings, &mut line);
    line(
        "ggml",
        match (version, api_version, error) {
            (Some(version), Some(api), _) => {
                format!("{version} (commit {commit}), backend API version {api}")
            }
            (_, _, error) => error.clone().unwrap_or_default(),
        },
    );
    for object in objects {
        line("", object.clone());
    }
    let cpu = &findings.cpu;
    line(
        "cpu",
        format!(
            "{}, {} threads: {}",
            cpu.architecture,
            cpu.n_threads,
            cpu.features.join(" ")
        ),
    );
    for device in &findings.devices {
        let host::Device {
            name,
            description,
            backend,
            kind,
        } = device;
        line(
            "device",
            format!("{name}: {description} ({kind}, backend {backend})"),
        );
    }
    if let Some(reason) = &findings.backend.reason {
        line("backend", format!("llada-npu is not available: {reason}"));
    }
    if let Some(reason) = &findings.kernels_error {
        line("kernel", reason.clone());
    }
    for kernels in &findings.kernels {
        let weights = kernels
            .weights
            .map_or(String::new(), |ty| format!(", {ty} weights"));
        let mut value = format!("{}{weights}: {}", kernels.op, kernels.used);
        if !kernels.others.is_empty() {
            value += &format!(", or {}", kernels.others.join(", "));
        }
        if !kernels.unavailable.is_empty() {
            value += &format!(" (this CPU cannot run {})", kernels.unavailable.join(", "));
        }
        line("kernel", value);
    }
    line("repack", repack_line(&findings.repack));
    qnn::lines(&findings.qnn, &mut line);
    let plugin = &findings.plugin;
    let place = match (&plugin.path, plugin.found_by) {
        (Some(path), Some(found_by)) => format!("{} ({found_by}): ", path.display()),
        _ => String::new(),
    };
    line(
        "plug-in",
        format!(
            "{place}{}",
            plugin.reason.as_deref().unwrap_or("loads here")
        ),
    );
    if let Some(model) = &findings.model {
        model::lines(model, &findings.qnn, line);
    }
    text
}

fn repack_line(repack: &RepackFindings) -> String {
    let mut text = match (&repack.dir, repack.kept) {
        (Some(dir), _) => format!(
            "in {}: {} weights, {} of at most {} bytes",
            dir.display(),
            repack.n_files,
            repack.size_bytes,
            repack.max_bytes
        ),
        (None, "memory") => "in memory".to_owned(),
        (None, _) => "off".to_owned(),
    };
    if let Some(error) = &repack.error {
        text += &format!(" ({error})");
    }
    text
}
