//! Contexts: where graphs live, and what is written to and read from files.

use std::borrow::Cow;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::binary::ContextBinary;
use super::device::Device;
use super::graph::{Graph, GraphInterface, TensorInfo};
use super::library::{Library, not_null};
use super::raw::{RawGraph, c_string};
use super::spec::{GraphOptions, GraphSpec, Kind, Precision, owned};
use super::{Error, Provider, sys};

/// Options of a context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Equal weights of several graphs are kept once. On x86-64, a binary of such a context cannot be loaded.
    pub share_weights: bool,
}

/// Owning handle of a context. Clones, and graphs of the context, share it; it is freed with the last of them.
#[derive(Debug, Clone)]
pub struct Context(Arc<ContextInner>);

struct ContextInner {
    device: Device,
    handle: sys::Handle,
    /// Graphs that are finalised.
    graphs: Mutex<Vec<GraphInterface>>,
    /// A graph failed while it was built and stays, half done.
    broken: AtomicBool,
}

impl fmt::Debug for ContextInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("graphs", &self.graphs)
            .finish_non_exhaustive()
    }
}

// SAFETY: a token that any thread may pass; making and freeing contexts, and all that is done with their graphs, is serialised
// by the library's locks.
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Context {
    /// Makes an empty context.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn new(device: &Device, options: ContextOptions) -> Result<Self, Error> {
        let library = device.library();
        let custom = (options.share_weights && library.provider() == Provider::Htp)
            .then(|| htp(sys::HTP_CONTEXT_WEIGHT_SHARING, &[1]));
        let configs = Configs::new(custom.as_slice());
        let create = library.table().context_create;
        let mut handle = ptr::null_mut();
        let _setup = library.setup();
        library.call("contextCreate", || {
            // SAFETY: a live backend and device; options are a list that lives through the call; the handle is written.
            unsafe {
                create(
                    device.backend().handle(),
                    device.handle(),
                    configs.as_ptr(),
                    &raw mut handle,
                )
            }
        })?;
        let handle = not_null("contextCreate", handle)?;
        Ok(Self::from_handle(device, handle, Vec::new()))
    }

    fn from_handle(device: &Device, handle: sys::Handle, graphs: Vec<GraphInterface>) -> Self {
        Self(Arc::new(ContextInner {
            device: device.clone(),
            handle,
            graphs: Mutex::new(graphs),
            broken: AtomicBool::new(false),
        }))
    }

    /// Makes a context from what [`Self::binary`] gave, with its graphs finalised: [`Self::graph`] finds them. The library loads
    /// damaged binaries without complaint, which is why only a checked [`ContextBinary`] gets here. That it was made for
    /// this chip and this build of the library is the caller's to see to: put both into its key.
    ///
    /// # Errors
    /// [`Error::Call`], with [`CONTEXT_BINARY`](super::ErrorCode::CONTEXT_BINARY) for one of a newer library or, on phones, another chip.
    pub fn from_binary(device: &Device, binary: &ContextBinary<'_>) -> Result<Self, Error> {
        let library = device.library();
        let call = "contextCreateFromBinary";
        let blob = binary.blob();
        let create = library.table().context_create_from_binary;
        let mut handle = ptr::null_mut();
        let _setup = library.setup();
        library.call(call, || {
            let (data, size) = (blob.as_ptr().cast::<c_void>(), blob.len() as u64);
            let (backend, on) = (device.backend().handle(), device.handle());
            // SAFETY: a live backend and device, no options, no profile; the handle is written. The bytes are a library's, whole
            // and unchanged: who calls `ContextBinary::from_bytes` sees to it that nobody else wrote them, which no checksum shows.
            unsafe {
                create(
                    backend,
                    on,
                    ptr::null(),
                    data,
                    size,
                    &raw mut handle,
                    ptr::null_mut(),
                )
            }
        })?;
        let handle = not_null(call, handle)?;
        Ok(Self::from_handle(device, handle, binary.graphs().to_vec()))
    }

    /// Validates a graph, builds and finalises it.
    ///
    /// # Errors
    /// [`Error::Spec`] and [`Error::Node`] before anything is built: the context stays as it was. [`Error::Call`] afterwards: the
    /// half-built graph stays in the context, which then takes no other graph and cannot be written ([`Error::Broken`]).
    pub fn build(&self, spec: &GraphSpec<'_>) -> Result<Graph, Error> {
        spec.check()?;
        let mut raw = RawGraph::new(spec);
        self.device().backend().validate_raw(&raw)?;
        let _work = self.library().work();
        if self.0.broken.load(Ordering::Relaxed) {
            return Err(Error::Broken);
        }
        let graph = self.create_graph(spec)?;
        self.0.broken.store(true, Ordering::Relaxed);
        let finalize_time = self.fill(graph, &mut raw)?;
        self.0.broken.store(false, Ordering::Relaxed);
        let interface = GraphInterface::new(
            spec.name(),
            infos(spec, &raw, Kind::Input),
            infos(spec, &raw, Kind::Output),
        );
        self.graphs().push(interface.clone());
        Ok(Graph::new(self.clone(), graph, interface, finalize_time))
    }

    fn create_graph(&self, spec: &GraphSpec<'_>) -> Result<sys::Handle, Error> {
        let custom = if self.library().provider() == Provider::Htp {
            graph_options(spec.options)
        } else {
            Vec::new()
        };
        let configs = Configs::new(&custom);
        let name = c_string(spec.name());
        let create = self.library().table().graph_create;
        let mut graph = ptr::null_mut();
        self.library().call("graphCreate", || {
            // SAFETY: a live context that nobody else uses now; name and options live through the call; the handle is written.
            unsafe {
                create(
                    self.0.handle,
                    name.as_ptr(),
                    configs.as_ptr(),
                    &raw mut graph,
                )
            }
        })?;
        not_null("graphCreate", graph)
    }

    /// Creates tensors, adds nodes, finalises; all that `raw` points to outlives finalising because it is borrowed here.
    fn fill(&self, graph: sys::Handle, raw: &mut RawGraph<'_>) -> Result<Duration, Error> {
        let (library, table) = (self.library(), self.library().table());
        for tensor in raw.tensors_mut() {
            library.call("tensorCreateGraphTensor", || {
                // SAFETY: a graph of this context that is being built; the tensor and what it points to live on; its id is written.
                unsafe { (table.tensor_create_graph_tensor)(graph, tensor) }
            })?;
        }
        for i in 0..raw.n_nodes() {
            let node = raw.node(i);
            let answer = library.call("graphAddNode", || {
                // SAFETY: as above; the node and what it points to live through the call.
                unsafe { (table.graph_add_node)(graph, node.config()) }
            });
            answer.map_err(|failure| raw.refusal(i, failure))?;
        }
        let start = Instant::now();
        library.call("graphFinalize", || {
            // SAFETY: as above, without profile and signal. Data of constants lives: `raw` borrows it.
            unsafe { (table.graph_finalize)(graph, ptr::null_mut(), ptr::null_mut()) }
        })?;
        Ok(start.elapsed())
    }

    /// Finds a finalised graph of a context made from a binary, or one that was built here.
    ///
    /// # Errors
    /// [`Error::Binary`] for a name that the context has not; [`Error::Call`].
    pub fn graph(&self, name: &str) -> Result<Graph, Error> {
        let found = self
            .graphs()
            .iter()
            .find(|graph| graph.name() == name)
            .cloned();
        let interface = found.ok_or(Error::Binary("no graph of this name"))?;
        let retrieve = self.library().table().graph_retrieve;
        let c_name = c_string(name);
        let mut graph = ptr::null_mut();
        let _work = self.library().work();
        self.library().call("graphRetrieve", || {
            // SAFETY: a live context that nobody else uses now; the name lives through the call; the handle is written.
            unsafe { retrieve(self.0.handle, c_name.as_ptr(), &raw mut graph) }
        })?;
        let graph = not_null("graphRetrieve", graph)?;
        Ok(Graph::new(self.clone(), graph, interface, Duration::ZERO))
    }

    /// What its finalised graphs take and give, in the order they were built.
    pub fn interfaces(&self) -> Vec<GraphInterface> {
        self.graphs().clone()
    }

    /// Names of its finalised graphs, in the order they were built.
    pub fn graph_names(&self) -> Vec<String> {
        self.graphs()
            .iter()
            .map(|graph| graph.name().to_owned())
            .collect()
    }

    /// Writes the context, with all its graphs, to bytes that [`Self::from_binary`] reads.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Call`].
    pub fn binary(&self) -> Result<ContextBinary<'static>, Error> {
        let _work = self.library().work();
        if self.0.broken.load(Ordering::Relaxed) {
            return Err(Error::Broken);
        }
        let (library, table) = (self.library(), self.library().table());
        let mut size = 0;
        library.call("contextGetBinarySize", || {
            // SAFETY: a live context that nobody else uses now; the size is written.
            unsafe { (table.context_get_binary_size)(self.0.handle, &raw mut size) }
        })?;
        let call = "contextGetBinary";
        let length = usize::try_from(size)
            .ok()
            .filter(|&length| length <= BINARY_MAX);
        let length = length.ok_or(Error::Answer {
            call,
            what: "an absurd size",
        })?;
        let mut blob = vec![0_u8; length];
        let mut written = 0;
        library.call(call, || {
            let to = blob.as_mut_ptr().cast::<c_void>();
            // SAFETY: as above; the buffer is as long as said.
            unsafe { (table.context_get_binary)(self.0.handle, to, size, &raw mut written) }
        })?;
        if written > size {
            return Err(Error::Answer {
                call,
                what: "more bytes than there is room for",
            });
        }
        blob.truncate(usize::try_from(written).unwrap_or(length));
        let graphs = self.graphs().clone();
        Ok(ContextBinary::new(Cow::Owned(blob), graphs))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its library.
    pub fn library(&self) -> &Library {
        self.0.device.library()
    }

    fn graphs(&self) -> MutexGuard<'_, Vec<GraphInterface>> {
        self.0.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn handle(&self) -> sys::Handle {
        self.0.handle
    }

    /// Whether two handles are of one context.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Longest context binary that is read, in bytes: more than any NPU can address.
const BINARY_MAX: usize = 8 << 30;

impl Drop for ContextInner {
    fn drop(&mut self) {
        let library = self.device.library();
        let free = library.table().context_free;
        let Some(_setup) = library.setup_on_drop("contextFree") else {
            return;
        };
        library.call_on_drop("contextFree", || {
            // SAFETY: the handle is the context's own; graphs and shared buffers hold it, so that none is left.
            unsafe { free(self.handle, ptr::null_mut()) }
        });
    }
}

fn infos(spec: &GraphSpec<'_>, raw: &RawGraph<'_>, kind: Kind) -> Vec<TensorInfo> {
    let of_kind = spec.of_kind(kind);
    of_kind
        .map(|(id, tensor)| TensorInfo::new(&tensor.name, raw.id(id.0), owned(&tensor.ty)))
        .collect()
}

fn htp(option: u32, words: &[u32]) -> sys::HtpConfig {
    let mut config = sys::HtpConfig {
        option,
        word_at_4: 0,
        words: [0; 12],
    };
    config.words[..words.len()].copy_from_slice(words);
    config
}

fn graph_options(options: GraphOptions) -> Vec<sys::HtpConfig> {
    let mut custom = Vec::new();
    if let Some(precision) = options.precision {
        let value = match precision {
            Precision::Float32 => 0,
            Precision::Float16 => 1,
        };
        custom.push(htp(sys::HTP_GRAPH_PRECISION, &[value]));
    }
    if let Some(vtcm_mb) = options.vtcm_mb {
        custom.push(htp(sys::HTP_GRAPH_VTCM_MB, &[vtcm_mb]));
    }
    if let Some(level) = options.optimization {
        // The value is a float.
        let level = f32::from(u8::try_from(level.clamp(1, 3)).expect("at most 3")).to_bits();
        custom.push(htp(
            sys::HTP_GRAPH_OPTIMIZATION,
            &[sys::HTP_OPTIMIZATION_FINALIZE, level],
        ));
    }
    if let Some(threads) = options.hvx_threads {
        custom.push(htp(sys::HTP_GRAPH_HVX_THREADS, &[threads, 0]));
    }
    custom
}

/// A NULL-terminated list of custom options; it points to itself and to the options it was made from.
struct Configs<'c> {
    list: Vec<*const sys::Config>,
    _configs: Vec<sys::Config>,
    _custom: &'c [sys::HtpConfig],
}

impl<'c> Configs<'c> {
    fn new(custom: &'c [sys::HtpConfig]) -> Self {
        let configs: Vec<sys::Config> = custom
            .iter()
            .map(|custom| sys::Config {
                option: sys::CONFIG_CUSTOM,
                custom: ptr::from_ref(custom).cast(),
            })
            .collect();
        let mut list: Vec<*const sys::Config> = configs.iter().map(ptr::from_ref).collect();
        if !list.is_empty() {
            list.push(ptr::null());
        }
        Self {
            list,
            _configs: configs,
            _custom: custom,
        }
    }

    fn as_ptr(&self) -> *const *const sys::Config {
        if self.list.is_empty() {
            ptr::null()
        } else {
            self.list.as_ptr()
        }
    }
}
