//! A session with the library: which segments are ready, and how they become so.
//!
//! ```text
//!   unknown ──▶ context binary on disk ──▶ checked on samples ──▶ ready ──▶ executed
//!      │              │ none, or damaged          │ wrong             │ failed
//!      └──────────────┴─▶ lowered, validated, finalised ─▶ …          ▼
//!                               │ refused                     refused: the host computes it
//!                               └──────────────────────────────▶
//! ```
//!
//! Segments are kept by the addresses of their weights, shape and row count, until the bytes of a weight change. Parts of
//! neighbouring segments share a context, the unit that is loaded and written ([`groups()`]). It is written when all its parts are right, and a
//! file whose parts are wrong is deleted; it is freed when nobody holds one of them any more (`live`).

mod groups;
mod live;
mod make;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use llada_npu_ffi::qnn::Error;

use groups::groups;
use live::{Contexts, Held};

use super::cache::ContextCache;
use super::engine::{Engine, GraphElements, Identity};
use super::low_rank::{Factors, max_rank, rooms};
use super::part::{Input, Part, parts};
use super::report::Report;
use super::rows::Piece;
use super::settings::Settings;
use super::weight::{QnnType, Weight};
use super::worker::{Gone, Worker};
use crate::device::{Dense, DenseKind, DenseWeight, ReadWeight};
use crate::knobs::{HostWeights, Tier};
use crate::memory::{CacheDir, PlainGuard, Watch};

/// Why a segment is not computed here.
#[derive(Debug, thiserror::Error)]
enum PartError {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error(transparent)]
    Library(#[from] Error),
    #[error("weights: {0}")]
    Weights(#[from] super::weight::LowerError),
    #[error("weights cannot be read")]
    Unreadable,
    #[error("an addition of rank {rank}, at most {max} has a graph")]
    Rank { rank: usize, max: usize },
    #[error("no additions to products of 16 bits")]
    FixedAddition,
    #[error("an addition with numbers that half floats do not hold")]
    Factors,
    #[error("results are wrong: error {nmse:.1e} of the power, at most {max:.0e} is allowed")]
    Wrong { nmse: f64, max: f64 },
}

/// Which segment, at which row count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: DenseKind,
    /// Address, type, shape.
    weights: Vec<(usize, u32, usize, usize)>,
    /// Room for additions to their products.
    ranks: Vec<usize>,
    room: usize,
}

impl Key {
    fn of(segment: &Dense, room: usize) -> Self {
        let of = |w: &DenseWeight| (w.address, w.ggml_type, w.k, w.n);
        Self {
            kind: segment.kind,
            weights: segment.weights.iter().map(of).collect(),
            ranks: rooms(segment),
            room,
        }
    }
}

/// A part that can be executed.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub(super) part: Part,
    pub(super) elements: GraphElements,
    context: Held,
    graph: usize,
}

/// A segment that was looked at.
#[derive(Debug)]
struct Entry {
    watches: Vec<Arc<Watch>>,
    /// `None`: refused.
    parts: Option<Arc<Vec<Ready>>>,
}

impl Entry {
    fn is_stale(&self) -> bool {
        self.watches.iter().any(|watch| watch.has_changed())
    }
}

/// Host memory of weights that segments in use have.
#[derive(Clone, Copy, Debug)]
struct HostBytes {
    size_bytes: u64,
    /// Its pages were given back.
    is_dropped: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// By address.
    weights: HashMap<usize, HostBytes>,
}

/// A part of a segment of the graph at hand that is to be made ready.
#[derive(Clone, Debug)]
struct Unit {
    segment: usize,
    room: usize,
    part: Part,
    /// Bytes of its lowered weights.
    size_bytes: usize,
    is_slice: bool,
}

/// Owning: an opened library with all that was built.
#[derive(Debug)]
pub struct Session {
    worker: Worker<Engine>,
    identity: Identity,
    settings: Settings,
    cache: Option<ContextCache>,
    contexts: Contexts,
    state: Mutex<State>,
    report: Mutex<Report>,
    has_warned: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Opens the library; context binaries go to `cache`.
    ///
    /// # Errors
    /// Why that is impossible.
    pub fn open(
        settings: Settings,
        cache: Option<CacheDir>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let options = settings.open.clone();
        let opened = Worker::start(settings.timeout, move |beat| Engine::open(&options, beat))?;
        let (worker, identity) = opened?;
        Ok(Self {
            worker,
            identity,
            settings,
            cache: cache.map(ContextCache::new),
            contexts: Contexts::default(),
            state: Mutex::default(),
            report: Mutex::default(),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Returns what was opened.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns what was done so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = lock(&self.report).clone();
        (report.n_contexts, report.binary_bytes) = self.contexts.count();
        report
    }

    /// Tells whether the library still answers.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.worker.gone().is_none()
    }

    /// Returns what says that the library does not answer any more, also when the session is gone.
    pub(super) fn gone(&self) -> Arc<OnceLock<Gone>> {
        self.worker.gone_cell()
    }

    /// Tells whether the library took the wish for performance.
    #[must_use]
    pub fn has_power(&self) -> bool {
        self.worker
            .call(|engine, _| engine.has_power())
            .unwrap_or(false)
    }

    /// Says something at warning level, the first time.
    fn warn(&self, text: std::fmt::Arguments<'_>) {
        if self.has_warned.swap(true, Ordering::Relaxed) {
            log::debug!("QNN: {text}");
        } else {
            log::warn!("QNN: {text} (further cases are counted, not told)");
        }
    }

    /// Takes notice of something that runs on the host.
    fn refuse(&self, what: &str, reason: &dyn std::fmt::Display) {
        self.warn(format_args!("{what} runs on the host: {reason}"));
        let reason = reason.to_string();
        *lock(&self.report).refused.entry(reason).or_default() += 1;
    }

    /// Takes notice of additions with factors that graphs do not take.
    pub(super) fn refuse_factors(&self, n: u64) {
        for _ in 0..n {
            self.refuse("a segment", &PartError::Factors);
        }
    }

    /// Makes the segments ready that are not yet, those that come first if it is aborted.
    pub(super) fn prepare(
        &self,
        segments: &[Dense],
        guard: &PlainGuard<'_>,
        read: &mut ReadWeight<'_>,
        is_aborted: &dyn Fn() -> bool,
    ) {
        let mut state = lock(&self.state);
        self.sweep(&mut state);
        let mut units = Vec::new();
        let mut watches: HashMap<Key, Vec<Arc<Watch>>> = HashMap::new();
        for (i, segment) in segments.iter().enumerate() {
            for Piece { room, .. } in self.settings.rows.cut(segment.n_rows()) {
                let key = Key::of(segment, room);
                if state.entries.contains_key(&key) || watches.contains_key(&key) {
                    continue;
                }
                let watch = |w: &DenseWeight| guard.watch(w.address, w.size_bytes);
                // What may change unseen is not kept.
                let Some(watched) = segment.weights.iter().map(watch).collect() else {
                    continue;
                };
                if let Err(error) = self.takes_additions(&key) {
                    self.refuse("a segment", &error);
                    let (watches, parts) = (watched, None);
                    state.entries.insert(key, Entry { watches, parts });
                    continue;
                }
                watches.insert(key, watched);
                units.extend(self.units(i, segment, room));
            }
        }
        if units.is_empty() || !self.is_alive() {
            return;
        }
        let mut made: HashMap<Key, Vec<Option<Ready>>> = HashMap::new();
        let mut last = None;
        for group in groups(&units) {
            // Segments are made whole.
            let is_new = last != Some((group[0].segment, group[0].room));
            if is_new && is_aborted() {
                break;
            }
            last = group.last().map(|unit| (unit.segment, unit.room));
            let results = self.make(group, segments, read);
            for (unit, ready) in group.iter().zip(results) {
                let key = Key::of(&segments[unit.segment], unit.room);
                made.entry(key).or_default().push(ready);
            }
        }
        for (key, parts) in made {
            let parts: Option<Vec<Ready>> = parts.into_iter().collect();
            let entry = Entry {
                watches: watches.remove(&key).unwrap_or_default(),
                parts: parts.map(Arc::new),
            };
            self.take_notice(&mut state, &key, &entry, guard);
            state.entries.insert(key, entry);
        }
        self.tidy(&mut state);
    }

    /// Fails where no graph has room for the additions of a segment.
    fn takes_additions(&self, key: &Key) -> Result<(), PartError> {
        let rank = key.ranks.iter().copied().max().unwrap_or(0);
        if rank > max_rank() {
            let max = max_rank();
            return Err(PartError::Rank { rank, max });
        }
        if rank > 0 && self.settings.tier == Tier::Int8 {
            return Err(PartError::FixedAddition);
        }
        Ok(())
    }

    /// Takes notice of the host's bytes of a segment that is ready, and gives them back if that is wanted.
    fn take_notice(&self, state: &mut State, key: &Key, entry: &Entry, guard: &PlainGuard<'_>) {
        if entry.parts.is_none() {
            return;
        }
        for &(address, ggml_type, k, n) in &key.weights {
            let ty = QnnType::from_ggml_type(ggml_type).expect("only such are wanted");
            let size_bytes = ty.row_size(k).unwrap_or(0) * n;
            let is_dropped = self.settings.host_weights == HostWeights::Drop
                && guard.drop_pages(address, size_bytes);
            let bytes = HostBytes {
                size_bytes: size_bytes as u64,
                is_dropped,
            };
            state.weights.insert(address, bytes);
        }
    }

    /// Forgets segments whose weights have changed.
    fn sweep(&self, state: &mut State) {
        let before = state.entries.len();
        state.entries.retain(|_, entry| !entry.is_stale());
        if state.entries.len() < before {
            self.tidy(state);
        }
    }

    /// Frees what nobody uses any more, and counts what is in use: each weight once, however many graphs have it.
    fn tidy(&self, state: &mut State) {
        self.free_unused();
        let State { entries, weights } = state;
        let in_use: HashSet<usize> = entries
            .iter()
            .filter(|(_, entry)| entry.parts.is_some())
            .flat_map(|(key, _)| key.weights.iter().map(|&(address, ..)| address))
            .collect();
        weights.retain(|address, _| in_use.contains(address));
        let sum = |is_dropped: bool| {
            let such = weights
                .values()
                .filter(|bytes| bytes.is_dropped == is_dropped);
            such.map(|bytes| bytes.size_bytes).sum()
        };
        let mut report = lock(&self.report);
        (report.host_bytes, report.dropped_bytes) = (sum(false), sum(true));
    }

    /// Frees contexts that nobody holds any more.
    fn free_unused(&self) {
        let unused = self.contexts.take_unused();
        if unused.is_empty() {
            return;
        }
        let _gone = self.worker.call(move |engine, beat| {
            for context in unused {
                engine.free(context);
                beat.tick();
            }
        });
    }

    fn units(&self, segment: usize, dense: &Dense, room: usize) -> Vec<Unit> {
        let unit = |part: Part| {
            let size = |weight: &super::part::PartWeight| {
                let w = &dense.weights[weight.index];
                let ty = QnnType::from_ggml_type(w.ggml_type).expect("only such are wanted");
                Weight::lowered_bytes(ty, self.settings.tier, w.k, weight.rows.len())
            };
            Unit {
                segment,
                room,
                size_bytes: part.weights.iter().map(size).sum(),
                is_slice: part.is_slice(&dense.weights),
                part,
            }
        };
        parts(dense).into_iter().map(unit).collect()
    }

    /// Executes parts on the rows of `x`, of `k` elements each, padded to `room`, with the factors of additions by weight of the
    /// segment. Returns the outputs by part: contiguous rows. `None` where a number is beyond half floats.
    fn execute(
        &self,
        parts: &[Ready],
        x: &[f32],
        k: usize,
        room: usize,
        additions: &[Option<Factors>],
    ) -> Result<Option<Vec<Vec<Vec<f32>>>>, PartError> {
        let Some(first) = parts.first() else {
            return Ok(Some(Vec::new()));
        };
        let n_rows = x.len() / k;
        let element = first.elements.input;
        let mut bytes = Vec::with_capacity(2 * k * room);
        let zeros = vec![0.0; k];
        let padding = std::iter::repeat_n(zeros.as_slice(), room - n_rows);
        let factors: Option<Vec<f32>> = x
            .chunks_exact(k)
            .chain(padding)
            .map(|row| element.push_row(row, &mut bytes))
            .collect();
        let Some(factors) = factors else {
            return Ok(None);
        };
        let graphs: Vec<_> = parts
            .iter()
            .map(|ready| {
                (
                    ready.context.context(),
                    ready.graph,
                    ready.part.factors(additions),
                )
            })
            .collect();
        let n_additions: usize = graphs.iter().map(|(.., factors)| factors.len()).sum();
        let start = Instant::now();
        let outputs = self.worker.call(move |engine, beat| {
            let run = |(context, graph, factors): (u64, usize, Vec<Input>)| {
                let mut inputs = vec![bytes.as_slice()];
                inputs.extend(factors.iter().map(|(bytes, range)| &bytes[range.clone()]));
                let outputs = engine.execute(context, graph, &inputs);
                beat.tick();
                outputs
            };
            graphs.into_iter().map(run).collect::<Result<Vec<_>, _>>()
        })??;
        {
            let mut report = lock(&self.report);
            report.n_executions += parts.len() as u64;
            report.n_additions += n_additions as u64 / 2;
            report.execute += start.elapsed();
            report.n_rows += n_rows as u64;
            report.n_padded_rows += (room - n_rows) as u64;
        }
        let mut results = Vec::new();
        for (ready, outputs) in parts.iter().zip(&outputs) {
            let mut of_part = Vec::new();
            for (((_, columns), bytes), element) in ready
                .part
                .outputs()
                .zip(outputs)
                .zip(&ready.elements.outputs)
            {
                let n = columns.len();
                let Some(used) = bytes.get(..2 * n * n_rows) else {
                    return Err(Error::Binary("an output of another size").into());
                };
                if !element.is_finite(used) {
                    return Ok(None);
                }
                let mut rows = vec![0.0; n * n_rows];
                for ((row, bytes), &factor) in rows
                    .chunks_exact_mut(n)
                    .zip(used.chunks_exact(2 * n))
                    .zip(&factors)
                {
                    element.read_row(bytes, factor, row);
                }
                of_part.push(rows);
            }
            results.push(of_part);
        }
        Ok(Some(results))
    }

    /// Computes a segment on contiguous rows `x`; the outputs, contiguous rows each. `None` where the host has to.
    pub(super) fn run(
        &self,
        segment: &Dense,
        x: &[f32],
        factors: &[Option<Factors>],
    ) -> Option<Vec<Vec<f32>>> {
        let outputs = self.run_pieces(segment, x, factors);
        // Another instance may have seen weights change meanwhile: then ours were the last shares.
        self.free_unused();
        outputs
    }

    fn run_pieces(
        &self,
        segment: &Dense,
        x: &[f32],
        factors: &[Option<Factors>],
    ) -> Option<Vec<Vec<f32>>> {
        let (n_rows, k) = (segment.n_rows(), segment.weights[0].k);
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
            let parts = {
                let state = lock(&self.state);
                let entry = state.entries.get(&key).filter(|entry| !entry.is_stale())?;
                Arc::clone(entry.parts.as_ref()?)
            };
            let rows = &x[piece.start * k..(piece.start + piece.n_rows) * k];
            let results = match self.execute(&parts, rows, k, piece.room, factors) {
                Ok(Some(results)) => results,
                Ok(None) => {
                    self.warn(format_args!(
                        "results beyond half floats: the host computes them again"
                    ));
                    lock(&self.report).n_overflows += 1;
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

impl Drop for Session {
    fn drop(&mut self) {
        let report = self.report();
        log::debug!("QNN: {report}");
        for (reason, n) in &report.refused {
            log::debug!("QNN: {n} segments on the host: {reason}");
        }
    }
}
