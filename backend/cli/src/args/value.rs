//! Values of flags: what each takes, and what is said of one that it does not take.

use std::error::Error as _;
use std::fmt::Display;
use std::ops::RangeInclusive;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Most threads that ggml has.
pub(crate) const MAX_N_THREADS: i64 = 512;

/// Largest canvas of a session.
pub(crate) const MAX_N_CTX: i64 = 1 << 20;

/// Largest count of anything, as in llama.cpp.
pub(crate) const MAX_COUNT: i64 = i32::MAX as i64;

/// Returns the parser of whole numbers in a range, which the type holds.
pub(crate) fn whole<T: TryFrom<i64>>(
    range: RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Returns the parser of numbers in a range; what is neither finite nor in it is refused.
pub(crate) fn number<T: std::str::FromStr + PartialOrd + Display + Copy>(
    range: RangeInclusive<T>,
    unit: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("a number{unit} from {} to {}", range.start(), range.end()))
    }
}

/// Returns what is said of a value that its parser refused, in the words of all other messages; `None` for other errors.
pub(super) fn refusal(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let flag = text(ContextKind::InvalidArg)?.split(' ').next()?;
    let value = text(ContextKind::InvalidValue)?;
    let expected = error.source()?.to_string();
    let expected = expected.strip_prefix("expected ").unwrap_or(&expected);
    Some(format!("{flag}: `{value}` is not {expected}"))
}

#[cfg(test)]
mod tests {
    use super::{number, whole};

    #[test]
    fn numbers_are_taken_whole_and_in_their_range() {
        let parse = whole::<u32>(1..=256);
        for good in ["1", "256", "+7"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "0",
            "257",
            "-1",
            "1.5",
            "12x",
            " 1",
            "99999999999999999999",
            "0x10",
        ] {
            assert_eq!(
                parse(bad),
                Err("a whole number from 1 to 256".to_owned()),
                "{bad}"
            );
        }
        let parse = number(0.0..=100.0, " of seconds per GB");
        for good in ["0", "1e2", ".5"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["", "nan", "inf", "1e300", "-0.1", "1,5", "5s"] {
            let refused = Err("a number of seconds per GB from 0 to 100".to_owned());
            assert_eq!(parse(bad), refused, "{bad}");
        }
    }
}
