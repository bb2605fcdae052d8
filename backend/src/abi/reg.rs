//! The registry.

use std::ffi::CStr;

use llada_npu_ffi::ggml::plugin::{ProcAddress, RegImpl};

use super::device::NpuDevice;
use super::{NAME, proc};

/// The registry with its one device.
#[derive(Debug)]
pub struct NpuReg {
    device: NpuDevice,
}

impl NpuReg {
    pub(super) fn new(device: NpuDevice) -> Self {
        Self { device }
    }
}

impl RegImpl for NpuReg {
    type Device = NpuDevice;

    fn name(&self) -> &'static CStr {
        NAME
    }

    fn device(&self) -> &NpuDevice {
        &self.device
    }

    fn proc_address(&self, name: &CStr) -> Option<ProcAddress> {
        (name == proc::GET_API_PROC).then(|| ProcAddress::of_table(proc::get_api))
    }
}
