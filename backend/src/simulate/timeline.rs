//! Who was busy when.

/// Something that does one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The NPU.
    Npu,
    /// The core that maps and copies.
    HostMap,
    /// All other cores: the revision path, sampling, and dense forwards where there is no NPU.
    Cpu,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Npu, Self::HostMap, Self::Cpu];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Npu => "NPU",
            Self::HostMap => "host map",
            Self::Cpu => "CPU",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// What something does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A segment of a forward; on the CPU a whole forward.
    Run,
    /// A map.
    Map,
    /// A copy into the staging memory.
    Copy,
    /// The revision path of a forward.
    Revision,
    /// Sampling.
    Sample,
}

impl Work {
    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Map => "map",
            Self::Copy => "copy",
            Self::Revision => "revision",
            Self::Sample => "sample",
        }
    }
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Who works.
    pub resource: Resource,
    /// At what.
    pub work: Work,
    /// For which forward, from 0.
    pub forward: u32,
    /// For which segment of it, from 0; of work for a whole forward 0.
    pub segment: u32,
    /// From when, in seconds.
    pub start_s: f64,
    /// Until when.
    pub end_s: f64,
}

/// Pieces of work in the order in which each resource does them, and what they add up to.
///
/// # Invariants
/// The spans of a resource ascend and do not overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    spans: Vec<Span>,
    busy_s: [f64; 3],
    end_s: [f64; 3],
}

impl Timeline {
    /// Adds work that starts when it may and when its resource is free; returns when it starts and ends. Work that takes no
    /// time leaves no span.
    pub(super) fn add(
        &mut self,
        resource: Resource,
        work: Work,
        (forward, segment): (u32, u32),
        ready_s: f64,
        seconds: f64,
    ) -> (f64, f64) {
        let start_s = ready_s.max(self.end_s(resource));
        let end_s = start_s + seconds;
        if seconds > 0.0 {
            // INVARIANT: the span starts after the end of the last.
            self.spans.push(Span {
                resource,
                work,
                forward,
                segment,
                start_s,
                end_s,
            });
            self.end_s[resource.index()] = end_s;
            self.busy_s[resource.index()] += seconds;
        }
        (start_s, end_s)
    }

    /// Returns all spans.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns for how long a resource worked.
    #[must_use]
    pub const fn busy_s(&self, resource: Resource) -> f64 {
        self.busy_s[resource.index()]
    }

    /// Returns when a resource is free.
    #[must_use]
    pub const fn end_s(&self, resource: Resource) -> f64 {
        self.end_s[resource.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_its_resource_and_for_what_it_needs() {
        let mut timeline = Timeline::default();
        let mut add =
            |resource, ready, seconds| timeline.add(resource, Work::Run, (0, 0), ready, seconds);
        assert_eq!(add(Resource::Npu, 1.0, 2.0), (1.0, 3.0));
        assert_eq!(add(Resource::Npu, 0.0, 1.0), (3.0, 4.0));
        assert_eq!(add(Resource::HostMap, 0.0, 1.0), (0.0, 1.0));
        assert_eq!(add(Resource::Npu, 0.0, 0.0), (4.0, 4.0));
        assert_eq!(timeline.spans().len(), 3);
        assert_eq!(
            Resource::ALL.map(|resource| timeline.busy_s(resource)),
            [3.0, 1.0, 0.0]
        );
    }
}
