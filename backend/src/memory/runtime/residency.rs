//! What stays mapped, and how the rest is streamed.
//!
//! Steps repeat, so whatever does not fit must come once per step: at least working set − budget bytes. What is added to
//! that is the staging memory, which holds what is streamed for this segment and, with a pipeline, for the next: it takes
//! addresses from objects that could stay. Three things keep it small:
//!
//! - *a little of every segment is streamed*, not all of some: the staging memory holds two loads, and a load is what one
//!   segment streams;
//! - its two slots grow from both ends, so that a large load and a small one share it;
//! - what was streamed in excess is taken back, the largest first.
//!
//! Segments are visited in the order of their numbers with the bits reversed, so that loads lie far apart however few
//! there are, and each transfer has many runs to hide behind. Objects that are needed often, and those that are written
//! (which cannot be copied), are streamed last.
//!
//! ```text
//! for every bound of a load:
//!     for every kind of object, cheapest to stream first:
//!         repeat: for every segment, bits reversed: stream the largest object of that kind whose loads stay in the bound,
//!                 until what remains fits
//!     make objects resident again while it fits
//! take the bound with the fewest bytes per step, if possible one that streams nothing that is written
//! ```

use super::PlanError;
use super::arena::{Arena, live_bytes};
use super::limits::Limits;
use super::workload::{Class, ObjectId, SegmentId, Workload};

/// How much staging memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// For the load of one segment: transfers and runs alternate.
    Single,
    /// For the loads of any two segments that follow each other.
    Double,
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Which objects are streamed, by number; all others stay once they are mapped.
    pub is_streamed: Vec<bool>,
    /// Whether short-lived objects share an arena; else they are streamed.
    pub arena: Option<Arena>,
    /// Bytes of the staging memory.
    pub staging_bytes: u64,
    /// Bytes of all long-lived objects that stay.
    pub resident_bytes: u64,
    /// Bytes that move in every step: objects as often as they are needed.
    pub streamed_bytes: u64,
}

/// How many bounds of a load are tried.
const N_BOUNDS: usize = 96;

struct Problem<'a> {
    workload: &'a Workload,
    sizes: Vec<u64>,
    uses: Vec<u64>,
    /// Segments that need an object.
    users: Vec<Vec<usize>>,
    budget: u64,
    staging: Staging,
}

#[derive(Clone)]
struct Choice {
    is_streamed: Vec<bool>,
    loads: Vec<u64>,
    resident: u64,
}

impl Problem<'_> {
    /// Returns the staging memory that loads ask for.
    fn staging(&self, loads: &[u64]) -> u64 {
        let largest = loads.iter().copied().max().unwrap_or(0);
        if self.staging == Staging::Single {
            return largest;
        }
        // Segments without a load do not stand between two that have one; the last meets the first of the next step.
        let mut last = loads.iter().copied().rfind(|&load| load > 0).unwrap_or(0);
        let mut pairs = 0;
        for load in loads.iter().copied().filter(|&load| load > 0) {
            pairs = pairs.max(last + load);
            last = load;
        }
        pairs
    }

    fn fits(&self, choice: &Choice) -> bool {
        choice.resident + self.staging(&choice.loads) <= self.budget
    }

    fn stream(&self, choice: &mut Choice, object: usize) {
        choice.is_streamed[object] = true;
        choice.resident -= self.sizes[object];
        for &segment in &self.users[object] {
            choice.loads[segment] += self.sizes[object];
        }
    }

    fn keep(&self, choice: &mut Choice, object: usize) {
        choice.is_streamed[object] = false;
        choice.resident += self.sizes[object];
        for &segment in &self.users[object] {
            choice.loads[segment] -= self.sizes[object];
        }
    }

    /// Returns the objects of each segment by kind, the kinds that are cheap to stream first, the largest objects first.
    fn kinds(&self) -> Vec<Vec<Vec<usize>>> {
        let kind = |i: usize| (self.workload.objects()[i].is_written, self.uses[i]);
        let used = || (0..self.sizes.len()).filter(|&i| self.uses[i] > 0 && self.sizes[i] > 0);
        let kinds: std::collections::BTreeSet<_> = used().map(kind).collect();
        let of_kind = |wanted: (bool, u64)| {
            let segments = self.workload.segments().iter();
            segments
                .map(|segment| {
                    let needs = segment.needs.iter().map(|object| object.0);
                    let mut needs: Vec<_> = needs
                        .filter(|&i| self.sizes[i] > 0 && kind(i) == wanted)
                        .collect();
                    needs.sort_by_key(|&i| std::cmp::Reverse(self.sizes[i]));
                    needs
                })
                .collect()
        };
        kinds.into_iter().map(of_kind).collect()
    }

    fn choose(&self, bound: u64, kinds: &[Vec<Vec<usize>>], order: &[usize]) -> Option<Choice> {
        let mut choice = Choice {
            is_streamed: vec![false; self.sizes.len()],
            loads: vec![0; self.workload.segments().len()],
            resident: self.sizes.iter().sum(),
        };
        let mut fits = self.fits(&choice);
        for kind in kinds {
            loop {
                let before = choice.resident;
                for &segment in order {
                    if fits {
                        self.take_back(&mut choice);
                        return Some(choice);
                    }
                    let fitting = kind[segment].iter().copied().find(|&i| {
                        let mut users = self.users[i].iter();
                        !choice.is_streamed[i]
                            && users.all(|&user| choice.loads[user] + self.sizes[i] <= bound)
                    });
                    if let Some(object) = fitting {
                        self.stream(&mut choice, object);
                        fits = self.fits(&choice);
                    }
                }
                if choice.resident == before {
                    break;
                }
            }
        }
        fits.then(|| {
            self.take_back(&mut choice);
            choice
        })
    }

    /// Makes objects resident again that fit after all, those that save most first.
    fn take_back(&self, choice: &mut Choice) {
        let mut streamed: Vec<_> = (0..self.sizes.len())
            .filter(|&i| choice.is_streamed[i])
            .collect();
        streamed.sort_by_key(|&i| std::cmp::Reverse(self.sizes[i] * self.uses[i]));
        for object in streamed {
            self.keep(choice, object);
            if !self.fits(choice) {
                self.stream(choice, object);
            }
        }
    }

    fn moved(&self, choice: &Choice) -> u64 {
        (0..self.sizes.len())
            .filter(|&i| choice.is_streamed[i])
            .map(|i| self.sizes[i] * self.uses[i])
            .sum()
    }

    /// Returns bounds that make a difference: sums of the largest and of the smallest objects of a segment.
    fn bounds(&self) -> Vec<u64> {
        let mut bounds = Vec::new();
        for segment in self.workload.segments() {
            let mut sizes: Vec<_> = segment
                .needs
                .iter()
                .map(|object| self.sizes[object.0])
                .collect();
            sizes.sort_unstable();
            bounds.extend_from_slice(&sizes);
            let mut push_sums = |sizes: &mut dyn Iterator<Item = &u64>| {
                let mut sum = 0;
                bounds.extend(sizes.map(|size| {
                    sum += size;
                    sum
                }));
            };
            push_sums(&mut sizes.iter());
            push_sums(&mut sizes.iter().rev());
        }
        bounds.sort_unstable();
        bounds.dedup();
        let step = bounds.len().div_ceil(N_BOUNDS).max(1);
        let largest = bounds.last().copied();
        let mut some: Vec<_> = bounds.into_iter().step_by(step).collect();
        some.extend(largest);
        some
    }

    fn solve(&self) -> Option<Choice> {
        let kinds = self.kinds();
        let order = bits_reversed(self.workload.segments().len());
        let choices = self.bounds().into_iter();
        choices
            .filter_map(|bound| self.choose(bound, &kinds, &order))
            .min_by_key(|choice| {
                let writes = streams_written(self.workload, &choice.is_streamed);
                (writes, self.moved(choice), self.staging(&choice.loads))
            })
    }
}

fn streams_written(workload: &Workload, is_streamed: &[bool]) -> bool {
    let mut objects = workload.objects().iter().zip(is_streamed);
    objects.any(|(object, is_streamed)| *is_streamed && object.is_written)
}

/// Returns the numbers below `n` in the order of their bits read backwards: any first few of them are spread evenly.
fn bits_reversed(n: usize) -> Vec<usize> {
    let bits = usize::BITS - n.saturating_sub(1).leading_zeros();
    let all = 0..1_usize << bits;
    all.map(|i| {
        if bits == 0 {
            i
        } else {
            i.reverse_bits() >> (usize::BITS - bits)
        }
    })
    .filter(|&i| i < n)
    .collect()
}

impl Residency {
    /// Chooses what stays, with as much staging memory as was asked for.
    ///
    /// `None` where some segment needs other addresses than its own objects take: there is no room for what lives across
    /// segments, or for two loads.
    #[must_use]
    pub fn choose(workload: &Workload, limits: &Limits, staging: Staging) -> Option<Self> {
        let arena = Arena::pack(workload, limits);
        let uses = workload.uses();
        let is_long = |i: usize| workload.objects()[i].class == Class::LongLived && uses[i] > 0;
        let size = |i: usize| {
            if is_long(i) {
                limits.align(workload.objects()[i].size_bytes)
            } else {
                0
            }
        };
        let sizes: Vec<_> = (0..workload.objects().len()).map(size).collect();
        let mut users = vec![Vec::new(); sizes.len()];
        for (i, segment) in workload.segments().iter().enumerate() {
            for object in &segment.needs {
                users[object.0].push(i);
            }
        }
        let budget = limits.usable_bytes().checked_sub(arena.size_bytes)?;
        let problem = Problem {
            workload,
            sizes,
            uses,
            users,
            budget,
            staging,
        };
        let choice = problem.solve()?;
        Some(Self {
            staging_bytes: problem.staging(&choice.loads),
            resident_bytes: choice.resident,
            streamed_bytes: problem.moved(&choice),
            is_streamed: choice.is_streamed,
            arena: Some(arena),
        })
    }

    /// Streams everything, short-lived objects too: possible wherever each segment fits by itself.
    ///
    /// # Errors
    /// As for [`check_segments`].
    pub fn stream_all(workload: &Workload, limits: &Limits) -> Result<Self, PlanError> {
        check_segments(workload, limits)?;
        let sizes = |segment: usize| {
            workload.segments()[segment]
                .needs
                .iter()
                .map(|object| limits.align(workload.object(*object).size_bytes))
        };
        let loads = (0..workload.segments().len()).map(|segment| sizes(segment).sum::<u64>());
        Ok(Self {
            is_streamed: vec![true; workload.objects().len()],
            arena: None,
            staging_bytes: loads.clone().max().unwrap_or(0),
            resident_bytes: 0,
            streamed_bytes: loads.sum(),
        })
    }

    /// Tells whether objects are streamed that segments write to: these are mapped, not copied.
    #[must_use]
    pub fn streams_written(&self, workload: &Workload) -> bool {
        streams_written(workload, &self.is_streamed)
    }

    /// Returns what `segment` streams.
    pub fn streamed<'a>(
        &'a self,
        workload: &'a Workload,
        segment: SegmentId,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        let needs = workload.segment(segment).needs.iter().copied();
        needs.filter(|object| self.is_streamed[object.0])
    }
}

/// Checks that every segment fits by itself.
///
/// # Errors
/// The first segment that does not, with the largest object that it needs.
pub fn check_segments(workload: &Workload, limits: &Limits) -> Result<(), PlanError> {
    let budget_bytes = limits.usable_bytes();
    for segment in workload.segments() {
        let size = |object: &ObjectId| limits.align(workload.object(*object).size_bytes);
        let needed_bytes: u64 = segment.needs.iter().map(size).sum();
        let largest = segment.needs.iter().max_by_key(|object| size(object));
        if let Some(object) = largest
            && needed_bytes > budget_bytes
        {
            return Err(PlanError::SegmentTooLarge {
                segment: segment.name.clone(),
                needed_bytes,
                budget_bytes,
                tensor: workload.object(*object).name.clone(),
                tensor_bytes: size(object),
            });
        }
    }
    Ok(())
}

/// Returns the bytes that a step touches: long-lived objects that are needed, and the most that lives for a short time.
#[must_use]
pub fn working_set_bytes(workload: &Workload, limits: &Limits) -> u64 {
    let objects = workload.objects().iter().zip(workload.uses());
    let long: u64 = objects
        .filter(|(object, uses)| object.class == Class::LongLived && *uses > 0)
        .map(|(object, _)| limits.align(object.size_bytes))
        .sum();
    long + live_bytes(workload, limits)
}

/// Returns the bytes that must be moved in every step once steps repeat, whoever decides: what is touched and cannot have
/// stayed since the step before.
#[must_use]
pub fn lower_bound_bytes(workload: &Workload, limits: &Limits) -> u64 {
    working_set_bytes(workload, limits).saturating_sub(limits.usable_bytes())
}
