//! `bench`: measurements, by a program of its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::args::{BenchArgs, Benches};
use crate::error::Error;

/// The program; it lies beside this one.
const PROGRAM: &str = "llada-npu-bench";

/// Becomes the program that measures.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Error> {
    let Benches::Kernels = args.what;
    let path = program();
    let threads = args.threads.or_else(|| {
        let n = std::thread::available_parallelism().ok()?;
        Some(n.get())
    });
    let mut words: Vec<OsString> = vec!["--ggml".into(), args.ggml.clone().into()];
    words.extend(["--threads".into(), threads.unwrap_or(1).to_string().into()]);
    for rows in &args.rows {
        words.extend(["--rows".into(), rows.to_string().into()]);
    }
    for ty in &args.types {
        words.extend(["--types".into(), ty.into()]);
    }
    for matrix in &args.matrices {
        words.extend(["--matrices".into(), matrix.into()]);
    }
    words.extend(args.json.then(|| "--json".into()));
    words.extend(args.quick.then(|| "--quick".into()));
    let source = Command::new(&path)
        .args(words)
        // Random weights are not worth keeping.
        .env("LLADA_NPU_REPACK", "memory")
        .exec();
    let what = "cannot be started";
    Err(Error::File { path, what, source })
}

fn program() -> PathBuf {
    std::env::current_exe()
        .map(|path| path.with_file_name(PROGRAM))
        .unwrap_or_else(|_unknown| PROGRAM.into())
}
