//! A QNN library for tests: it computes small graphs right, and fails on demand.
//!
//! It exports `QnnInterface_getProviders` like `libQnnHtp.so`, with a table as long as that of core version 2.32. It was written
//! from facts about the ABI (offsets of fields, places in the table, measured behaviour) and shares no declaration with
//! `llada_npu_ffi::qnn`: what both agree on is checked by every test that passes.
//!
//! | module | what |
//! |---|---|
//! | `abi` | structures of C, read by offset |
//! | `fault` | what is to go wrong |
//! | `number` | numbers of every data type, and quantisation |
//! | `compute` | the operations |
//! | `state` | what is alive; misuse is counted |
//! | `memory` | buffers that are registered |
//! | `functions`, `graphs`, `table` | what is called, and where it stands |
//!
//! What goes wrong is said by the environment variable `QNN_FAULT` when the library is first used, or by the exported function
//! `qnn_fault_set`: see [`Faults`]. Other exports: `qnn_fault_calls` (calls of a function so far), `qnn_fault_violations` (misuse that the
//! real library would answer with a crash or not at all: wrong sizes, freeing too early), `qnn_fault_alive` (handles not freed),
//! `qnn_fault_peak_bytes` (the most bytes of contexts at a time, since the last call), `qnn_fault_shared` (inputs and outputs that were in registered memory).
//!
//! Operations: `FullyConnected`, `MatMul`, `Conv2d` with one pixel, `ElementWiseAdd`, `-Subtract`, `-Multiply`, `-Divide`, `Sigmoid`, `Tanh`, `Cast`, `Convert`,
//! `Quantize`, `Dequantize`, `Reshape`, `Transpose`, `Softmax`.

mod abi;
mod compute;
mod fault;
mod functions;
mod graphs;
mod memory;
mod number;
mod state;
mod table;

pub use fault::{Faults, SpecError};

use std::ffi::{CStr, c_char};

/// Sets what goes wrong from now on; 0, or 1 for a text that is none.
///
/// # Safety
/// `text` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qnn_fault_set(text: *const c_char) -> u32 {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    match text.parse::<Faults>() {
        Ok(faults) => {
            state::lock().faults = faults;
            0
        }
        Err(_error) => 1,
    }
}

/// Counts the calls of a function, by QNN's name without prefix.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qnn_fault_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    state::lock().calls.get(&*name).copied().unwrap_or(0)
}

/// Counts misuses.
#[unsafe(no_mangle)]
pub extern "C" fn qnn_fault_violations() -> u64 {
    state::lock().violations
}

/// Counts handles that are not freed.
#[unsafe(no_mangle)]
pub extern "C" fn qnn_fault_alive() -> u64 {
    state::lock().alive()
}

/// The most bytes of contexts that were there at a time since this was called last: those of the binaries that they were read
/// from, or of the constants that they were given.
#[unsafe(no_mangle)]
pub extern "C" fn qnn_fault_peak_bytes() -> u64 {
    state::lock().take_peak()
}

/// Counts inputs and outputs of executions that were in registered memory.
#[unsafe(no_mangle)]
pub extern "C" fn qnn_fault_shared() -> u64 {
    state::lock().n_shared
}
