//! The border between C and Rust: no panic crosses it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a C entry point, turning a panic into `on_panic`.
pub fn guard<R>(entry: &'static str, on_panic: R, body: impl FnOnce() -> R) -> R {
    try_guard(entry, body).unwrap_or(on_panic)
}

/// Runs the body of a C entry point; `None` when it panicked, which is logged.
pub(crate) fn try_guard<R>(entry: &'static str, body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            log::error!("{entry}: panicked: {}", message(payload.as_ref()));
            // A payload whose destructor panics would leave through here.
            let _dropped = catch_unwind(AssertUnwindSafe(move || drop(payload)));
            None
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_failure_value() {
        assert_eq!(guard("entry", -1, || 7), 7);
        assert_eq!(guard("entry", -1, || panic!("broken promise")), -1);
        assert_eq!(guard("entry", -1, || panic!("{}", 5)), -1);
        assert_eq!(guard("entry", -1, || std::panic::panic_any(5_u8)), -1);
    }

    #[test]
    fn a_payload_that_panics_when_dropped_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        assert_eq!(guard("entry", -1, || std::panic::panic_any(Bomb)), -1);
    }
}
