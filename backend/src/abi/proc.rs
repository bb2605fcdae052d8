//! The C interface of the decoding modes: `backend/include/ggml-diffusion.h`.
//!
//! A host asks the registry for `ggml_backend_diffusion_get_api` and gets the table [`Api`]. Each function is a shim:
//! guard, borrow the handle, call one safe function, map the result; failures leave a line for `last_error`.

#![expect(unsafe_code, reason = "C callers hand pointers in")]

mod call;
mod failure;
mod handle;
mod types;

use std::ffi::{CStr, c_char, c_int, c_void};

use llada_npu_ffi::guard;

pub use failure::{Failure, Status};
pub use handle::{ModelHandle, SessionHandle};
pub use types::{
    API_VERSION, Api, Callback, Event, EventType, ModelInfo, ModelParams, OptionInfo, Progress,
    Report, SessionParams, SizedStruct, StageCode,
};

use types::{read, write};

/// Name by which a host asks for [`get_api`]: `GGML_DIFFUSION_GET_API_PROC`.
pub const GET_API_PROC: &CStr = c"ggml_backend_diffusion_get_api";

static API: Api = Api {
    size: size_of::<Api>(),
    version: API_VERSION,
    last_error,
    n_options,
    option_info,
    model_load,
    model_free,
    model_get_info,
    session_new,
    session_free,
    session_set,
    session_check,
    generate,
    output,
    get_report,
    get_report_json,
    last_status,
};

/// `ggml_diffusion_get_api_t`: the table, which is static.
pub extern "C" fn get_api() -> *const Api {
    &raw const API
}

/// Runs the body of an entry point; failures and panics are kept for `last_error` and become `on_failure` of their
/// status.
fn enter<R>(
    entry: &'static str,
    on_failure: impl Fn(Status) -> R,
    body: impl FnOnce() -> Result<R, Failure>,
) -> R {
    match guard(entry, Err(Failure::Panic { entry }), body) {
        Ok(value) => value,
        Err(failure) => on_failure(failure::remember(&failure)),
    }
}

/// As [`enter`], for functions that return a status alone.
fn enter_status(entry: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    enter(entry, Status::code, || body().map(|()| Status::Ok.code()))
}

/// Borrows a string of the caller.
///
/// # Safety
/// `text` is NULL or NUL-terminated, and unchanged during `'a`.
unsafe fn string<'a>(name: &'static str, text: *const c_char) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::Null { name });
    }
    // SAFETY: not NULL; the caller guarantees the rest.
    Ok(unsafe { CStr::from_ptr(text) })
}

extern "C" fn last_error() -> *const c_char {
    guard("last_error", c"".as_ptr(), failure::last_error)
}

extern "C" fn last_status() -> c_int {
    guard("last_status", Status::Failed.code(), || {
        failure::last_status().code()
    })
}

extern "C" fn n_options() -> usize {
    guard("n_options", 0, call::n_options)
}

unsafe extern "C" fn option_info(index: usize, info: *mut OptionInfo) -> c_int {
    enter_status("option_info", || {
        let value = call::option_info(index)?;
        // SAFETY: the caller passes a struct of the size that it says (ggml-diffusion.h), here and below.
        unsafe { write(info, &value) }
    })
}

unsafe extern "C" fn model_load(
    path: *const c_char,
    params: *const ModelParams,
) -> *mut ModelHandle {
    enter(
        "model_load",
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: the caller passes a NUL-terminated path (ggml-diffusion.h).
            let path = unsafe { string("path", path)? };
            // SAFETY: see option_info.
            let params = unsafe { read(params, call::DEFAULT_MODEL_PARAMS)? };
            let mut progress = |share: f32| {
                // SAFETY: the caller gave this function to be called with this pointer while loading.
                params
                    .progress
                    .is_none_or(|progress| unsafe { progress(share, params.progress_user_data) })
            };
            let state = call::model_load(path, params.check_tensors != 0, &mut progress)?;
            Ok(ModelHandle::into_handle(Box::new(state)))
        },
    )
}

unsafe extern "C" fn model_free(model: *mut ModelHandle) {
    guard("model_free", (), || {
        // SAFETY: the caller gives the handle back (ggml-diffusion.h).
        drop(unsafe { ModelHandle::from_handle(model) });
    });
}

unsafe extern "C" fn model_get_info(model: *mut ModelHandle, info: *mut ModelInfo) -> c_int {
    enter_status("model_get_info", || {
        // SAFETY: the caller passes a live handle (ggml-diffusion.h), here and below. It is only read: sessions and
        // threads share models.
        let state = unsafe { ModelHandle::borrow_handle(model)? };
        // SAFETY: see option_info.
        unsafe { write(info, &call::model_info(state)) }
    })
}

unsafe extern "C" fn session_new(
    model: *mut ModelHandle,
    params: *const SessionParams,
) -> *mut SessionHandle {
    enter(
        "session_new",
        |_| std::ptr::null_mut(),
        || {
            // SAFETY: see model_get_info.
            let state = unsafe { ModelHandle::borrow_handle(model)? };
            // SAFETY: see option_info.
            let params = unsafe { read(params, call::DEFAULT_SESSION_PARAMS)? };
            let state = call::session_new(state, &params)?;
            Ok(SessionHandle::into_handle(Box::new(state)))
        },
    )
}

unsafe extern "C" fn session_free(session: *mut SessionHandle) {
    guard("session_free", (), || {
        // SAFETY: the caller gives the handle back (ggml-diffusion.h).
        if let Err(failure) = unsafe { SessionHandle::free(session) } {
            failure::remember(&failure);
            log::error!("session_free: {failure}");
        }
    });
}

unsafe extern "C" fn session_set(
    session: *mut SessionHandle,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    enter_status("session_set", || {
        // SAFETY: the caller passes a live handle (ggml-diffusion.h), here and below.
        let mut state = unsafe { SessionHandle::enter(session)? };
        // SAFETY: the caller passes NUL-terminated strings.
        let key = unsafe { string("key", key)? };
        // SAFETY: as above.
        let value = unsafe { string("value", value)? };
        call::session_set(&mut state, key, value)
    })
}

unsafe extern "C" fn session_check(
    session: *mut SessionHandle,
    n_prompt: i32,
    n_generate: i32,
) -> c_int {
    enter_status("session_check", || {
        // SAFETY: see session_set.
        let state = unsafe { SessionHandle::enter(session)? };
        call::session_check(&state, n_prompt, n_generate)
    })
}

unsafe extern "C" fn generate(
    session: *mut SessionHandle,
    prompt: *const i32,
    n_prompt: i32,
    n_generate: i32,
    callback: Option<Callback>,
    user_data: *mut c_void,
) -> c_int {
    enter_status("generate", || {
        // SAFETY: see session_set.
        let mut state = unsafe { SessionHandle::enter(session)? };
        let n = call::count("n_prompt", n_prompt)?;
        if prompt.is_null() && n > 0 {
            return Err(Failure::Null { name: "prompt" });
        }
        let prompt = if n == 0 {
            &[]
        } else {
            // SAFETY: not NULL; the caller passes `n_prompt` tokens that nobody changes during the call.
            unsafe { std::slice::from_raw_parts(prompt, n as usize) }
        };
        call::generate(&mut state, prompt, n_generate, &mut |event| {
            // SAFETY: the caller gave this function to be called with this pointer during the call.
            callback.map_or(0, |callback| unsafe { callback(event, user_data) })
        })
    })
}

unsafe extern "C" fn output(session: *mut SessionHandle, tokens: *mut i32, n_max: i32) -> i32 {
    enter("output", Status::code, || {
        // SAFETY: see session_set.
        let state = unsafe { SessionHandle::enter(session)? };
        let n_max = call::count("n_max", n_max)? as usize;
        if tokens.is_null() && n_max > 0 {
            return Err(Failure::Null { name: "tokens" });
        }
        let output = state.session.output();
        let n = output.len().min(n_max);
        if n > 0 {
            // SAFETY: not NULL; the caller has room for `n_max` tokens, which are not ours.
            unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), tokens, n) };
        }
        Ok(call::signed(output.len()))
    })
}

unsafe extern "C" fn get_report(session: *mut SessionHandle, report: *mut Report) -> c_int {
    enter_status("get_report", || {
        // SAFETY: see session_set.
        let state = unsafe { SessionHandle::enter(session)? };
        // SAFETY: see option_info.
        unsafe { write(report, &call::report(state.session.report())) }
    })
}

unsafe extern "C" fn get_report_json(
    session: *mut SessionHandle,
    text: *mut c_char,
    n_max: usize,
) -> i32 {
    enter("get_report_json", Status::code, || {
        // SAFETY: see session_set.
        let state = unsafe { SessionHandle::enter(session)? };
        if text.is_null() && n_max > 0 {
            return Err(Failure::Null { name: "text" });
        }
        let json = state.session.report().to_json();
        if n_max > 0 {
            let n = json.len().min(n_max - 1);
            // SAFETY: not NULL; the caller has room for `n_max` bytes, and `n` is less.
            unsafe { std::ptr::copy_nonoverlapping(json.as_ptr(), text.cast(), n) };
            // SAFETY: as above.
            unsafe { text.wrapping_add(n).write(0) };
        }
        Ok(call::signed(json.len()))
    })
}

#[cfg(test)]
mod tests;
