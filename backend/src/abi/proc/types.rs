//! The structs of `backend/include/ggml-diffusion.h`, and their transfer between versions.
//!
//! Every struct starts with its size as its maker knows it. [`read`] and [`write`] move no more bytes than both sides
//! have, so either side may be older than the other.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use super::failure::Failure;
use super::handle::{ModelHandle, SessionHandle};

/// `GGML_DIFFUSION_API_VERSION`.
pub const API_VERSION: u32 = 1;

/// A C struct whose first field is its size.
///
/// # Safety
/// The type is `repr(C)`, starts with a `size_t size`, and every pattern of bytes is a value of it.
pub unsafe trait SizedStruct: Copy {
    /// Name in messages.
    const NAME: &'static str;
}

/// Reads a struct of the caller over `defaults`: fields that the caller does not have keep them. NULL is "all defaults".
///
/// # Errors
/// [`Failure::StructSize`] when the caller's size is too small to be one.
///
/// # Safety
/// `from` is NULL or points to a struct of as many bytes as its first field says.
pub(super) unsafe fn read<T: SizedStruct>(from: *const T, defaults: T) -> Result<T, Failure> {
    if from.is_null() {
        return Ok(defaults);
    }
    // SAFETY: not NULL; the caller answers for it.
    let n_bytes = unsafe { common_size(from)? };
    let mut read = defaults;
    // SAFETY: `n_bytes` is at most what either side has; any bytes are a value (`SizedStruct`).
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut read).cast::<u8>(), n_bytes) };
    Ok(read)
}

/// Writes `value` to a struct of the caller, whose size field stays as it is.
///
/// # Errors
/// [`Failure::Null`] or [`Failure::StructSize`].
///
/// # Safety
/// `to` is NULL or points to a struct of as many writable bytes as its first field says.
pub(super) unsafe fn write<T: SizedStruct>(to: *mut T, value: &T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::Null { name: T::NAME });
    }
    // SAFETY: not NULL; the caller answers for it.
    let n_bytes = unsafe { common_size(to)? };
    let skip = size_of::<usize>();
    let from = ptr::from_ref(value).cast::<u8>().wrapping_add(skip);
    // SAFETY: past the size field, `n_bytes - skip` bytes are left on both sides.
    unsafe { ptr::copy_nonoverlapping(from, to.cast::<u8>().wrapping_add(skip), n_bytes - skip) };
    Ok(())
}

/// Bytes that both sides have.
///
/// # Safety
/// `at` points to a struct that starts with its size.
unsafe fn common_size<T: SizedStruct>(at: *const T) -> Result<usize, Failure> {
    // SAFETY: the caller's struct starts with a size_t; C aligned it.
    let size = unsafe { at.cast::<usize>().read() };
    if size < size_of::<usize>() {
        return Err(Failure::StructSize {
            name: T::NAME,
            size,
        });
    }
    Ok(size.min(size_of::<T>()))
}

macro_rules! sized {
    ($($ty:ident = $name:literal, $size:literal { $($field:ident @ $offset:literal),* $(,)? })*) => { $(
        // SAFETY: `repr(C)`, starts with `size`, and has integers, floats and nullable pointers only.
        unsafe impl SizedStruct for $ty {
            const NAME: &'static str = $name;
        }

        #[cfg(target_pointer_width = "64")]
        const _: () = {
            assert!(size_of::<$ty>() == $size);
            assert!(offset_of!($ty, size) == 0);
            $(assert!(offset_of!($ty, $field) == $offset);)*
        };
    )* };
}

/// `struct ggml_diffusion_option_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the fields")]
pub struct OptionInfo {
    pub size: usize,
    pub key: *const c_char,
    pub value_name: *const c_char,
    pub default_value: *const c_char,
    pub help: *const c_char,
}

/// `bool (*progress)(float, void *)`.
pub type Progress = unsafe extern "C" fn(f32, *mut c_void) -> bool;

/// `struct ggml_diffusion_model_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the fields")]
pub struct ModelParams {
    pub size: usize,
    /// A C `bool`; as a byte, because other values than 0 and 1 must not be undefined here.
    pub check_tensors: u8,
    pub progress: Option<Progress>,
    pub progress_user_data: *mut c_void,
}

/// `struct ggml_diffusion_model_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the fields")]
pub struct ModelInfo {
    pub size: usize,
    pub architecture: *const c_char,
    pub n_vocab: i32,
    pub n_ctx_train: i32,
    pub mask_token: i32,
    pub eos_token: i32,
    pub eot_token: i32,
    pub shift_logits: u8,
    pub n_params: u64,
    pub size_bytes: u64,
}

/// `struct ggml_diffusion_session_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the fields")]
pub struct SessionParams {
    pub size: usize,
    pub n_ctx: i32,
    pub n_threads: i32,
    pub type_k: i32,
    pub type_v: i32,
    pub seed: u32,
    pub temperature: f32,
    pub top_k: i32,
    pub top_p: f32,
}

/// `enum ggml_diffusion_stage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the header documents the stages")]
pub enum StageCode {
    Masked = 0,
    Visible = 1,
    Stable = 2,
    Draft = 3,
}

/// `enum ggml_diffusion_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[expect(missing_docs, reason = "the header documents the events")]
pub enum EventType {
    Committed = 0,
    Replaced = 1,
    Remasked = 2,
    StablePrefix = 3,
    Step = 4,
}

/// `struct ggml_diffusion_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the fields")]
pub struct Event {
    pub size: usize,
    pub type_: i32,
    pub pos: i32,
    pub token: i32,
    pub stage: i32,
    pub step: i32,
    pub n: i32,
    pub canvas: *const i32,
    pub stages: *const u8,
    pub n_canvas: i32,
    pub n_prompt: i32,
}

/// `ggml_diffusion_callback`.
pub type Callback = unsafe extern "C" fn(*const Event, *mut c_void) -> c_int;

/// `struct ggml_diffusion_report`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the fields")]
pub struct Report {
    pub size: usize,
    pub n_prompt: u32,
    pub n_generated: u32,
    pub forwards_prefill: u32,
    pub forwards_refresh: u32,
    pub forwards_step: u32,
    pub forwards_promotion: u32,
    pub forwards_sweep: u32,
    pub rows_dense: u64,
    pub rows_padded: u64,
    pub rows_revision: u64,
    pub rows_logits: u64,
    pub drafts_made: u32,
    pub drafts_kept: u32,
    pub revisions_made: u32,
    pub revisions_replaced: u32,
    pub revisions_remasked: u32,
    pub n_committed: u32,
    pub seconds_total: f64,
    pub seconds_dense: f64,
    pub seconds_revision: f64,
    pub seconds_sampling: f64,
    pub seconds_waiting: f64,
    pub buckets: u64,
    pub npu_ms: f64,
}

sized! {
    OptionInfo = "option_info", 40 { key @ 8, value_name @ 16, default_value @ 24, help @ 32 }
    ModelParams = "model_params", 32 { check_tensors @ 8, progress @ 16, progress_user_data @ 24 }
    ModelInfo = "model_info", 56 {
        architecture @ 8, n_vocab @ 16, n_ctx_train @ 20, mask_token @ 24, eos_token @ 28, eot_token @ 32,
        shift_logits @ 36, n_params @ 40, size_bytes @ 48,
    }
    SessionParams = "session_params", 40 {
        n_ctx @ 8, n_threads @ 12, type_k @ 16, type_v @ 20, seed @ 24, temperature @ 28, top_k @ 32, top_p @ 36,
    }
    Event = "event", 56 {
        type_ @ 8, pos @ 12, token @ 16, stage @ 20, step @ 24, n @ 28, canvas @ 32, stages @ 40, n_canvas @ 48,
        n_prompt @ 52,
    }
    Report = "report", 152 {
        n_prompt @ 8, n_generated @ 12, forwards_prefill @ 16, forwards_refresh @ 20, forwards_step @ 24,
        forwards_promotion @ 28, forwards_sweep @ 32, rows_dense @ 40, rows_padded @ 48, rows_revision @ 56,
        rows_logits @ 64, drafts_made @ 72, drafts_kept @ 76, revisions_made @ 80, revisions_replaced @ 84,
        revisions_remasked @ 88, n_committed @ 92, seconds_total @ 96, seconds_dense @ 104, seconds_revision @ 112,
        seconds_sampling @ 120, seconds_waiting @ 128, buckets @ 136, npu_ms @ 144,
    }
}

/// `struct ggml_diffusion_api`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the header documents the functions")]
pub struct Api {
    pub size: usize,
    pub version: u32,
    pub last_error: extern "C" fn() -> *const c_char,
    pub n_options: extern "C" fn() -> usize,
    pub option_info: unsafe extern "C" fn(usize, *mut OptionInfo) -> c_int,
    pub model_load: unsafe extern "C" fn(*const c_char, *const ModelParams) -> *mut ModelHandle,
    pub model_free: unsafe extern "C" fn(*mut ModelHandle),
    pub model_get_info: unsafe extern "C" fn(*mut ModelHandle, *mut ModelInfo) -> c_int,
    pub session_new:
        unsafe extern "C" fn(*mut ModelHandle, *const SessionParams) -> *mut SessionHandle,
    pub session_free: unsafe extern "C" fn(*mut SessionHandle),
    pub session_set:
        unsafe extern "C" fn(*mut SessionHandle, *const c_char, *const c_char) -> c_int,
    pub session_check: unsafe extern "C" fn(*mut SessionHandle, i32, i32) -> c_int,
    pub generate: unsafe extern "C" fn(
        *mut SessionHandle,
        *const i32,
        i32,
        i32,
        Option<Callback>,
        *mut c_void,
    ) -> c_int,
    pub output: unsafe extern "C" fn(*mut SessionHandle, *mut i32, i32) -> i32,
    pub get_report: unsafe extern "C" fn(*mut SessionHandle, *mut Report) -> c_int,
    pub get_report_json: unsafe extern "C" fn(*mut SessionHandle, *mut c_char, usize) -> i32,
    pub last_status: extern "C" fn() -> c_int,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Api>() == 136);
    assert!(offset_of!(Api, version) == 8);
    assert!(offset_of!(Api, last_error) == 16);
    assert!(offset_of!(Api, model_load) == 40);
    assert!(offset_of!(Api, session_new) == 64);
    assert!(offset_of!(Api, generate) == 96);
    assert!(offset_of!(Api, last_status) == 128);
};
