//! The syntax of option values.

use super::cost::{CostSource, CostTable};
use super::error::ParamError;
use super::options::{Algorithm, Fill, Mode, RevisionContext, RevisionOrder, RevisionPath, Suffix};
use super::plan::Token;

pub(super) fn mode(key: &'static str, value: &str) -> Result<Mode, ParamError> {
    let expected = "one of the modes there are: reference, cached, mbsd, full";
    one_of(key, value, &Mode::ALL, Mode::name, expected)
}

/// Parses the name of one of several things.
fn one_of<T: Copy>(
    key: &'static str,
    value: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    expected: &'static str,
) -> Result<T, ParamError> {
    all.iter()
        .copied()
        .find(|&one| name(one) == value)
        .ok_or_else(|| ParamError::value(key, value, expected))
}

pub(super) fn fill(key: &'static str, value: &str) -> Result<Fill, ParamError> {
    one_of(
        key,
        value,
        &Fill::ALL,
        Fill::name,
        "none, lookahead or visible",
    )
}

pub(super) fn order(key: &'static str, value: &str) -> Result<RevisionOrder, ParamError> {
    let expected = "oldest or confidence";
    one_of(
        key,
        value,
        &RevisionOrder::ALL,
        RevisionOrder::name,
        expected,
    )
}

pub(super) fn context(key: &'static str, value: &str) -> Result<RevisionContext, ParamError> {
    let expected = "committed or window";
    one_of(
        key,
        value,
        &RevisionContext::ALL,
        RevisionContext::name,
        expected,
    )
}

pub(super) fn path(key: &'static str, value: &str) -> Result<RevisionPath, ParamError> {
    one_of(
        key,
        value,
        &RevisionPath::ALL,
        RevisionPath::name,
        "own, dense or auto",
    )
}

/// Parses a cost table: the name of a built-in one, `measured`, or points `ROWS:MS,…`.
pub(super) fn cost(key: &'static str, value: &str) -> Result<CostSource, ParamError> {
    let table = match value {
        "host" => Some(CostTable::HOST),
        "npu" => Some(CostTable::NPU),
        "measured" => return Ok(CostSource::Measured),
        points => parse_points(points),
    };
    table.map(CostSource::Table).ok_or_else(|| {
        let expected = "host, npu, measured, a file of a table, or a table ROWS:MS,ROWS:MS with both ascending";
        ParamError::value(key, value, expected)
    })
}

fn parse_points(text: &str) -> Option<CostTable> {
    let separators = |c: char| c == ',' || c.is_ascii_whitespace();
    let parts = text.split(separators).filter(|part| !part.is_empty());
    let points: Option<Vec<_>> = parts
        .map(|part| {
            let (rows, ms) = part.split_once(':')?;
            Some((digits(rows)?, decimal(ms)?))
        })
        .collect();
    CostTable::from_points(&points?)
}

/// Parses a probability.
pub(super) fn share(key: &'static str, value: &str) -> Result<f32, ParamError> {
    number(key, value, |n| n <= 1.0, "a number between 0 and 1")
}

/// Parses a whole number of at most `most`; `expected` says which.
pub(super) fn at_most(
    key: &'static str,
    value: &str,
    range: std::ops::RangeInclusive<u32>,
    expected: &'static str,
) -> Result<u32, ParamError> {
    digits(value)
        .filter(|n| range.contains(n))
        .ok_or_else(|| ParamError::value(key, value, expected))
}

pub(super) fn algorithm(key: &'static str, value: &str) -> Result<Algorithm, ParamError> {
    match value {
        "0" | "origin" => Ok(Algorithm::Origin),
        "1" | "entropy" => Ok(Algorithm::Entropy),
        "2" | "margin" | "topk_margin" => Ok(Algorithm::Margin),
        "3" | "random" => Ok(Algorithm::Random),
        "4" | "confidence" | "maskgit_plus" | "low_confidence" => Ok(Algorithm::Confidence),
        _ => Err(ParamError::value(
            key,
            value,
            "0 to 4 or one of origin, entropy, margin, random, confidence, maskgit_plus, topk_margin, low_confidence",
        )),
    }
}

pub(super) fn suffix(key: &'static str, value: &str) -> Result<Suffix, ParamError> {
    match value {
        "none" => Ok(Suffix::None),
        "all" => Ok(Suffix::All),
        "cached" => Ok(Suffix::Cached),
        _ => match digits(value) {
            Some(0) => Ok(Suffix::None),
            Some(n) => Ok(Suffix::Next(n)),
            None => Err(ParamError::value(
                key,
                value,
                "none, all, cached or a number of tokens",
            )),
        },
    }
}

pub(super) fn confidence(key: &'static str, value: &str) -> Result<bool, ParamError> {
    match value {
        "with-mask" => Ok(true),
        "without-mask" => Ok(false),
        _ => Err(ParamError::value(key, value, "with-mask or without-mask")),
    }
}

pub(super) fn boolean(key: &'static str, value: &str) -> Result<bool, ParamError> {
    truth(value).ok_or_else(|| ParamError::value(key, value, "true or false"))
}

pub(super) fn auto_boolean(key: &'static str, value: &str) -> Result<Option<bool>, ParamError> {
    match (value, truth(value)) {
        ("auto", _) => Ok(None),
        (_, Some(truth)) => Ok(Some(truth)),
        _ => Err(ParamError::value(key, value, "auto, true or false")),
    }
}

pub(super) fn auto_token(key: &'static str, value: &str) -> Result<Option<Token>, ParamError> {
    if value == "auto" {
        return Ok(None);
    }
    digits(value)
        .and_then(|n| Token::try_from(n).ok())
        .map(Some)
        .ok_or_else(|| ParamError::value(key, value, "auto or a token id"))
}

/// Parses a count of at least `least`.
pub(super) fn count(key: &'static str, value: &str, least: u32) -> Result<u32, ParamError> {
    digits(value).filter(|&n| n >= least).ok_or_else(|| {
        let expected = if least == 0 {
            "a whole number, 0 or more"
        } else {
            "a whole number, 1 or more"
        };
        ParamError::value(key, value, expected)
    })
}

/// Parses a number of steps. Steps that commit nothing are counted and not run, but counting takes time too.
pub(super) fn steps(key: &'static str, value: &str) -> Result<u32, ParamError> {
    digits(value)
        .filter(|n| (1..=1_000_000).contains(n))
        .ok_or_else(|| ParamError::value(key, value, "a whole number, 1 to 1000000"))
}

/// Parses a finite number that `allowed` accepts; `expected` says which.
pub(super) fn number(
    key: &'static str,
    value: &str,
    allowed: impl Fn(f32) -> bool,
    expected: &'static str,
) -> Result<f32, ParamError> {
    decimal(value)
        .filter(|&number| allowed(number))
        .ok_or_else(|| ParamError::value(key, value, expected))
}

/// Parses a threshold: a number of 0 or more, or `inf`.
pub(super) fn threshold(key: &'static str, value: &str) -> Result<f32, ParamError> {
    if value == "inf" {
        return Ok(f32::INFINITY);
    }
    number(key, value, |n| n >= 0.0, "a number of 0 or more, or inf")
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "true" | "1" | "on" => Some(true),
        "false" | "0" | "off" => Some(false),
        _ => None,
    }
}

fn digits(value: &str) -> Option<u32> {
    // `parse` alone would take "+1".
    let plain = value.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| value.parse().ok()).flatten()
}

fn decimal(value: &str) -> Option<f32> {
    // `parse` alone would take "nan", "infinity" and "+1"; "-0" is not a way to say 0.
    let first = value.bytes().next()?;
    let plain = first.is_ascii_digit() || first == b'.';
    plain
        .then(|| value.parse::<f32>().ok())
        .flatten()
        .filter(|number| number.is_finite())
}
