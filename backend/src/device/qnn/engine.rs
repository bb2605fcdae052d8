//! What lives on the library's threads: the device, contexts and their graphs.
//!
//! [`Engine`] builds and executes, [`Loader`] makes contexts from binaries and frees them meanwhile; both see the same contexts (`shelf`).
//! Inputs and outputs are shared with the NPU where the library registers memory (`shared`).

mod shared;
mod shelf;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use llada_npu_ffi::qnn::{
    Backend, Context, ContextOptions, Device, DeviceOptions, Error, Library, PerformanceMode,
    Platform, PowerConfig, Provider, Soc, Version,
};

use shared::Plain;
use shelf::Shelf;

use super::attention::AttentionForm;
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

/// Who fills the inputs of an execution and looks at its outputs, in place where they are shared with the NPU.
pub(super) trait Exchange {
    /// Writes an input, by number; false where it cannot be held: nothing is executed then.
    fn write(&mut self, input: usize, to: &mut [u8]) -> bool;

    /// Reads an output, by number.
    fn read(&mut self, output: usize, from: &[u8]);
}

/// Data as the graph keeps them.
struct Bytes<'a> {
    inputs: &'a [Vec<u8>],
    outputs: Vec<Vec<u8>>,
}

impl Exchange for Bytes<'_> {
    fn write(&mut self, input: usize, to: &mut [u8]) -> bool {
        let from = self.inputs.get(input);
        let from = from.filter(|from| from.len() == to.len());
        from.map(|from| to.copy_from_slice(from)).is_some()
    }

    fn read(&mut self, _output: usize, from: &[u8]) {
        self.outputs.push(from.to_vec());
    }
}

/// Owning: a device with its contexts.
#[derive(Debug)]
pub(super) struct Engine {
    /// Before what contexts live in.
    shelf: Arc<Shelf>,
    plain: Plain,
    power: Option<PowerConfig>,
    device: Device,
}

/// Owning: what makes contexts from binaries, and frees them, while others are executed.
#[derive(Debug)]
pub(super) struct Loader {
    shelf: Arc<Shelf>,
    device: Device,
}

impl Loader {
    /// Makes a context from what [`Engine::binary`] wrote; `number`: the one that it had when it was freed.
    pub(super) fn load(
        &self,
        number: Option<u64>,
        bytes: &[u8],
        key: &[u8],
        beat: &Beat,
    ) -> Result<Made, Error> {
        self.shelf.load(&self.device, number, bytes, key, beat)
    }

    /// Frees a context.
    pub(super) fn free(&self, context: u64) {
        self.shelf.free(context);
    }
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
            shelf: Arc::default(),
            plain: Plain::default(),
            power,
            device,
        };
        Ok((engine, identity))
    }

    /// Returns what makes and frees contexts meanwhile.
    pub(super) fn loader(&self) -> Loader {
        Loader {
            shelf: Arc::clone(&self.shelf),
            device: self.device.clone(),
        }
    }

    /// Returns what counts registrations of shared memory.
    pub(super) fn n_registrations(&self) -> Arc<AtomicU64> {
        self.shelf.pool().n_registrations()
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
        let mut finalize = Duration::ZERO;
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
            let graph = context.build(&spec).map_err(refuse(index))?;
            finalize += graph.finalize_time();
            beat.tick();
        }
        let made = self.shelf.add(context, beat).map_err(refuse(0))?;
        Ok(Made { finalize, ..made })
    }

    /// Builds a context with a graph of attention.
    pub(super) fn build_attention(
        &mut self,
        form: &AttentionForm,
        beat: &Beat,
    ) -> Result<Made, Error> {
        let context = Context::new(&self.device, ContextOptions::default())?;
        beat.tick();
        let graph = context.build(&form.describe("attention")?)?;
        let finalize = graph.finalize_time();
        beat.tick();
        let made = self.shelf.add(context, beat)?;
        Ok(Made { finalize, ..made })
    }

    /// Writes a context to bytes.
    pub(super) fn binary(&self, context: u64, key: &[u8]) -> Result<Vec<u8>, Error> {
        let loaded = self.shelf.get(context)?;
        Ok(loaded.context().binary()?.to_bytes(key))
    }

    /// Executes a graph. Tells how many inputs and outputs were shared with the NPU; `None` where nothing was executed.
    pub(super) fn execute(
        &mut self,
        context: u64,
        graph: usize,
        data: &mut dyn Exchange,
    ) -> Result<Option<u64>, Error> {
        let loaded = self.shelf.get(context)?;
        loaded.execute(graph, &mut self.plain, data)
    }

    /// Executes a graph with inputs as they are; the outputs, and how many tensors were shared with the NPU.
    pub(super) fn execute_bytes(
        &mut self,
        context: u64,
        graph: usize,
        inputs: &[Vec<u8>],
    ) -> Result<(Vec<Vec<u8>>, u64), Error> {
        let mut data = Bytes {
            inputs,
            outputs: Vec::new(),
        };
        let executed = self.execute(context, graph, &mut data)?;
        let n_shared = executed.ok_or(Error::Binary("an input of another size"))?;
        Ok((data.outputs, n_shared))
    }

    /// Frees a context.
    pub(super) fn free(&mut self, context: u64) {
        self.shelf.free(context);
    }
}

fn vote(device: &Device, mode: PerformanceMode) -> Result<PowerConfig, Error> {
    let mut power = PowerConfig::new(device)?;
    power.set(mode)?;
    Ok(power)
}
