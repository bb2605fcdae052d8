//! Finding the dense segments of a graph: products of one input, and gate, up, `SwiGLU` and down.
//!
//! [`facts`] reads from a graph what matters, [`find`] decides from that alone.

use std::collections::HashMap;
use std::ops::Range;

use llada_npu_ffi::ggml::op::{self, OpCodes};
use llada_npu_ffi::ggml::plugin::view::{GraphView, Node};
use llada_npu_kernels::op::glu::GluOp;

use super::weights::leaf;
use super::{Work, describe};
use crate::device::{Dense, DenseKind, DenseWeight, Layout, Op, Spec};

/// Part that a node has in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// None.
    #[default]
    Alone,
    /// It belongs to a segment.
    Member {
        /// Which one.
        segment: usize,
        /// The output that it is; `None` where nobody else reads it.
        output: Option<usize>,
        /// Whether it is the first of the segment.
        starts: bool,
    },
}

/// The segments of a graph, in the order of their first nodes, and the roles of its nodes.
#[derive(Clone, Debug, Default)]
pub struct DensePlan {
    /// The segments.
    pub segments: Vec<Dense>,
    /// By node.
    pub roles: Vec<Role>,
}

/// What matters about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Identity of the tensor.
    id: usize,
    /// Identities of its operands.
    reads: Vec<usize>,
    /// Bytes that it writes, by address.
    writes: Range<usize>,
    /// Whether the host reads it after the graph.
    is_output: bool,
    /// How many operands it is in the whole graph, of which this one may be a part; `None` where nobody knows.
    n_uses: Option<usize>,
    kind: FactKind,
}

#[derive(Clone, Debug, PartialEq)]
enum FactKind {
    Product {
        weight: DenseWeight,
        x: Layout,
        /// Bytes of the input, by address.
        x_bytes: Range<usize>,
    },
    /// `silu(src0) * src1`.
    SwiGlu,
    Other,
}

/// Reads a graph; `wants` says which products are taken.
pub fn facts(
    codes: &OpCodes,
    graph: &GraphView<'_>,
    work: &[Work],
    wants: &dyn Fn(&Spec) -> bool,
) -> Vec<Fact> {
    let fact = |(i, &work): (usize, &Work)| {
        let node = graph.node(i);
        let place = (work != Work::Nothing).then(|| node.place()).flatten();
        Fact {
            id: node.id(),
            reads: node.srcs().map(Node::id).collect(),
            writes: place.map_or(0..0, |place| {
                place.address..place.address + place.size_bytes
            }),
            is_output: codes.is_output(node.flags()),
            n_uses: graph.n_uses(i),
            kind: if work == Work::Native {
                kind(codes, i, node, wants).unwrap_or(FactKind::Other)
            } else {
                FactKind::Other
            },
        }
    };
    work.iter().enumerate().map(fact).collect()
}

fn kind(
    codes: &OpCodes,
    i: usize,
    node: Node<'_>,
    wants: &dyn Fn(&Spec) -> bool,
) -> Option<FactKind> {
    let spec = describe(codes, node)?;
    node.place()?; // where an output goes
    match spec.op {
        Op::MulMat if !super::wishes_precision(node) && wants(&spec) => {
            let place = leaf(codes, node.src(0)?)?;
            let (src0, x) = (spec.src(0).ok()?, *spec.src(1).ok()?);
            let x_place = node.src(1)?.place()?;
            Some(FactKind::Product {
                weight: DenseWeight {
                    node: i,
                    address: place.address,
                    size_bytes: place.size_bytes,
                    ggml_type: src0.type_.0,
                    k: src0.ne[0],
                    n: src0.ne[1],
                },
                x,
                x_bytes: x_place.address..x_place.address + x_place.size_bytes,
            })
        }
        Op::Glu {
            op: GluOp::Swiglu,
            swapped: false,
        } if node.src(1).is_some() => {
            debug_assert_eq!(codes.classify(node.op_code()), op::Op::Glu);
            Some(FactKind::SwiGlu)
        }
        _ => None,
    }
}

/// Finds the segments; `fuses` says whether feed-forward parts are wanted.
#[must_use]
pub fn find(facts: &[Fact], fuses: bool) -> DensePlan {
    let mut n_readers: HashMap<usize, usize> = HashMap::new();
    for id in facts.iter().flat_map(|fact| &fact.reads) {
        *n_readers.entry(*id).or_default() += 1;
    }
    let by_id: HashMap<usize, usize> = facts.iter().enumerate().map(|(i, f)| (f.id, i)).collect();
    let finder = Finder {
        facts,
        n_readers,
        by_id,
    };
    let mut parts: Vec<Part> = Vec::new();
    let mut taken = vec![false; facts.len()];
    if fuses {
        for down in 0..facts.len() {
            if let Some(part) = finder.feed_forward(down) {
                for &(node, _) in &part.members {
                    taken[node] = true;
                }
                parts.push(part);
            }
        }
    }
    parts.extend(finder.products(&taken));
    parts.sort_by_key(Part::first);
    plan(facts.len(), parts)
}

/// A segment and its nodes, with the output that each is.
struct Part {
    dense: Dense,
    members: Vec<(usize, Option<usize>)>,
}

impl Part {
    fn first(&self) -> usize {
        let nodes = self.members.iter().map(|&(node, _)| node);
        nodes.min().expect("a segment has nodes")
    }
}

fn plan(n_nodes: usize, parts: Vec<Part>) -> DensePlan {
    let mut plan = DensePlan {
        segments: Vec::new(),
        roles: vec![Role::Alone; n_nodes],
    };
    for part in parts {
        let first = part.first();
        for &(node, output) in &part.members {
            plan.roles[node] = Role::Member {
                segment: plan.segments.len(),
                output,
                starts: node == first,
            };
        }
        plan.segments.push(part.dense);
    }
    plan
}

struct Finder<'a> {
    facts: &'a [Fact],
    n_readers: HashMap<usize, usize>,
    by_id: HashMap<usize, usize>,
}

impl Finder<'_> {
    fn product(&self, node: usize) -> Option<(&DenseWeight, &Layout, &Range<usize>)> {
        match &self.facts[node].kind {
            FactKind::Product { weight, x, x_bytes } => Some((weight, x, x_bytes)),
            _ => None,
        }
    }

    /// Returns the node that computes operand `i` of a node, if nobody else reads it.
    fn sole_source(&self, node: usize, i: usize) -> Option<usize> {
        let id = self.facts[node].reads.get(i)?;
        let source = *self.by_id.get(id)?;
        let Fact {
            is_output, n_uses, ..
        } = self.facts[source];
        let is_sole = self.n_readers.get(id) == Some(&1) && n_uses == Some(1) && !is_output;
        is_sole.then_some(source)
    }

    /// Tells whether no node of a range writes the bytes.
    fn stays(&self, bytes: &Range<usize>, nodes: Range<usize>) -> bool {
        self.facts[nodes]
            .iter()
            .all(|fact| fact.writes.end <= bytes.start || bytes.end <= fact.writes.start)
    }

    /// Reads the feed-forward part that ends at a node.
    fn feed_forward(&self, down: usize) -> Option<Part> {
        let (down_weight, ..) = self.product(down)?;
        let glu = self.sole_source(down, 1)?;
        if self.facts[glu].kind != FactKind::SwiGlu {
            return None;
        }
        let (gate, up) = (self.sole_source(glu, 0)?, self.sole_source(glu, 1)?);
        let (gate_weight, x, x_bytes) = self.product(gate)?;
        let (up_weight, up_x, _) = self.product(up)?;
        let same_x = self.facts[gate].reads[1] == self.facts[up].reads[1] && x == up_x;
        let fits = gate_weight.n == up_weight.n && down_weight.k == up_weight.n;
        let in_order = gate.max(up) < glu && glu < down;
        if gate == up || !same_x || !fits || !in_order {
            return None;
        }
        if !self.stays(x_bytes, gate.min(up) + 1..gate.max(up)) {
            return None;
        }
        Some(Part {
            dense: Dense {
                kind: DenseKind::FeedForward,
                x: *x,
                weights: vec![*gate_weight, *up_weight, *down_weight],
            },
            members: vec![(gate, None), (up, None), (glu, None), (down, Some(0))],
        })
    }

    /// Gathers the products that are left by their input.
    fn products(&self, taken: &[bool]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut last_of_x: HashMap<usize, usize> = HashMap::new();
        for node in (0..self.facts.len()).filter(|&node| !taken[node]) {
            let Some((weight, x, x_bytes)) = self.product(node) else {
                continue;
            };
            let x_id = self.facts[node].reads[1];
            if let Some(part) = last_of_x.get(&x_id).map(|&at| &mut parts[at])
                && part.dense.x == *x
                && self.stays(x_bytes, part.first() + 1..node)
            {
                part.members.push((node, Some(part.dense.weights.len())));
                part.dense.weights.push(*weight);
                continue;
            }
            last_of_x.insert(x_id, parts.len());
            parts.push(Part {
                dense: Dense {
                    kind: DenseKind::Products,
                    x: *x,
                    weights: vec![*weight],
                },
                members: vec![(node, Some(0))],
            });
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llada_npu_ffi::ggml::Type;

    fn x() -> Layout {
        Layout::contiguous(Type::F32, 4, [64, 8, 1, 1])
    }

    /// Node `i` has identity `i`, writes the bytes `100 i ..`, and reads what is said; weights have identities from 1000.
    fn fact(id: usize, reads: &[usize], kind: FactKind) -> Fact {
        Fact {
            id,
            reads: reads.to_vec(),
            writes: 100 * id..100 * id + 50,
            is_output: false,
            n_uses: Some(1),
            kind,
        }
    }

    fn product(id: usize, x_id: usize, k: usize, n: usize) -> Fact {
        let weight = DenseWeight {
            node: id,
            address: 1_000_000 + id,
            size_bytes: 1,
            ggml_type: 2,
            k,
            n,
        };
        let kind = FactKind::Product {
            weight,
            x: x(),
            x_bytes: 100 * x_id..100 * x_id + 50,
        };
        fact(id, &[1000 + id, x_id], kind)
    }

    /// norm, q, rope(q), k, v, other, gate, up, glu, down.
    fn layer() -> Vec<Fact> {
        vec![
            fact(0, &[], FactKind::Other),
            product(1, 0, 64, 64),
            fact(2, &[1], FactKind::Other),
            product(3, 0, 64, 32),
            product(4, 0, 64, 32),
            fact(5, &[2, 3, 4], FactKind::Other),
            product(6, 5, 64, 128),
            product(7, 5, 64, 128),
            fact(8, &[6, 7], FactKind::SwiGlu),
            product(9, 8, 128, 64),
        ]
    }

    fn nodes(dense: &Dense) -> Vec<usize> {
        dense.weights.iter().map(|weight| weight.node).collect()
    }

    #[test]
    fn a_layer_is_one_segment_for_qkv_and_one_for_the_rest() {
        let plan = find(&layer(), true);
        assert_eq!(plan.segments.len(), 2);
        assert_eq!(plan.segments[0].kind, DenseKind::Products);
        assert_eq!(nodes(&plan.segments[0]), [1, 3, 4]);
        assert_eq!(plan.segments[1].kind, DenseKind::FeedForward);
        assert_eq!(nodes(&plan.segments[1]), [6, 7, 9]);
        let member = |segment, output, starts| Role::Member {
            segment,
            output,
            starts,
        };
        assert_eq!(
            plan.roles,
            [
                Role::Alone,
                member(0, Some(0), true),
                Role::Alone,
                member(0, Some(1), false),
                member(0, Some(2), false),
                Role::Alone,
                member(1, None, true),
                member(1, None, false),
                member(1, None, false),
                member(1, Some(0), false),
            ]
        );
    }

    #[test]
    fn without_fusing_gate_and_up_share_their_input() {
        let plan = find(&layer(), false);
        let found: Vec<_> = plan.segments.iter().map(nodes).collect();
        assert_eq!(found, [vec![1, 3, 4], vec![6, 7], vec![9]]);
        assert_eq!(plan.roles[8], Role::Alone);
    }

    #[test]
    fn what_others_read_is_not_left_out() {
        for spoil in [
            |facts: &mut Vec<Fact>| facts.push(fact(10, &[8], FactKind::Other)),
            |facts: &mut Vec<Fact>| facts.push(fact(10, &[6], FactKind::Other)),
            // Somewhere else in the graph of which this is a part.
            |facts: &mut Vec<Fact>| facts[6].n_uses = Some(2),
            |facts: &mut Vec<Fact>| facts[8].n_uses = Some(2),
            |facts: &mut Vec<Fact>| facts[7].n_uses = None,
            |facts: &mut Vec<Fact>| facts[8].is_output = true,
            |facts: &mut Vec<Fact>| facts[8].kind = FactKind::Other,
            |facts: &mut Vec<Fact>| facts[8].reads = vec![6, 6],
            |facts: &mut Vec<Fact>| facts[7] = product(7, 0, 64, 128),
            |facts: &mut Vec<Fact>| facts[7] = product(7, 5, 64, 96),
        ] {
            let mut facts = layer();
            spoil(&mut facts);
            let plan = find(&facts, true);
            let fused = plan
                .segments
                .iter()
                .any(|s| s.kind == DenseKind::FeedForward);
            assert!(!fused);
            assert_eq!(plan.roles[8], Role::Alone);
            let n: usize = plan.segments.iter().map(|s| s.weights.len()).sum();
            assert_eq!(n, 6);
        }
    }

    #[test]
    fn an_input_that_is_overwritten_ends_a_segment() {
        let mut facts = layer();
        facts[2].writes = 10..20;
        let plan = find(&facts, true);
        let found: Vec<_> = plan.segments.iter().map(nodes).collect();
        assert_eq!(found, [vec![1], vec![3, 4], vec![6, 7, 9]]);
    }
}
