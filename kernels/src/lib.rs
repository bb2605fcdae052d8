//! Pure arithmetic of llada-npu on plain slices.
//!
//! No FFI, no files, no threads, no globals and no environment: every function here maps input slices to output
//! slices. Who calls what, on which thread and with which implementation is the business of the backend crate.
//!
//! * [`WeightType`], [`WeightRows`], [`F32Rows`] — what the operands are: strided rows of bytes, nothing assumed about
//!   alignment, every extent checked when a view is made.
//! * [`tile`] — weight matrices, K and V in the tile formats of the Hexagon matrix unit, packed from ggml's rows and back.
//! * [`op`] — the safe entries: [`op::mul_mat::MulMat`], [`op::gemm::Gemm`] over tiles, [`op::attention::Attention`],
//!   the row conversions of [`op::convert`], and a module for each operation on rows.
//! * [`registry`] — the one list of implementations per operation, best first. Dispatch, tests and benches read it.
//! * `reference` — scalar, obvious, never tuned: the contract as code.
//! * `generic` — safe Rust the compiler can vectorise, for every target.
//! * `x86_64` — AVX2 and AVX-512. A CPU feature is a value there; having it is the proof that its code may run.
//! * `aarch64` — NEON, `dotprod` and `i8mm`, likewise.
//! * `flash` — the algorithm shared by the tuned families of attention.
//! * `lanes` — its steps, and those of `panel` with floats, on vectors: one algorithm compiled per instruction set.
//! * `vector` — the row operations (norms, rope, softmax, gates, …), one algorithm compiled per instruction set.
//! * `panel` — the algorithm shared by the tuned families: x rows are packed so that the lanes of a vector are rows of
//!   x, and weights, read once, are broadcast against them.
//!
//! # Examples
//!
//! ```
//! use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};
//!
//! let (_name, kernel) = registry::best(registry::mul_mat(WeightType::F32));
//! let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
//! let x: Vec<u8> = [10.0f32, 1.0].iter().flat_map(|v| v.to_ne_bytes()).collect();
//! let weights = WeightRows::new(WeightType::F32, 2, 2, 8, &weights)?;
//! let x = F32Rows::new(2, 1, 8, &x)?;
//!
//! let layout = kernel.layout(2, 1);
//! let mut panel = vec![0; layout.panel_size_bytes()];
//! kernel.prepare(&layout, &x, &mut panel);
//! let mut out = [0.0; 2];
//! kernel.mul_mat(&layout, &weights, &panel, 1, &mut out, 2);
//! assert_eq!(out, [12.0, 34.0]);
//! # Ok::<(), llada_npu_kernels::ShapeError>(())
//! ```

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod block;
mod flash;
mod generic;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
pub mod op;
mod panel;
mod reference;
pub mod registry;
mod rows;
pub mod tile;
mod vector;
mod weight_type;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use rows::{F32Rows, ShapeError, WeightRows};
pub use weight_type::WeightType;
