//! What the processor can do, as far as the kernels care.

use serde::Serialize;

/// The processor.
#[derive(Debug, Serialize)]
pub(crate) struct Cpu {
    /// Rust's name of the architecture.
    pub(crate) architecture: &'static str,
    /// Threads that this process may run at a time.
    pub(crate) n_threads: usize,
    /// Instruction sets found.
    pub(crate) features: Vec<&'static str>,
}

impl Cpu {
    /// Looks at the processor that runs this.
    pub(crate) fn detect() -> Self {
        Self {
            architecture: std::env::consts::ARCH,
            n_threads: std::thread::available_parallelism().map_or(1, usize::from),
            features: features(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    macro_rules! found {
        ($($name:tt)*) => { [$(($name, std::arch::is_x86_feature_detected!($name))),*] };
    }
    names(&found!(
        "sse4.2" "avx" "f16c" "fma" "avx2" "avxvnni" "avx512f" "avx512bw" "avx512vl" "avx512vnni" "avx512bf16"
    ))
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    macro_rules! found {
        ($($name:tt)*) => { [$(($name, std::arch::is_aarch64_feature_detected!($name))),*] };
    }
    names(&found!("neon" "fp16" "fhm" "dotprod" "i8mm" "bf16" "sve" "sve2"))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn names(found: &[(&'static str, bool)]) -> Vec<&'static str> {
    found
        .iter()
        .filter(|(_, here)| *here)
        .map(|&(name, _)| name)
        .collect()
}
