//! Executing segments that are ready.

use std::sync::Arc;
use std::time::Instant;

use llada_npu_ffi::qnn::Error;

use super::super::engine::{Engine, Exchange, GraphElements};
use super::super::low_rank::Factors;
use super::super::part;
use super::mapping::Left;
use super::{Entry, Key, PartError, Ready, Session};
use crate::device::{ContextNeed, Dense, DenseKind};
use crate::sync::lock;

/// Rows of an input, of `k` elements each, some of which are executed.
#[derive(Clone, Debug)]
pub(super) struct Input {
    x: Arc<Vec<f32>>,
    k: usize,
    start: usize,
    n_rows: usize,
}

impl Input {
    pub(super) fn new(x: Vec<f32>, k: usize) -> Self {
        let n_rows = x.len() / k;
        Self {
            x: Arc::new(x),
            k,
            start: 0,
            n_rows,
        }
    }

    fn piece(&self, start: usize, n_rows: usize) -> Self {
        Self {
            start,
            n_rows,
            ..self.clone()
        }
    }

    /// Writes the rows, and zeros where there are none, as the graph keeps elements. Returns the factors of their results; `None` for
    /// numbers that it does not hold.
    fn write(&self, elements: &GraphElements, to: &mut [u8]) -> Option<Vec<f32>> {
        let zeros = vec![0.0; self.k];
        let rows = self.x[self.start * self.k..][..self.n_rows * self.k].chunks_exact(self.k);
        let rows = rows.chain(std::iter::repeat(zeros.as_slice()));
        let to = to.chunks_exact_mut(2 * self.k);
        rows.zip(to)
            .map(|(row, to)| elements.input.write_row(row, to))
            .collect()
    }
}

/// What an instance with a budget says of a segment.
#[derive(Debug)]
pub(in super::super) struct Within<'a> {
    /// The contexts that its memory runtime has there.
    pub(in super::super) needs: &'a [ContextNeed],
    pub(in super::super) left: &'a mut Left,
}

impl Within<'_> {
    /// Tells whether all contexts are there: another instance may have made others meanwhile.
    fn has(&self, parts: &[Ready]) -> bool {
        let is_there = |context| self.needs.iter().any(|need| need.context == context);
        parts.iter().all(|ready| is_there(ready.context.context()))
    }
}

/// A graph to execute, and the columns of each of its outputs.
struct Run {
    context: u64,
    graph: usize,
    elements: GraphElements,
    columns: Vec<usize>,
    /// Its inputs after the first.
    factors: Vec<part::Input>,
}

/// Outputs, contiguous rows each; `None` where a number is beyond what elements hold.
type Outputs = Option<Vec<Vec<f32>>>;

/// What goes into a graph, and what comes out.
struct Rows<'a> {
    input: &'a Input,
    run: &'a Run,
    /// Of results, by row.
    factors: Vec<f32>,
    outputs: Outputs,
    has_size: bool,
}

impl Exchange for Rows<'_> {
    fn write(&mut self, input: usize, to: &mut [u8]) -> bool {
        if let Some(factor) = input.checked_sub(1) {
            let factor = self.run.factors.get(factor);
            let bytes = factor.and_then(|(bytes, range)| bytes.get(range.clone()));
            let bytes = bytes.filter(|bytes| bytes.len() == to.len());
            self.has_size &= bytes.is_some();
            return bytes.map(|bytes| to.copy_from_slice(bytes)).is_some();
        }
        let factors = self.input.write(&self.run.elements, to);
        let is_written = factors.is_some();
        self.factors = factors.unwrap_or_default();
        is_written
    }

    fn read(&mut self, output: usize, from: &[u8]) {
        let (n, element) = (self.run.columns[output], self.run.elements.outputs[output]);
        let n_rows = self.input.n_rows;
        let Some(used) = from.get(..2 * n * n_rows) else {
            self.has_size = false;
            return;
        };
        if !element.is_finite(used) {
            self.outputs = None;
        }
        let Some(outputs) = &mut self.outputs else {
            return;
        };
        let mut rows = vec![0.0; n * n_rows];
        let to = rows.chunks_exact_mut(n).zip(used.chunks_exact(2 * n));
        for ((row, bytes), &factor) in to.zip(&self.factors) {
            element.read_row(bytes, factor, row);
        }
        outputs.push(rows);
    }
}

impl Run {
    fn of(ready: &Ready, additions: &[Option<Factors>]) -> Self {
        let outputs = ready.part.outputs();
        Self {
            factors: ready.part.factors(additions),
            context: ready.context.context(),
            graph: ready.graph,
            elements: ready.elements.clone(),
            columns: outputs.map(|(_, columns)| columns.len()).collect(),
        }
    }

    /// Executes it; the outputs, and how many tensors were shared with the NPU.
    fn execute(&self, engine: &mut Engine, input: &Input) -> Result<(Outputs, u64), Error> {
        let mut rows = Rows {
            input,
            run: self,
            factors: Vec::new(),
            outputs: Some(Vec::new()),
            has_size: true,
        };
        let executed = engine.execute(self.context, self.graph, &mut rows)?;
        if !rows.has_size {
            return Err(Error::Binary("an input or output of another size"));
        }
        Ok(match executed {
            Some(n_shared) => (rows.outputs, n_shared),
            None => (None, 0),
        })
    }
}

impl Session {
    /// Executes parts on rows, padded to what the graphs have room for, with the factors of additions by weight of the segment; the outputs by part. `None` where a number is beyond what
    /// elements hold.
    pub(super) fn execute(
        &self,
        parts: &[Ready],
        input: &Input,
        room: usize,
        additions: &[Option<Factors>],
    ) -> Result<Option<Vec<Vec<Vec<f32>>>>, PartError> {
        let runs = parts.iter().map(|ready| Run::of(ready, additions));
        let runs: Vec<Run> = runs.collect();
        let n_factors: usize = runs.iter().map(|run| run.factors.len()).sum();
        let (n_parts, rows) = (parts.len() as u64, input.clone());
        let start = Instant::now();
        let (outputs, n_shared) = self.worker.call(move |engine, beat| {
            let (mut all, mut n_shared) = (Some(Vec::new()), 0);
            for run in &runs {
                let (outputs, n) = run.execute(engine, &rows)?;
                beat.tick();
                n_shared += n;
                all = all.zip(outputs).map(|(mut all, outputs)| {
                    all.push(outputs);
                    all
                });
                if all.is_none() {
                    break;
                }
            }
            Ok::<_, Error>((all, n_shared))
        })??;
        let mut report = lock(&self.report);
        report.n_shared += n_shared;
        if outputs.is_some() {
            report.n_executions += n_parts;
            report.n_additions += n_factors as u64 / 2;
            report.execute += start.elapsed();
            report.n_rows += input.n_rows as u64;
            report.n_padded_rows += (room - input.n_rows) as u64;
        }
        Ok(outputs)
    }

    /// Computes a segment on contiguous rows `x`; the outputs, contiguous rows each. `None` where the host has to; who has a
    /// budget does not try what overflowed again.
    pub(in super::super) fn run(
        &self,
        segment: &Dense,
        x: Vec<f32>,
        factors: &[Option<Factors>],
        within: Option<Within<'_>>,
    ) -> Option<Vec<Vec<f32>>> {
        let outputs = self.run_pieces(segment, x, factors, within);
        // Another instance may have seen weights change meanwhile: then ours were the last shares.
        self.free_unused();
        outputs
    }

    fn run_pieces(
        &self,
        segment: &Dense,
        x: Vec<f32>,
        factors: &[Option<Factors>],
        within: Option<Within<'_>>,
    ) -> Option<Vec<Vec<f32>>> {
        let n_rows = segment.n_rows();
        let input = Input::new(x, segment.weights[0].k);
        let n_outputs = match segment.kind {
            DenseKind::Products => segment.weights.len(),
            DenseKind::FeedForward => 1,
        };
        let widths = &segment.weights[segment.weights.len() - n_outputs..];
        let mut outputs: Vec<Vec<f32>> = widths
            .iter()
            .map(|weight| vec![0.0; weight.n * n_rows])
            .collect();
        for piece in self.settings.rows.cut(n_rows) {
            let key = Key::of(segment, piece.room);
            let parts = self.parts(&key)?;
            if let Some(within) = &within
                && !within.has(&parts)
            {
                return None;
            }
            let rows = input.piece(piece.start, piece.n_rows);
            let results = match self.execute(&parts, &rows, piece.room, factors) {
                Ok(Some(results)) => results,
                Ok(None) => {
                    self.warn(format_args!(
                        "results beyond half floats: the host computes them again"
                    ));
                    lock(&self.report).n_overflows += 1;
                    if let Some(within) = within {
                        within.left.insert(key, &parts);
                    }
                    return None;
                }
                Err(error) => {
                    self.refuse("a segment", &error);
                    self.give_up(&key, &parts);
                    return None;
                }
            };
            for (ready, results) in parts.iter().zip(&results) {
                for ((output, columns), result) in ready.part.outputs().zip(results) {
                    let n = widths[output].n;
                    let out = &mut outputs[output][piece.start * n..];
                    for (to, from) in out
                        .chunks_exact_mut(n)
                        .zip(result.chunks_exact(columns.len()))
                    {
                        to[columns.clone()].copy_from_slice(from);
                    }
                }
            }
        }
        Some(outputs)
    }

    /// Leaves a segment to the host whose parts failed, unless it was made anew meanwhile.
    fn give_up(&self, key: &Key, failed: &Arc<Vec<Ready>>) {
        let mut state = lock(&self.state);
        let entry = state.entries.get_mut(key);
        let same = |entry: &&mut Entry| {
            let parts = entry.parts.as_ref();
            parts.is_some_and(|parts| Arc::ptr_eq(parts, failed))
        };
        if let Some(entry) = entry.filter(same) {
            entry.parts = None;
            self.tidy(&mut state);
        }
    }
}
