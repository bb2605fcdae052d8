//! Cost tables from outside: of a file, or measured on the device.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::error::EngineError;
use super::forward::Forwarder;
use crate::decode::CostTable;
use crate::decode::plan::{ForwardKind, Predict, Row, RowPlan, Slot, Split, Stream, Token};

/// Row counts that are measured.
const N_ROWS: [u32; 8] = [1, 16, 32, 64, 96, 128, 192, 256];
/// Forwards of each; the fastest counts.
const N_RUNS: usize = 3;
/// Most bytes of a file with a table.
const MAX_FILE_BYTES: u64 = 1 << 16;

/// Returns the file that the value of the option `cost` names; `None` for a built-in table and for one that is written out.
pub fn cost_file(value: &str) -> Option<&Path> {
    let built_in = ["host", "npu", "measured"].contains(&value);
    let path = Path::new(value);
    (!built_in && path.is_file()).then_some(path)
}

/// Returns the value of an option as [`Params::set`](crate::decode::Params::set) takes it: where a cost table is a file, the
/// table in it.
///
/// # Errors
/// [`EngineError::CostFile`] for a file that cannot be read.
pub fn option_value<'a>(key: &str, value: &'a str) -> Result<Cow<'a, str>, EngineError> {
    let Some(path) = cost_file(value).filter(|_| key == "cost") else {
        return Ok(Cow::Borrowed(value));
    };
    let wrong = |source| EngineError::CostFile {
        path: path.to_owned(),
        source,
    };
    if path.metadata().map_err(wrong)?.len() > MAX_FILE_BYTES {
        return Err(wrong(std::io::ErrorKind::FileTooLarge.into()));
    }
    std::fs::read_to_string(path).map(Cow::Owned).map_err(wrong)
}

/// Measures forwards of masks over the session's device. Their K/V lies in scratch.
pub(super) fn measure(
    forwarder: &mut Forwarder,
    mask: Token,
    abort: &AtomicBool,
) -> Result<CostTable, EngineError> {
    let mut points: Vec<(u32, f32)> = Vec::new();
    for n_rows in N_ROWS {
        let plan = masks(mask, n_rows);
        let mut best = f32::INFINITY;
        for _ in 0..N_RUNS {
            let start = Instant::now();
            forwarder.forward(&plan, abort)?;
            best = best.min(start.elapsed().as_secs_f32() * 1e3);
        }
        let least = points.last().map_or(0.0, |&(_, ms)| ms);
        points.push((n_rows, best.max(least)));
    }
    Ok(CostTable::from_points(&points).expect("rows ascend, and times do not descend"))
}

/// A forward of `n_rows` masks that see each other.
fn masks(mask: Token, n_rows: u32) -> RowPlan {
    let row = |pos| Row {
        token: mask,
        pos,
        stream: 0,
        kv: Some(Slot::Scratch(pos)),
    };
    let predict = |pos| Predict {
        pos,
        row: pos,
        uncond_row: None,
        probe: None,
    };
    #[expect(clippy::single_range_in_vec_init, reason = "a list of slot ranges")]
    let scratch = vec![0..n_rows];
    RowPlan {
        kind: ForwardKind::Step,
        step: 0,
        rows: (0..n_rows).map(row).collect(),
        streams: vec![Stream {
            store: Vec::new(),
            scratch,
        }],
        predict: (0..n_rows).map(predict).collect(),
        split: None::<Split>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_cost_table_is_read_and_nothing_else_is() {
        let path = std::env::temp_dir().join(format!("llada-npu-cost-{}", std::process::id()));
        std::fs::write(&path, "1:2.5\n32:3\n").unwrap();
        let name = path.to_str().unwrap();
        assert_eq!(option_value("cost", name).unwrap(), "1:2.5\n32:3\n");
        assert_eq!(option_value("suffix", name).unwrap(), name);
        assert_eq!(option_value("cost", "npu").unwrap(), "npu");
        assert_eq!(option_value("cost", "1:2").unwrap(), "1:2");
        assert_eq!(cost_file(name), Some(path.as_path()));
        for value in ["host", "npu", "measured", "1:2"] {
            assert_eq!(cost_file(value), None);
        }
        std::fs::write(&path, vec![b' '; 1 << 17]).unwrap();
        assert!(option_value("cost", name).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
