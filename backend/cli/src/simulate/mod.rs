//! `simulate`: what a generation would take on a phone with an NPU. Everything it prints is predicted, nothing measured.
//!
//! | module | what |
//! |---|---|
//! | [`table`], [`json`] | the ablation |
//! | [`sweep`], [`heat`] | sweeps: tables, CSV, the picture |
//! | [`timeline`] | who is busy when |
//! | [`summary`] | all processors, as the README has it |

mod heat;
mod json;
mod summary;
mod sweep;
mod table;
mod timeline;

use std::path::Path;

use ggml_llada_npu::model::ModelFile;
use ggml_llada_npu::model::gguf::GgmlType;
use ggml_llada_npu::simulate::sweep::LENGTHS;
use ggml_llada_npu::simulate::{ModelShape, Outcome, Row, Setting, ShapeError, SimulateError};

use crate::args::{RevisionPath, SimulateArgs, Sweep};
use crate::error::Error;
use crate::{files, output, trace_file};

/// The ablation and what stands beside it.
#[derive(Debug)]
struct Report<'a> {
    setting: &'a Setting,
    rows: Vec<Row>,
    /// Llama-8B on the same NPU; absent where the model is no published one.
    autoregressive: Option<Outcome>,
    /// Everything, with the revision where it is not.
    other_path: Option<Outcome>,
}

/// Simulates and prints.
///
/// # Errors
/// [`Error`].
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Error> {
    check_flags(args)?;
    let (setting, quant) = setting(args)?;
    if args.summary {
        return output::text(&summary::text(&setting, quant)?);
    }
    if let Some(what) = args.sweep {
        return sweep::run(args, what, &setting, quant);
    }
    let file = args
        .timeline
        .as_deref()
        .map(timeline::File::create)
        .transpose()?;
    let report = report(&setting, quant)?;
    if let (Some(file), Some(row)) = (file, report.rows.last()) {
        file.write(&setting, row)?;
    }
    output::text(&if args.json {
        json::text(&report)
    } else {
        table::text(&report)
    })
}

fn report(setting: &Setting, quant: Option<GgmlType>) -> Result<Report<'_>, SimulateError> {
    let rows = setting.ablation()?;
    let is_diffusion = !setting.shape.is_autoregressive;
    let autoregressive = match quant {
        Some(quant) if is_diffusion => Some(setting.autoregressive(quant)?),
        _ => None,
    };
    let other_path = match rows.last() {
        Some(row) if is_diffusion => {
            let revision_rides = !setting.revision_rides;
            let other = Setting {
                revision_rides,
                ..setting.clone()
            };
            Some(other.row(row.stage)?.outcome)
        }
        _ => None,
    };
    Ok(Report {
        setting,
        rows,
        autoregressive,
        other_path,
    })
}

/// Makes sure that every flag means something, and that results are written over nothing else.
fn check_flags(args: &SimulateArgs) -> Result<(), Error> {
    let changed = [
        ("--gen", args.n_gen.is_some()),
        ("--policy", args.policy.is_some()),
        ("--trace", args.trace.is_some()),
        ("--budget", args.budget.is_some()),
        ("--map-cost", args.map_cost.is_some()),
        ("--copy-rate", args.copy_rate.is_some()),
    ];
    let (with, swept): (_, &[&str]) = match args.sweep {
        None => ("", &[]),
        Some(Sweep::Length) => ("--sweep length", &["--gen"]),
        Some(Sweep::Policy) => ("--sweep policy", &["--policy"]),
        Some(Sweep::Pipeline) => (
            "--sweep pipeline",
            &["--policy", "--map-cost", "--copy-rate"],
        ),
        Some(Sweep::Sensitivity) => (
            "--sweep sensitivity",
            &["--trace", "--budget", "--map-cost"],
        ),
    };
    for (flag, is_given) in changed {
        if is_given && swept.contains(&flag) {
            return Err(Error::NoMeaning { flag, with });
        }
    }
    let outputs = [
        ("--timeline", args.timeline.as_deref()),
        ("--csv", args.csv.as_deref()),
        ("--plot", args.plot.as_deref()),
    ];
    let inputs = [("--model", model_file(args)), ("--trace", trace_file(args))];
    files::check_distinct(&outputs, &inputs)
}

/// Returns the model where it is a file.
fn model_file(args: &SimulateArgs) -> Option<&Path> {
    let model = args.model.as_path();
    let is_name = |name| {
        !matches!(
            ModelShape::named(name, GgmlType::F16),
            Err(ShapeError::Name)
        )
    };
    (!model.to_str().is_some_and(is_name)).then_some(model)
}

/// Returns the file with the pace of decisions, where it is not the published one.
fn trace_file(args: &SimulateArgs) -> Option<&Path> {
    let trace = args.trace.as_deref();
    trace.filter(|path| *path != Path::new("published"))
}

/// Returns the setting, and the type of the weights where the model has no file.
fn setting(args: &SimulateArgs) -> Result<(Setting, Option<GgmlType>), Error> {
    let (shape, quant) = shape(&args.model, args.quant.as_deref())?;
    if shape.is_autoregressive && args.summary {
        return Err(Error::Flags("--summary is for diffusion models"));
    }
    if shape.is_autoregressive && args.trace.is_some() {
        return Err(Error::Flags("--trace is for diffusion models"));
    }
    let mut setting = Setting::new(args.soc, args.constants, shape);
    setting.n_prompt = args.n_prompt;
    setting.n_gen = args.n_gen.unwrap_or(setting.n_gen);
    check_lengths(&setting, args.sweep.filter(|_| quant.is_some()))?;
    setting.policy = args.policy.unwrap_or(setting.policy);
    setting.revision_rides = args.revision_path == RevisionPath::Dense;
    if let Some(path) = trace_file(args) {
        setting.trace = trace_file::read(path)?;
    }
    let machine = &mut setting.machine;
    if let Some(mib) = args.budget {
        machine.budget_bytes = mib << 20;
    }
    if let Some(seconds) = args.map_cost {
        machine.map_s_per_byte = seconds * 1e-9;
    }
    if let Some(rate) = args.copy_rate {
        machine.copy_bytes_per_s = rate * 1e9;
    }
    Ok((setting, quant))
}

/// Makes sure that prompt and output fit into the model's context together.
fn check_lengths(setting: &Setting, sweep: Option<Sweep>) -> Result<(), Error> {
    let (n_ctx, n_prompt) = (setting.shape.n_ctx, setting.n_prompt);
    // Which of both is too long is the user's to say, where one was chosen.
    let (n_least, n_gen) = match sweep {
        Some(Sweep::Length) => (LENGTHS[LENGTHS.len() - 1], 1),
        _ => (1, setting.n_gen),
    };
    let n_max = n_ctx.saturating_sub(n_least);
    if n_prompt > n_max {
        return Err(value(
            "--prompt",
            n_prompt,
            format!("a number of tokens from 0 to {n_max} (the context has {n_ctx})"),
        ));
    }
    let n_max = n_ctx - n_prompt;
    if n_gen > n_max {
        return Err(value(
            "--gen",
            n_gen,
            format!(
                "a number of tokens from 1 to {n_max} (the context has {n_ctx}, the prompt {n_prompt})"
            ),
        ));
    }
    Ok(())
}

fn value(flag: &'static str, value: impl ToString, expected: impl Into<String>) -> Error {
    Error::Value {
        flag,
        value: value.to_string(),
        expected: expected.into(),
    }
}

fn shape(model: &Path, quant: Option<&str>) -> Result<(ModelShape, Option<GgmlType>), Error> {
    let is_weight = |ty: &&GgmlType| {
        ty.is_weight() && quant.is_some_and(|name| ty.name().eq_ignore_ascii_case(name))
    };
    let ty = match quant {
        None => GgmlType::Q4_0,
        Some(name) => *GgmlType::ALL.iter().find(is_weight).ok_or_else(|| {
            value(
                "--quant",
                name,
                "a type of weights, such as q4_0, q8_0 or f16",
            )
        })?,
    };
    match model.to_str().map(|name| ModelShape::named(name, ty)) {
        Some(Ok(shape)) => return Ok((shape, Some(ty))),
        Some(Err(error @ ShapeError::Blocks { .. })) => {
            return Err(SimulateError::from(error).into());
        }
        Some(Err(ShapeError::Name)) | None => {}
    }
    if !model.exists() {
        return Err(value(
            "--model",
            model.display(),
            "llada-8b, dream-7b, llama-8b-ar or a GGUF file",
        ));
    }
    if quant.is_some() {
        return Err(Error::Flags(
            "--quant is for models by name: a file has its own types",
        ));
    }
    let file = ModelFile::open(model)?;
    let name = model
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    Ok((ModelShape::of_file(&name.unwrap_or_default(), &file), None))
}
