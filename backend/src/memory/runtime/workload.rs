//! What there is to map: objects, and the segments of a step that need them.

use std::ops::RangeInclusive;

/// How long the contents of an object matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// From step to step: weights, K and V.
    LongLived,
    /// From the segment that makes it to the last that reads it, within a step: activations, logits.
    ShortLived,
}

/// The number of an object in its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub usize);

/// The number of a segment in its workload, in the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub usize);

/// Bytes that are mapped as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Name, for messages.
    pub name: String,
    /// Size.
    pub size_bytes: u64,
    /// How long the contents matter.
    pub class: Class,
    /// Whether segments write to it. Such objects are mapped and never copied.
    pub is_written: bool,
}

impl Object {
    /// Makes an object; one that is short-lived is written, one that is long-lived is not.
    #[must_use]
    pub fn new(name: impl Into<String>, size_bytes: u64, class: Class) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            class,
            is_written: class == Class::ShortLived,
        }
    }

    /// Makes a long-lived object that segments write to, as K and V.
    #[must_use]
    pub fn state(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            is_written: true,
            ..Self::new(name, size_bytes, Class::LongLived)
        }
    }
}

/// Work that runs as a whole: all it needs is mapped from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Name, for messages.
    pub name: String,
    /// What it reads and writes, each once, in ascending order.
    pub needs: Vec<ObjectId>,
}

/// Objects and segments of one step; steps repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    objects: Vec<Object>,
    segments: Vec<Segment>,
}

impl Workload {
    /// Makes an empty workload.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an object.
    pub fn add_object(&mut self, object: Object) -> ObjectId {
        self.objects.push(object);
        ObjectId(self.objects.len() - 1)
    }

    /// Adds a segment that runs after all others.
    ///
    /// # Panics
    /// When it needs an object that has not been added.
    pub fn add_segment(
        &mut self,
        name: impl Into<String>,
        needs: impl IntoIterator<Item = ObjectId>,
    ) -> SegmentId {
        let mut needs: Vec<_> = needs.into_iter().collect();
        needs.sort_unstable();
        needs.dedup();
        let n_objects = self.objects.len();
        assert!(needs.iter().all(|object| object.0 < n_objects));
        let name = name.into();
        self.segments.push(Segment { name, needs });
        SegmentId(self.segments.len() - 1)
    }

    /// Returns an object.
    ///
    /// # Panics
    /// When there is no such object.
    #[must_use]
    pub fn object(&self, id: ObjectId) -> &Object {
        &self.objects[id.0]
    }

    /// Returns all objects.
    #[must_use]
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Returns a segment.
    ///
    /// # Panics
    /// When there is no such segment.
    #[must_use]
    pub fn segment(&self, id: SegmentId) -> &Segment {
        &self.segments[id.0]
    }

    /// Returns all segments, in the order in which they run.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns how often objects are needed in a step, by number.
    #[must_use]
    pub fn uses(&self) -> Vec<u64> {
        let mut uses = vec![0; self.objects.len()];
        for object in self.segments.iter().flat_map(|segment| &segment.needs) {
            uses[object.0] += 1;
        }
        uses
    }

    /// Returns the first and the last segment that need each object, by number; `None` where none does.
    #[must_use]
    pub fn lifetimes(&self) -> Vec<Option<RangeInclusive<usize>>> {
        let mut lifetimes: Vec<Option<RangeInclusive<usize>>> = vec![None; self.objects.len()];
        for (i, segment) in self.segments.iter().enumerate() {
            for object in &segment.needs {
                let lifetime = &mut lifetimes[object.0];
                let first = lifetime.as_ref().map_or(i, |lifetime| *lifetime.start());
                *lifetime = Some(first..=i);
            }
        }
        lifetimes
    }
}
