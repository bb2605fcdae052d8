//! Short-lived objects share memory: each lies where nobody else does from its first use to its last.

use std::ops::RangeInclusive;

use super::limits::Limits;
use super::workload::{Class, Workload};

/// Where short-lived objects lie in the memory they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    /// Bytes of all of it.
    pub size_bytes: u64,
    /// Offset of each object, by number; `None` where it is long-lived or nobody needs it.
    pub offsets: Vec<Option<u64>>,
}

struct Placed {
    start: u64,
    end: u64,
    lifetime: RangeInclusive<usize>,
}

fn overlap(a: &RangeInclusive<usize>, b: &RangeInclusive<usize>) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

impl Arena {
    /// Places all short-lived objects, the largest first, each in the lowest gap among those that live at the same time.
    #[must_use]
    pub fn pack(workload: &Workload, limits: &Limits) -> Self {
        let mut offsets = vec![None; workload.objects().len()];
        let mut order: Vec<_> = workload
            .lifetimes()
            .into_iter()
            .enumerate()
            .filter_map(|(i, lifetime)| Some((i, lifetime?)))
            .filter(|(i, _)| workload.objects()[*i].class == Class::ShortLived)
            .collect();
        order.sort_by_key(|(i, _)| std::cmp::Reverse(workload.objects()[*i].size_bytes));
        let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
        let mut size_bytes = 0;
        for (i, lifetime) in order {
            let len = limits.align(workload.objects()[i].size_bytes);
            let mut start = 0;
            // Ascending by start: the first gap that is long enough.
            for other in placed
                .iter()
                .filter(|other| overlap(&other.lifetime, &lifetime))
            {
                if start + len <= other.start {
                    break;
                }
                start = start.max(other.end);
            }
            offsets[i] = Some(start);
            size_bytes = size_bytes.max(start + len);
            let at = placed.partition_point(|other| other.start <= start);
            let end = start + len;
            placed.insert(
                at,
                Placed {
                    start,
                    end,
                    lifetime,
                },
            );
        }
        Self {
            size_bytes,
            offsets,
        }
    }
}

/// Returns the most bytes of short-lived objects that live at the same time: no arena is smaller.
#[must_use]
pub fn live_bytes(workload: &Workload, limits: &Limits) -> u64 {
    let lifetimes = workload.lifetimes();
    let live_at = |segment: usize| -> u64 {
        let objects = workload.objects().iter().zip(&lifetimes);
        objects
            .filter(|(object, lifetime)| {
                object.class == Class::ShortLived
                    && lifetime
                        .as_ref()
                        .is_some_and(|lifetime| lifetime.contains(&segment))
            })
            .map(|(object, _)| limits.align(object.size_bytes))
            .sum()
    };
    (0..workload.segments().len())
        .map(live_at)
        .max()
        .unwrap_or(0)
}
