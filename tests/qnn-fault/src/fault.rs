//! What is to go wrong, as text.

use std::str::FromStr;

/// A text that says nothing that this library could do wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError(pub String);

/// How outputs are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// All are half too large.
    Scale,
    /// The last row is zero.
    Row,
    /// The first is NaN.
    Nan,
    /// Inputs after the first are taken for zero.
    Inputs,
}

/// What happens at calls of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) call: String,
    pub(crate) action: Action,
    /// Calls before it that go well.
    pub(crate) after: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Fail(u64),
    /// Success, but no handle.
    Null,
    SlowMs(u64),
    Hang,
    /// The process ends at once.
    Abort,
}

/// What is to go wrong: items separated by `;`, words by blanks.
///
/// | item | |
/// |---|---|
/// | `fail CALL CODE [after N]` | the function answers with an error, from its N + 1st call on |
/// | `null CALL` | it answers with success, and no handle |
/// | `slow CALL MS`, `hang CALL`, `abort CALL` | it takes its time; never returns; ends the process; each with `[after N]` |
/// | `missing CALL` | it is not in the table |
/// | `wrong scale`, `wrong row`, `wrong nan`, `wrong inputs`, each with `[after N]` | outputs of executions are wrong |
/// | `formula` | weights in blocks are `q * scale + offset` instead of `(q + offset) * scale` |
/// | `core X.Y.Z`, `backend X.Y.Z`, `provider NAME`, `build ID` | what the library says of itself |
/// | `no-providers` | it has none |
/// | `memory` | shared buffers can be registered, and executions use them |
///
/// Functions go by QNN's names without prefix: `graphExecute`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    pub(crate) at: Vec<At>,
    pub(crate) missing: Vec<String>,
    pub(crate) wrong: Option<(Wrong, u64)>,
    pub(crate) formula: bool,
    pub(crate) core: Option<[u32; 3]>,
    pub(crate) backend: Option<[u32; 3]>,
    pub(crate) provider: Option<String>,
    pub(crate) build: Option<String>,
    pub(crate) no_providers: bool,
    pub(crate) memory: bool,
}

impl FromStr for Faults {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut faults = Self::default();
        for item in text
            .split(';')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            faults.add(item).ok_or_else(|| SpecError(item.to_owned()))?;
        }
        Ok(faults)
    }
}

impl Faults {
    fn add(&mut self, item: &str) -> Option<()> {
        let words: Vec<&str> = item.split_whitespace().collect();
        let (words, after) = match words.as_slice() {
            [head @ .., "after", n] => (head, n.parse().ok()?),
            all => (all, 0),
        };
        let at = |call: &str, action| At {
            call: call.to_owned(),
            action,
            after,
        };
        match words {
            ["fail", call, code] => self.at.push(at(call, Action::Fail(code.parse().ok()?))),
            ["null", call] => self.at.push(at(call, Action::Null)),
            ["slow", call, ms] => self.at.push(at(call, Action::SlowMs(ms.parse().ok()?))),
            ["hang", call] => self.at.push(at(call, Action::Hang)),
            ["abort", call] => self.at.push(at(call, Action::Abort)),
            ["missing", call] => self.missing.push((*call).to_owned()),
            ["wrong", "scale"] => self.wrong = Some((Wrong::Scale, after)),
            ["wrong", "row"] => self.wrong = Some((Wrong::Row, after)),
            ["wrong", "nan"] => self.wrong = Some((Wrong::Nan, after)),
            ["wrong", "inputs"] => self.wrong = Some((Wrong::Inputs, after)),
            ["formula"] => self.formula = true,
            ["core", version] => self.core = Some(parse_version(version)?),
            ["backend", version] => self.backend = Some(parse_version(version)?),
            ["provider", name] => self.provider = Some((*name).to_owned()),
            ["build", id] => self.build = Some((*id).to_owned()),
            ["no-providers"] => self.no_providers = true,
            ["memory"] => self.memory = true,
            _ => return None,
        }
        Some(())
    }
}

fn parse_version(text: &str) -> Option<[u32; 3]> {
    let parts: Vec<u32> = text
        .split('.')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_or_refused() {
        let faults: Faults = "fail graphExecute 6000 after 2; core 2.31.0;; wrong row"
            .parse()
            .unwrap();
        let at = At {
            call: "graphExecute".into(),
            action: Action::Fail(6000),
            after: 2,
        };
        assert_eq!(faults.at, [at]);
        assert_eq!(faults.core, Some([2, 31, 0]));
        assert_eq!(faults.wrong, Some((Wrong::Row, 0)));
        for text in ["fail", "fail x y", "core 2.31", "wrong", "hang x after"] {
            assert!(text.parse::<Faults>().is_err(), "{text}");
        }
    }
}
