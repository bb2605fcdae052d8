//! Implementations of the integer probe.

use crate::op::probe::Int8Probe;

/// Returns the probe of the instruction set that the best quantised products use, if there is one for this CPU.
pub fn int8_probe() -> Option<Int8Probe> {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::x86_64::{avx2, avx512};

        if let Some(probe) = avx512::probe::Vnni::detect() {
            return Some(Int8Probe(Box::new(probe)));
        }
        if let Some(probe) = avx2::probe::Avx2::detect() {
            return Some(Int8Probe(Box::new(probe)));
        }
    }
    None
}
