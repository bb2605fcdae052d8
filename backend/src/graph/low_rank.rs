//! Finding low-rank additions: products of weights to which `scale * (b (a x))` of the same input `x` is added.

use std::collections::HashMap;

use super::facts::{Facts, Product};

/// The product of a weight, with what is added to it.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// The node of the product.
    pub(super) product: usize,
    pub(super) terms: Vec<Term>,
}

/// The nodes of an addition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// The product with `a`.
    pub(super) a: usize,
    /// The product of `b` with that.
    pub(super) b: usize,
    scaled: usize,
    sum: usize,
    pub(super) scale: f32,
}

impl Sum {
    /// Returns the node whose result it is.
    pub(super) fn node(&self) -> usize {
        self.terms.last().map_or(self.product, |term| term.sum)
    }

    /// Returns the nodes that read the input.
    pub(super) fn readers(&self) -> impl Iterator<Item = usize> {
        let of_terms = self.terms.iter().map(|term| term.a);
        std::iter::once(self.product).chain(of_terms)
    }

    /// Returns all its nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> {
        let of_term = |term: &Term| [term.a, term.b, term.scaled, term.sum];
        std::iter::once(self.product).chain(self.terms.iter().flat_map(of_term))
    }
}

/// Returns the products of weights that are wanted, with all that is added to them, by the node of their result. Factors of
/// additions, recognised or not, are not among them: they are the host's to change.
pub(super) fn sums(facts: &Facts<'_>) -> HashMap<usize, Sum> {
    let n = facts.len();
    let mut is_factor = vec![false; n];
    for b in 0..n {
        if let Some(a) = pair(facts, b) {
            (is_factor[a], is_factor[b]) = (true, true);
        }
    }
    let mut sums = HashMap::new();
    for (node, &is_factor) in is_factor.iter().enumerate() {
        if !is_factor && facts.product(node).is_some_and(|product| product.is_weight) {
            let terms = Vec::new();
            let product = node;
            sums.insert(node, Sum { product, terms });
        } else if let Some((before, term)) = term(facts, &sums, node)
            && let Some(mut sum) = sums.remove(&before)
        {
            sum.terms.push(term);
            sums.insert(node, sum);
        }
    }
    sums
}

/// Returns the product with `a` whose result the product `b` multiplies, where both are those of factors.
fn pair(facts: &Facts<'_>, b: usize) -> Option<usize> {
    let a = facts.source(b, 1)?;
    let (of_a, of_b) = (facts.product(a)?, facts.product(b)?);
    let rank = of_a.weight.n;
    let is_low = rank < of_a.weight.k && rank < of_b.weight.n;
    (of_a.is_factor && of_b.is_factor && is_low && a < b).then_some(a)
}

/// Reads the addition that ends at a node; also returns the node to whose result it adds.
fn term(facts: &Facts<'_>, sums: &HashMap<usize, Sum>, sum: usize) -> Option<(usize, Term)> {
    if !facts.is_add(sum) {
        return None;
    }
    let (before, scaled) = (facts.sole_source(sum, 0)?, facts.sole_source(sum, 1)?);
    let scale = facts.scale(scaled)?;
    let b = facts.sole_source(scaled, 0)?;
    let a = facts.sole_source(b, 1)?;
    let to = sums.get(&before)?.product;
    let in_order = before < sum && a < b && b < scaled && scaled < sum;
    if pair(facts, b) != Some(a) || !in_order {
        return None;
    }
    let (of_a, of_b, of_weight) = (facts.product(a)?, facts.product(b)?, facts.product(to)?);
    let same_x = facts.operand(a, 1) == facts.operand(to, 1) && of_a.x == of_weight.x;
    let fits = of_a.weight.k == of_weight.weight.k && of_b.weight.n == of_weight.weight.n;
    // Factors are read before the graph starts, the input when the first of its readers has its turn.
    let keeps = |product: &Product, until: usize| {
        let weight = &product.weight;
        facts.stays(
            &(weight.address..weight.address + weight.size_bytes),
            0..until,
        )
    };
    let stays = facts.stays(&of_weight.x_bytes, to.min(a) + 1..to.max(a));
    let all = same_x && fits && stays && keeps(of_a, a) && keeps(of_b, b);
    #[rustfmt::skip]
    let term = Term { a, b, scaled, sum, scale };
    all.then_some((before, term))
}
