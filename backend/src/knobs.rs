//! The environment variables of llada-npu, all of them.
//!
//! Each is a static of the variable's own name. Nothing else in the workspace reads the environment for settings of
//! ours.

mod choice;
mod listing;

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use llada_npu_ffi::qnn::{PerformanceMode, Soc};

pub use choice::{Accel, Attention, HostWeights, Linear, Policy, Repack, Tier, UnknownPolicy};
use choice::{
    parse_accel, parse_attention, parse_host_weights, parse_linear, parse_policy, parse_repack,
    parse_tier,
};
pub use listing::{Setting, settings};

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
    help: "use these kernels instead of the best that the CPU can run; `llada-npu doctor` lists all",
    default: Vec::new(),
    parse: parse_list,
};

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

/// 1 TiB, more than any address space that is worth simulating.
const MAX_MIB: u64 = 1 << 20;

fn parse_mib(value: &str) -> Option<Option<u64>> {
    let mib: u64 = value.parse().ok()?;
    (1..=MAX_MIB).contains(&mib).then_some(Some(mib << 20))
}

/// How many bytes may be mapped at the same time.
pub static LLADA_NPU_BUDGET: Knob<Option<u64>> = Knob {
    name: "LLADA_NPU_BUDGET",
    expected: "MiB, 1 to 1048576, no limit by default",
    help: "run each instance as if it saw so few addresses: weights, on the CPU or in contexts of QNN, are mapped before they are used, and cannot be read while they are not",
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

/// Where dense work runs.
pub static LLADA_NPU_ACCEL: Knob<Accel> = Knob {
    name: "LLADA_NPU_ACCEL",
    expected: "auto, qnn or host",
    help: "compute products with weights on an NPU through QNN where its library and a device are found (not in emulation), by the library in any case, or on the CPU",
    default: Accel::Auto,
    parse: parse_accel,
};

/// Where QNN's libraries are.
pub static LLADA_NPU_QNN_DIR: Knob<Option<PathBuf>> = Knob {
    name: "LLADA_NPU_QNN_DIR",
    expected: "a directory",
    help: "`libQnnHtp.so` is loaded from here, not from where the system looks",
    default: None,
    parse: parse_dir,
};

fn parse_soc(value: &str) -> Option<Soc> {
    Soc::by_name(value)
}

/// The chip to emulate.
pub static LLADA_NPU_QNN_SOC: Knob<Soc> = Knob {
    name: "LLADA_NPU_QNN_SOC",
    expected: "SM8550, SM8650, SM8750, SM8850, …",
    help: "the chip that QNN emulates on x86-64, SM8650 by default; phones know theirs",
    default: Soc::SM8650,
    parse: parse_soc,
};

fn parse_performance(value: &str) -> Option<PerformanceMode> {
    match value {
        "burst" => Some(PerformanceMode::Burst),
        "high" => Some(PerformanceMode::High),
        "balanced" => Some(PerformanceMode::Balanced),
        "saver" => Some(PerformanceMode::PowerSaver),
        _ => None,
    }
}

/// How fast the NPU is asked to be.
pub static LLADA_NPU_QNN_PERFORMANCE: Knob<PerformanceMode> = Knob {
    name: "LLADA_NPU_QNN_PERFORMANCE",
    expected: "burst, high, balanced or saver",
    help: "clocks that the NPU is asked for",
    default: PerformanceMode::Burst,
    parse: parse_performance,
};

fn parse_vtcm(value: &str) -> Option<Option<u32>> {
    Some(Some(value.parse().ok()?))
}

/// Fast memory of a graph.
pub static LLADA_NPU_QNN_VTCM: Knob<Option<u32>> = Knob {
    name: "LLADA_NPU_QNN_VTCM",
    expected: "MiB",
    help: "fast memory (VTCM) that a graph may use, 0 for all of it; the library's choice where it is not set",
    default: None,
    parse: parse_vtcm,
};

/// Most rows of a graph.
const MAX_ROWS: usize = 4096;

fn parse_rows(value: &str) -> Option<Cow<'static, [usize]>> {
    let count = |count: &str| {
        let count = count.trim().parse().ok();
        count.filter(|n| (1..=MAX_ROWS).contains(n))
    };
    value.split(',').map(count).collect()
}

/// Row counts of graphs; multiples of the height of the NPU's tiles by default.
pub static LLADA_NPU_QNN_ROWS: Knob<Cow<'static, [usize]>> = Knob {
    name: "LLADA_NPU_QNN_ROWS",
    expected: "numbers, separated by commas",
    help: "row counts that graphs are built for, 32,64,96,128,256,512 by default; rows are padded to the next; each that is met has its own copy of the weights",
    default: Cow::Borrowed(&[32, 64, 96, 128, 256, 512]),
    parse: parse_rows,
};

/// What weights become.
pub static LLADA_NPU_QNN_WEIGHTS: Knob<Tier> = Knob {
    name: "LLADA_NPU_QNN_WEIGHTS",
    expected: "block, half or int8",
    help: "weights for QNN: ggml's blocks as they are, half floats, or bytes with one scale per row (rounded anew) and activations of 16 bits",
    default: Tier::Block,
    parse: parse_tier,
};

/// How products are written down for QNN.
pub static LLADA_NPU_QNN_LINEAR: Knob<Linear> = Knob {
    name: "LLADA_NPU_QNN_LINEAR",
    expected: "fc or conv",
    help: "products are fully connected layers or convolutions of one pixel; `int8` weights always take convolutions",
    default: Linear::FullyConnected,
    parse: parse_linear,
};

/// Where attention runs.
pub static LLADA_NPU_QNN_ATTENTION: Knob<Attention> = Knob {
    name: "LLADA_NPU_QNN_ATTENTION",
    expected: "host or npu",
    help: "where products run through QNN, attention stays on the CPU, or runs there as well, in half floats, with K and V copied into inputs of graphs",
    default: Attention::Host,
    parse: parse_attention,
};

fn parse_seconds(value: &str) -> Option<f64> {
    let seconds: f64 = value.parse().ok()?;
    (seconds > 0.0 && seconds <= 1e6).then_some(seconds)
}

/// How long a call of QNN's library may take.
pub static LLADA_NPU_QNN_TIMEOUT: Knob<f64> = Knob {
    name: "LLADA_NPU_QNN_TIMEOUT",
    expected: "seconds, 120 by default",
    help: "a call of QNN's library that takes longer is given up, and the library with it",
    default: 120.0,
    parse: parse_seconds,
};

/// What becomes of the host's bytes of weights that an accelerator holds.
pub static LLADA_NPU_HOST_WEIGHTS: Knob<HostWeights> = Knob {
    name: "LLADA_NPU_HOST_WEIGHTS",
    expected: "keep or drop",
    help: "the CPU's bytes of weights that QNN holds stay in memory, or their pages are given back where they lie in a mapped model file, from which they return when the CPU needs them",
    default: HostWeights::Keep,
    parse: parse_host_weights,
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
        assert_eq!(parse_attention("npu"), Some(Attention::Npu));
        assert_eq!(parse_attention("NPU"), None);
        assert_eq!(parse_number("20"), Some(20));
        assert_eq!(parse_number("-1"), None);
        assert_eq!(parse_mib("3"), Some(Some(3 << 20)));
        assert_eq!(parse_mib("1048576"), Some(Some(1 << 40)));
        for bad in ["0", "-1", "1.5", "1048577", "99999999999999999"] {
            assert_eq!(parse_mib(bad), None, "{bad}");
        }
        assert_eq!(parse_policy("lru"), Some(Policy::Lru));
        assert_eq!(parse_policy("best"), None);
        assert_eq!(parse_accel("qnn"), Some(Accel::Qnn));
        assert_eq!(parse_accel("npu"), None);
        assert_eq!(parse_soc("SM8650"), Some(Soc::SM8650));
        assert_eq!(parse_seconds("0"), None);
        assert_eq!(parse_seconds("2.5"), Some(2.5));
        assert_eq!(parse_vtcm("x"), None);
        assert_eq!(parse_tier("int8"), Some(Tier::Int8));
        assert_eq!(parse_linear("conv"), Some(Linear::Conv));
        assert_eq!(parse_rows("64, 8").as_deref(), Some(&[64, 8][..]));
        for bad in ["", "0", "x", "32,", "-1", "5000"] {
            assert_eq!(parse_rows(bad), None, "{bad:?}");
        }
        assert_eq!(parse_performance("fast"), None);
        assert_eq!(parse_host_weights("drop"), Some(HostWeights::Drop));
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
