//! Contexts come and go as the memory runtime says.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::live::{Binary, Held, Residence};
use super::{Key, PartError, Ready, Session};
use crate::device::{ContextNeed, Contexts, Dense};
use crate::sync::lock;

/// Segments that one instance leaves to the host, though others may compute them: as they are now, until they are made anew.
#[derive(Debug, Default)]
pub(in super::super) struct Left(HashMap<Key, Weak<Vec<Ready>>>);

impl Left {
    pub(super) fn insert(&mut self, key: Key, parts: &Arc<Vec<Ready>>) {
        self.0.retain(|_, parts| parts.strong_count() > 0);
        self.0.insert(key, Arc::downgrade(parts));
    }

    fn has(&self, key: &Key, parts: &Arc<Vec<Ready>>) -> bool {
        let left = self.0.get(key);
        left.is_some_and(|left| std::ptr::eq(left.as_ptr(), Arc::as_ptr(parts)))
    }
}

impl Session {
    /// Makes a context for one more user, if it is not there yet. Where that fails, the user counts all the same.
    fn bring(&self, held: &Held) -> Result<(), PartError> {
        let mut residence = held.residence();
        residence.n_users += 1;
        self.make_again(held, &mut residence)
    }

    fn make_again(&self, held: &Held, residence: &mut Residence) -> Result<(), PartError> {
        if residence.is_there {
            return Ok(());
        }
        let Binary { key, bytes } = residence.binary.clone().ok_or(PartError::NoBinary)?;
        let (number, size_bytes) = (held.context(), held.size_bytes());
        let loaded = self.loader.call(move |loader, beat| {
            let loaded = loader.load(Some(number), (*bytes).as_ref(), key.bytes(), beat);
            loaded.map(|_made| ())
        });
        loaded??;
        residence.is_there = true;
        residence.mapped_bytes = Some(size_bytes);
        lock(&self.report).came(size_bytes);
        Ok(())
    }

    /// Frees a context if that was its last user.
    fn let_go(&self, held: &Held) {
        let mut residence = held.residence();
        residence.n_users = residence.n_users.saturating_sub(1);
        if residence.n_users == 0 && residence.is_there {
            self.free(held.context());
            residence.is_there = false;
            if let Some(size_bytes) = residence.mapped_bytes.take() {
                lock(&self.report).went(size_bytes);
            }
        }
    }

    /// Frees a context that was made and checked, until somebody wants it. Fails where it could not be made again, or never
    /// fits.
    pub(super) fn lay_aside(&self, held: &Held, budget_bytes: u64) -> Result<(), PartError> {
        let mut residence = held.residence();
        if residence.binary.is_none() {
            return Err(PartError::NoBinary);
        }
        let size_bytes = held.size_bytes();
        if size_bytes > budget_bytes {
            return Err(PartError::TooLarge {
                size_bytes,
                budget_bytes,
            });
        }
        self.free(held.context());
        residence.is_there = false;
        Ok(())
    }

    /// Keeps the contexts of parts for good.
    pub(super) fn pin(&self, parts: &[Ready]) {
        for ready in parts {
            self.pin_context(&ready.context);
        }
    }

    /// Keeps a context for good.
    pub(super) fn pin_context(&self, held: &Held) -> bool {
        let mut residence = held.residence();
        if residence.is_pinned {
            return true;
        }
        // Under the same guard: who finds it pinned finds it there.
        let made = self.make_again(held, &mut residence);
        if made.is_ok() {
            residence.is_pinned = true;
            residence.n_users += 1;
        }
        drop(residence);
        if let Err(error) = &made {
            self.lose(held.context(), error);
        }
        made.is_ok()
    }

    fn free(&self, context: u64) {
        // A library that does not answer has lost it.
        let _gone = self.loader.call(move |loader, _| loader.free(context));
    }

    /// Leaves all segments, and attention, to the host that need a context which cannot be had.
    fn lose(&self, context: u64, error: &PartError) {
        let mut state = lock(&self.state);
        let needs =
            |parts: &Arc<Vec<Ready>>| parts.iter().any(|ready| ready.context.context() == context);
        let mut n_lost = 0;
        for entry in state.entries.values_mut() {
            if entry.parts.as_ref().is_some_and(needs) {
                entry.parts = None;
                n_lost += 1;
            }
        }
        for _ in 0..n_lost {
            self.refuse("a segment", error);
        }
        self.tidy(&mut state);
        drop(state);
        self.lose_attention(context, error);
    }

    /// Returns which contexts a segment needs, each once; `None` where the host computes it, for all or for who left it.
    pub(in super::super) fn needs(&self, segment: &Dense, left: &Left) -> Option<Vec<ContextNeed>> {
        let mut needs: Vec<ContextNeed> = Vec::new();
        for key in self.keys(segment) {
            let parts = self.parts(&key)?;
            if left.has(&key, &parts) {
                return None;
            }
            for ready in parts.iter() {
                let context = ready.context.context();
                if !needs.iter().any(|need| need.context == context) {
                    needs.push(ContextNeed {
                        context,
                        size_bytes: ready.context.size_bytes(),
                    });
                }
            }
        }
        Some(needs)
    }

    /// Leaves a segment to the host, for one instance.
    pub(in super::super) fn leave(
        &self,
        segment: &Dense,
        left: &mut Left,
        reason: &dyn std::fmt::Display,
    ) {
        self.refuse("a segment", reason);
        for key in self.keys(segment) {
            if let Some(parts) = self.parts(&key) {
                left.insert(key, &parts);
            }
        }
    }
}

impl Contexts for Session {
    fn map(&self, context: u64) {
        let Some(held) = self.contexts.get(context) else {
            return;
        };
        if let Err(error) = self.bring(&held) {
            self.lose(context, &error);
        }
    }

    fn unmap(&self, context: u64) {
        if let Some(held) = self.contexts.get(context) {
            self.let_go(&held);
        }
    }
}
