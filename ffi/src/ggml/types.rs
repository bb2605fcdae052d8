//! ggml's codes as values: element types and statuses.

use super::api::Api;
use super::sys;

/// An element type, by ggml's number (type numbers are part of the file format and never change).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Type(pub u32);

impl Type {
    /// 32-bit float.
    pub const F32: Self = Self(0);
    /// 16-bit float.
    pub const F16: Self = Self(1);
    /// 4-bit blocks of 32 with one scale.
    pub const Q4_0: Self = Self(2);
    /// 8-bit blocks of 32 with one scale.
    pub const Q8_0: Self = Self(8);
    /// 32-bit integer.
    pub const I32: Self = Self(26);
    /// 64-bit integer.
    pub const I64: Self = Self(27);
    /// bfloat16.
    pub const BF16: Self = Self(30);

    /// Returns the name, such as `q4_0`.
    #[must_use]
    pub fn name(self, api: &Api) -> String {
        // SAFETY: a pure function of a number; the caller got it from ggml or checked it.
        let name = unsafe { (api.ggml_type_name)(self.0) };
        // SAFETY: the name is static and NUL-terminated (ggml.h).
        unsafe { super::backend::to_string(name) }
    }

    /// Returns the elements of a block, and its bytes.
    #[must_use]
    pub fn block(self, api: &Api) -> (i64, usize) {
        // SAFETY: as for `name`.
        let elements = unsafe { (api.ggml_blck_size)(self.0) };
        // SAFETY: as for `name`.
        let bytes = unsafe { (api.ggml_type_size)(self.0) };
        (elements, bytes)
    }

    /// Tells whether `data` is free of NaN, Inf and invalid scales, in ggml's own judgement.
    #[must_use]
    pub fn validate_row_data(self, api: &Api, data: &[u8]) -> bool {
        // SAFETY: ggml reads `data.len()` bytes and checks that they are whole blocks.
        unsafe { (api.ggml_validate_row_data)(self.0, data.as_ptr().cast(), data.len()) }
    }

    /// Returns the bytes of a row of `ne` elements.
    #[must_use]
    pub fn row_size(self, api: &Api, ne: i64) -> usize {
        // SAFETY: a pure function of two numbers; the caller got the type number from ggml or checked it.
        unsafe { (api.ggml_row_size)(self.0, ne) }
    }
}

/// A non-success `ggml_status`, raw code kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ggml status {}", .0)]
pub struct Status(pub i32);

impl Status {
    /// Out of memory.
    pub const ALLOC_FAILED: Self = Self(sys::GGML_STATUS_ALLOC_FAILED);
    /// The computation failed.
    pub const FAILED: Self = Self(sys::GGML_STATUS_FAILED);
    /// The abort callback asked to stop.
    pub const ABORTED: Self = Self(sys::GGML_STATUS_ABORTED);

    pub(crate) fn check(raw: sys::ggml_status) -> Result<(), Self> {
        if raw == sys::GGML_STATUS_SUCCESS {
            Ok(())
        } else {
            Err(Self(raw))
        }
    }
}
