//! Qualcomm's library, as tests in processes of their own use it.

use llada_npu_ffi::qnn::{
    Backend, Context, ContextOptions, DataType, Device, DeviceOptions, Graph, Library, Provider,
    Soc, TensorType,
};

use crate::case::directory;
use crate::linear::{self, Weights};

/// The library under test.
///
/// # Panics
/// Where it does not open.
pub fn library() -> Library {
    let dir = directory().expect("a case has libraries");
    Library::open(&dir.join("libQnnHtp.so"), Provider::Htp).expect("Qualcomm's library opens")
}

/// An emulated chip.
///
/// # Panics
/// Where it cannot be had.
pub fn device(soc: Soc) -> Device {
    let backend = Backend::new(&library()).expect("the backend starts");
    Device::new(&backend, DeviceOptions { soc: Some(soc) }).expect("the chip is emulated")
}

/// A context on it.
///
/// # Panics
/// Where it cannot be had.
pub fn context() -> Context {
    Context::new(&device(Soc::SM8650), ContextOptions::default()).expect("a context")
}

/// Halves.
pub fn half(dims: &[u32]) -> TensorType<'static> {
    TensorType::new(DataType::Float16, dims)
}

/// Singles.
pub fn single(dims: &[u32]) -> TensorType<'static> {
    TensorType::new(DataType::Float32, dims)
}

/// Asserts that an NMSE is at most a limit, and prints what was measured.
///
/// # Panics
/// Where it is above.
#[expect(clippy::print_stdout, reason = "what was measured")]
pub fn at_most(what: &str, error: f64, limit: f64) {
    println!("{what}: NMSE {error:.2e} (at most {limit:.0e})");
    assert!(error <= limit, "{what}: NMSE {error:e} above {limit:e}");
}

/// Executes a product in halves with new inputs; the NMSE.
///
/// # Panics
/// Where the library fails.
pub fn run_again(graph: &mut Graph, w: &Weights, seed: u64) -> f64 {
    let m = graph.interface().inputs()[0].ty().dims[0] as usize;
    let x = linear::inputs(m, w.k, seed);
    let y = linear::run(graph, &x).expect("the graph runs");
    linear::nmse(&y, &linear::reference(&x, &w.values, w.k))
}
