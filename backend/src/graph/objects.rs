//! What the segments of a graph touch: classes, lifetimes and the order of use, for the memory runtime.
//!
//! A tensor that other graphs find at the same place (a weight, K, V) is a long-lived object, written or not; one in memory
//! that tensors of a graph share (an activation, logits, an input) is short-lived, from the segment that makes it to the
//! last that reads it. Views are the tensor that they show.
//!
//! What an accelerator computes needs its contexts when it starts, and the host's bytes of its weights not at all.
//!
//! Segments of the graph are joined for the runtime as long as they need no second weight with tiles, and no second context: the unit is
//! a product with what lies around it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};

use llada_npu_ffi::ggml::op::OpCodes;
use llada_npu_ffi::ggml::plugin::view::{GraphView, Node};

use super::segment::{Segment, Work};
use super::weights::{is_weight, leaf};
use crate::device::ContextNeed;
use crate::memory::runtime::{Class, Object, ObjectId, Workload};
use crate::memory::shape::TileShape;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectSource {
    /// It lies in memory that tensors of a graph share.
    Scratch,
    /// It lies at an address where other graphs find it as well.
    Memory {
        /// Where.
        address: usize,
        /// Whether it is a weight that may have tiles.
        may_have_tiles: bool,
    },
    /// It is a context of an accelerator.
    Context(u64),
}

impl ObjectSource {
    /// Tells whether it costs something to have it there.
    fn is_mapped(self) -> bool {
        match self {
            Self::Scratch => false,
            Self::Memory { may_have_tiles, .. } => may_have_tiles,
            Self::Context(_) => true,
        }
    }
}

/// What a graph asks of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphObjects {
    /// Objects and segments of the runtime.
    pub workload: Workload,
    /// What each object is, by number.
    pub sources: Vec<ObjectSource>,
    /// The runtime's segment of each segment of the graph, ascending.
    pub groups: Vec<usize>,
}

/// Who computes a node.
#[derive(Clone, Copy, Debug)]
pub enum Server<'a> {
    /// The host.
    Host,
    /// An accelerator, which needs these contexts now: those of a segment at its first node.
    Accelerator(&'a [ContextNeed]),
}

/// What tells objects apart: where they lie, or which tensor they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Address(usize),
    Tensor(usize),
    Context(u64),
}

#[derive(Default)]
struct Reader {
    objects: GraphObjects,
    ids: BTreeMap<Key, ObjectId>,
    found: Vec<Object>,
}

impl Reader {
    /// Returns the object that a tensor shows; `None` where its data lie nowhere that is known.
    fn object(&mut self, codes: &OpCodes, tensor: Node<'_>) -> Option<ObjectId> {
        let root = tensor.root();
        let place = root.place()?;
        let (key, class) = if place.is_scratch {
            (Key::Tensor(root.id()), Class::ShortLived)
        } else {
            (Key::Address(place.address), Class::LongLived)
        };
        match self.ids.entry(key) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(entry) => {
                let shape = is_weight(codes, root).and_then(|_| tile_shape(root));
                let size_bytes = shape.map_or(place.size_bytes, |shape| shape.size_bytes());
                let id = *entry.insert(ObjectId(self.found.len()));
                self.found
                    .push(Object::new(root.name(), size_bytes as u64, class));
                self.objects.sources.push(match class {
                    Class::LongLived => ObjectSource::Memory {
                        address: place.address,
                        may_have_tiles: shape.is_some(),
                    },
                    Class::ShortLived => ObjectSource::Scratch,
                });
                Some(id)
            }
        }
    }

    /// Returns the object that a context is; `name` is that of a weight in it, or of what is attended with.
    fn context(&mut self, need: &ContextNeed, name: &str) -> ObjectId {
        let id = *self
            .ids
            .entry(Key::Context(need.context))
            .or_insert(ObjectId(self.found.len()));
        if id.0 == self.found.len() {
            let name = format!("context with {name}");
            let object = Object::new(name, need.size_bytes, Class::LongLived);
            self.found.push(object);
            let source = ObjectSource::Context(need.context);
            self.objects.sources.push(source);
        }
        id
    }

    /// Returns what a node reads and writes.
    fn touched(
        &mut self,
        codes: &OpCodes,
        node: Node<'_>,
        server: Server<'_>,
        out: &mut Vec<ObjectId>,
    ) {
        let is_served = matches!(server, Server::Accelerator(_));
        for (i, src) in node.srcs().enumerate() {
            if !(i == 0 && is_served && leaf(codes, src).is_some()) {
                out.extend(self.object(codes, src));
            }
        }
        if let Server::Accelerator(needs) = server {
            let name = node.src(0).map(|weight| weight.name()).unwrap_or_default();
            out.extend(needs.iter().map(|need| self.context(need, &name)));
        }
        if let Some(dst) = self.object(codes, node) {
            self.found[dst.0].is_written = true;
            // Nobody makes tiles of what is computed.
            if let ObjectSource::Memory { may_have_tiles, .. } = &mut self.objects.sources[dst.0] {
                *may_have_tiles = false;
            }
            out.push(dst);
        }
    }
}

fn tile_shape(tensor: Node<'_>) -> Option<TileShape> {
    let [k, n, planes, outer] = tensor.ne().map(|ne| usize::try_from(ne).unwrap_or(0));
    TileShape::new(tensor.type_().0, k, n, planes.checked_mul(outer)?)
}

/// Reads what the segments of a graph touch. `work` says which nodes are computed, `server` by whom.
#[must_use]
pub fn objects<'a>(
    codes: &OpCodes,
    graph: &GraphView<'_>,
    segments: &[Segment],
    work: &[Work],
    server: &dyn Fn(usize) -> Server<'a>,
) -> GraphObjects {
    let mut reader = Reader::default();
    let mut touched = Vec::with_capacity(segments.len());
    for segment in segments {
        let nodes = segment.nodes();
        let mut needs = Vec::new();
        for i in nodes.clone().filter(|&i| work[i] != Work::Nothing) {
            reader.touched(codes, graph.node(i), server(i), &mut needs);
        }
        touched.push((graph.node(nodes.end - 1).name(), needs));
    }
    let Reader {
        mut objects, found, ..
    } = reader;
    for object in found {
        objects.workload.add_object(object);
    }
    group(&mut objects, touched);
    objects
}

/// Returns a number that is another one for another answer of [`objects`], names aside; it asks for no memory.
#[must_use]
pub fn signature<'a>(
    codes: &OpCodes,
    graph: &GraphView<'_>,
    segments: &[Segment],
    work: &[Work],
    server: &dyn Fn(usize) -> Server<'a>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    let add = |hasher: &mut DefaultHasher, node: Node<'_>| {
        let root = node.root();
        let place = root
            .place()
            .map(|place| (place.address, place.size_bytes, place.is_scratch));
        let is_leaf = leaf(codes, root).is_some();
        (root.id(), place, root.type_().0, root.ne(), is_leaf).hash(hasher);
    };
    for segment in segments {
        let nodes = segment.nodes();
        nodes.len().hash(&mut hasher);
        for i in nodes.filter(|&i| work[i] != Work::Nothing) {
            let node = graph.node(i);
            i.hash(&mut hasher);
            for src in node.srcs().chain([node]) {
                add(&mut hasher, src);
            }
            match server(i) {
                Server::Host => 0.hash(&mut hasher),
                Server::Accelerator(needs) => {
                    needs.len().hash(&mut hasher);
                    for need in needs {
                        (need.context, need.size_bytes).hash(&mut hasher);
                    }
                    1.hash(&mut hasher);
                }
            }
        }
    }
    hasher.finish()
}

/// Joins segments that follow each other as long as they need no second weight with tiles, and no second context.
fn group(objects: &mut GraphObjects, touched: Vec<(String, Vec<ObjectId>)>) {
    let mut current: Option<(String, Vec<ObjectId>)> = None;
    let mut n_groups = 0;
    for (name, needs) in touched {
        let weights = |needs: &[ObjectId]| -> Vec<ObjectId> {
            let mut weights = needs.to_vec();
            weights.retain(|object| objects.sources[object.0].is_mapped());
            weights
        };
        let joined = current
            .as_ref()
            .map(|(_, joined)| weights(joined))
            .unwrap_or_default();
        let is_second = weights(&needs)
            .iter()
            .any(|weight| !joined.contains(weight));
        match &mut current {
            Some((_, joined)) if !is_second || weights(joined).is_empty() => joined.extend(needs),
            _ => {
                if let Some((name, needs)) = current.replace((name, needs)) {
                    objects.workload.add_segment(name, needs);
                    n_groups += 1;
                }
            }
        }
        objects.groups.push(n_groups);
    }
    if let Some((name, needs)) = current {
        objects.workload.add_segment(name, needs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(weights: &[bool], touched: &[&[usize]]) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut objects = GraphObjects::default();
        for (i, &is_weight) in weights.iter().enumerate() {
            objects
                .workload
                .add_object(Object::new(format!("t{i}"), 1, Class::LongLived));
            objects.sources.push(ObjectSource::Memory {
                address: i,
                may_have_tiles: is_weight,
            });
        }
        let named = touched.iter().enumerate().map(|(i, needs)| {
            (
                format!("s{i}"),
                needs.iter().map(|&object| ObjectId(object)).collect(),
            )
        });
        group(&mut objects, named.collect());
        let segments = objects.workload.segments().iter();
        let needs = segments.map(|segment| segment.needs.iter().map(|object| object.0).collect());
        (objects.groups.clone(), needs.collect())
    }

    #[test]
    fn segments_are_joined_until_a_second_weight_comes() {
        // 0 and 1 are weights, 2 and 3 are not.
        let weights = [true, true, false, false];
        let (groups, needs) = read(&weights, &[&[2], &[0, 2, 3], &[3], &[0, 3], &[1, 2], &[2]]);
        assert_eq!(groups, [0, 0, 0, 0, 1, 1]);
        assert_eq!(needs, [vec![0, 2, 3], vec![1, 2]]);
        // A run of nodes on the host that needs two at once, and one again after another.
        let (groups, needs) = read(&weights, &[&[0, 1], &[0], &[1], &[]]);
        assert_eq!((groups, needs), (vec![0; 4], vec![vec![0, 1]]));
        let (groups, _) = read(&weights, &[&[0], &[1], &[0]]);
        assert_eq!(groups, [0, 1, 2]);
        assert_eq!(read(&weights, &[]), (vec![], vec![]));
    }
}
