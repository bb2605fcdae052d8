//! Which parts share a context, the unit that is loaded and written.

use super::Unit;
use crate::device::DenseKind;

/// Most bytes of lowered weights in a context.
const GROUP_BYTES: usize = 256 << 20;

/// The share of a budget that a context of several parts may have: several contexts are there at a time.
const BUDGET_SHARE: u64 = 8;

/// Cuts parts into groups that share a context. A group ends where the row count changes, before and after feed-forward
/// parts and slices, before products of several weights, and where it gets large: neighbours are then the same in graphs
/// of other row counts, so that their binaries are found again.
pub(super) fn groups(units: &[Unit], budget_bytes: Option<u64>) -> impl Iterator<Item = &[Unit]> {
    let share = budget_bytes.map(|bytes| usize::try_from(bytes / BUDGET_SHARE));
    let max_bytes = match share {
        Some(Ok(share)) => share.min(GROUP_BYTES),
        _ => GROUP_BYTES,
    };
    let mut size_bytes = 0;
    units.chunk_by(move |a, b| {
        let stands_alone = |unit: &Unit| unit.is_slice || unit.part.kind == DenseKind::FeedForward;
        size_bytes += a.size_bytes;
        let together = a.room == b.room
            && !stands_alone(a)
            && !stands_alone(b)
            && b.part.weights.len() == 1
            && size_bytes + b.size_bytes <= max_bytes;
        if !together {
            size_bytes = 0;
        }
        together
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::qnn::part::{Part, PartWeight};

    fn unit(
        kind: DenseKind,
        n_weights: usize,
        room: usize,
        size_bytes: usize,
        is_slice: bool,
    ) -> Unit {
        let weight = |index| PartWeight {
            index,
            rows: 0..1,
            rank: 0,
        };
        Unit {
            segment: 0,
            room,
            part: Part {
                kind,
                weights: (0..n_weights).map(weight).collect(),
            },
            size_bytes,
            is_slice,
        }
    }

    #[test]
    fn attention_and_feed_forward_of_a_layer_are_contexts() {
        use DenseKind::{FeedForward, Products};
        let layer = |room| {
            vec![
                unit(Products, 3, room, 3, false),
                unit(Products, 1, room, 1, false),
                unit(FeedForward, 3, room, 9, false),
            ]
        };
        let mut units = [layer(32), layer(32), layer(64)].concat();
        units.extend([
            unit(Products, 1, 64, 5, true),
            unit(Products, 1, 64, 5, true),
        ]);
        let sizes: Vec<usize> = groups(&units, None).map(<[_]>::len).collect();
        assert_eq!(sizes, [2, 1, 2, 1, 2, 1, 1, 1]);
        let large: Vec<_> = (0..5)
            .map(|_| unit(Products, 1, 32, GROUP_BYTES / 2, false))
            .collect();
        assert_eq!(
            groups(&large, None).map(<[_]>::len).collect::<Vec<_>>(),
            [2, 2, 1]
        );
        // Within a budget, parts that are large for it stand alone.
        for (budget, expected) in [(8 * 4, vec![2]), (8 * 4 - 1, vec![1, 1])] {
            let found: Vec<_> = groups(&layer(32)[..2], Some(budget))
                .map(<[_]>::len)
                .collect();
            assert_eq!(found, expected);
        }
    }
}
