//! The ggml backend `llada-npu`: one file per table, and the two functions that a host's loader calls.
//!
//! The registry is made once per process, by [`registry`]: at `ggml_backend_init` in the plug-in, or at the first use
//! in a program that links this crate. A host that cannot be served gets one line and lives on.

#![deny(unsafe_code)]

pub mod backend;
pub mod buffer;
pub mod buffer_type;
mod counts;
pub mod device;
pub mod proc;
pub mod reg;
pub mod resident;

use std::sync::{Once, OnceLock};

use llada_npu_ffi::ggml::backend::Device;
use llada_npu_ffi::ggml::plugin::host::{Host, HostError};
use llada_npu_ffi::ggml::plugin::{Installed, RegImpl, RegPtr};
use llada_npu_ffi::ggml::{Api, BufferType, api, log as ggml_log};

use crate::device::qnn::Settings;
use crate::engine::Target;
use crate::knobs::{KnobError, LLADA_NPU_LOG, LLADA_NPU_STRICT};
use crate::memory::keep;
use device::NpuDevice;
use reg::NpuReg;
use resident::{Budget, MemoryReport};

/// The name of registry, device, buffer type and instances.
pub const NAME: &std::ffi::CStr = c"llada-npu";

/// Why there is no `llada-npu` device in this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The host's ggml is missing something, or is laid out in another way.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The host has loaded no CPU backend, to which we delegate operations.
    #[error("host has no CPU backend (a plug-in is loaded after it)")]
    NoCpu,
    /// A setting is wrong.
    #[error(transparent)]
    Knob(#[from] KnobError),
}

/// Returns the registry, making it at the first call; the answer of the first call is kept.
///
/// # Errors
/// Why the host cannot be served.
pub fn registry() -> Result<&'static Installed<NpuReg>, InitError> {
    static REGISTRY: OnceLock<Result<Installed<NpuReg>, InitError>> = OnceLock::new();
    REGISTRY
        .get_or_init(|| {
            ggml_log::install(LLADA_NPU_LOG.get().unwrap_or(log::LevelFilter::Info));
            make()
        })
        .as_ref()
        .map_err(Clone::clone)
}

fn make() -> Result<Installed<NpuReg>, InitError> {
    LLADA_NPU_LOG.get()?;
    Settings::read()?;
    let host = Host::probe(LLADA_NPU_STRICT.get()?)?;
    let budget = Budget::from_knobs()?;
    let device = NpuDevice::open(&host, keep()?, budget).ok_or(InitError::NoCpu)?;
    Ok(Installed::new(&host, NpuReg::new(device)))
}

/// Returns the device, for programs that link this crate.
///
/// # Errors
/// As for [`registry`].
pub fn device() -> Result<Device, InitError> {
    Ok(registry()?.device())
}

/// Runs instances that are made from now on within a budget, or without one, whatever the settings say. Those there
/// are keep what they have: one without a budget opens the weights that it needs, beyond what the others are allowed.
///
/// # Errors
/// As for [`registry`].
pub fn set_budget(budget: Option<Budget>) -> Result<(), InitError> {
    registry()?.implementation().device().set_budget(budget);
    Ok(())
}

/// Returns what instances with a budget came to that have ended.
///
/// # Errors
/// As for [`registry`].
pub fn memory_report() -> Result<MemoryReport, InitError> {
    Ok(registry()?.implementation().device().memory_report())
}

/// Returns the buffer type, for programs that link this crate.
///
/// # Errors
/// As for [`registry`].
pub fn buffer_type() -> Result<BufferType, InitError> {
    Ok(registry()?.buffer_type())
}

/// Returns the device as the engine's target: weights are used where the file is mapped.
///
/// # Errors
/// As for [`registry`].
pub fn target() -> Result<Target, InitError> {
    let registry = registry()?;
    let api = Api::get().map_err(HostError::from)?;
    let adopt = |file: &_| buffer::from_mapped(file).ok();
    let (device, buft) = (registry.device(), registry.buffer_type());
    let target = Target::new(api, device, buft, Some(adopt));
    let kv_tiles: Vec<_> = registry.more_buffer_types().collect();
    Ok(match kv_tiles[..] {
        [k, v] => target.with_kv_tiles([k, v]),
        _ => target,
    })
}

/// Adds the device to the host's registry, for programs that link this crate: llama.cpp then finds it by name.
///
/// # Errors
/// As for [`registry`].
pub fn register() -> Result<(), InitError> {
    registry()?.register();
    Ok(())
}

/// What `ggml_backend_init` answers; why it is NULL is logged once, as the host learns nothing else.
#[must_use]
pub fn init() -> RegPtr {
    static TOLD: Once = Once::new();
    registry().map_or_else(
        |error| {
            TOLD.call_once(|| log::error!("not available: {error}"));
            RegPtr::NULL
        },
        Installed::as_ptr,
    )
}

/// What `ggml_backend_score` answers, without making anything: 0 where there is no ggml to serve. A host that is too
/// old or too new passes here and is told why at [`init`].
#[must_use]
pub fn score() -> i32 {
    i32::from(api::is_loaded())
}
