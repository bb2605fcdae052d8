//! Why there is no plan.

/// Why a workload cannot run within its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// What a segment needs at once is more than all addresses.
    #[error(
        "segment `{segment}` needs {needed_bytes} bytes of address space at once, {budget_bytes} are there; \
         the largest of it is `{tensor}` with {tensor_bytes} bytes"
    )]
    SegmentTooLarge {
        /// The segment.
        segment: String,
        /// The sum of its objects, each rounded up to whole pages.
        needed_bytes: u64,
        /// What there is.
        budget_bytes: u64,
        /// The largest object of the segment.
        tensor: String,
        /// Its size, rounded up to whole pages.
        tensor_bytes: u64,
    },
    /// The limits contradict themselves.
    #[error(
        "limits are not usable: {budget_bytes} bytes of address space, {max_map_bytes} per map, alignment {alignment_bytes}"
    )]
    Limits {
        /// The address space.
        budget_bytes: u64,
        /// The longest map.
        max_map_bytes: u64,
        /// What maps are multiples of.
        alignment_bytes: u64,
    },
    /// A size is not a number of bytes that any machine has.
    #[error("`{tensor}` has {size_bytes} bytes: sizes overflow")]
    Overflow {
        /// The object.
        tensor: String,
        /// Its size.
        size_bytes: u64,
    },
    /// A segment that the workload does not have, or not in the order of the workload.
    #[error("segment {segment} is not one of {n_segments} in ascending order")]
    Order {
        /// Its number.
        segment: usize,
        /// How many there are.
        n_segments: usize,
    },
}
