//! `llada-npu bench kernels`: the device's kernels against ggml's CPU backend, operation by operation.
//!
//! A program of its own, since it must not be linked with a ggml: it loads the one it is told to compare with, and the
//! device runs in that same process. Both sides compute the same operation on the same data with the same number of
//! threads. Weights (or K and V) exist so many times that they are at least 512 MiB: a run reads copies that no cache holds
//! any more. What is reported is the median of interleaved pairs of runs.
//!
//! | module | what |
//! |---|---|
//! | `machine` | the integer peak and the memory bandwidth, measured here |
//! | `side` | a backend under test: where its weights lie, runs of graphs |
//! | `cell` | one operation and shape on both sides |
//! | `report` | the table, the JSON, the line `RESULT` |

mod cell;
mod machine;
mod report;
mod side;
#[path = "../../sigint.rs"]
mod sigint;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use ggml_llada_npu::abi::InitError;
use llada_npu_ffi::ggml::loader::LoadError;
use llada_npu_ffi::ggml::memory::MemoryError;
use llada_npu_ffi::ggml::{Status, loader};

use cell::{Shape, Weights};
use machine::{Machine, Memory};
use report::Report;
use side::Side;

/// Measures the kernels of llada-npu against ggml's CPU backend.
#[derive(Debug, Parser)]
#[command(name = "llada-npu-bench")]
struct Args {
    /// Directory of the libggml.so and libggml-cpu.so to compare with
    #[arg(long, value_name = "DIR")]
    ggml: PathBuf,
    /// Threads of both sides
    #[arg(short, long, value_name = "N")]
    threads: usize,
    /// Write one JSON object to stdout
    #[arg(long)]
    json: bool,
    /// Products with these numbers of rows, and no attention
    #[arg(long, value_name = "N", value_delimiter = ',')]
    rows: Vec<usize>,
    /// Products with weights of these types
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_values_t = [Weights::Q4_0, Weights::Q8_0])]
    types: Vec<Weights>,
    /// Products with these matrices only: elements of a row, rows
    #[arg(long, value_name = "KxN", value_delimiter = ',', value_parser = matrix)]
    matrices: Vec<(usize, usize)>,
    /// One small shape, to see that everything works
    #[arg(long)]
    quick: bool,
}

/// Reads `KxN`, elements of a row and rows; whole blocks of every type.
fn matrix(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.split_once('x').and_then(|(k, n)| {
        let (k, n): (usize, usize) = (k.parse().ok()?, n.parse().ok()?);
        (k > 0 && k.is_multiple_of(256) && n > 0).then_some((k, n))
    });
    sizes.ok_or_else(|| "expected KxN, K a multiple of 256".to_owned())
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("no llada-npu device: {0}")]
    Init(#[from] InitError),
    #[error("the ggml loaded has no CPU device")]
    NoCpu,
    #[error("a backend cannot be started")]
    NoBackend,
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("a graph was not computed: {0}")]
    Compute(#[from] Status),
    #[error("{op}: results differ by an NMSE of {nmse:e}")]
    Results {
        /// The operation.
        op: String,
        /// Normalised mean squared error between both sides.
        nmse: f64,
    },
    #[error("stdout: {0}")]
    Stdout(#[from] std::io::Error),
    #[error("handler of Ctrl-C: {0}")]
    Interrupt(#[source] std::io::Error),
}

/// What the shell shows for a process that SIGPIPE ended.
const READER_GONE: u8 = 141;

fn main() -> ExitCode {
    let result = sigint::end_at_once().map_err(Error::Interrupt);
    match result.and_then(|()| run(&Args::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Stdout(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::from(READER_GONE)
        }
        Err(error) => {
            report::note(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The matrices of the models this is for: square, up, down, and the output projection.
const MATRICES: [(usize, usize); 4] = [(4096, 4096), (4096, 12288), (12288, 4096), (4096, 126_464)];

const ROWS: [usize; 8] = [1, 4, 8, 32, 64, 96, 128, 256];

fn run(args: &Args) -> Result<(), Error> {
    let api = loader::load(&args.ggml, |line| report::note(line.trim_end()))?;
    let mut ours = Side::ours(api, args.threads)?;
    let mut ggml = Side::ggml(api, args.threads)?;
    report::note(format_args!(
        "measuring the machine, {} threads",
        args.threads
    ));
    let mut report = Report::new(
        api.version().to_string_lossy().into_owned(),
        Machine::measure(args.threads),
    );
    let memory = Memory::new(args.threads);
    let (matrices, rows, contexts): (&[_], &[_], &[_]) = if args.quick {
        (&[(1024, 1024)], &[1, 32], &[256])
    } else if args.rows.is_empty() {
        (&MATRICES, &ROWS, &[1024, 4096])
    } else {
        (&MATRICES, &args.rows, &[])
    };
    let matrices = if args.matrices.is_empty() {
        matrices
    } else {
        &args.matrices
    };
    let cycle_bytes = if args.quick { 16 << 20 } else { 512 << 20 };
    for &ty in &args.types {
        for &(k, n) in matrices {
            let shapes = rows.iter().map(|&rows| Shape::MulMat { ty, k, n, rows });
            cell::measure(
                &mut ours,
                &mut ggml,
                shapes,
                cycle_bytes,
                &memory,
                &mut report,
            )?;
        }
    }
    for &n_kv in contexts {
        let shape = Shape::Attention { n_kv, rows: 32 };
        cell::measure(
            &mut ours,
            &mut ggml,
            [shape],
            cycle_bytes,
            &memory,
            &mut report,
        )?;
    }
    report.print(args.json)?;
    Ok(())
}
