//! Finalised graphs: what goes in and out, and executing.

use std::ffi::CString;
use std::fmt;
use std::ptr;
use std::time::Duration;

use super::context::Context;
use super::memory::MemHandle;
use super::raw::{c_string, client_buffer, tensor};
use super::tensor::{Scratch, TensorType};
use super::{Error, sys};

/// An input or output of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    name: String,
    id: u32,
    ty: TensorType<'static>,
}

impl TensorInfo {
    pub(super) fn new(name: &str, id: u32, ty: TensorType<'static>) -> Self {
        Self {
            name: name.to_owned(),
            id,
            ty,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The library's number for it, unique in the context and the same when the context is read from a binary.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its type and shape.
    pub fn ty(&self) -> &TensorType<'static> {
        &self.ty
    }

    /// Bytes of its data.
    pub fn size_bytes(&self) -> usize {
        self.ty.size_bytes()
    }
}

/// What a graph takes and gives.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphInterface {
    name: String,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
}

impl GraphInterface {
    pub(super) fn new(name: &str, inputs: Vec<TensorInfo>, outputs: Vec<TensorInfo>) -> Self {
        Self {
            name: name.to_owned(),
            inputs,
            outputs,
        }
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it takes, in the order of an execution's arguments.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// What it gives, likewise.
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }
}

/// Data of an input.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Data<'a> {
    /// Plain memory.
    Bytes(&'a [u8]),
    /// A buffer that the NPU sees.
    Shared(&'a MemHandle),
}

impl<'a> Data<'a> {
    fn shared(&self) -> Option<&'a MemHandle> {
        match self {
            Self::Bytes(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }
}

/// Room for an output.
#[derive(Debug)]
#[non_exhaustive]
pub enum DataMut<'a> {
    /// Plain memory.
    Bytes(&'a mut [u8]),
    /// A buffer that the NPU sees.
    Shared(&'a MemHandle),
}

impl<'a> DataMut<'a> {
    fn shared(&self) -> Option<&'a MemHandle> {
        match self {
            Self::Bytes(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }
}

/// Owning handle of a finalised graph; it keeps its context. Graphs of one library run one at a time, whatever their
/// contexts; another thread waits. An execution cannot be interrupted: who needs a time limit runs it on a thread of its own.
pub struct Graph {
    context: Context,
    handle: sys::Handle,
    interface: GraphInterface,
    names: Vec<CString>,
    finalize_time: Duration,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("interface", &self.interface)
            .finish_non_exhaustive()
    }
}

// SAFETY: a token that any thread may pass; executions hold the library's lock for work.
unsafe impl Send for Graph {}
// SAFETY: nothing reaches the library through a shared reference.
unsafe impl Sync for Graph {}

impl Graph {
    pub(super) fn new(
        context: Context,
        handle: sys::Handle,
        interface: GraphInterface,
        finalize_time: Duration,
    ) -> Self {
        let tensors = interface.inputs.iter().chain(&interface.outputs);
        let names = tensors.map(|tensor| c_string(&tensor.name)).collect();
        Self {
            context,
            handle,
            interface,
            names,
            finalize_time,
        }
    }

    /// What it takes and gives.
    pub fn interface(&self) -> &GraphInterface {
        &self.interface
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// How long finalising took; zero for a graph read from a binary.
    pub fn finalize_time(&self) -> Duration {
        self.finalize_time
    }

    /// Executes the graph, with data in the order of [`GraphInterface::inputs`] and [`GraphInterface::outputs`]. The library does
    /// not look at sizes, so that they are compared here. Outputs are undefined after an error.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Size`], and [`Error::Answer`] for a shared buffer that is lent elsewhere or of another context, before
    /// the library is called; [`Error::Call`].
    pub fn execute(
        &mut self,
        inputs: &[Data<'_>],
        outputs: &mut [DataMut<'_>],
    ) -> Result<(), Error> {
        self.check_count("inputs", inputs.len(), self.interface.inputs.len())?;
        self.check_count("outputs", outputs.len(), self.interface.outputs.len())?;
        let shared = inputs.iter().filter_map(Data::shared);
        let shared = shared.chain(outputs.iter().filter_map(DataMut::shared));
        let _held: Vec<_> = shared.map(MemHandle::hold).collect::<Result<_, _>>()?;
        let (input_names, output_names) = self.names.split_at(self.interface.inputs.len());
        let mut raw_inputs = Vec::with_capacity(inputs.len());
        for ((info, name), data) in self.interface.inputs.iter().zip(input_names).zip(inputs) {
            let memory = match data {
                Data::Bytes(bytes) => Memory::Bytes(bytes.as_ptr().cast_mut(), bytes.len()),
                Data::Shared(shared) => Memory::Shared(shared),
            };
            raw_inputs.push(self.raw(info, name, sys::TENSOR_APP_WRITE, &memory)?);
        }
        let mut raw_outputs = Vec::with_capacity(outputs.len());
        for ((info, name), data) in self
            .interface
            .outputs
            .iter()
            .zip(output_names)
            .zip(&mut *outputs)
        {
            let memory = match data {
                DataMut::Bytes(bytes) => Memory::Bytes(bytes.as_mut_ptr(), bytes.len()),
                DataMut::Shared(shared) => Memory::Shared(shared),
            };
            raw_outputs.push(self.raw(info, name, sys::TENSOR_APP_READ, &memory)?);
        }
        let library = self.context.library();
        let execute = library.table().graph_execute;
        let (n_inputs, n_outputs) = (
            super::tensor::length(raw_inputs.len()),
            super::tensor::length(raw_outputs.len()),
        );
        let _work = library.work();
        library.call("graphExecute", || {
            let (from, to, none) = (
                raw_inputs.as_ptr(),
                raw_outputs.as_mut_ptr(),
                ptr::null_mut(),
            );
            // SAFETY: a finalised graph of a live context; all its inputs and outputs, with buffers of their exact sizes that are
            // borrowed through the call, outputs exclusively: plain memory, or registrations of buffers whose locks are held. No profile, no signal: it returns when it is done.
            unsafe { execute(self.handle, from, n_inputs, to, n_outputs, none, none) }
        })?;
        Ok(())
    }

    fn check_count(&self, what: &'static str, found: usize, needed: usize) -> Result<(), Error> {
        if found == needed {
            return Ok(());
        }
        Err(Error::Count {
            graph: self.interface.name.clone(),
            what,
            found,
            needed,
        })
    }

    /// A tensor of an execution. It points to the graph's own description and to the memory.
    fn raw(
        &self,
        info: &TensorInfo,
        name: &CString,
        kind: u32,
        memory: &Memory<'_>,
    ) -> Result<sys::Tensor, Error> {
        let found = match memory {
            Memory::Bytes(_, size) => *size,
            Memory::Shared(shared) => shared.size_bytes(),
        };
        if found != info.size_bytes() {
            return Err(Error::Size {
                tensor: info.name.clone(),
                needed: info.size_bytes(),
                found,
            });
        }
        let mut raw = tensor(name, kind, &info.ty, &info.ty.dims, &mut Scratch::default());
        raw.v1.id = info.id;
        match memory {
            Memory::Bytes(data, size) => raw.v1.memory.client = client_buffer(*data, *size),
            Memory::Shared(shared) => {
                raw.v1.memory_type = sys::MEMORY_HANDLE;
                raw.v1.memory.handle = shared.handle(&self.context)?;
            }
        }
        Ok(raw)
    }
}

enum Memory<'a> {
    Bytes(*mut u8, usize),
    Shared(&'a MemHandle),
}
