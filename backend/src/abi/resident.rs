//! The memory runtime of an instance: graphs run within a budget of addresses.
//!
//! A graph is read into objects and segments; the session of the graph before goes on where it has the same segments, or some
//! of them, so that what stays mapped stays from graph to graph. Activations are one object that grows, as a host plans their
//! places itself. Segments of an accelerator need its contexts instead of tiles of the host; a graph that loses some of them
//! on its way is read anew from there.

use std::sync::{Arc, Mutex};

use super::InitError;
use crate::device::{ContextMapping, Contexts};
use crate::graph::{GraphObjects, ObjectSource};
use crate::knobs::{LLADA_NPU_BUDGET, LLADA_NPU_MEMORY};
use crate::memory::WeightStore;
use crate::memory::runtime::arena::Arena;
use crate::memory::runtime::clock::Totals;
use crate::memory::runtime::{
    Class, Costs, HostMapping, Limits, Mapping, Object, ObjectId, Observed, Observer, Planner,
    Policy, Report, Segment, SegmentId, Session, SessionError, Workload,
};
use crate::sync::lock;

/// Maps of the host cost what the system takes for them, and there is nothing to copy into.
const HOST_COSTS: Costs = Costs {
    map_seconds_per_gb: 0.0,
    copy_gb_per_second: 0.0,
};

/// Activations are planned in sizes of at least this.
const MIN_ARENA_BYTES: u64 = 64 << 10;

/// A long-lived object: what it is, its size, whether it is written.
type Long = (ObjectSource, u64, bool);

/// How instances use addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// The address space of each.
    pub limits: Limits,
    /// Who decides what is mapped.
    pub policy: Policy,
    /// What maps cost on the clock of [`MemoryReport::seconds`], where one is kept.
    pub costs: Option<Costs>,
}

impl Budget {
    /// Reads the settings; `None` where there is no budget.
    ///
    /// # Errors
    /// When one is not understood.
    pub(super) fn from_knobs() -> Result<Option<Self>, InitError> {
        let policy = LLADA_NPU_MEMORY.get()?;
        Ok(LLADA_NPU_BUDGET.get()?.map(|budget_bytes| Self {
            limits: Limits {
                budget_bytes,
                ..Limits::default()
            },
            policy,
            costs: None,
        }))
    }
}

/// What sessions that have ended came to, over all instances.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryReport {
    /// Sessions.
    pub n_sessions: u64,
    /// Their sums; the highest of their peaks.
    pub report: Report,
    /// What they would have taken on a virtual clock, where one was kept; runs take no time on it.
    pub seconds: Totals,
}

/// Sums, shared by the instances of a device.
pub(super) type Reports = Arc<Mutex<MemoryReport>>;

#[derive(Debug)]
struct Current {
    session: Session,
    observed: Option<Arc<Mutex<Observed>>>,
    /// What each segment needs that is long-lived.
    segments: Vec<Vec<Long>>,
    arena_bytes: u64,
    /// The signature of the last graph, and its segments among those.
    last: Option<u64>,
    found: Vec<SegmentId>,
}

/// Owning: the session of an instance.
#[derive(Debug)]
pub(super) struct Resident {
    budget: Budget,
    store: Arc<WeightStore>,
    reports: Reports,
    current: Option<Current>,
    /// Of sessions that have ended.
    total: Report,
    /// The first segment of the graph that was read, and the groups of those from there on.
    first: usize,
    groups: Vec<usize>,
    /// The group that runs.
    running: Option<usize>,
}

impl Resident {
    pub(super) fn new(budget: Budget, store: Arc<WeightStore>, reports: Reports) -> Self {
        Self {
            budget,
            store,
            reports,
            current: None,
            total: Report::default(),
            first: 0,
            groups: Vec::new(),
            running: None,
        }
    }

    /// Returns the address space.
    pub(super) fn limits(&self) -> &Limits {
        &self.budget.limits
    }

    /// Returns the groups of a graph that do not fit by themselves, ascending.
    pub(super) fn too_large(&self, graph: &GraphObjects) -> Vec<usize> {
        let limits = &self.budget.limits;
        let arena_bytes = limits.align(Arena::pack(&graph.workload, limits).size_bytes);
        let size = |object: &ObjectId| {
            let object = graph.workload.object(*object);
            match object.class {
                Class::LongLived => limits.align(object.size_bytes),
                Class::ShortLived => 0,
            }
        };
        let segments = graph.workload.segments().iter().enumerate();
        segments
            .filter(|(_, segment)| {
                let long_bytes: u64 = segment.needs.iter().map(size).sum();
                long_bytes + arena_bytes > limits.usable_bytes()
            })
            .map(|(i, _)| i)
            .collect()
    }

    /// Unmaps everything, between graphs.
    pub(super) fn vacate(&mut self) {
        self.end();
        if let Some(current) = &mut self.current {
            current.session.finish();
        }
    }

    /// Begins a graph that asks the same of memory as the last one, if it does; tells whether it was.
    pub(super) fn begin_again(&mut self, signature: u64) -> Result<bool, SessionError> {
        self.end();
        let current = self.current.as_mut();
        let Some(current) = current.filter(|current| current.last == Some(signature)) else {
            return Ok(false);
        };
        self.first = 0;
        current.session.begin(&current.found)?;
        Ok(true)
    }

    /// Begins a graph, or what is left of it from segment `first` on. `contexts` makes and frees those of an accelerator.
    pub(super) fn begin(
        &mut self,
        graph: GraphObjects,
        first: usize,
        signature: u64,
        contexts: Option<Arc<dyn Contexts>>,
    ) -> Result<(), SessionError> {
        self.end();
        self.first = first;
        let arena_bytes = Arena::pack(&graph.workload, &self.budget.limits).size_bytes;
        let needs = |segment: &Segment| -> Vec<Long> {
            let long = |object: &ObjectId| {
                let source = graph.sources[object.0];
                let object = graph.workload.object(*object);
                let long = (source, object.size_bytes, object.is_written);
                (source != ObjectSource::Scratch).then_some(long)
            };
            let mut needs: Vec<_> = segment.needs.iter().filter_map(long).collect();
            needs.sort_unstable();
            needs
        };
        let segments: Vec<_> = graph.workload.segments().iter().map(needs).collect();
        let known = self
            .current
            .as_ref()
            .filter(|current| arena_bytes <= current.arena_bytes);
        let found = known.and_then(|current| find(&current.segments, &segments));
        let found = match found {
            Some(found) => found,
            None => {
                let all = (0..segments.len()).map(SegmentId).collect();
                self.restart(&graph, segments, arena_bytes, contexts)?;
                all
            }
        };
        self.groups = graph.groups;
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.found = found;
        current.last = Some(signature).filter(|_| first == 0);
        current.session.begin(&current.found)
    }

    fn restart(
        &mut self,
        graph: &GraphObjects,
        segments: Vec<Vec<Long>>,
        arena_bytes: u64,
        contexts: Option<Arc<dyn Contexts>>,
    ) -> Result<(), SessionError> {
        let grown = arena_bytes.next_power_of_two().max(MIN_ARENA_BYTES);
        self.close();
        // Where it is tight, activations get what they need now.
        let (planner, arena_bytes) = match self.planner(graph, grown) {
            Ok(planner) => (planner, grown),
            Err(_) => (self.planner(graph, arena_bytes)?, arena_bytes),
        };
        if let Some(residency) = planner.residency() {
            log::debug!(
                "memory: {} bytes stay, {} bytes are streamed through {} (working set {}, budget {})",
                residency.resident_bytes,
                residency.streamed_bytes,
                residency.staging_bytes,
                planner.working_set_bytes(),
                planner.limits().budget_bytes
            );
        }
        let mut mapping = self.mapping(&graph.sources, contexts);
        let mut observed = None;
        if let Some(costs) = self.budget.costs {
            let observer = Observer::around(mapping, costs, Box::new(|_| 0.0));
            observed = Some(observer.observed());
            mapping = Box::new(observer);
        }
        self.current = Some(Current {
            session: Session::new(planner, mapping)?,
            observed,
            segments,
            arena_bytes,
            last: None,
            found: Vec::new(),
        });
        Ok(())
    }

    /// Returns what maps objects: tiles, and contexts where there are some.
    fn mapping(
        &self,
        sources: &[ObjectSource],
        contexts: Option<Arc<dyn Contexts>>,
    ) -> Box<dyn Mapping> {
        let address = |source: &ObjectSource| match source {
            ObjectSource::Memory {
                address,
                may_have_tiles: true,
            } => Some(*address),
            _ => None,
        };
        let addresses = sources.iter().map(address).collect();
        let host: Box<dyn Mapping> = Box::new(HostMapping::new(Arc::clone(&self.store), addresses));
        let context = |source: &ObjectSource| match source {
            ObjectSource::Context(context) => Some(*context),
            _ => None,
        };
        let of_object: Vec<_> = sources.iter().map(context).collect();
        match contexts.filter(|_| of_object.iter().any(Option::is_some)) {
            Some(contexts) => Box::new(ContextMapping::new(contexts, of_object, host)),
            None => host,
        }
    }

    /// Plans for the long-lived objects of a graph, which keep their numbers, and activations of some size.
    fn planner(&self, graph: &GraphObjects, arena_bytes: u64) -> Result<Planner, SessionError> {
        let mut workload = Workload::new();
        for object in graph.workload.objects() {
            workload.add_object(match object.class {
                Class::LongLived => object.clone(),
                Class::ShortLived => Object {
                    size_bytes: 0,
                    ..object.clone()
                },
            });
        }
        let arena = workload.add_object(Object::new("activations", arena_bytes, Class::ShortLived));
        for segment in graph.workload.segments() {
            let needs = segment.needs.iter().copied().chain([arena]);
            workload.add_segment(segment.name.clone(), needs);
        }
        Ok(Planner::new(
            workload,
            self.budget.limits,
            self.budget.policy,
            HOST_COSTS,
        )?)
    }

    /// Gets ready for segment `i` of the graph.
    pub(super) fn before(&mut self, i: usize) -> Result<(), SessionError> {
        let group = i.checked_sub(self.first);
        let group = group.and_then(|i| self.groups.get(i)).copied();
        if self.running == group {
            return Ok(());
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if self.running.take().is_some() {
            current.session.leave()?;
        }
        let entered = current.session.enter();
        if matches!(entered, Err(SessionError::Dead)) {
            self.close();
        }
        entered?;
        self.running = group;
        Ok(())
    }

    /// Ends a graph, whether or not all of it has run.
    pub(super) fn end(&mut self) {
        self.running = None;
        if let Some(current) = &mut self.current {
            current.session.end();
        }
    }

    fn close(&mut self) {
        if let Some(mut current) = self.current.take() {
            current.session.finish();
            let report = current.session.report();
            self.total.add(&report);
            let mut sum = lock(&self.reports);
            sum.n_sessions += 1;
            sum.report.add(&report);
            if let Some(observed) = current.observed {
                let observed = lock(&observed);
                sum.seconds.add(&observed.totals());
            }
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.close();
        if self.total.n_runs > 0 {
            log(&self.total);
        }
    }
}

fn log(report: &Report) {
    let Report {
        transfers,
        n_runs,
        n_stalls,
        stall,
        transfer,
        n_failures,
    } = report;
    log::info!(
        "memory: {} maps ({} bytes), {} unmaps, {} evictions, peak {} bytes, {n_stalls} stalls in {n_runs} runs \
         ({:.3} s waited of {:.3} s moving), {n_failures} failures",
        transfers.n_maps,
        transfers.total_mapped_bytes,
        transfers.n_unmaps,
        transfers.n_evictions,
        transfers.peak_bytes,
        stall.as_secs_f64(),
        transfer.as_secs_f64(),
    );
}

/// Returns where the segments of a graph are among those known, in order.
fn find(known: &[Vec<Long>], wanted: &[Vec<Long>]) -> Option<Vec<SegmentId>> {
    let mut at = 0;
    wanted
        .iter()
        .map(|segment| {
            let i = at + known[at..].iter().position(|known| known == segment)?;
            at = i + 1;
            Some(SegmentId(i))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_in_order_or_not_at_all() {
        let weight = |address| {
            let may_have_tiles = true;
            vec![(
                ObjectSource::Memory {
                    address,
                    may_have_tiles,
                },
                8,
                false,
            )]
        };
        let known: Vec<Vec<Long>> = [1, 2, 3, 2].map(weight).to_vec();
        let find = |wanted: &[usize]| {
            let wanted: Vec<_> = wanted.iter().map(|&address| weight(address)).collect();
            find(&known, &wanted).map(|found| found.into_iter().map(|id| id.0).collect::<Vec<_>>())
        };
        assert_eq!(find(&[1, 2, 3, 2]), Some(vec![0, 1, 2, 3]));
        assert_eq!(find(&[1, 2, 2]), Some(vec![0, 1, 3]));
        assert_eq!(find(&[]), Some(vec![]));
        assert_eq!(find(&[3, 1]), None);
        assert_eq!(find(&[4]), None);
    }
}
