//! The device.

use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex};

use llada_npu_ffi::ggml::backend::Device;
use llada_npu_ffi::ggml::plugin::delegate::Delegate;
use llada_npu_ffi::ggml::plugin::host::Host as GgmlHost;
use llada_npu_ffi::ggml::plugin::view::Node;
use llada_npu_ffi::ggml::plugin::{DeviceImpl, DeviceMemory};
use llada_npu_ffi::ggml::{Api, Op, OpCodes};

use super::NAME;
use super::backend::NpuBackend;
use super::buffer_type::NpuBufferType;
use super::resident::{Budget, MemoryReport, Reports, Resident};
use crate::device::host::{self, Host};
use crate::device::qnn::{self, Qnn};
use crate::device::{Accelerator, DeviceError, HOST_ONLY, failure};
use crate::graph::{describe, touches_tiles};
use crate::memory::{Keep, KvTiles, WeightStore, host_memory};
use crate::sync::lock;

/// What failed, in front of why.
const NO_INSTANCE: &str = "cannot make an instance";

/// The device: kernels of ours, and the host's CPU device for what they do not cover.
#[derive(Debug)]
pub struct NpuDevice {
    api: &'static Api,
    cpu: Device,
    codes: OpCodes,
    description: CString,
    buffer_type: NpuBufferType,
    /// For K, then for V.
    kv_buffer_types: [NpuBufferType; 2],
    store: Arc<WeightStore>,
    /// Of instances to come.
    budget: Mutex<Option<Budget>>,
    /// Of those that have ended.
    reports: Reports,
}

impl NpuDevice {
    /// Opens the device, which keeps tiles of weights as `keep` says and maps them within `budget`; `None` in a host without a CPU device.
    pub(super) fn open(host: &GgmlHost, keep: Keep, budget: Option<Budget>) -> Option<Self> {
        let api = host.api();
        let cpu = Device::cpu(api)?;
        let description = format!("CPU kernels, {} threads", default_n_threads());
        let store = Arc::new(WeightStore::new(keep));
        Some(Self {
            api,
            cpu,
            codes: OpCodes::probe(api),
            description: CString::new(description).unwrap_or_default(),
            buffer_type: NpuBufferType::Plain(Arc::clone(&store)),
            kv_buffer_types: [KvTiles::K, KvTiles::V].map(NpuBufferType::Tiles),
            store,
            budget: Mutex::new(budget),
            reports: Reports::default(),
        })
    }

    pub(super) fn set_budget(&self, budget: Option<Budget>) {
        *lock(&self.budget) = budget;
    }

    pub(super) fn memory_report(&self) -> MemoryReport {
        *lock(&self.reports)
    }

    fn resident(&self) -> Option<Resident> {
        let budget = *lock(&self.budget);
        let (store, reports) = (Arc::clone(&self.store), Arc::clone(&self.reports));
        budget.map(|budget| Resident::new(budget, store, reports))
    }

    /// The weights of all buffers.
    pub(super) fn store(&self) -> &Arc<WeightStore> {
        &self.store
    }
}

/// Returns the number of threads of an instance that was told none.
pub(super) fn default_n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Makes what the settings ask for.
fn accelerator(
    host_only: bool,
    budget_bytes: Option<u64>,
) -> Result<Box<dyn Accelerator>, DeviceError> {
    let host = Host::new(default_n_threads())?.opening_tiles(budget_bytes.is_none());
    let session = if host_only { None } else { qnn::session()? };
    Ok(match session {
        Some(session) => Box::new(Qnn::new(host, session).within(budget_bytes)),
        None => Box::new(host),
    })
}

impl DeviceImpl for NpuDevice {
    type BufferType = NpuBufferType;
    type Backend = NpuBackend;

    fn name(&self) -> &'static CStr {
        NAME
    }

    fn description(&self) -> &CStr {
        &self.description
    }

    fn memory(&self) -> DeviceMemory {
        host_memory()
    }

    fn buffer_type(&self) -> &NpuBufferType {
        &self.buffer_type
    }

    fn more_buffer_types(&self) -> &[NpuBufferType] {
        &self.kv_buffer_types
    }

    fn init_backend(&self, params: Option<&CStr>) -> Option<NpuBackend> {
        let Some(delegate) = Delegate::new(self.api, &self.cpu) else {
            let reason = format_args!("host device {} makes none", self.cpu.name());
            failure::tell(NO_INSTANCE, reason);
            return None;
        };
        let host_only = params.is_some_and(|params| params.to_bytes() == HOST_ONLY.as_bytes());
        let resident = self.resident();
        let budget_bytes = resident
            .as_ref()
            .map(|resident| resident.limits().budget_bytes);
        match accelerator(host_only, budget_bytes) {
            Ok(accelerator) => Some(NpuBackend::new(
                self.codes,
                accelerator,
                delegate,
                Arc::clone(&self.store),
                resident,
            )),
            Err(error) => {
                failure::tell(NO_INSTANCE, error);
                None
            }
        }
    }

    fn supports_op(&self, op: Node<'_>) -> bool {
        match self.codes.classify(op.op_code()) {
            Op::None | Op::View => true,
            // Rows of an embedding are read where they lie, so that a graph needs no second device for its first node;
            // what else meets weights of the CPU is computed where those are repacked for it.
            op_kind if op_kind != Op::GetRows && op.srcs().any(Node::is_weight_of_cpu) => false,
            _ if touches_tiles(op) => {
                describe(&self.codes, op).is_some_and(|spec| host::supports(&spec))
            }
            _ => {
                self.cpu.supports_op_anywhere(op)
                    || describe(&self.codes, op).is_some_and(|spec| host::supports(&spec))
            }
        }
    }
}
