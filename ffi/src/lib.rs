//! Every foreign type and every run-time loaded symbol of llada-npu.
//!
//! Raw types are private to this crate. Above it, tensors, graphs and tables are safe values with lifetimes, and a
//! ggml backend is a set of safe traits whose C vtables are built here.

pub mod affinity;
mod file;
pub mod ggml;
mod guard;
mod protect;
pub mod qnn;
mod region;

pub use file::is_ours;
pub use guard::guard;
pub use protect::set_readable;
pub use region::{Region, StableBytes, page_size};
