//! Attention: its graphs become ready when they are first needed, and are executed.
//!
//! A graph depends on shapes alone, so that all layers and instances share it, until the session ends. Whoever needs one that another
//! instance makes waits for it; nobody else does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use llada_npu_ffi::qnn::Error;

use super::super::attention::{self, AttentionForm, Example, MAX_NMSE, Unfit};
use super::super::cache::ContextKey;
use super::super::engine::Made;
use super::live::{Binary, Held};
use super::make::Source;
use super::{PartError, Session};
use crate::device::{ContextNeed, FlashAttn, FlashAttnShape};
use crate::sync::lock;

/// Graphs of attention, by shape.
#[derive(Debug, Default)]
pub(super) struct AttentionGraphs(Mutex<HashMap<AttentionForm, Arc<Mutex<Life>>>>);

/// What is known of a graph.
#[derive(Debug, Default)]
enum Life {
    #[default]
    Unknown,
    Ready(Held),
    /// The host computes it: for all, or within a budget of at most so many bytes.
    Refused(Option<u64>),
}

impl Life {
    /// Tells whether there is nothing to find out for an instance with such a budget.
    fn is_known_to(&self, budget_bytes: Option<u64>) -> bool {
        match self {
            Self::Unknown => false,
            Self::Ready(_) | Self::Refused(None) => true,
            Self::Refused(Some(within)) => budget_bytes.is_some_and(|bytes| bytes <= *within),
        }
    }
}

impl Session {
    /// Computes attention; tells whether it did. If not, the host has to. `has_budget`: in contexts that a memory runtime has
    /// there.
    pub(in super::super) fn attend(&self, op: &mut FlashAttn<'_>, has_budget: bool) -> bool {
        let [_, n_tokens, _, n3] = op.shape.q.ne;
        let pieces = |i3| self.settings.rows.cut(n_tokens).map(move |p| (i3, p));
        for (i3, piece) in (0..n3).flat_map(pieces) {
            let form = AttentionForm::of(&op.shape, piece.room, self.settings.vtcm_mb);
            let form = match form {
                Ok(form) => form,
                Err(unfit) => {
                    self.refuse("attention", &unfit);
                    return false;
                }
            };
            let context = if has_budget {
                self.attention_there(&form)
            } else {
                self.attention(&form, None)
            };
            let Some(context) = context else {
                return false;
            };
            let Some(mut operands) = attention::gather(op, &form, piece, i3) else {
                self.overflow("scores or values");
                return false;
            };
            let inputs = std::mem::take(&mut operands.inputs);
            let output = match self.execute_attention(&context, inputs) {
                Ok(output) => output,
                Err(error) => {
                    self.refuse("attention", &error);
                    self.give_up_attention(&form, &context);
                    return false;
                }
            };
            lock(&self.report).n_attentions += 1;
            if !attention::write(op, &operands, piece, i3, &output) {
                self.overflow("results");
                return false;
            }
        }
        true
    }

    /// Returns the contexts that attention of a shape needs within a budget, made ready now where they are not; `None` where the host
    /// computes it.
    pub(in super::super) fn prepare_attention(
        &self,
        shape: &FlashAttnShape,
        budget_bytes: u64,
    ) -> Option<Vec<ContextNeed>> {
        let mut needs: Vec<ContextNeed> = Vec::new();
        for form in self.attention_forms(shape) {
            let form = form
                .map_err(|unfit| self.refuse("attention", &unfit))
                .ok()?;
            let held = self.attention(&form, Some(budget_bytes))?;
            let context = held.context();
            if !needs.iter().any(|need| need.context == context) {
                let size_bytes = held.size_bytes();
                needs.push(ContextNeed {
                    context,
                    size_bytes,
                });
            }
        }
        Some(needs)
    }

    /// Tells whether there is nothing to make for attention of a shape.
    pub(in super::super) fn is_attention_prepared(
        &self,
        shape: &FlashAttnShape,
        budget_bytes: u64,
    ) -> bool {
        self.attention_forms(shape).all(|form| {
            form.map_or(true, |form| {
                let life = lock(&self.attention.0).get(&form).cloned();
                life.is_some_and(|life| lock(&life).is_known_to(Some(budget_bytes)))
            })
        })
    }

    /// Takes notice of attention that is left to the host.
    pub(in super::super) fn refuse_attention(&self, reason: &dyn std::fmt::Display) {
        self.refuse("attention", reason);
    }

    /// Returns the graphs of attention of a shape.
    fn attention_forms(
        &self,
        shape: &FlashAttnShape,
    ) -> impl Iterator<Item = Result<AttentionForm, Unfit>> {
        let vtcm_mb = self.settings.vtcm_mb;
        let pieces = self.settings.rows.cut(shape.q.ne[1]);
        pieces.map(move |piece| AttentionForm::of(shape, piece.room, vtcm_mb))
    }

    /// Returns the context of a graph that is ready, if it is there.
    fn attention_there(&self, form: &AttentionForm) -> Option<Held> {
        let life = lock(&self.attention.0).get(form).cloned()?;
        let held = match &*lock(&life) {
            Life::Ready(held) => held.clone(),
            _ => return None,
        };
        let is_there = held.residence().is_there;
        is_there.then_some(held)
    }

    /// Returns the context of a graph, which is made ready now if it is not yet; `None` where the host computes it.
    fn attention(&self, form: &AttentionForm, budget_bytes: Option<u64>) -> Option<Held> {
        let life = Arc::clone(lock(&self.attention.0).entry(*form).or_default());
        let mut life = lock(&life);
        if !life.is_known_to(budget_bytes) {
            *life = match self.make_attention(form, budget_bytes) {
                Ok(context) => Life::Ready(context),
                Err(error) => {
                    self.refuse(&form.to_string(), &error);
                    Life::Refused(error.refused())
                }
            };
        }
        let ready = match &*life {
            Life::Ready(context) => Some(context.clone()),
            _ => None,
        };
        drop(life);
        let is_there = |context: &Held| budget_bytes.is_some() || self.pin_context(context);
        let ready = ready.filter(is_there);
        // What was wrong is held by nobody.
        self.free_unused();
        ready
    }

    /// Leaves graphs to the host whose context cannot be had.
    pub(super) fn lose_attention(&self, context: u64, error: &PartError) {
        let lives: Vec<_> = lock(&self.attention.0).values().cloned().collect();
        for life in lives {
            // One that is being made has no context yet; where one is just looked at, its execution fails, which gives it up.
            let Ok(mut life) = life.try_lock() else {
                continue;
            };
            if let Life::Ready(held) = &*life
                && held.context() == context
            {
                self.refuse("attention", error);
                *life = Life::Refused(None);
            }
        }
    }

    /// Leaves a graph to the host that failed.
    fn give_up_attention(&self, form: &AttentionForm, failed: &Held) {
        let life = lock(&self.attention.0).get(form).cloned();
        if let Some(life) = life {
            let mut life = lock(&life);
            if let Life::Ready(context) = &*life
                && context.context() == failed.context()
            {
                *life = Life::Refused(None);
            }
        }
    }

    /// Takes notice of something that half floats do not do for.
    fn overflow(&self, what: &str) {
        self.warn(format_args!(
            "attention with {what} beyond half floats: the host computes it"
        ));
        lock(&self.report).n_overflows += 1;
    }

    /// Loads or builds a graph, and checks it.
    fn make_attention(
        &self,
        form: &AttentionForm,
        budget_bytes: Option<u64>,
    ) -> Result<Held, PartError> {
        let mut hasher = self.key_hasher();
        hasher.bytes(format!("{form:?}").as_bytes());
        let key = hasher.finish();
        let example = Arc::new(Example::new(form));
        if let Some((made, bytes)) = self.load(&key, 1) {
            let held = self.contexts.hold(made.context, budget_bytes.is_none());
            held.set_size((*bytes).as_ref().len() as u64);
            if budget_bytes.is_some() {
                let key = key.clone();
                held.residence().binary = Some(Binary { key, bytes });
            }
            let error = match self.check_attention(&held, &example) {
                Ok(()) => return self.within(held, budget_bytes),
                Err(error) => error,
            };
            if let Some(cache) = &self.cache {
                cache.discard(&key);
            }
            if !self.is_alive() {
                return Err(error);
            }
            self.tell_wrong(&key);
        }
        let source = self.build_attention(*form, key, budget_bytes.is_none())?;
        self.check_attention(&source.held, &example)?;
        self.store(&source, budget_bytes.is_some());
        self.within(source.held, budget_bytes)
    }

    /// Frees a context that was made and checked until a memory runtime wants it, where there is one.
    fn within(&self, held: Held, budget_bytes: Option<u64>) -> Result<Held, PartError> {
        if let Some(budget_bytes) = budget_bytes {
            self.lay_aside(&held, budget_bytes)?;
        }
        Ok(held)
    }

    fn build_attention(
        &self,
        form: AttentionForm,
        key: ContextKey,
        is_pinned: bool,
    ) -> Result<Source, PartError> {
        let built = self
            .worker
            .call(move |engine, beat| engine.build_attention(&form, beat));
        let made: Made = built??;
        let mut report = lock(&self.report);
        report.n_graphs_built += 1;
        report.finalize += made.finalize;
        Ok(Source {
            held: self.contexts.hold(made.context, is_pinned),
            made,
            key,
            is_loaded: false,
        })
    }

    /// Runs a graph once and compares samples.
    fn check_attention(&self, context: &Held, example: &Arc<Example>) -> Result<(), PartError> {
        let output = self.execute_attention(context, example.inputs())?;
        let nmse = example.nmse(&output);
        if nmse > MAX_NMSE {
            let max = MAX_NMSE;
            return Err(PartError::Wrong { nmse, max });
        }
        let mut report = lock(&self.report);
        report.worst_nmse = report.worst_nmse.max(nmse);
        Ok(())
    }

    /// Executes a graph; its output.
    fn execute_attention(
        &self,
        context: &Held,
        inputs: Vec<Vec<u8>>,
    ) -> Result<Vec<u8>, PartError> {
        let number = context.context();
        let start = Instant::now();
        let executed = self
            .worker
            .call(move |engine, _| engine.execute_bytes(number, 0, &inputs));
        let (mut outputs, n_shared) = executed??;
        let mut report = lock(&self.report);
        report.execute += start.elapsed();
        report.n_shared += n_shared;
        let output = outputs.pop();
        output.ok_or(Error::Binary("no output").into())
    }
}
