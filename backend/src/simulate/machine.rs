//! Constants in the units that times are computed in.

use super::soc::Profile;
use super::trace::floor;
use crate::memory::runtime::Costs;

/// Rates and powers of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Operations per second of products on the NPU.
    pub npu_flops_per_s: f64,
    /// Bytes of weights per second.
    pub npu_bytes_per_s: f64,
    /// Rows are rounded up to multiples of it.
    pub row_quantum: u64,
    /// So many rows and fewer need no tiles.
    pub vector_rows: u64,
    /// Seconds before each segment.
    pub dispatch_s: f64,
    /// Operations per second of products on all cores.
    pub cpu_flops_per_s: f64,
    /// Bytes of weights per second.
    pub cpu_bytes_per_s: f64,
    /// Addresses of a session.
    pub budget_bytes: u64,
    /// Seconds to map and unmap a byte.
    pub map_s_per_byte: f64,
    /// Bytes per second of copies.
    pub copy_bytes_per_s: f64,
    /// Weights need no addresses.
    pub weights_by_dma: bool,
    /// Watts of the busy NPU.
    pub npu_w: f64,
    /// Watts of all cores.
    pub cpu_w: f64,
    /// Watts of the core that maps and copies.
    pub host_map_w: f64,
}

impl Machine {
    /// Returns what a profile comes to.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self {
            npu_flops_per_s: profile.npu_gemm_tflops.value * 1e12,
            npu_bytes_per_s: profile.npu_stream_gb_s.value * 1e9,
            row_quantum: floor(profile.npu_row_quantum.value).max(1),
            vector_rows: floor(profile.npu_vector_rows.value),
            dispatch_s: profile.npu_dispatch_us.value * 1e-6,
            cpu_flops_per_s: profile.cpu_gemm_tflops.value * 1e12,
            cpu_bytes_per_s: profile.cpu_stream_gb_s.value * 1e9,
            budget_bytes: floor(profile.va_budget_mib.value) << 20,
            map_s_per_byte: profile.map_s_per_gb.value * 1e-9,
            copy_bytes_per_s: profile.copy_gb_s.value * 1e9,
            weights_by_dma: profile.weights_by_dma.value != 0.0,
            npu_w: profile.npu_w.value,
            cpu_w: profile.cpu_w.value,
            host_map_w: profile.host_map_w.value,
        }
    }

    /// Returns the rows that the NPU computes where `n_rows` are asked for.
    pub(super) const fn padded(&self, n_rows: u64) -> u64 {
        if n_rows <= self.vector_rows {
            n_rows
        } else {
            n_rows.next_multiple_of(self.row_quantum)
        }
    }

    /// Returns what the memory runtime chooses by.
    pub(super) fn costs(&self) -> Costs {
        Costs {
            map_seconds_per_gb: self.map_s_per_byte * 1e9,
            copy_gb_per_second: self.copy_bytes_per_s * 1e-9,
        }
    }
}
