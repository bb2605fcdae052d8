//! Why instances fail, for those who call them through ggml: its tables pass on a status alone.

use std::cell::RefCell;
use std::fmt::Display;

thread_local! {
    /// `None` where nobody catches; the reasons are joined where there are several.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes a call that may fail within an instance of ours, on this thread; returns with its result why, "" where nothing was told.
/// Of calls within each other the outer one learns nothing.
pub fn catch<R>(call: impl FnOnce() -> R) -> (R, String) {
    CAUGHT.set(Some(String::new()));
    let end = End;
    let result = call();
    let reasons = CAUGHT.take().unwrap_or_default();
    drop(end);
    (result, reasons)
}

/// Ends a [`catch`], also where its call unwinds: what fails later on this thread is nobody's to catch.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        CAUGHT.set(None);
    }
}

/// Says why an instance fails: to who catches it on this thread, who knows what failed; else to the log, after `what` failed.
pub fn tell(what: &str, reason: impl Display) {
    CAUGHT.with_borrow_mut(|caught| match caught {
        Some(reasons) if reasons.is_empty() => *reasons = reason.to_string(),
        Some(reasons) => *reasons = format!("{reasons}; {reason}"),
        None => log::error!("{what}: {reason}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_reach_who_catches_them() {
        assert_eq!(catch(|| 3), (3, String::new()));
        let two = catch(|| {
            tell("a call", "first");
            tell("a call", "second");
        });
        assert_eq!(two, ((), "first; second".to_owned()));
        tell("a call", "nobody catches this");
        assert_eq!(catch(|| ()).1, "");
        let elsewhere = catch(|| std::thread::spawn(|| tell("a call", "elsewhere")).join());
        assert_eq!(elsewhere.1, "");
    }

    #[test]
    fn nothing_is_caught_after_a_call_that_unwinds() {
        let unwound = std::panic::catch_unwind(|| catch(|| panic!("on purpose")));
        assert!(unwound.is_err());
        assert!(CAUGHT.with_borrow(Option::is_none));
    }
}
