//! Pure arithmetic of llada-npu on plain slices.
//!
//! No FFI, no files, no threads, no globals and no environment: every function here maps input slices to output
//! slices. Who calls what, on which thread and with which implementation is the business of the backend crate.
