//! What settings choose between.

use std::fmt;
use std::str::FromStr;

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

pub(super) fn parse_repack(value: &str) -> Option<Repack> {
    match value {
        "off" => Some(Repack::Off),
        "memory" => Some(Repack::Memory),
        "cache" => Some(Repack::Cache),
        _ => None,
    }
}

/// Where dense work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// On an NPU where a library and a device are found, else on the host.
    Auto,
    /// On QNN's library, an emulation included; on the host where that is impossible.
    Qnn,
    /// On the host.
    Host,
}

pub(super) fn parse_accel(value: &str) -> Option<Accel> {
    match value {
        "auto" => Some(Accel::Auto),
        "qnn" => Some(Accel::Qnn),
        "host" => Some(Accel::Host),
        _ => None,
    }
}

/// What becomes of the host's bytes of weights that an accelerator holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWeights {
    /// They stay in memory.
    Keep,
    /// Pages of a mapped file are given back.
    Drop,
}

pub(super) fn parse_host_weights(value: &str) -> Option<HostWeights> {
    match value {
        "keep" => Some(HostWeights::Keep),
        "drop" => Some(HostWeights::Drop),
        _ => None,
    }
}

/// Which numbers a weight becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Blocks as ggml has them; half floats where there are none.
    #[default]
    Block,
    /// Half floats.
    Half,
    /// Bytes with one scale per row, and activations of 16 bits.
    Int8,
}

pub(super) fn parse_tier(value: &str) -> Option<Tier> {
    match value {
        "block" => Some(Tier::Block),
        "half" => Some(Tier::Half),
        "int8" => Some(Tier::Int8),
        _ => None,
    }
}

/// How products are written down for the library; the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Linear {
    /// `FullyConnected`.
    #[default]
    FullyConnected,
    /// A convolution with a kernel of one pixel.
    Conv,
}

pub(super) fn parse_linear(value: &str) -> Option<Linear> {
    match value {
        "fc" => Some(Linear::FullyConnected),
        "conv" => Some(Linear::Conv),
        _ => None,
    }
}

/// Where attention runs where an accelerator is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// On the host.
    Host,
    /// On the accelerator, as far as graphs take it.
    Npu,
}

pub(super) fn parse_attention(value: &str) -> Option<Attention> {
    match value {
        "host" => Some(Attention::Host),
        "npu" => Some(Attention::Npu),
        _ => None,
    }
}

/// Who decides what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// What a segment needs is mapped before it and unmapped after it.
    Naive,
    /// What was used longest ago makes room.
    Lru,
    /// Segments are taken in batches that fit; when there is no room for the next, all maps go that it does not need, and
    /// all maps where that does not help: what the Hexagon backend of llama.cpp does.
    DropUnused,
    /// Some objects stay, chosen by their size and use; the rest is streamed between runs.
    Planned,
    /// As [`Policy::Planned`], streamed while segments run.
    PlannedPipeline,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Naive,
        Self::Lru,
        Self::DropUnused,
        Self::Planned,
        Self::PlannedPipeline,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Lru => "lru",
            Self::DropUnused => "drop-unused",
            Self::Planned => "planned",
            Self::PlannedPipeline => "planned+pipeline",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected naive, lru, drop-unused, planned or planned+pipeline")]
pub struct UnknownPolicy;

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.name().eq_ignore_ascii_case(name))
            .ok_or(UnknownPolicy)
    }
}

pub(super) fn parse_policy(value: &str) -> Option<Policy> {
    value.parse().ok()
}
