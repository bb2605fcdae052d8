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
//! neighbouring segments share a context, the unit that is loaded and written ([`groups`]). It is written when all its parts are right, and a
//! file whose parts are wrong is deleted; it is freed when nobody holds one of them any more (`live`). Instances with a budget have their memory
//! runtime free it and make it from its binary again in between (`mapping`).
//!
//! Several instances use a session. While one makes segments ready, the others compute; those that need the same ones wait (`prepare`).
//! Graphs of attention have no weights: they are kept by shape, and become ready the same way when they are first needed (`attend`).

mod attend;
mod groups;
mod live;
mod make;
mod mapping;
mod prepare;
mod run;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use llada_npu_ffi::qnn::Error;

use attend::AttentionGraphs;
use live::{Contexts, Held};
pub(super) use mapping::Left;
pub(super) use run::Within;

use super::cache::ContextCache;
use super::engine::{Engine, GraphElements, Identity, Loader};
use super::low_rank::rooms;
use super::part::Part;
use super::report::Report;
use super::settings::Settings;
use super::worker::{Gone, Worker};
use crate::device::{Dense, DenseKind, DenseWeight};
use crate::memory::{CacheDir, Watch};
use crate::sync::lock;

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
    #[error("a context of {size_bytes} bytes does not fit the budget of {budget_bytes}")]
    TooLarge { size_bytes: u64, budget_bytes: u64 },
    #[error("the library gives no binary of the context, from which it could be made again")]
    NoBinary,
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
    /// The budget within which it was refused, where nothing else speaks against it.
    too_large_for: Option<u64>,
}

impl Entry {
    /// Tells whether there is nothing to find out for an instance with such a budget.
    fn is_known_to(&self, budget_bytes: Option<u64>) -> bool {
        let is_refused = |within| budget_bytes.is_some_and(|bytes| bytes <= within);
        self.too_large_for.is_none_or(is_refused)
    }

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
    /// Those that an instance is making.
    being_made: HashSet<Key>,
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
    /// Makes contexts from binaries and frees them, while the other one builds and executes. Dropped first.
    loader: Worker<Loader>,
    worker: Worker<Engine>,
    n_registrations: Arc<AtomicU64>,
    identity: Identity,
    settings: Settings,
    cache: Option<ContextCache>,
    contexts: Contexts,
    state: Mutex<State>,
    attention: AttentionGraphs,
    /// Something is not being made any more.
    made: Condvar,
    report: Mutex<Report>,
    has_warned: AtomicBool,
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
        let opened = Worker::start(settings.timeout, move |beat| {
            let (engine, identity) = Engine::open(&options, beat)?;
            let (loader, n_registrations) = (engine.loader(), engine.n_registrations());
            Ok::<_, Error>((engine, (identity, loader, n_registrations)))
        })?;
        let (worker, (identity, loader, n_registrations)) = opened?;
        Ok(Self {
            loader: worker.beside(loader)?,
            worker,
            n_registrations,
            identity,
            settings,
            cache: cache.map(ContextCache::new),
            contexts: Contexts::default(),
            state: Mutex::default(),
            attention: AttentionGraphs::default(),
            made: Condvar::new(),
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
        report.n_registrations = self.n_registrations.load(Ordering::Relaxed);
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
}

impl Drop for Session {
    fn drop(&mut self) {
        self.free_unused();
        let report = self.report();
        log::debug!("QNN: {report}");
        for (reason, n) in &report.refused {
            log::debug!("QNN: {n} times on the host: {reason}");
        }
    }
}
