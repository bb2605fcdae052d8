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
    kv_tiles: Option<[BufferType; 2]>,
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
            kv_tiles: None,
        }
    }

    /// Returns the target with buffer types for K and for V in tiles, which its device attends to.
    #[must_use]
    pub const fn with_kv_tiles(self, bufts: [BufferType; 2]) -> Self {
        Self {
            kv_tiles: Some(bufts),
            ..self
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

    /// Type of all buffers but those of K and V in tiles.
    pub const fn buffer_type(&self) -> &BufferType {
        &self.buft
    }

    /// Buffer types of K and of V in tiles, where the device has them.
    pub const fn kv_tiles(&self) -> Option<[BufferType; 2]> {
        self.kv_tiles
    }

    /// Buffer over a mapped file, where the target can use it in place.
    pub(super) fn adopt(&self, file: &Arc<MappedFile>) -> Option<Buffer> {
        self.adopt.and_then(|adopt| adopt(file))
    }
}
