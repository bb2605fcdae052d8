//! What a `void * context` points to.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ggml::api::Api;
use crate::guard::try_guard;

/// The state behind one C object, with the mark of failure.
pub(super) struct Context<T> {
    pub(super) api: &'static Api,
    failed: AtomicBool,
    value: T,
}

impl<T> Context<T> {
    /// Makes the `void *` of a new C object.
    pub(super) fn into_context(api: &'static Api, value: T) -> *mut c_void {
        let context = Self {
            api,
            failed: AtomicBool::new(false),
            value,
        };
        Box::into_raw(Box::new(context)).cast()
    }

    /// Borrows the state of a C object.
    ///
    /// # Safety
    /// `context` came from [`into_context`](Self::into_context) of the same `T` and [`free_context`](Self::free_context)
    /// was not called with it.
    pub(super) unsafe fn borrow_context<'a>(context: *mut c_void) -> &'a Self {
        debug_assert!(!context.is_null(), "objects are made with a context");
        // SAFETY: the caller guarantees a live context of this type.
        unsafe { &*context.cast::<Self>() }
    }

    /// Frees the state of a C object.
    ///
    /// # Safety
    /// As for [`borrow_context`](Self::borrow_context); no borrow is alive, and nobody uses `context` afterwards.
    pub(super) unsafe fn free_context(entry: &'static str, context: *mut c_void) {
        // SAFETY: the caller guarantees a context of this type that is freed once.
        let context = unsafe { Box::from_raw(context.cast::<Self>()) };
        // A panic in a destructor is logged; the object is gone either way.
        let _freed = try_guard(entry, move || drop(context));
    }

    /// Runs one entry point. After a panic, now or earlier, the answer is `on_failure`.
    pub(super) fn enter<R>(
        &self,
        entry: &'static str,
        on_failure: R,
        body: impl FnOnce(&T) -> R,
    ) -> R {
        if self.failed.load(Ordering::Relaxed) {
            return on_failure;
        }
        try_guard(entry, || body(&self.value)).unwrap_or_else(|| {
            self.mark_failed();
            on_failure
        })
    }

    /// Runs an entry point that describes the object and does no work: it answers even after a failure, since hosts stop
    /// at a buffer without an address or a device without a name.
    pub(super) fn describe<R>(
        &self,
        entry: &'static str,
        on_panic: R,
        body: impl FnOnce(&T) -> R,
    ) -> R {
        try_guard(entry, || body(&self.value)).unwrap_or(on_panic)
    }

    /// Refuses all further work.
    pub(super) fn mark_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}
