//! The sweeps as text, and as CSV.

use ggml_llada_npu::model::gguf::GgmlType;
use ggml_llada_npu::simulate::sweep::{self, Hiding, Length, Worth};
use ggml_llada_npu::simulate::{Outcome, Resource, Setting, SimulateError};

use super::heat;
use super::table::{gb, heading, line};
use crate::args::{SimulateArgs, Sweep};
use crate::error::Error;
use crate::{files, output};

/// A table: numbers with their names.
struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// Sweeps and prints.
///
/// # Errors
/// [`Error`].
pub(super) fn run(
    args: &SimulateArgs,
    what: Sweep,
    setting: &Setting,
    quant: Option<GgmlType>,
) -> Result<(), Error> {
    if setting.shape.is_autoregressive {
        return Err(Error::Flags("--sweep is for diffusion models"));
    }
    if args.plot.is_some() && what != Sweep::Sensitivity {
        return Err(Error::Flags("--plot draws --sweep sensitivity alone"));
    }
    let csv = files::new_file(args.csv.as_deref())?;
    let plot = files::new_file(args.plot.as_deref())?;
    let table = match what {
        Sweep::Length => {
            let quant = quant.ok_or(Error::Flags("--sweep length is for models by name"))?;
            lengths(&sweep::lengths(setting, quant)?)
        }
        Sweep::Policy => policies(setting)?,
        Sweep::Pipeline => pipeline(&sweep::pipeline(setting)?),
        Sweep::Sensitivity => {
            let points = sweep::sensitivity(setting)?;
            if let Some(file) = plot {
                file.write(&heat::svg(&heading(setting, Some(what)), &points))?;
            }
            sensitivity(&points)
        }
    };
    if let Some(file) = csv {
        file.write(&table.csv())?;
    }
    output::text(&if args.json {
        table.json()
    } else {
        format!("{}\n\n{}", heading(setting, Some(what)), table.text())
    })
}

impl Table {
    fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].len());
            cells.chain([self.columns[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        let header: Vec<_> = self.columns.iter().map(|&name| name.to_owned()).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:>width$}"));
            line(
                &mut text,
                format_args!("{}", cells.collect::<Vec<_>>().join("  ")),
            );
        }
        text
    }

    fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let never_fails = "writing to memory cannot fail";
        writer.write_record(&self.columns).expect(never_fails);
        for row in &self.rows {
            writer.write_record(row).expect(never_fails);
        }
        let bytes = writer.into_inner().expect(never_fails);
        String::from_utf8(bytes).expect("names and numbers are UTF-8")
    }

    /// An array of objects; what reads as a number is one.
    fn json(&self) -> String {
        let value = |cell: &String| match cell.parse::<f64>() {
            Ok(number) => number.into(),
            Err(_no_number) => serde_json::Value::from(cell.as_str()),
        };
        let object = |row: &Vec<String>| -> serde_json::Map<_, _> {
            let cells = self.columns.iter().zip(row);
            cells
                .map(|(&name, cell)| (name.to_owned(), value(cell)))
                .collect()
        };
        let objects: Vec<_> = self.rows.iter().map(object).collect();
        serde_json::to_string_pretty(&objects).expect("names and numbers always serialise") + "\n"
    }
}

fn lengths(lengths: &[Length]) -> Table {
    let row = |length: &Length| {
        let Length {
            n_gen,
            prefix_kv_s,
            memory_runtime_s,
            full_s,
            autoregressive_s,
        } = *length;
        let mut row = vec![n_gen.to_string()];
        row.extend(
            [prefix_kv_s, memory_runtime_s, full_s, autoregressive_s].map(|s| format!("{s:.2}")),
        );
        row.extend(
            [prefix_kv_s / full_s, autoregressive_s / full_s].map(|ratio| format!("{ratio:.2}")),
        );
        row
    };
    Table {
        columns: vec![
            "tokens",
            "cpu_prefix_kv_s",
            "npu_memory_runtime_s",
            "full_s",
            "llama_8b_s",
            "cpu_over_full",
            "llama_over_full",
        ],
        rows: lengths.iter().map(row).collect(),
    }
}

fn policies(setting: &Setting) -> Result<Table, SimulateError> {
    let mut rows = Vec::new();
    for (policy, outcome) in sweep::policies(setting)? {
        let mut row = vec![policy.name().to_owned()];
        row.extend(memory_cells(&outcome));
        rows.push(row);
    }
    let mut columns = vec!["policy"];
    columns.extend(MEMORY_COLUMNS);
    Ok(Table { columns, rows })
}

const MEMORY_COLUMNS: [&str; 8] = [
    "seconds",
    "npu_s",
    "transfer_s",
    "stall_s",
    "stall_share",
    "hidden",
    "gb_per_forward",
    "over_lower_bound",
];

fn memory_cells(outcome: &Outcome) -> [String; 8] {
    let or_dash =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    #[expect(clippy::cast_precision_loss, reason = "forwards are far below 2^53")]
    let n_forwards = outcome.n_forwards as f64;
    [
        format!("{:.2}", outcome.seconds),
        format!("{:.2}", outcome.timeline.busy_s(Resource::Npu)),
        format!("{:.2}", outcome.transfer_s()),
        format!("{:.2}", outcome.stall_s),
        format!("{:.3}", outcome.stall_s / outcome.seconds),
        or_dash(outcome.hidden_share()),
        format!(
            "{:.3}",
            gb(outcome.mapped_bytes + outcome.copied_bytes) / n_forwards
        ),
        or_dash(outcome.bytes_over_lower_bound()),
    ]
}

fn pipeline(points: &[Hiding]) -> Table {
    let row = |point: &Hiding| {
        let way = if point.copies() { "copy" } else { "map" };
        let mut row = vec![
            format!("{:.2}", point.copy_gb_s),
            format!("{:.2}", point.map_s_per_gb),
            way.to_owned(),
            format!("{:.2}", 1.0 / point.map_s_per_gb),
        ];
        row.extend(memory_cells(&point.outcome));
        row
    };
    let mut columns = vec!["copy_gb_s", "map_s_per_gb", "way", "break_even_gb_s"];
    columns.extend(MEMORY_COLUMNS);
    Table {
        columns,
        rows: points.iter().map(row).collect(),
    }
}

fn sensitivity(points: &[Worth]) -> Table {
    let row = |point: &Worth| {
        let mut row = vec![
            format!("{:.3}", point.budget_gib),
            format!("{:.2}", point.map_s_per_gb),
            format!("{:.1}", point.per_step),
            format!("{:.2}", point.full_s),
        ];
        row.extend(point.gains.map(|gain| format!("{gain:.2}")));
        row.push(point.wins().name().to_owned());
        row
    };
    let [memory, mbsd, revision] = ["without_memory_runtime", "without_mbsd", "without_revision"];
    Table {
        columns: vec![
            "budget_gib",
            "map_s_per_gb",
            "tokens_per_step",
            "full_s",
            memory,
            mbsd,
            revision,
            "missed_most",
        ],
        rows: points.iter().map(row).collect(),
    }
}
