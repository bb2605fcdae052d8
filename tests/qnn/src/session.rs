//! What a session over the library that fails on demand is opened with.

use std::path::PathBuf;
use std::time::Duration;

use ggml_llada_npu::device::qnn::{OpenOptions, RowCounts, Settings};
use ggml_llada_npu::knobs::{Accel, Attention, HostWeights, Linear, Tier};

use crate::Fault;

/// Returns settings for graphs of 16 and 64 rows, with a time limit of a second.
pub fn settings(fault: &Fault) -> Settings {
    of_library(fault.path().parent().map(Into::into))
}

/// The same for the library in a directory.
pub fn of_library(dir: Option<PathBuf>) -> Settings {
    Settings {
        accel: Accel::Qnn,
        open: OpenOptions {
            dir,
            soc: None,
            performance: None,
        },
        rows: RowCounts::new(&[16, 64]),
        tier: Tier::Block,
        linear: Linear::FullyConnected,
        attention: Attention::Host,
        vtcm_mb: None,
        timeout: Duration::from_secs(1),
        host_weights: HostWeights::Keep,
    }
}
