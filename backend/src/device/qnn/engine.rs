//! What lives on the library's thread: the device, contexts and their graphs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use llada_npu_ffi::qnn::{
    Backend, Context, ContextBinary, ContextOptions, Data, DataMut, Device, DeviceOptions, Error,
    Graph, Library, PerformanceMode, Platform, PowerConfig, Provider, Soc, Version,
};

use super::part::{self, Element, Form};
use super::weight::Weight;
use super::worker::Beat;
use crate::device::DenseKind;

/// File name of the library.
pub(super) const LIBRARY: &str = "libQnnHtp.so";

/// What a device is opened with.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Directory of the library; `None`: where the system's loader looks.
    pub dir: Option<PathBuf>,
    /// The chip that is emulated on x86-64.
    pub soc: Option<Soc>,
    /// How fast the NPU is asked to be.
    pub performance: Option<PerformanceMode>,
}

impl OpenOptions {
    /// Returns what is handed to the system's loader.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        let name = Path::new(LIBRARY);
        self.dir
            .as_ref()
            .map_or_else(|| name.to_owned(), |dir| dir.join(name))
    }
}

/// What was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where the library was found.
    pub path: PathBuf,
    /// Version of QNN's common interface.
    pub core_version: Version,
    /// Version of the backend's own.
    pub backend_version: Version,
    /// What the library calls its build.
    pub build_id: String,
    /// What it says about the hardware.
    pub platform: Option<Platform>,
    /// The chip that was asked for, else the one that the library says.
    pub soc: Option<Soc>,
}

/// A graph to build: name, kind, weights, shape.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) kind: DenseKind,
    pub(super) weights: Vec<Weight>,
    pub(super) form: Form,
}

/// A graph that was not built.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Which one of the drafts.
    pub(super) index: usize,
    pub(super) error: Error,
}

/// A context.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) context: u64,
    /// By graph: how elements of its outputs are kept.
    pub(super) graphs: Vec<GraphElements>,
    /// Time in finalising.
    pub(super) finalize: Duration,
}

/// How elements of a graph are kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GraphElements {
    pub(super) input: Element,
    pub(super) outputs: Vec<Element>,
}

/// Owning: a device with its contexts.
#[derive(Debug)]
pub(super) struct Engine {
    /// Before what they live in.
    contexts: HashMap<u64, Vec<Graph>>,
    power: Option<PowerConfig>,
    device: Device,
    next: u64,
}

impl Engine {
    /// Opens library and device.
    pub(super) fn open(options: &OpenOptions, beat: &Beat) -> Result<(Self, Identity), Error> {
        let path = options.library();
        let library = Library::open(&path, Provider::Htp)?;
        beat.tick();
        let backend = Backend::new(&library)?;
        beat.tick();
        let soc = options.soc.filter(|_| cfg!(target_arch = "x86_64"));
        let device = Device::new(&backend, DeviceOptions { soc })?;
        beat.tick();
        let platform = backend.platform();
        let power = options
            .performance
            .and_then(|mode| match vote(&device, mode) {
                Ok(power) => Some(power),
                Err(error) => {
                    log::debug!("performance mode: {error}");
                    None
                }
            });
        let identity = Identity {
            path,
            core_version: library.core_version(),
            backend_version: library.backend_version(),
            build_id: library.build_id().to_owned(),
            platform,
            soc: soc.or(platform.map(|platform| platform.soc)),
        };
        let engine = Self {
            contexts: HashMap::new(),
            power,
            device,
            next: 0,
        };
        Ok((engine, identity))
    }

    /// Tells whether the library took the wish for performance.
    pub(super) fn has_power(&self) -> bool {
        self.power.is_some()
    }

    /// Builds a context with all the graphs.
    pub(super) fn build(&mut self, drafts: &[Draft], beat: &Beat) -> Result<Made, Refusal> {
        let refuse = |index| move |error| Refusal { index, error };
        let context = Context::new(&self.device, ContextOptions::default()).map_err(refuse(0))?;
        beat.tick();
        let mut graphs = Vec::new();
        for (index, draft) in drafts.iter().enumerate() {
            let Draft {
                name,
                kind,
                weights,
                form,
            } = draft;
            let spec = part::describe(name, *kind, weights, form)
                .map_err(Error::from)
                .map_err(refuse(index))?;
            graphs.push(context.build(&spec).map_err(refuse(index))?);
            beat.tick();
        }
        self.take(graphs).map_err(refuse(0))
    }

    /// Makes a context from what [`Self::binary`] wrote.
    pub(super) fn load(
        &mut self,
        bytes: &[u8],
        key: &[u8],
        names: &[String],
        beat: &Beat,
    ) -> Result<Made, Error> {
        let binary = ContextBinary::from_bytes(bytes, key)?;
        let context = Context::from_binary(&self.device, &binary)?;
        beat.tick();
        let mut graphs = Vec::new();
        for name in names {
            graphs.push(context.graph(name)?);
            beat.tick();
        }
        self.take(graphs)
    }

    fn take(&mut self, graphs: Vec<Graph>) -> Result<Made, Error> {
        let elements: Option<Vec<_>> = graphs.iter().map(elements).collect();
        let elements = elements.ok_or(Error::Binary("a graph that is not ours"))?;
        let made = Made {
            context: self.next,
            graphs: elements,
            finalize: graphs.iter().map(Graph::finalize_time).sum(),
        };
        self.next += 1;
        self.contexts.insert(made.context, graphs);
        Ok(made)
    }

    /// Writes a context to bytes.
    pub(super) fn binary(&self, context: u64, key: &[u8]) -> Result<Vec<u8>, Error> {
        let graphs = self.graphs(context)?;
        let graph = graphs.first().ok_or(Error::Binary("no graph"))?;
        Ok(graph.context().binary()?.to_bytes(key))
    }

    fn graphs(&self, context: u64) -> Result<&Vec<Graph>, Error> {
        self.contexts
            .get(&context)
            .ok_or(Error::Binary("no such context"))
    }

    /// Executes a graph.
    pub(super) fn execute(
        &mut self,
        context: u64,
        graph: usize,
        inputs: &[&[u8]],
    ) -> Result<Vec<Vec<u8>>, Error> {
        let graphs = self
            .contexts
            .get_mut(&context)
            .ok_or(Error::Binary("no such context"))?;
        let graph = graphs
            .get_mut(graph)
            .ok_or(Error::Binary("no such graph"))?;
        let sizes = graph.interface().outputs().iter();
        let mut outputs: Vec<_> = sizes.map(|tensor| vec![0; tensor.size_bytes()]).collect();
        let inputs: Vec<_> = inputs.iter().map(|bytes| Data::Bytes(bytes)).collect();
        let mut room: Vec<_> = outputs
            .iter_mut()
            .map(|bytes| DataMut::Bytes(bytes))
            .collect();
        graph.execute(&inputs, &mut room)?;
        Ok(outputs)
    }

    /// Frees a context.
    pub(super) fn free(&mut self, context: u64) {
        self.contexts.remove(&context);
    }
}

fn vote(device: &Device, mode: PerformanceMode) -> Result<PowerConfig, Error> {
    let mut power = PowerConfig::new(device)?;
    power.set(mode)?;
    Ok(power)
}

fn elements(graph: &Graph) -> Option<GraphElements> {
    let of = |tensor: &llada_npu_ffi::qnn::TensorInfo| Element::of(tensor.ty());
    Some(GraphElements {
        input: of(graph.interface().inputs().first()?)?,
        outputs: graph
            .interface()
            .outputs()
            .iter()
            .map(of)
            .collect::<Option<_>>()?,
    })
}
