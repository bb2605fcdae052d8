//! What was measured: a line per cell, a JSON object, and the line `RESULT`.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::machine::Machine;

/// Writes one line to stderr.
pub(crate) fn note(line: impl fmt::Display) {
    let _nobody_to_tell = writeln!(io::stderr().lock(), "{line}");
}

/// Rows for which the mean ratio and the share of the peak are reported: blocks of a diffusion model.
const BLOCK_ROWS: std::ops::RangeInclusive<usize> = 32..=128;

/// One operation and shape. Rates are those of the median times, the ratio is the median of the pairs'.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    op: &'static str,
    k: usize,
    n: usize,
    rows: usize,
    ms: f64,
    ggml_ms: f64,
    /// ggml's time over ours.
    ratio: f64,
    gops: f64,
    ggml_gops: f64,
    /// Bytes of weights, or K and V, in ggml's format, per second.
    gbps: f64,
    /// Bytes that the threads read from memory between the pairs, in 1e9 per second; one row alone.
    memory_gbps: Option<f64>,
    /// Buffer type of ggml's weights.
    pub(crate) ggml_buffer: String,
    /// Difference between both results.
    pub(crate) nmse: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

impl Cell {
    /// Makes a cell without results.
    pub(crate) fn new(op: &'static str, k: usize, n: usize, rows: usize) -> Self {
        Self {
            op,
            k,
            n,
            rows,
            ms: 0.0,
            ggml_ms: 0.0,
            ratio: 0.0,
            gops: 0.0,
            ggml_gops: 0.0,
            gbps: 0.0,
            memory_gbps: None,
            ggml_buffer: String::new(),
            nmse: 0.0,
        }
    }

    /// Returns operation and shape.
    pub(crate) fn name(&self) -> String {
        format!("{} {} x {}, {} rows", self.op, self.k, self.n, self.rows)
    }

    /// Sets results from the seconds of both sides in pairs, and the work of an operation.
    pub(crate) fn set_times(&mut self, pairs: &[[f64; 2]], ops: usize, bytes: usize) {
        let seconds = |side: usize| median(pairs.iter().map(|pair| pair[side]).collect());
        let (ours, ggml) = (seconds(0), seconds(1));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let (ops, bytes) = (ops as f64, bytes as f64);
        self.ms = ours * 1e3;
        self.ggml_ms = ggml * 1e3;
        self.ratio = median(pairs.iter().map(|[ours, ggml]| ggml / ours).collect());
        self.gops = ops / ours / 1e9;
        self.ggml_gops = ops / ggml / 1e9;
        self.gbps = bytes / ours / 1e9;
    }

    /// Sets the speed of memory from what was measured between the pairs, if anything.
    pub(crate) fn set_memory(&mut self, reads: Vec<f64>) {
        self.memory_gbps = (!reads.is_empty()).then(|| median(reads));
    }

    fn is_product(&self) -> bool {
        self.op.starts_with("MUL_MAT")
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:18} {:6} x {:6} {:4} rows {:9.3} ms ggml {:9.3} ms ({}) ratio {:5.2} {:7.1} GOP/s (ggml {:6.1}) {:5.1} GB/s",
            self.op,
            self.k,
            self.n,
            self.rows,
            self.ms,
            self.ggml_ms,
            self.ggml_buffer,
            self.ratio,
            self.gops,
            self.ggml_gops,
            self.gbps
        )?;
        match self.memory_gbps {
            Some(memory) => write!(f, " of {memory:.1}"),
            None => Ok(()),
        }
    }
}

/// Everything measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    ggml: String,
    machine: Machine,
    pub(crate) cells: Vec<Cell>,
    summary: Option<Summary>,
}

/// The figures of the line `RESULT`.
#[derive(Debug, Serialize)]
struct Summary {
    gemm_ratio_geomean: f64,
    gemm_ratio_min: f64,
    peak_share: f64,
    gemv_bandwidth_share: f64,
    attn_ratio: f64,
}

impl Report {
    /// Makes a report without cells.
    pub(crate) fn new(ggml: String, machine: Machine) -> Self {
        let peak = machine.int8_peak_gops;
        let peak = peak.map_or("not measured".to_owned(), |peak| format!("{peak:.0} GOP/s"));
        note(format_args!(
            "int8 peak {peak}, memory {:.1} GB/s",
            machine.memory_gbps
        ));
        Self {
            ggml,
            machine,
            cells: Vec::new(),
            summary: None,
        }
    }

    fn summary(&self) -> Summary {
        let products = || self.cells.iter().filter(|cell| cell.is_product());
        let blocks = || products().filter(|cell| BLOCK_ROWS.contains(&cell.rows));
        let min = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let logs: Vec<f64> = blocks().map(|cell| cell.ratio.ln()).collect();
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let n = logs.len() as f64;
        let peak = self.machine.int8_peak_gops.unwrap_or(f64::NAN);
        let shares = || products().filter_map(|cell| Some(cell.gbps / cell.memory_gbps?));
        Summary {
            gemm_ratio_geomean: (logs.iter().sum::<f64>() / n).exp(),
            gemm_ratio_min: min(&mut products().map(|cell| cell.ratio)),
            peak_share: min(&mut blocks().map(|cell| cell.gops)) / peak,
            gemv_bandwidth_share: min(&mut shares()),
            attn_ratio: min(&mut self
                .cells
                .iter()
                .filter(|cell| !cell.is_product())
                .map(|cell| cell.ratio)),
        }
    }

    /// Writes the JSON object, or the line `RESULT`, to stdout.
    pub(crate) fn print(mut self, json: bool) -> io::Result<()> {
        let summary = self.summary();
        let mut stdout = io::stdout().lock();
        if json {
            self.summary = Some(summary);
            serde_json::to_writer(&mut stdout, &self)?;
            return writeln!(stdout);
        }
        let figures = [
            ("gemm_ratio_geomean", summary.gemm_ratio_geomean),
            ("gemm_ratio_min", summary.gemm_ratio_min),
            ("peak_share", summary.peak_share),
            ("gemv_bandwidth_share", summary.gemv_bandwidth_share),
            ("attn_ratio", summary.attn_ratio),
        ];
        write!(stdout, "RESULT")?;
        // What was not run (`--rows`) has no figure.
        for (name, value) in figures.iter().filter(|(_, value)| value.is_finite()) {
            write!(stdout, " {name}={value:.3}")?;
        }
        writeln!(stdout)
    }
}
