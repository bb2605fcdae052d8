//! Running nodes on a backend of the host.

use std::ptr::NonNull;

use super::backend::AbortCallback;
use crate::ggml::api::Api;
use crate::ggml::backend::{Backend, Device};
use crate::ggml::context::{Context, Graph};
use crate::ggml::sys;
use crate::ggml::types::Status;

/// Nodes that the first graph has room for.
const FIRST_GRAPH_SIZE: usize = 256;

/// Owning instance of the host's CPU backend, for the nodes that we do not compute ourselves.
#[derive(Debug)]
pub struct Delegate {
    api: &'static Api,
    backend: Backend,
    n_threads: u32,
    graph: Graph,
    graph_size: usize,
}

impl Delegate {
    /// Makes an instance on `device`; `None` where the host cannot.
    #[must_use]
    pub fn new(api: &'static Api, device: &Device) -> Option<Self> {
        let mut backend = device.init("")?;
        backend.set_n_threads(1);
        Some(Self {
            api,
            backend,
            n_threads: 1,
            graph: new_graph(api, FIRST_GRAPH_SIZE),
            graph_size: FIRST_GRAPH_SIZE,
        })
    }

    /// Sets or clears the function that is asked between nodes whether to stop.
    pub fn set_abort_callback(&mut self, callback: Option<AbortCallback>) {
        let (function, data) = callback.map_or((None, std::ptr::null_mut()), |callback| {
            (
                Some(callback.function as unsafe extern "C" fn(_) -> _),
                callback.data,
            )
        });
        // SAFETY: the host allows us to call the function while we compute; so does the backend that computes for us.
        unsafe { self.backend.set_abort_callback(function, data) };
    }

    /// Computes nodes in order.
    ///
    /// # Safety
    /// The nodes are live tensors in memory that the CPU can use and that nobody else touches during the call.
    pub(super) unsafe fn compute(
        &mut self,
        nodes: impl ExactSizeIterator<Item = NonNull<sys::ggml_tensor>>,
        n_threads: u32,
    ) -> Result<(), Status> {
        if nodes.len() > self.graph_size {
            self.graph_size = nodes.len().next_power_of_two();
            self.graph = new_graph(self.api, self.graph_size);
        }
        if n_threads != self.n_threads {
            self.backend.set_n_threads(n_threads);
            self.n_threads = n_threads;
        }
        let graph = self.graph.raw.as_ptr();
        // SAFETY: the graph is ours and alive.
        unsafe { (self.api.ggml_graph_clear)(graph) };
        for node in nodes {
            // SAFETY: the graph has room (checked above); the node is alive.
            unsafe { (self.api.ggml_graph_add_node)(graph, node.as_ptr()) };
        }
        // SAFETY: backend and graph are alive; the caller answers for the nodes' memory.
        let status = unsafe { (self.api.ggml_backend_graph_compute)(self.backend.as_raw(), graph) };
        Status::check(status)
    }
}

fn new_graph(api: &'static Api, size: usize) -> Graph {
    Context::new(api, 0, size).new_graph(size)
}
