//! Memory of the device: what buffers are made of, and the store of repacked weights.
//!
//! A buffer is address space that is committed as it is written, in ggml's plain layout; the engine's weights lie in a
//! read-only buffer over the mapped model file. Hosts plan with the memory of the machine ([`host_memory`]).
//!
//! | module | what |
//! |---|---|
//! | [`store`] | the [`WeightStore`]: tiles by the address of the tensor, and what becomes of its plain bytes |
//! | [`shape`] | which tensors have tiles, and how they are cut into work for threads |
//! | [`tiles`] | the bytes of tiles: memory, or a mapped file |
//! | [`cache`] | the directory of those files |
//! | `key` | their names |
//! | `kv` | K and V in tiles, as a host reads and writes them |
//! | `watch` | who wants to know when a weight changes
//! | [`parallel`] | threads to work with, whoever has them |
//! | [`runtime`] | what is mapped when, where an accelerator sees too few addresses |

#![deny(unsafe_code)]

pub mod cache;
mod key;
mod kv;
pub mod parallel;
pub mod runtime;
pub mod shape;
pub mod store;
pub mod tiles;
mod watch;

use std::sync::Once;

use llada_npu_ffi::ggml::plugin::DeviceMemory;

use crate::knobs::{KnobError, LLADA_NPU_CACHE_MAX, LLADA_NPU_REPACK, Repack, cache_dir};
pub use cache::CacheDir;
use cache::RepackCache;
pub use key::FileIdentity;
pub use kv::KvTiles;
pub use store::{Keep, PlainGuard, WeightStore};
pub use watch::Watch;

/// Returns where tiles are kept, as the settings have it.
///
/// # Errors
/// When a setting is not understood.
pub fn keep() -> Result<Keep, KnobError> {
    let max_bytes = LLADA_NPU_CACHE_MAX.get()?.saturating_mul(1 << 30);
    Ok(match (LLADA_NPU_REPACK.get()?, cache_dir()) {
        (Repack::Off, _) => Keep::Nothing,
        (Repack::Memory, _) => Keep::Memory,
        (Repack::Cache, Some(dir)) => {
            let repack = CacheDir::new(dir.join(REPACK_DIR), cache::SUFFIX, max_bytes);
            let repack = repack.beside(dir.join(CONTEXT_DIR), CONTEXT_SUFFIX);
            Keep::Cache(RepackCache::in_dir(repack))
        }
        (Repack::Cache, None) => {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                log::warn!(
                    "neither LLADA_NPU_CACHE nor HOME is set: weights are repacked in memory"
                );
            });
            Keep::Memory
        }
    })
}

/// Where repacked weights are in the cache.
const REPACK_DIR: &str = "repack";
/// Where context binaries of QNN are, and how their names end.
const CONTEXT_DIR: &str = "qnn-contexts";
const CONTEXT_SUFFIX: &str = "context";

/// Returns the directory of context binaries, under one limit with the repacked weights; `None` where there is no cache.
///
/// # Errors
/// When a setting is not understood.
pub fn context_dir() -> Result<Option<CacheDir>, KnobError> {
    let max_bytes = LLADA_NPU_CACHE_MAX.get()?.saturating_mul(1 << 30);
    Ok(cache_dir().map(|dir| {
        CacheDir::new(dir.join(CONTEXT_DIR), CONTEXT_SUFFIX, max_bytes)
            .beside(dir.join(REPACK_DIR), cache::SUFFIX)
    }))
}

/// What is reported where the system does not tell: hosts take 0 for "does not fit".
const UNKNOWN_BYTES: usize = 1 << 30;

/// Returns the memory of the machine.
#[must_use]
pub fn host_memory() -> DeviceMemory {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    parse_meminfo(&text)
}

fn parse_meminfo(text: &str) -> DeviceMemory {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok())
            .map(|kib| kib.saturating_mul(1024))
            .filter(|&bytes| bytes > 0)
    };
    let total_bytes = field("MemTotal").unwrap_or(UNKNOWN_BYTES);
    let free_bytes = field("MemAvailable")
        .or_else(|| field("MemFree"))
        .unwrap_or(total_bytes);
    DeviceMemory {
        free_bytes: free_bytes.min(total_bytes),
        total_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_and_never_zero() {
        let memory =
            parse_meminfo("MemTotal:   1000 kB\nMemFree:  10 kB\nMemAvailable:    500 kB\n");
        assert_eq!(
            (memory.free_bytes, memory.total_bytes),
            (512_000, 1_024_000)
        );
        let unknown = parse_meminfo("");
        assert_eq!(
            (unknown.free_bytes, unknown.total_bytes),
            (UNKNOWN_BYTES, UNKNOWN_BYTES)
        );
        let zero = parse_meminfo("MemTotal: 0 kB\nMemAvailable: 0 kB\n");
        assert!(zero.free_bytes > 0 && zero.total_bytes > 0);
    }
}
