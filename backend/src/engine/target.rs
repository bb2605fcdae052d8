//! Where the engine computes.

use std::sync::Arc;

use llada_npu_ffi::ggml::backend::Device;
use llada_npu_ffi::ggml::{Api, Buffer, BufferType};

use crate::model::mapped_file::MappedFile;

/// Makes a read-only buffer of the target's type over a mapped file; `None` where that is impossible.
pub type Adopt = fn(&Arc<MappedFile>) -> Option<Buffer>;

/// Non-owning handle of a device, its buffer type, and its way to use mapped files in place.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    api: &'static Api,
    device: Device,
    buft: BufferType,
    adopt: Option<Adopt>,
}

impl Target {
    /// Returns the target; without `adopt`, weights are copied into buffers of `buft`.
    pub const fn new(
        api: &'static Api,
        device: Device,
        buft: BufferType,
        adopt: Option<Adopt>,
    ) -> Self {
        Self {
            api,
            device,
            buft,
            adopt,
        }
    }

    /// Functions of the host's ggml.
    pub const fn api(&self) -> &'static Api {
        self.api
    }

    /// Device that computes.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Type of all buffers.
    pub const fn buffer_type(&self) -> &BufferType {
        &self.buft
    }

    /// Buffer over a mapped file, where the target can use it in place.
    pub(super) fn adopt(&self, file: &Arc<MappedFile>) -> Option<Buffer> {
        self.adopt.and_then(|adopt| adopt(file))
    }
}
