//! ggml's codes as values: element types, statuses and operations.

use super::api::Api;
use super::context::Context;
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

/// An operation that the backend treats in a way of its own; everything else is delegated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// No operation: an input or a weight.
    None,
    /// Same data under another shape or place: `VIEW`, `RESHAPE`, `PERMUTE`, `TRANSPOSE`.
    View,
    /// `MUL_MAT`.
    MulMat,
    /// `MUL_MAT_ID`.
    MulMatId,
    /// `FLASH_ATTN_EXT`.
    FlashAttnExt,
    /// Anything else.
    Other,
}

/// The host's operation codes and flags. Codes move between ggml releases, so they are read from tensors that the
/// host's own builders made.
#[derive(Clone, Copy, Debug)]
pub struct OpCodes {
    none: u32,
    views: [u32; 4],
    mul_mat: u32,
    mul_mat_id: u32,
    flash_attn_ext: u32,
    /// Set on nodes that are to be computed; 0 where the host has no such flag.
    compute_flag: i32,
}

impl OpCodes {
    /// Asks the host's builders for their codes.
    #[must_use]
    pub fn probe(api: &'static Api) -> Self {
        let ctx = Context::new(api, 16, 16);
        let a = ctx.new_tensor(Type::F32, &[32, 4]);
        let views = [
            ctx.reshape_2d(&a, 4, 32).op_code(),
            ctx.view_2d(&a, 2, 2, 128, 0).op_code(),
            ctx.permute(&a, [1, 0, 2, 3]).op_code(),
            ctx.transpose(&a).op_code(),
        ];
        let rows = ctx.new_tensor(Type::F32, &[32, 1, 4]);
        let ids = ctx.new_tensor(Type::I32, &[1, 4]);
        let mask = ctx.new_tensor(Type::F16, &[4, 64]);
        let product = ctx.mul_mat(&a, &a);
        let before = product.flags();
        ctx.new_graph(16).build_forward_expand(&product);
        Self {
            none: a.op_code(),
            views,
            mul_mat: product.op_code(),
            mul_mat_id: ctx.mul_mat_id(&a, &rows, &ids).op_code(),
            flash_attn_ext: ctx.flash_attn_ext(&a, &a, &a, &mask, 1.0).op_code(),
            compute_flag: product.flags() & !before,
        }
    }

    /// Classifies a code.
    #[must_use]
    pub fn classify(&self, code: u32) -> Op {
        match code {
            c if c == self.none => Op::None,
            c if self.views.contains(&c) => Op::View,
            c if c == self.mul_mat => Op::MulMat,
            c if c == self.mul_mat_id => Op::MulMatId,
            c if c == self.flash_attn_ext => Op::FlashAttnExt,
            _ => Op::Other,
        }
    }

    /// Tells whether a node with these flags is to be computed; a graph may carry others.
    #[must_use]
    pub fn is_computed(&self, flags: i32) -> bool {
        self.compute_flag == 0 || flags & self.compute_flag != 0
    }
}
