//! One forward: a plan in, logits out.
//!
//! A plan with two paths runs in one graph, or in two at the same time: each on a [`Lane`], over one K/V store. Both ways
//! give the same logits, bit for bit: window and kind of attention are those of the whole plan, and what a row comes to does
//! not depend on the rows beside it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::check;
use super::error::EngineError;
use super::graph;
use super::kv::{KvStore, KvType};
use super::lane::{Lane, Share, count};
use super::model::Model;
use super::slot::Capacity;
use crate::decode::plan::{RowPlan, Split};
use crate::device::HOST_ONLY;

/// One of the two paths of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Rows of the step.
    Dense,
    /// Rows of the revision.
    Revision,
}

/// Says how long a path of a step waits before it starts: tests show by it that timing does not matter.
pub type Delay = fn(Path, u32) -> Duration;

/// Executes plans of one session: owns its K/V and its instances of the device.
#[derive(Debug)]
pub(super) struct Forwarder {
    model: Arc<Model>,
    kv: KvStore,
    dense: Lane,
    /// Present while revision has a path of its own.
    revision: Option<Lane>,
    delay: Option<Delay>,
}

/// How long a forward took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// In the graph of the step's rows, those that ride in it included.
    pub(super) dense: Duration,
    /// In the graph of the revision, beyond the other.
    pub(super) revision: Duration,
    /// From the end of the first to the end of the second.
    pub(super) waiting: Duration,
}

/// Logits of the rows that a plan's predictions name.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    n_vocab: usize,
    dense: Part<'a>,
    revision: Option<Part<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    first_row: u32,
    data: &'a [f32],
    out_of_row: &'a [Option<u32>],
}

impl<'a> Logits<'a> {
    /// Logits of a row of the plan, `[n_vocab]`; `None` for rows that no prediction names.
    pub fn row(&self, row: u32) -> Option<&'a [f32]> {
        let revision = self.revision.filter(|part| row >= part.first_row);
        let Part {
            first_row,
            data,
            out_of_row,
        } = revision.unwrap_or(self.dense);
        let out = (*out_of_row.get((row - first_row) as usize)?)? as usize;
        data.get(out * self.n_vocab..(out + 1) * self.n_vocab)
    }
}

impl Forwarder {
    pub(super) fn new(
        model: Arc<Model>,
        types: (KvType, KvType),
        n_threads: u32,
    ) -> Result<Self, EngineError> {
        let hparams = model.file().hparams();
        let kv = KvStore::new(
            *model.target(),
            types,
            hparams.n_layer,
            (hparams.n_embd_head, hparams.n_embd_kv()),
            Capacity::default(),
        )?;
        Ok(Self {
            kv,
            dense: Lane::new(&model, n_threads, "")?,
            revision: None,
            delay: None,
            model,
        })
    }

    pub(super) const fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Forgets all K/V.
    pub(super) fn clear(&mut self) {
        self.kv.clear();
    }

    pub(super) fn set_delay(&mut self, delay: Option<Delay>) {
        self.delay = delay;
    }

    /// Gives the revision path an instance of the device with `n_threads` threads, or none: its rows then ride with the
    /// others.
    pub(super) fn set_revision_threads(
        &mut self,
        n_threads: Option<u32>,
    ) -> Result<(), EngineError> {
        if self.revision.as_ref().map(Lane::n_threads) != n_threads {
            self.revision = None;
            if let Some(n_threads) = n_threads {
                // Its few rows are computed while the others may be elsewhere.
                self.revision = Some(Lane::new(&self.model, n_threads, HOST_ONLY)?);
            }
        }
        Ok(())
    }

    /// Makes room for all slots that a generation needs, at once.
    pub(super) fn reserve(&mut self, need: Capacity) -> Result<(), EngineError> {
        if self.kv.reserve(need)? {
            self.dense.forget_graph();
            self.revision.iter_mut().for_each(Lane::forget_graph);
        }
        Ok(())
    }

    /// Runs the rows of `plan`. `abort` ends the computation with [`EngineError::Cancelled`] soon after it is set.
    pub(super) fn forward(
        &mut self,
        plan: &RowPlan,
        abort: &AtomicBool,
    ) -> Result<(Logits<'_>, Times), EngineError> {
        check::check(plan, self.model.file().tokens().n_vocab)?;
        self.reserve(Capacity::of(plan))?;
        let window = self.kv.window(&plan.streams);
        let fused =
            self.kv.is_fused() || graph::is_fused(&self.model, count(plan.rows.len()), &window);
        let share = |rows: Range<usize>, predict: Range<usize>| Share {
            rows,
            predict,
            window: window.clone(),
            fused,
        };
        let (n_rows, n_predict) = (plan.rows.len(), plan.predict.len());
        let delay = self.delay;
        let times = match (&mut self.revision, plan.split) {
            (Some(revision), Some(Split { row, predict })) if row > 0 => {
                let (row, predict) = (row as usize, predict as usize);
                let (model, kv) = (&self.model, &self.kv);
                self.dense
                    .prepare(model, kv, plan, &share(0..row, 0..predict))?;
                revision.prepare(model, kv, plan, &share(row..n_rows, predict..n_predict))?;
                let run = |lane: &mut Lane, path| {
                    if let Some(delay) = delay {
                        std::thread::sleep(delay(path, plan.step));
                    }
                    let start = Instant::now();
                    lane.compute(model, kv, abort).map(|()| start.elapsed())
                };
                let dense = &mut self.dense;
                let start = Instant::now();
                let (dense, revision) = std::thread::scope(|scope| {
                    let thread = scope.spawn(|| run(revision, Path::Revision));
                    let dense = run(dense, Path::Dense);
                    let revision = thread.join().expect("a forward does not panic");
                    (dense, revision)
                });
                Times::of_two(dense?, revision?, start.elapsed())
            }
            _ => {
                let start = Instant::now();
                let all = share(0..n_rows, 0..n_predict);
                self.dense.prepare(&self.model, &self.kv, plan, &all)?;
                if let Some(delay) = delay {
                    std::thread::sleep(delay(Path::Dense, plan.step));
                }
                self.dense.compute(&self.model, &self.kv, abort)?;
                Times {
                    dense: start.elapsed(),
                    ..Times::default()
                }
            }
        };
        Ok((self.logits(plan), times))
    }

    fn logits(&self, plan: &RowPlan) -> Logits<'_> {
        let part = |lane, first_row| {
            let (data, out_of_row) = Lane::logits(lane);
            Part {
                first_row,
                data,
                out_of_row,
            }
        };
        let split = plan.split.filter(|split| split.row > 0);
        Logits {
            n_vocab: self.model.file().tokens().n_vocab as usize,
            dense: part(&self.dense, 0),
            revision: self
                .revision
                .as_ref()
                .zip(split)
                .map(|(lane, split)| part(lane, split.row)),
        }
    }
}

impl Times {
    /// Times of two graphs that ran at the same time, `total` from the first start to the last end.
    fn of_two(dense: Duration, revision: Duration, total: Duration) -> Self {
        Self {
            dense,
            revision: total.saturating_sub(dense),
            waiting: dense.abs_diff(revision),
        }
    }
}
