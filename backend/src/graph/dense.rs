//! Finding the dense segments of a graph: products of one input, and gate, up, `SwiGLU` and down, each product with what is
//! added to it (`low_rank`).
//!
//! [`find`] decides from [`Fact`]s alone.

use std::collections::HashMap;

use super::facts::{Fact, Facts};
use super::low_rank::{Sum, sums};
use crate::device::{Addition, Dense, DenseKind};

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

/// Finds the segments; `fuses` says whether feed-forward parts are wanted.
#[must_use]
pub fn find(facts: &[Fact], fuses: bool) -> DensePlan {
    let facts = Facts::new(facts);
    let mut sums = sums(&facts);
    let mut parts: Vec<Part> = Vec::new();
    if fuses {
        for down in 0..facts.len() {
            if let Some((part, inner)) = feed_forward(&facts, &sums, down) {
                for node in inner {
                    sums.remove(&node);
                }
                parts.push(part);
            }
        }
    }
    let mut left: Vec<Sum> = sums.into_values().collect();
    left.sort_by_key(|sum| sum.product);
    parts.extend(products(&facts, left));
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

/// Appends a sum to a segment.
fn push(facts: &Facts<'_>, dense: &mut Dense, sum: &Sum) {
    let weight = |node: usize| facts.product(node).map(|product| product.weight);
    let at = dense.weights.len();
    dense.weights.extend(weight(sum.product));
    let additions = sum.terms.iter().filter_map(|term| {
        Some(Addition {
            weight: at,
            a: weight(term.a)?,
            b: weight(term.b)?,
            scale: term.scale,
        })
    });
    dense.additions.extend(additions);
}

/// Returns the nodes of a sum, the last one with the output that it is.
fn members(sum: &Sum, output: Option<usize>) -> impl Iterator<Item = (usize, Option<usize>)> {
    let last = sum.node();
    sum.nodes()
        .map(move |node| (node, output.filter(|_| node == last)))
}

/// Reads the feed-forward part that ends at a node, and returns the nodes of its sums' results.
fn feed_forward(
    facts: &Facts<'_>,
    sums: &HashMap<usize, Sum>,
    down: usize,
) -> Option<(Part, [usize; 3])> {
    let down = sums.get(&down)?;
    let glu = facts.source_of_all(down.product, 1, down.readers().count())?;
    if !facts.is_swiglu(glu) {
        return None;
    }
    let (gate, up) = (facts.sole_source(glu, 0)?, facts.sole_source(glu, 1)?);
    let (gate, up) = (sums.get(&gate)?, sums.get(&up)?);
    let of = |sum: &Sum| facts.product(sum.product);
    let (of_gate, of_up, of_down) = (of(gate)?, of(up)?, of(down)?);
    let same_x =
        facts.operand(gate.product, 1) == facts.operand(up.product, 1) && of_gate.x == of_up.x;
    let fits = of_gate.weight.n == of_up.weight.n && of_down.weight.k == of_up.weight.n;
    let in_order = gate.node().max(up.node()) < glu && down.readers().all(|node| glu < node);
    if gate.product == up.product || !same_x || !fits || !in_order {
        return None;
    }
    if !facts.x_stays(&of_gate.x_bytes, gate.readers().chain(up.readers())) {
        return None;
    }
    let mut dense = Dense {
        kind: DenseKind::FeedForward,
        x: of_gate.x,
        weights: Vec::new(),
        additions: Vec::new(),
    };
    for sum in [gate, up, down] {
        push(facts, &mut dense, sum);
    }
    let inner = members(gate, None).chain(members(up, None));
    let all = inner.chain([(glu, None)]).chain(members(down, Some(0)));
    let part = Part {
        dense,
        members: all.collect(),
    };
    Some((part, [gate.node(), up.node(), down.node()]))
}

/// Gathers sums, which are in the order of their products, by their input.
fn products(facts: &Facts<'_>, sums: Vec<Sum>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut last_of_x: HashMap<usize, usize> = HashMap::new();
    for sum in sums {
        let Some((product, x_id)) = facts
            .product(sum.product)
            .zip(facts.operand(sum.product, 1))
        else {
            continue;
        };
        let at = last_of_x.get(&x_id).copied().filter(|&at| {
            let part = &parts[at];
            let readers = sum.readers().chain([part.first()]);
            part.dense.x == product.x && facts.x_stays(&product.x_bytes, readers)
        });
        let at = at.unwrap_or_else(|| {
            last_of_x.insert(x_id, parts.len());
            parts.push(Part {
                dense: Dense {
                    kind: DenseKind::Products,
                    x: product.x,
                    weights: Vec::new(),
                    additions: Vec::new(),
                },
                members: Vec::new(),
            });
            parts.len() - 1
        });
        let part = &mut parts[at];
        let output = part.dense.weights.len();
        push(facts, &mut part.dense, &sum);
        part.members.extend(members(&sum, Some(output)));
    }
    parts
}

#[cfg(test)]
#[path = "dense_tests.rs"]
mod tests;
