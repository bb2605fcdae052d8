//! Making the segments of a graph ready.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::super::low_rank::max_rank;
use super::super::part::{Part, PartWeight, parts};
use super::super::rows::Piece;
use super::super::weight::{QnnType, Weight};
use super::groups::groups;
use super::live::Unused;
use super::make::{Refused, Whole};
use super::{Entry, HostBytes, Key, PartError, Ready, Session, State, Unit};
use crate::device::{Dense, DenseWeight, ReadWeight};
use crate::knobs::{HostWeights, Tier};
use crate::memory::{PlainGuard, Watch};
use crate::sync::lock;

/// How often who waits for another instance asks whether to end.
const PATIENCE: Duration = Duration::from_millis(50);

/// Watches the weights of a segment; `None` where they may change unseen.
fn watch(segment: &Dense, guard: &PlainGuard<'_>) -> Option<Vec<Arc<Watch>>> {
    let watch = |w: &DenseWeight| guard.watch(w.address, w.size_bytes);
    segment.weights.iter().map(watch).collect()
}

/// Owning: segments that nobody else makes meanwhile.
struct Reserved<'s> {
    session: &'s Session,
    watches: HashMap<Key, Vec<Arc<Watch>>>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.session.state);
        for key in self.watches.keys() {
            state.being_made.remove(key);
        }
        drop(state);
        self.session.made.notify_all();
    }
}

impl Session {
    /// Makes the segments ready that are not yet, those that come first if it is aborted. `budget_bytes`: their contexts are
    /// there one at a time while they are made, and then as the memory runtime says.
    pub(in super::super) fn prepare(
        &self,
        segments: &[Dense],
        guard: &PlainGuard<'_>,
        read: &mut ReadWeight<'_>,
        is_aborted: &dyn Fn() -> bool,
        budget_bytes: Option<u64>,
    ) {
        let (mut reserved, units) = self.reserve(segments, guard, budget_bytes);
        self.free_unused();
        if !units.is_empty() && self.is_alive() {
            let made = self.make_all(&units, segments, read, is_aborted, budget_bytes);
            let mut state = lock(&self.state);
            for (key, parts) in made {
                let entry = Entry {
                    watches: reserved.watches.get(&key).cloned().unwrap_or_default(),
                    too_large_for: parts.as_ref().err().copied().flatten(),
                    parts: parts.ok(),
                };
                self.take_notice(&mut state, &key, &entry, guard);
                state.entries.insert(key.clone(), entry);
                state.being_made.remove(&key);
                reserved.watches.remove(&key);
            }
            self.tidy(&mut state);
        }
        drop(reserved);
        self.free_unused();
        self.wait_for_others(segments, is_aborted);
        if budget_bytes.is_none() {
            let ready = segments.iter().filter_map(|segment| self.ready(segment));
            for parts in ready.flatten() {
                self.pin(&parts);
            }
        }
    }

    /// Tells whether all segments were made ready, or refused, before, as far as the budget is concerned.
    pub(in super::super) fn is_prepared(
        &self,
        segments: &[Dense],
        guard: &PlainGuard<'_>,
        budget_bytes: Option<u64>,
    ) -> bool {
        let is_known = |segment: &Dense| {
            let keys = self.keys(segment);
            let state = lock(&self.state);
            let is_there = |key| {
                let entry = state.entries.get(key);
                entry.is_some_and(|entry| !entry.is_stale() && entry.is_known_to(budget_bytes))
            };
            keys.iter().all(is_there)
        };
        segments
            .iter()
            .all(|segment| is_known(segment) || watch(segment, guard).is_none())
    }

    /// Returns the keys of a segment: one for each row count that it is cut into.
    pub(super) fn keys(&self, segment: &Dense) -> HashSet<Key> {
        let pieces = self.settings.rows.cut(segment.n_rows());
        pieces.map(|piece| Key::of(segment, piece.room)).collect()
    }

    /// Returns the parts of a segment by row count; `None` where one of them is not ready.
    fn ready(&self, segment: &Dense) -> Option<Vec<Arc<Vec<Ready>>>> {
        let keys = self.keys(segment).into_iter();
        keys.map(|key| self.parts(&key)).collect()
    }

    /// Returns the parts of a key; `None` where they are not ready.
    pub(super) fn parts(&self, key: &Key) -> Option<Arc<Vec<Ready>>> {
        let state = lock(&self.state);
        let entry = state.entries.get(key).filter(|entry| !entry.is_stale())?;
        entry.parts.clone()
    }

    /// Reserves what is not there, and cuts it into parts. What another instance is making is left to it.
    fn reserve(
        &self,
        segments: &[Dense],
        guard: &PlainGuard<'_>,
        budget_bytes: Option<u64>,
    ) -> (Reserved<'_>, Vec<Unit>) {
        let mut reserved = Reserved {
            session: self,
            watches: HashMap::new(),
        };
        let mut units = Vec::new();
        let mut state = lock(&self.state);
        self.sweep(&mut state);
        for (i, segment) in segments.iter().enumerate() {
            for Piece { room, .. } in self.settings.rows.cut(segment.n_rows()) {
                let key = Key::of(segment, room);
                let entry = state.entries.get(&key);
                let is_known = entry.is_some_and(|entry| entry.is_known_to(budget_bytes));
                if is_known || state.being_made.contains(&key) {
                    continue;
                }
                // What may change unseen is not kept.
                let Some(watched) = watch(segment, guard) else {
                    continue;
                };
                if let Err(error) = self.takes_additions(&key) {
                    self.refuse("a segment", &error);
                    let entry = Entry {
                        watches: watched,
                        parts: None,
                        too_large_for: None,
                    };
                    state.entries.insert(key, entry);
                    continue;
                }
                state.being_made.insert(key.clone());
                reserved.watches.insert(key, watched);
                units.extend(self.units(i, segment, room));
            }
        }
        (reserved, units)
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

    /// Makes parts, whole segments of them, or tells why not.
    fn make_all(
        &self,
        units: &[Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
        is_aborted: &dyn Fn() -> bool,
        budget_bytes: Option<u64>,
    ) -> Vec<(Key, Whole)> {
        let mut made: HashMap<Key, Vec<Result<Ready, Refused>>> = HashMap::new();
        let mut last = None;
        for group in groups(units, budget_bytes) {
            // Segments are made whole.
            let is_new = last != Some((group[0].segment, group[0].room));
            if is_new && is_aborted() {
                break;
            }
            last = group.last().map(|unit| (unit.segment, unit.room));
            let results = self.make(group, segments, read, budget_bytes);
            for (unit, ready) in group.iter().zip(results) {
                let key = Key::of(&segments[unit.segment], unit.room);
                made.entry(key).or_default().push(ready);
            }
        }
        let whole = |(key, parts): (Key, Vec<Result<Ready, Refused>>)| {
            let parts: Result<Vec<Ready>, Refused> = parts.into_iter().collect();
            (key, parts.map(Arc::new))
        };
        made.into_iter().map(whole).collect()
    }

    /// Waits until no segment is being made by another instance.
    fn wait_for_others(&self, segments: &[Dense], is_aborted: &dyn Fn() -> bool) {
        if lock(&self.state).being_made.is_empty() {
            return;
        }
        let keys: Vec<Key> = segments
            .iter()
            .flat_map(|segment| self.keys(segment))
            .collect();
        let mut state = lock(&self.state);
        while keys.iter().any(|key| state.being_made.contains(key)) && !is_aborted() {
            let waited = self.made.wait_timeout(state, PATIENCE);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
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

    /// Counts what is in use: each weight once, however many graphs have it.
    pub(super) fn tidy(&self, state: &mut State) {
        let State {
            entries, weights, ..
        } = state;
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
    pub(super) fn free_unused(&self) {
        let unused = self.contexts.take_unused();
        if unused.is_empty() {
            return;
        }
        let counted: Vec<u64> = unused.iter().filter_map(|of| of.mapped_bytes).collect();
        let _gone = self.loader.call(move |loader, beat| {
            for Unused { context, .. } in unused {
                loader.free(context);
                beat.tick();
            }
        });
        let mut report = lock(&self.report);
        for size_bytes in counted {
            report.went(size_bytes);
        }
    }

    fn units(&self, segment: usize, dense: &Dense, room: usize) -> Vec<Unit> {
        let unit = |part: Part| {
            let size = |weight: &PartWeight| {
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
}
