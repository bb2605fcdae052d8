//! All variables at once: which are set, and whether they are understood.

use super::{
    Knob, KnobError, LLADA_NPU_ACCEL, LLADA_NPU_BUDGET, LLADA_NPU_CACHE, LLADA_NPU_CACHE_MAX,
    LLADA_NPU_HOST_WEIGHTS, LLADA_NPU_KERNEL, LLADA_NPU_LOG, LLADA_NPU_MEMORY,
    LLADA_NPU_QNN_ATTENTION, LLADA_NPU_QNN_DIR, LLADA_NPU_QNN_LINEAR, LLADA_NPU_QNN_PERFORMANCE,
    LLADA_NPU_QNN_ROWS, LLADA_NPU_QNN_SOC, LLADA_NPU_QNN_TIMEOUT, LLADA_NPU_QNN_VTCM,
    LLADA_NPU_QNN_WEIGHTS, LLADA_NPU_REPACK, LLADA_NPU_STRICT,
};

/// What all variables start with.
const PREFIX: &str = "LLADA_NPU_";

/// Variables of scripts and tests.
const ELSEWHERE: [&str; 4] = [
    "LLADA_NPU_ACCEPT_QNN_LICENSE",
    "LLADA_NPU_FUZZ_SECONDS",
    "LLADA_NPU_PYTHON",
    "LLADA_NPU_TEST_CHILD",
];

/// A variable, whatever its values are.
trait AnyKnob: Sync {
    fn name(&self) -> &'static str;

    fn check(&self) -> Result<(), KnobError>;

    /// Name, values and help, as README has them.
    #[cfg(test)]
    fn row(&self) -> String;
}

impl<T: Clone + Sync> AnyKnob for Knob<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check(&self) -> Result<(), KnobError> {
        self.get().map(|_value| ())
    }

    #[cfg(test)]
    fn row(&self) -> String {
        format!("| `{}` | {} | {} |", self.name, self.expected, self.help)
    }
}

static ALL: [&dyn AnyKnob; 19] = [
    &LLADA_NPU_STRICT,
    &LLADA_NPU_LOG,
    &LLADA_NPU_KERNEL,
    &LLADA_NPU_REPACK,
    &LLADA_NPU_CACHE,
    &LLADA_NPU_CACHE_MAX,
    &LLADA_NPU_BUDGET,
    &LLADA_NPU_MEMORY,
    &LLADA_NPU_ACCEL,
    &LLADA_NPU_QNN_DIR,
    &LLADA_NPU_QNN_SOC,
    &LLADA_NPU_QNN_PERFORMANCE,
    &LLADA_NPU_QNN_VTCM,
    &LLADA_NPU_QNN_ROWS,
    &LLADA_NPU_QNN_WEIGHTS,
    &LLADA_NPU_QNN_LINEAR,
    &LLADA_NPU_QNN_ATTENTION,
    &LLADA_NPU_QNN_TIMEOUT,
    &LLADA_NPU_HOST_WEIGHTS,
];

/// A variable that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value, for people.
    pub value: String,
    /// Whether it is one of ours: another with such a name does nothing.
    pub is_known: bool,
    /// Why the value cannot be used.
    pub error: Option<KnobError>,
}

/// Returns the variables that are set to something, ours in README's order first.
#[must_use]
pub fn settings() -> Vec<Setting> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    let known = ALL.iter().filter_map(|knob| {
        let value = std::env::var_os(knob.name()).filter(|value| !value.is_empty())?;
        Some(Setting {
            name: knob.name().to_owned(),
            value: text(value),
            is_known: true,
            error: knob.check().err(),
        })
    });
    let is_unknown = |name: &str| {
        name.starts_with(PREFIX)
            && !ELSEWHERE.contains(&name)
            && ALL.iter().all(|knob| knob.name() != name)
    };
    let mut unknown: Vec<_> = std::env::vars_os()
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, _)| is_unknown(name))
        .map(|(name, value)| Setting {
            name,
            value,
            is_known: false,
            error: None,
        })
        .collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    known.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_readme_has_every_variable() {
        let readme = include_str!("../../../README.md");
        for row in ALL.map(AnyKnob::row) {
            assert!(readme.contains(&row), "README.md lacks: {row}");
        }
    }

    #[test]
    fn every_variable_is_listed_once() {
        let source = include_str!("../knobs.rs");
        let is_upper = |c: char| c.is_ascii_uppercase() || c == '_';
        let statics: BTreeSet<_> = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub static "))
            .filter_map(|line| line.split_once(": Knob<"))
            .map(|(name, _)| name)
            .collect();
        assert!(statics.iter().all(|name| name.chars().all(is_upper)));
        let listed: BTreeSet<_> = ALL.iter().map(|knob| knob.name()).collect();
        assert_eq!(listed, statics);
        assert_eq!(listed.len(), ALL.len());
        assert!(ELSEWHERE.iter().all(|name| !listed.contains(name)));
    }
}
