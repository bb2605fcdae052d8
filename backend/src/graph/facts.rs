//! What matters about the nodes of a graph for finding dense segments, and who reads what.

use std::collections::HashMap;
use std::ops::Range;

use llada_npu_ffi::ggml::op::{self, OpCodes};
use llada_npu_ffi::ggml::plugin::view::{GraphView, Node};
use llada_npu_kernels::op::binary::BinaryOp;
use llada_npu_kernels::op::glu::GluOp;

use super::weights::leaf;
use super::{Work, describe, wishes_precision};
use crate::device::{DenseWeight, Layout, Op, SegmentAccelerator};

/// What matters about a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Identity of the tensor.
    pub(super) id: usize,
    /// Identities of its operands.
    pub(super) reads: Vec<usize>,
    /// Bytes that it writes, by address.
    pub(super) writes: Range<usize>,
    /// Whether the host reads it after the graph.
    pub(super) is_output: bool,
    /// How many operands it is in the whole graph, of which this one may be a part; `None` where nobody knows.
    pub(super) n_uses: Option<usize>,
    pub(super) kind: FactKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum FactKind {
    Product(Product),
    /// `silu(src0) * src1`.
    SwiGlu,
    /// `src0` times a number.
    Scale(f32),
    /// Of two tensors of one shape.
    Add,
    Other,
}

/// The product of a matrix that no operation made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Product {
    pub(super) weight: DenseWeight,
    pub(super) x: Layout,
    /// Bytes of the input, by address.
    pub(super) x_bytes: Range<usize>,
    /// Whether the accelerator takes it for a weight.
    pub(super) is_weight: bool,
    /// Whether it takes it for a factor of an addition.
    pub(super) is_factor: bool,
}

/// Reads a graph; the accelerator says which products it takes.
pub fn facts(
    codes: &OpCodes,
    graph: &GraphView<'_>,
    work: &[Work],
    accelerator: &dyn SegmentAccelerator,
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
                kind(codes, i, node, accelerator).unwrap_or(FactKind::Other)
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
    accelerator: &dyn SegmentAccelerator,
) -> Option<FactKind> {
    let spec = describe(codes, node)?;
    node.place()?; // where an output goes
    match spec.op {
        Op::MulMat if !wishes_precision(node) => {
            let (is_weight, is_factor) =
                (accelerator.wants(&spec), accelerator.wants_factor(&spec));
            if !is_weight && !is_factor {
                return None;
            }
            let place = leaf(codes, node.src(0)?)?;
            let (src0, x) = (spec.src(0).ok()?, *spec.src(1).ok()?);
            let x_place = node.src(1)?.place()?;
            Some(FactKind::Product(Product {
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
                is_weight,
                is_factor,
            }))
        }
        Op::Scale { scale, bias: 0.0 } => Some(FactKind::Scale(scale)),
        Op::Binary(BinaryOp::Add) => {
            let (src0, src1) = (spec.src(0).ok()?, spec.src(1).ok()?);
            (src0 == src1 && *src0 == spec.dst).then_some(FactKind::Add)
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

/// The facts of a graph, with who reads what.
pub(super) struct Facts<'a> {
    facts: &'a [Fact],
    n_readers: HashMap<usize, usize>,
    by_id: HashMap<usize, usize>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(facts: &'a [Fact]) -> Self {
        let mut n_readers: HashMap<usize, usize> = HashMap::new();
        for id in facts.iter().flat_map(|fact| &fact.reads) {
            *n_readers.entry(*id).or_default() += 1;
        }
        let by_id = facts.iter().enumerate().map(|(i, f)| (f.id, i)).collect();
        Self {
            facts,
            n_readers,
            by_id,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.facts.len()
    }

    pub(super) fn product(&self, node: usize) -> Option<&Product> {
        match &self.facts[node].kind {
            FactKind::Product(product) => Some(product),
            _ => None,
        }
    }

    pub(super) fn is_swiglu(&self, node: usize) -> bool {
        self.facts[node].kind == FactKind::SwiGlu
    }

    pub(super) fn is_add(&self, node: usize) -> bool {
        self.facts[node].kind == FactKind::Add
    }

    pub(super) fn scale(&self, node: usize) -> Option<f32> {
        match self.facts[node].kind {
            FactKind::Scale(scale) => Some(scale),
            _ => None,
        }
    }

    /// Returns the identity of operand `i` of a node.
    pub(super) fn operand(&self, node: usize, i: usize) -> Option<usize> {
        self.facts[node].reads.get(i).copied()
    }

    /// Returns the node that computes operand `i` of a node.
    pub(super) fn source(&self, node: usize, i: usize) -> Option<usize> {
        self.by_id.get(&self.operand(node, i)?).copied()
    }

    /// Returns the node that computes operand `i` of a node, if nobody else reads it.
    pub(super) fn sole_source(&self, node: usize, i: usize) -> Option<usize> {
        self.source_of_all(node, i, 1)
    }

    /// Returns the node that computes operand `i` of a node, if there are `n` reads of it, here and elsewhere.
    pub(super) fn source_of_all(&self, node: usize, i: usize, n: usize) -> Option<usize> {
        let id = self.operand(node, i)?;
        let source = self.source(node, i)?;
        let Fact {
            is_output, n_uses, ..
        } = self.facts[source];
        let is_all = self.n_readers.get(&id) == Some(&n) && n_uses == Some(n) && !is_output;
        is_all.then_some(source)
    }

    /// Tells whether no node of a range writes the bytes.
    pub(super) fn stays(&self, bytes: &Range<usize>, nodes: Range<usize>) -> bool {
        self.facts[nodes]
            .iter()
            .all(|fact| fact.writes.end <= bytes.start || bytes.end <= fact.writes.start)
    }

    /// Tells whether the input of products is the same for all nodes that read it, the first of which reads it for all.
    pub(super) fn x_stays(
        &self,
        x_bytes: &Range<usize>,
        readers: impl Iterator<Item = usize>,
    ) -> bool {
        let readers: Vec<usize> = readers.collect();
        let ends = readers.iter().min().zip(readers.iter().max());
        ends.is_some_and(|(first, last)| first == last || self.stays(x_bytes, first + 1..*last))
    }
}
