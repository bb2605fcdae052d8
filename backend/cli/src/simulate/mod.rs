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
use ggml_llada_npu::simulate::{ModelShape, Outcome, Row, Setting, ShapeError, SimulateError};

use crate::args::{RevisionPath, SimulateArgs};
use crate::error::Error;
use crate::{output, trace_file};

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

/// Returns the setting, and the type of the weights where the model has no file.
fn setting(args: &SimulateArgs) -> Result<(Setting, Option<GgmlType>), Error> {
    let (shape, quant) = shape(&args.model, args.quant.as_deref())?;
    let mut setting = Setting::new(args.soc, args.constants, shape);
    setting.n_prompt = args.n_prompt;
    setting.n_gen = args.n_gen;
    setting.policy = args.policy;
    setting.revision_rides = args.revision_path == RevisionPath::Dense;
    if args.trace.as_os_str() != "published" {
        setting.trace = trace_file::read(&args.trace)?;
    }
    let machine = &mut setting.machine;
    if let Some(mib) = args.budget {
        if !(1..=MAX_BUDGET_MIB).contains(&mib) {
            return Err(value(
                "--budget",
                mib,
                "a whole number of MiB, 1 to 1048576",
            ));
        }
        machine.budget_bytes = mib << 20;
    }
    if let Some(seconds) = args.map_cost {
        if !(0.0..=MAX_MAP_S_PER_GB).contains(&seconds) {
            return Err(value(
                "--map-cost",
                seconds,
                "a number of seconds per GB, 0 to 100",
            ));
        }
        machine.map_s_per_byte = seconds * 1e-9;
    }
    if let Some(rate) = args.copy_rate {
        if !(MIN_COPY_GB_S..=MAX_COPY_GB_S).contains(&rate) {
            return Err(value(
                "--copy-rate",
                rate,
                "a number of GB per second, 0.01 to 1000",
            ));
        }
        machine.copy_bytes_per_s = rate * 1e9;
    }
    Ok((setting, quant))
}

const MAX_BUDGET_MIB: u64 = 1 << 20;
const MAX_MAP_S_PER_GB: f64 = 100.0;
const MIN_COPY_GB_S: f64 = 0.01;
const MAX_COPY_GB_S: f64 = 1000.0;

fn value(flag: &'static str, value: impl ToString, expected: &'static str) -> Error {
    Error::Value {
        flag,
        value: value.to_string(),
        expected,
    }
}

fn shape(model: &Path, quant: Option<&str>) -> Result<(ModelShape, Option<GgmlType>), Error> {
    let is_weight = |ty: &&GgmlType| ty.is_weight() && Some(ty.name()) == quant;
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
