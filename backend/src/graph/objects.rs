//! What the segments of a graph touch: classes, lifetimes and the order of use, for the memory runtime.
//!
//! A tensor that other graphs find at the same place (a weight, K, V) is a long-lived object, written or not; one in memory
//! that tensors of a graph share (an activation, logits, an input) is short-lived, from the segment that makes it to the
//! last that reads it. Views are the tensor that they show.
//!
//! Segments of the graph are joined for the runtime as long as they need no second weight with tiles: the unit is a product
//! with what lies around it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use llada_npu_ffi::ggml::op::OpCodes;
use llada_npu_ffi::ggml::plugin::view::{GraphView, Node};

use super::segment::{Segment, Work};
use super::weights::is_weight;
use crate::memory::runtime::{Class, Object, ObjectId, Workload};
use crate::memory::shape::TileShape;

/// What a graph asks of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphObjects {
    /// Objects and segments of the runtime.
    pub workload: Workload,
    /// Where each object lies, by number; `None` for those that are short-lived.
    pub addresses: Vec<Option<usize>>,
    /// Which objects may have tiles, by number.
    pub may_have_tiles: Vec<bool>,
    /// The runtime's segment of each segment of the graph, ascending.
    pub groups: Vec<usize>,
}

/// What tells objects apart: where they lie, or which tensor they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Address(usize),
    Tensor(usize),
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
                self.objects.may_have_tiles.push(shape.is_some());
                self.objects.addresses.push(match class {
                    Class::LongLived => Some(place.address),
                    Class::ShortLived => None,
                });
                Some(id)
            }
        }
    }

    /// Returns what a node reads and writes.
    fn touched(&mut self, codes: &OpCodes, node: Node<'_>, out: &mut Vec<ObjectId>) {
        for src in node.srcs() {
            out.extend(self.object(codes, src));
        }
        if let Some(dst) = self.object(codes, node) {
            self.found[dst.0].is_written = true;
            // Nobody makes tiles of what is computed.
            self.objects.may_have_tiles[dst.0] = false;
            out.push(dst);
        }
    }
}

fn tile_shape(tensor: Node<'_>) -> Option<TileShape> {
    let [k, n, planes, outer] = tensor.ne().map(|ne| usize::try_from(ne).unwrap_or(0));
    TileShape::new(tensor.type_().0, k, n, planes.checked_mul(outer)?)
}

/// Reads what the segments of a graph touch. `work` says which nodes are computed.
#[must_use]
pub fn objects(
    codes: &OpCodes,
    graph: &GraphView<'_>,
    segments: &[Segment],
    work: &[Work],
) -> GraphObjects {
    let mut reader = Reader::default();
    let mut touched = Vec::with_capacity(segments.len());
    for segment in segments {
        let nodes = match segment {
            Segment::Native(node) => *node..node + 1,
            Segment::Delegated { nodes, .. } => nodes.clone(),
        };
        let mut needs = Vec::new();
        for i in nodes.clone().filter(|&i| work[i] != Work::Nothing) {
            reader.touched(codes, graph.node(i), &mut needs);
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

/// Joins segments that follow each other as long as they need no second weight with tiles.
fn group(objects: &mut GraphObjects, touched: Vec<(String, Vec<ObjectId>)>) {
    let mut current: Option<(String, Vec<ObjectId>)> = None;
    let mut n_groups = 0;
    for (name, needs) in touched {
        let weights = |needs: &[ObjectId]| -> Vec<ObjectId> {
            let mut weights = needs.to_vec();
            weights.retain(|object| objects.may_have_tiles[object.0]);
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
            objects.may_have_tiles.push(is_weight);
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
