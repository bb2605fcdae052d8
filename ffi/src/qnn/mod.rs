//! QNN, Qualcomm's library for the Hexagon tensor processor (HTP): opened at run time, behind a safe surface.
//!
//! | module | what |
//! |---|---|
//! | `sys` | raw types, declared by hand from facts about the ABI; private |
//! | [`library`] | opening a library, its versions, the table of functions |
//! | `log` | messages of the library; the last error of a call becomes part of the [`Error`] |
//! | [`device`] | [`Backend`], [`Device`] |
//! | [`power`] | how fast an NPU is asked to be |
//! | [`tensor`] | data types, quantisation, tensors as declared and as data |
//! | [`spec`] | a graph as a plain description, checked before the library sees it |
//! | `compose` | functions of several operations, such as [`GraphSpec::silu`] |
//! | [`context`] | [`Context`]: building graphs, context binaries |
//! | [`graph`] | [`Graph`]: executing |
//! | [`binary`] | a context binary with what is needed to use its graphs, and a checksum |
//! | [`shared`] | memory that an NPU may see as well |
//! | [`memory`] | its registration with contexts |
//! | [`soc`] | chips by QNN's number |
//!
//! Owners hold what they were made from, so that nothing is freed too early: [`Graph`] → [`Context`] → [`Device`] → [`Backend`] →
//! [`Logger`] → [`Library`]. All are cheap to clone except [`Graph`], and are freed when the last clone goes.
//!
//! All may be used from any thread. A library builds and runs one graph at a time (release 2.47 computes wrong numbers, or hangs,
//! when two threads do); contexts are made, read from binaries and freed meanwhile, and shared memory is registered with them. The library may print to the process's
//! standard output.
//!
//! What the library leaves unchecked is checked here: sizes of buffers at every execution, sizes of constants, counts of
//! scales. Operations are always validated before they are added. The library may still crash on graphs that it claims to
//! support, and graphs it accepts may compute wrong numbers: callers compare samples with a reference.
//!
//! ```no_run
//! use llada_npu_ffi::qnn::*;
//!
//! # fn main() -> Result<(), Error> {
//! let library = Library::open("/opt/qnn/libQnnHtp.so".as_ref(), Provider::Htp)?;
//! let backend = Backend::new(&library)?;
//! let device = Device::new(&backend, DeviceOptions { soc: Some(Soc::SM8650) })?;
//! let context = Context::new(&device, ContextOptions::default())?;
//!
//! let (m, k, n) = (32, 64, 16); // the number of rows, inputs and outputs
//! let weights = vec![0_u8; 2 * 64 * 16];
//! let mut spec = GraphSpec::new("linear", GraphOptions::default());
//! let x = spec.input("x", TensorType::new(DataType::Float16, &[m, k]))?;
//! let w = spec.constant("w", TensorType::new(DataType::Float16, &[n, k]), &weights)?;
//! let y = spec.output("y", TensorType::new(DataType::Float16, &[m, n]))?;
//! spec.fully_connected("fc", x, w, y)?;
//! let mut graph = context.build(&spec)?;
//!
//! let (input, mut output) = (vec![0_u8; 2 * 32 * 64], vec![0_u8; 2 * 32 * 16]);
//! graph.execute(&[Data::Bytes(&input)], &mut [DataMut::Bytes(&mut output)])?;
//! # Ok(())
//! # }
//! ```

pub mod binary;
mod compose;
pub mod context;
pub mod device;
mod error;
pub mod graph;
pub mod library;
mod log;
pub mod memory;
pub mod power;
mod raw;
pub mod shared;
pub mod soc;
pub mod spec;
mod sys;
pub mod tensor;

pub use binary::ContextBinary;
pub use context::{Context, ContextOptions};
pub use device::{Backend, Device, DeviceOptions, Platform};
pub use error::{Error, ErrorCode, Failure, SpecError};
pub use graph::{Data, DataMut, Graph, GraphInterface, TensorInfo};
pub use library::{Library, Provider, Version};
pub use log::Logger;
pub use memory::MemHandle;
pub use power::{PerformanceMode, PowerConfig};
pub use shared::{SharedAllocator, SharedBuffer};
pub use soc::Soc;
pub use spec::{GraphOptions, GraphSpec, Param, Precision, TensorId};
pub use tensor::{BlockScale, DataType, Quantization, TensorType};
