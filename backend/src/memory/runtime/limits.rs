//! The address space, and what moving bytes costs.

use super::PlanError;
use super::turn::Transfer;
use super::workload::Workload;

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Addresses that may be mapped at the same time.
    pub budget_bytes: u64,
    /// The longest single map; longer objects take several.
    pub max_map_bytes: u64,
    /// What addresses and lengths of maps are multiples of; a power of two.
    pub alignment_bytes: u64,
}

impl Default for Limits {
    /// One session of a Hexagon NPU: 3200 MiB, 1 GiB per map, pages of 4 KiB.
    fn default() -> Self {
        Self {
            budget_bytes: 3200 << 20,
            max_map_bytes: 1 << 30,
            alignment_bytes: 4096,
        }
    }
}

impl Limits {
    /// Checks the limits, and that all sizes of a workload can be added up.
    pub(super) fn check(&self, workload: &Workload) -> Result<(), PlanError> {
        let is_usable = self.alignment_bytes.is_power_of_two()
            && self.max_map_bytes >= self.alignment_bytes
            && self.budget_bytes >= self.alignment_bytes
            && self.budget_bytes <= i64::MAX.cast_unsigned();
        if !is_usable {
            return Err(PlanError::Limits {
                budget_bytes: self.budget_bytes,
                max_map_bytes: self.max_map_bytes,
                alignment_bytes: self.alignment_bytes,
            });
        }
        let mut sum = 0_u64;
        for object in workload.objects() {
            // Room for two of everything, and for rounding.
            let twice = object
                .size_bytes
                .checked_next_multiple_of(self.alignment_bytes);
            let twice = twice.and_then(|size| size.checked_mul(2));
            sum = twice
                .and_then(|twice| sum.checked_add(twice))
                .ok_or_else(|| PlanError::Overflow {
                    tensor: object.name.clone(),
                    size_bytes: object.size_bytes,
                })?;
        }
        Ok(())
    }

    /// Rounds a size up to whole pages.
    #[must_use]
    pub fn align(&self, size_bytes: u64) -> u64 {
        size_bytes.next_multiple_of(self.alignment_bytes)
    }

    /// Returns the addresses that can be used: whole pages.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        self.budget_bytes / self.alignment_bytes * self.alignment_bytes
    }

    /// Returns the longest single map in whole pages.
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.max_map_bytes / self.alignment_bytes * self.alignment_bytes
    }
}

/// What it costs to make bytes visible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds to map and unmap 10⁹ bytes.
    pub map_seconds_per_gb: f64,
    /// 10⁹ bytes per second of a copy into memory that is mapped already.
    pub copy_gb_per_second: f64,
}

impl Default for Costs {
    /// Derived from published figures of one phone: about 0.44 s/GB for maps; 10 GB/s is a cautious figure for copies.
    fn default() -> Self {
        Self {
            map_seconds_per_gb: 0.44,
            copy_gb_per_second: 10.0,
        }
    }
}

impl Costs {
    /// Returns how long a transfer takes. Maps cost what map and unmap cost together, so that unmaps are free.
    #[must_use]
    pub fn seconds(&self, transfer: &Transfer) -> f64 {
        match transfer {
            Transfer::Map(piece) => gb(piece.size_bytes()) * self.map_seconds_per_gb,
            Transfer::Unmap(_) => 0.0,
            Transfer::Copy { range, .. } => gb(range.end - range.start) / self.copy_gb_per_second,
        }
    }

    /// Tells whether copying bytes takes less time than mapping them.
    #[must_use]
    pub fn prefers_copies(&self) -> bool {
        self.map_seconds_per_gb * self.copy_gb_per_second > 1.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate of time")]
fn gb(size_bytes: u64) -> f64 {
    size_bytes as f64 * 1e-9
}
