//! Plans are checked before ggml sees them: ggml ends the process where an index is out of range.

use std::collections::HashSet;

use super::error::PlanError;
use crate::decode::plan::{RowPlan, Slot, Stream};

/// Most rows of one forward.
pub(super) const MAX_N_ROWS: usize = 1 << 20;
/// Largest slot number, exclusive.
pub(super) const MAX_SLOT: u32 = 1 << 24;
/// Largest position, exclusive: rotary embedding takes i32.
const MAX_POS: u32 = 1 << 30;

/// Checks every number of a plan against the vocabulary and against each other.
pub(super) fn check(plan: &RowPlan, n_vocab: u32) -> Result<(), PlanError> {
    let n_rows = plan.rows.len();
    if n_rows == 0 {
        return Err(PlanError::NoRows);
    }
    if n_rows > MAX_N_ROWS {
        return Err(PlanError::TooManyRows {
            n_rows,
            max: MAX_N_ROWS,
        });
    }
    check_rows(plan, n_vocab)?;
    check_streams(plan)?;
    for (index, predict) in plan.predict.iter().enumerate() {
        for row in [Some(predict.row), predict.uncond_row]
            .into_iter()
            .flatten()
        {
            if row as usize >= n_rows {
                return Err(PlanError::Predict { index, row, n_rows });
            }
        }
    }
    Ok(())
}

fn check_rows(plan: &RowPlan, n_vocab: u32) -> Result<(), PlanError> {
    let mut written = HashSet::new();
    for (index, row) in plan.rows.iter().enumerate() {
        if u32::try_from(row.token).is_ok_and(|id| id < n_vocab) {
            check_slot(row.kv)?;
        } else {
            return Err(PlanError::Token {
                row: index,
                token: row.token,
                n_vocab,
            });
        }
        if row.pos >= MAX_POS {
            return Err(PlanError::Position {
                row: index,
                pos: row.pos,
                max: MAX_POS - 1,
            });
        }
        if usize::from(row.stream) >= plan.streams.len() {
            let n_streams = plan.streams.len();
            return Err(PlanError::Stream {
                row: index,
                stream: row.stream,
                n_streams,
            });
        }
        if row.kv.is_some_and(|slot| !written.insert(slot)) {
            return Err(PlanError::SlotTwice { row: index });
        }
    }
    Ok(())
}

fn check_slot(slot: Option<Slot>) -> Result<(), PlanError> {
    match slot {
        Some(Slot::Store(slot) | Slot::Scratch(slot)) if slot >= MAX_SLOT => Err(PlanError::Slot {
            slot,
            max: MAX_SLOT - 1,
        }),
        _ => Ok(()),
    }
}

fn check_streams(plan: &RowPlan) -> Result<(), PlanError> {
    let mut used = vec![false; plan.streams.len()];
    for row in &plan.rows {
        used[usize::from(row.stream)] = true;
    }
    for (index, Stream { store, scratch }) in plan.streams.iter().enumerate() {
        let ranges = || store.iter().chain(scratch);
        if let Some(range) = ranges().find(|range| range.end > MAX_SLOT || range.start > range.end)
        {
            return Err(PlanError::Slot {
                slot: range.start.max(range.end),
                max: MAX_SLOT - 1,
            });
        }
        if used[index] && ranges().all(|range| range.is_empty()) {
            return Err(PlanError::EmptyStream { stream: index });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::single_range_in_vec_init,
        reason = "streams are lists of ranges"
    )]

    use super::*;
    use crate::decode::plan::{ForwardKind, Predict, Row};

    fn plan() -> RowPlan {
        let row = |pos| Row {
            token: 7,
            pos,
            stream: 0,
            kv: Some(Slot::Scratch(pos)),
        };
        RowPlan {
            kind: ForwardKind::Step,
            step: 0,
            rows: vec![row(0), row(1)],
            streams: vec![Stream {
                store: vec![],
                scratch: vec![0..2],
            }],
            predict: vec![Predict {
                pos: 1,
                row: 1,
                uncond_row: None,
                probe: None,
            }],
            split: None,
        }
    }

    #[test]
    fn each_wrong_number_is_refused() {
        assert_eq!(check(&plan(), 8), Ok(()));
        let unseen = Stream::default();
        type Case = (fn(&mut RowPlan), PlanError);
        let cases: [Case; 13] = [
            (|p| p.rows.clear(), PlanError::NoRows),
            (
                |p| p.rows[1].token = 8,
                PlanError::Token {
                    row: 1,
                    token: 8,
                    n_vocab: 8,
                },
            ),
            (
                |p| p.rows[0].token = -1,
                PlanError::Token {
                    row: 0,
                    token: -1,
                    n_vocab: 8,
                },
            ),
            (
                |p| p.rows[1].pos = u32::MAX,
                PlanError::Position {
                    row: 1,
                    pos: u32::MAX,
                    max: MAX_POS - 1,
                },
            ),
            (
                |p| p.rows[1].stream = 1,
                PlanError::Stream {
                    row: 1,
                    stream: 1,
                    n_streams: 1,
                },
            ),
            (
                |p| p.streams.clear(),
                PlanError::Stream {
                    row: 0,
                    stream: 0,
                    n_streams: 0,
                },
            ),
            (
                |p| p.streams[0].scratch.clear(),
                PlanError::EmptyStream { stream: 0 },
            ),
            (
                |p| p.streams[0].scratch = vec![3..3],
                PlanError::EmptyStream { stream: 0 },
            ),
            (
                |p| p.streams[0].store = vec![0..MAX_SLOT + 1],
                PlanError::Slot {
                    slot: MAX_SLOT + 1,
                    max: MAX_SLOT - 1,
                },
            ),
            (
                |p| p.rows[0].kv = Some(Slot::Store(u32::MAX)),
                PlanError::Slot {
                    slot: u32::MAX,
                    max: MAX_SLOT - 1,
                },
            ),
            (
                |p| p.rows[1].kv = p.rows[0].kv,
                PlanError::SlotTwice { row: 1 },
            ),
            (
                |p| p.predict[0].row = 2,
                PlanError::Predict {
                    index: 0,
                    row: 2,
                    n_rows: 2,
                },
            ),
            (
                |p| p.predict[0].uncond_row = Some(9),
                PlanError::Predict {
                    index: 0,
                    row: 9,
                    n_rows: 2,
                },
            ),
        ];
        for (change, expected) in cases {
            let mut wrong = plan();
            change(&mut wrong);
            assert_eq!(check(&wrong, 8), Err(expected), "{wrong:?}");
        }
        let mut idle = plan();
        idle.streams.push(unseen);
        assert_eq!(
            check(&idle, 8),
            Ok(()),
            "a stream that no row has may be empty"
        );
    }
}
