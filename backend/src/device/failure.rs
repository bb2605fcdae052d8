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
    let result = call();
    (result, CAUGHT.take().unwrap_or_default())
}

/// Says why an instance fails: to who catches it on this thread, else to the log.
pub fn tell(reason: impl Display) {
    CAUGHT.with_borrow_mut(|caught| match caught {
        Some(reasons) if reasons.is_empty() => *reasons = reason.to_string(),
        Some(reasons) => *reasons = format!("{reasons}; {reason}"),
        None => log::error!("{reason}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_reach_who_catches_them() {
        assert_eq!(catch(|| 3), (3, String::new()));
        let two = catch(|| {
            tell("first");
            tell("second");
        });
        assert_eq!(two, ((), "first; second".to_owned()));
        tell("nobody catches this");
        assert_eq!(catch(|| ()).1, "");
        let elsewhere = catch(|| std::thread::spawn(|| tell("elsewhere")).join());
        assert_eq!(elsewhere.1, "");
    }
}
