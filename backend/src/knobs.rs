//! The environment variables of llada-npu, all of them.
//!
//! Each is a static of the variable's own name. Nothing else in the workspace reads the environment for settings of
//! ours.

use std::fmt;
use std::path::PathBuf;

use crate::memory::runtime::Policy;

/// A variable whose value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {name}={value} is not understood: expected {expected}")]
pub struct KnobError {
    name: &'static str,
    value: String,
    expected: &'static str,
}

/// One environment variable.
pub struct Knob<T: 'static> {
    /// Name of the variable.
    pub name: &'static str,
    /// What the values are, for people.
    pub expected: &'static str,
    /// What it does, one line.
    pub help: &'static str,
    default: T,
    parse: fn(&str) -> Option<T>,
}

impl<T> fmt::Debug for Knob<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Knob")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<T: Clone> Knob<T> {
    /// Reads the variable; unset and empty give the default.
    ///
    /// # Errors
    /// [`KnobError`] when the value is not one of the expected.
    pub fn get(&self) -> Result<T, KnobError> {
        let value = std::env::var_os(self.name).unwrap_or_default();
        let value = value.to_string_lossy();
        if value.is_empty() {
            return Ok(self.default.clone());
        }
        (self.parse)(&value).ok_or_else(|| KnobError {
            name: self.name,
            value: value.into_owned(),
            expected: self.expected,
        })
    }
}

fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "1" | "on" | "true" => Some(true),
        "0" | "off" | "false" => Some(false),
        _ => None,
    }
}

fn parse_list(value: &str) -> Option<Vec<String>> {
    let names: Vec<String> = value
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    names.iter().all(|name| !name.is_empty()).then_some(names)
}

fn parse_level(value: &str) -> Option<log::LevelFilter> {
    value.parse().ok()
}

/// Refuse hosts whose ggml version was never tested.
pub static LLADA_NPU_STRICT: Knob<bool> = Knob {
    name: "LLADA_NPU_STRICT",
    expected: "0 or 1",
    help: "refuse a llama.cpp whose ggml version was never tested, instead of warning",
    default: false,
    parse: parse_bool,
};

/// How much the plug-in says.
pub static LLADA_NPU_LOG: Knob<log::LevelFilter> = Knob {
    name: "LLADA_NPU_LOG",
    expected: "off, error, warn, info, debug or trace",
    help: "how much the plug-in writes to the log of its host",
    default: log::LevelFilter::Info,
    parse: parse_level,
};

/// Kernels to use instead of the best that the CPU can run.
pub static LLADA_NPU_KERNEL: Knob<Vec<String>> = Knob {
    name: "LLADA_NPU_KERNEL",
    expected: "names of kernels, separated by commas",
    help: "use these kernels for their weight types instead of the best that the CPU can run",
    default: Vec::new(),
    parse: parse_list,
};

/// Whether and where repacked weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repack {
    /// Weights are used as they lie in the model.
    Off,
    /// In memory.
    Memory,
    /// In files that later loads and other processes share.
    Cache,
}

fn parse_repack(value: &str) -> Option<Repack> {
    match value {
        "off" => Some(Repack::Off),
        "memory" => Some(Repack::Memory),
        "cache" => Some(Repack::Cache),
        _ => None,
    }
}

fn parse_dir(value: &str) -> Option<Option<PathBuf>> {
    Some(Some(PathBuf::from(value)))
}

fn parse_number(value: &str) -> Option<u64> {
    value.parse().ok()
}

/// Whether weights are repacked into tiles, and where those are kept.
pub static LLADA_NPU_REPACK: Knob<Repack> = Knob {
    name: "LLADA_NPU_REPACK",
    expected: "cache, memory or off",
    help: "keep repacked weights in the cache, where later loads and other processes find them, or in memory, or do not repack",
    default: Repack::Cache,
    parse: parse_repack,
};

/// Where things that can be made again are kept.
pub static LLADA_NPU_CACHE: Knob<Option<PathBuf>> = Knob {
    name: "LLADA_NPU_CACHE",
    expected: "a directory",
    help: "repacked weights (in `repack`), and what scripts build, are kept here instead of `~/.cache/llada-npu`",
    default: None,
    parse: parse_dir,
};

/// Most GiB of what is kept.
pub static LLADA_NPU_CACHE_MAX: Knob<u64> = Knob {
    name: "LLADA_NPU_CACHE_MAX",
    expected: "GiB, 20 by default",
    help: "limit of the repacked weights there, and of what scripts keep there; what was used longest ago goes first",
    default: 20,
    parse: parse_number,
};

fn parse_mib(value: &str) -> Option<Option<u64>> {
    let mib: u64 = value.parse().ok().filter(|&mib| mib > 0)?;
    Some(Some(mib.checked_mul(1 << 20)?))
}

fn parse_policy(value: &str) -> Option<Policy> {
    value.parse().ok()
}

/// How many bytes may be mapped at the same time.
pub static LLADA_NPU_BUDGET: Knob<Option<u64>> = Knob {
    name: "LLADA_NPU_BUDGET",
    expected: "MiB, no limit by default",
    help: "run each instance as if it saw so few addresses: weights are mapped before they are used, and cannot be read while they are not",
    default: None,
    parse: parse_mib,
};

/// Who decides what is mapped.
pub static LLADA_NPU_MEMORY: Knob<Policy> = Knob {
    name: "LLADA_NPU_MEMORY",
    expected: "naive, lru, drop-unused, planned or planned+pipeline",
    help: "who decides what is mapped where there is a budget; `planned+pipeline` by default",
    default: Policy::PlannedPipeline,
    parse: parse_policy,
};

/// Returns the directory of `LLADA_NPU_CACHE`, or its place in the user's home; `None` where there is no home.
#[must_use]
pub fn cache_dir() -> Option<PathBuf> {
    let home = || {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
        Some(PathBuf::from(home).join(".cache/llada-npu"))
    };
    LLADA_NPU_CACHE.get().ok().flatten().or_else(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_or_refused() {
        assert_eq!(parse_bool("1"), Some(true));
        assert_eq!(parse_bool("off"), Some(false));
        assert_eq!(parse_bool("maybe"), None);
        assert_eq!(parse_level("debug"), Some(log::LevelFilter::Debug));
        assert_eq!(parse_level("loud"), None);
        assert_eq!(
            parse_list("a, b"),
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(parse_list("a,,b"), None);
        assert_eq!(parse_repack("memory"), Some(Repack::Memory));
        assert_eq!(parse_repack("disk"), None);
        assert_eq!(parse_number("20"), Some(20));
        assert_eq!(parse_number("-1"), None);
        assert_eq!(parse_mib("3"), Some(Some(3 << 20)));
        for bad in ["0", "-1", "1.5", "99999999999999999"] {
            assert_eq!(parse_mib(bad), None, "{bad}");
        }
        assert_eq!(parse_policy("lru"), Some(Policy::Lru));
        assert_eq!(parse_policy("best"), None);
    }

    #[test]
    fn the_readme_has_every_variable() {
        let readme = include_str!("../../README.md");
        let rows = [
            (
                LLADA_NPU_STRICT.name,
                LLADA_NPU_STRICT.expected,
                LLADA_NPU_STRICT.help,
            ),
            (
                LLADA_NPU_LOG.name,
                LLADA_NPU_LOG.expected,
                LLADA_NPU_LOG.help,
            ),
            (
                LLADA_NPU_KERNEL.name,
                LLADA_NPU_KERNEL.expected,
                LLADA_NPU_KERNEL.help,
            ),
            (
                LLADA_NPU_REPACK.name,
                LLADA_NPU_REPACK.expected,
                LLADA_NPU_REPACK.help,
            ),
            (
                LLADA_NPU_CACHE.name,
                LLADA_NPU_CACHE.expected,
                LLADA_NPU_CACHE.help,
            ),
            (
                LLADA_NPU_CACHE_MAX.name,
                LLADA_NPU_CACHE_MAX.expected,
                LLADA_NPU_CACHE_MAX.help,
            ),
            (
                LLADA_NPU_BUDGET.name,
                LLADA_NPU_BUDGET.expected,
                LLADA_NPU_BUDGET.help,
            ),
            (
                LLADA_NPU_MEMORY.name,
                LLADA_NPU_MEMORY.expected,
                LLADA_NPU_MEMORY.help,
            ),
        ];
        for (name, expected, help) in rows {
            let row = format!("| `{name}` | {expected} | {help} |");
            assert!(readme.contains(&row), "README.md lacks: {row}");
        }
    }

    #[test]
    fn an_unset_variable_is_the_default() {
        let knob = Knob {
            name: "LLADA_NPU_TEST_UNSET",
            expected: "",
            help: "",
            default: 3,
            parse: |_| None,
        };
        assert_eq!(knob.get(), Ok(3));
    }
}
