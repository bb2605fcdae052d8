//! What a session did, in numbers.

use std::collections::BTreeMap;
use std::time::Duration;

/// Sums over a session. On x86-64 times are those of the emulation, and say nothing about an NPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Graphs that were built and finalised.
    pub n_graphs_built: u64,
    /// Graphs that came from context binaries on disk.
    pub n_graphs_loaded: u64,
    /// Contexts in use.
    pub n_contexts: u64,
    /// Time in finalising.
    pub finalize: Duration,
    /// Bytes of the context binaries of the contexts in use, where they are known: the library's copy of the weights.
    pub binary_bytes: u64,
    /// Bytes of the weights that the host keeps besides.
    pub host_bytes: u64,
    /// Bytes of weights whose pages were given back to the model file.
    pub dropped_bytes: u64,
    /// Executions of graphs.
    pub n_executions: u64,
    /// Time in executing.
    pub execute: Duration,
    /// Rows that were computed, and rows that filled graphs up.
    pub n_rows: u64,
    /// See [`Self::n_rows`].
    pub n_padded_rows: u64,
    /// Largest error of a check before first use: share of the power.
    pub worst_nmse: f64,
    /// Segments that the host computes instead, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Products with a low-rank addition that were executed.
    pub n_additions: u64,
    /// Executions of graphs of attention, besides.
    pub n_attentions: u64,
    /// Executions that the host repeated, or did instead, as results or operands were beyond half floats.
    pub n_overflows: u64,
    /// Contexts that memory runtimes made from binaries, and freed.
    pub n_context_maps: u64,
    /// See [`Self::n_context_maps`].
    pub n_context_unmaps: u64,
    /// Bytes of the binaries of those that are there now, and the most at a time.
    pub mapped_bytes: u64,
    /// See [`Self::mapped_bytes`].
    pub peak_mapped_bytes: u64,
    /// Registrations of shared memory with contexts.
    pub n_registrations: u64,
    /// Inputs and outputs of executions that were in such memory: nobody copied them.
    pub n_shared: u64,
}

impl Report {
    /// Counts a context that was made from its binary for a memory runtime.
    pub(super) fn came(&mut self, size_bytes: u64) {
        self.n_context_maps += 1;
        self.mapped_bytes += size_bytes;
        self.peak_mapped_bytes = self.peak_mapped_bytes.max(self.mapped_bytes);
    }

    /// Counts a context that was freed for a memory runtime.
    pub(super) fn went(&mut self, size_bytes: u64) {
        self.n_context_unmaps += 1;
        self.mapped_bytes = self.mapped_bytes.saturating_sub(size_bytes);
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n_refused: u64 = self.refused.values().sum();
        write!(
            f,
            "graphs_built={} graphs_loaded={} contexts={} finalize_s={:.3} binary_bytes={} host_bytes={} \
             dropped_bytes={} executions={} execute_s={:.3} rows={} padded_rows={} worst_nmse={:.2e} additions={} \
             attentions={} refused={} overflows={} context_maps={} context_unmaps={} peak_mapped_bytes={} registrations={} shared={}",
            self.n_graphs_built,
            self.n_graphs_loaded,
            self.n_contexts,
            self.finalize.as_secs_f64(),
            self.binary_bytes,
            self.host_bytes,
            self.dropped_bytes,
            self.n_executions,
            self.execute.as_secs_f64(),
            self.n_rows,
            self.n_padded_rows,
            self.worst_nmse,
            self.n_additions,
            self.n_attentions,
            n_refused,
            self.n_overflows,
            self.n_context_maps,
            self.n_context_unmaps,
            self.peak_mapped_bytes,
            self.n_registrations,
            self.n_shared,
        )
    }
}
