use llada_npu_ffi::ggml::Type;

use super::super::facts::{FactKind, Product};
use super::*;
use crate::device::{DenseWeight, Layout};

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
    let kind = FactKind::Product(Product {
        weight,
        x: x(),
        x_bytes: 100 * x_id..100 * x_id + 50,
        is_weight: true,
        is_factor: false,
    });
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

/// Adapters of rank 4 at the product `to` of `x_id`: five nodes from `first` on make its sum.
fn adapted(facts: &mut Vec<Fact>, first: usize, to: usize, x_id: usize, k: usize, n: usize) {
    let factor = |id: usize, x_id: usize, k: usize, n: usize| {
        let mut fact = product(id, x_id, k, n);
        if let FactKind::Product(product) = &mut fact.kind {
            (product.is_weight, product.is_factor) = (k >= 32 && n >= 16, true);
        }
        fact
    };
    facts.extend([
        product(to, x_id, k, n),
        factor(first, x_id, k, 4),
        factor(first + 1, first, 4, n),
        fact(first + 2, &[first + 1], FactKind::Scale(0.5)),
        fact(first + 3, &[to, first + 2], FactKind::Add),
    ]);
    if let FactKind::Product(product) = &mut facts.last_mut().unwrap().kind {
        product.is_factor = true;
    }
}

/// norm; q with an adapter; k; other; gate, up and down with one each. Node numbers are not identities here.
fn adapted_layer() -> Vec<Fact> {
    let mut facts = vec![fact(0, &[], FactKind::Other)];
    adapted(&mut facts, 20, 1, 0, 64, 64);
    facts.push(product(2, 0, 64, 64));
    facts.push(fact(5, &[23, 2], FactKind::Other));
    adapted(&mut facts, 30, 6, 5, 64, 128);
    adapted(&mut facts, 40, 7, 5, 64, 128);
    facts.push(fact(8, &[33, 43], FactKind::SwiGlu));
    adapted(&mut facts, 50, 9, 8, 128, 64);
    // The norm has three readers, the input of the feed-forward part four, its inside two.
    for (id, n) in [(0, 3), (5, 4), (8, 2)] {
        at(&mut facts, id).n_uses = Some(n);
    }
    facts
}

fn at(facts: &mut [Fact], id: usize) -> &mut Fact {
    facts.iter_mut().find(|fact| fact.id == id).unwrap()
}

/// Identities of the weights, each with those of the factors that are added.
fn ids(facts: &[Fact], dense: &Dense) -> Vec<(usize, Vec<(usize, usize)>)> {
    let id = |weight: &DenseWeight| {
        assert!(facts.iter().any(|fact| fact.id == weight.node));
        weight.node
    };
    let weights = dense.weights.iter().enumerate();
    let of = |(i, weight)| {
        let factors = dense.additions_to(i).map(|add| (id(&add.a), id(&add.b)));
        (id(weight), factors.collect())
    };
    weights.map(of).collect()
}

#[test]
fn additions_belong_to_the_products_that_they_are_added_to() {
    let facts = adapted_layer();
    let plan = find(&facts, true);
    assert_eq!(plan.segments.len(), 2);
    let [qkv, rest] = plan.segments.as_slice() else {
        unreachable!("just counted")
    };
    assert_eq!(qkv.kind, DenseKind::Products);
    assert_eq!(ids(&facts, qkv), [(1, vec![(20, 21)]), (2, vec![])]);
    assert_eq!(rest.kind, DenseKind::FeedForward);
    assert_eq!(
        ids(&facts, rest),
        [
            (6, vec![(30, 31)]),
            (7, vec![(40, 41)]),
            (9, vec![(50, 51)])
        ]
    );
    assert!(
        rest.additions
            .iter()
            .all(|add| add.scale == 0.5 && add.a.n == 4)
    );
    // Only the sums are written, of what the adapters are a part of.
    let outputs = facts
        .iter()
        .zip(&plan.roles)
        .filter_map(|(fact, role)| match role {
            Role::Member {
                segment,
                output: Some(output),
                ..
            } => Some((fact.id, *segment, *output)),
            _ => None,
        });
    assert_eq!(
        outputs.collect::<Vec<_>>(),
        [(23, 0, 0), (2, 0, 1), (53, 1, 0)]
    );
    let n_alone = plan.roles.iter().filter(|&&role| role == Role::Alone);
    assert_eq!(n_alone.count(), 2);
}

#[test]
fn several_adapters_are_added_to_one_product() {
    let mut facts = vec![fact(0, &[], FactKind::Other)];
    adapted(&mut facts, 20, 1, 0, 64, 64);
    adapted(&mut facts, 30, 2, 0, 64, 64);
    // The second one's product is the sum of the first.
    facts.retain(|fact| fact.id != 2);
    at(&mut facts, 33).reads[0] = 23;
    let plan = find(&facts, true);
    assert_eq!(plan.segments.len(), 1);
    assert_eq!(
        ids(&facts, &plan.segments[0]),
        [(1, vec![(20, 21), (30, 31)])]
    );
}

/// What is done to a graph.
type Spoil<'a> = &'a dyn Fn(&mut Vec<Fact>);

#[test]
fn what_is_no_addition_is_left_to_the_host() {
    let spoils: [Spoil<'_>; 12] = [
        // Somebody else reads what would not be there.
        &|facts| facts.push(fact(90, &[1], FactKind::Other)),
        &|facts| facts.push(fact(90, &[22], FactKind::Other)),
        &|facts| at(facts, 20).n_uses = Some(2),
        &|facts| at(facts, 21).n_uses = None,
        &|facts| at(facts, 1).is_output = true,
        // Of another input, or another shape.
        &|facts| at(facts, 20).reads[1] = 5,
        &|facts| *at(facts, 20) = product(20, 0, 64, 4),
        &|facts| match &mut at(facts, 21).kind {
            FactKind::Product(product) => product.weight.n = 32,
            _ => unreachable!("a factor"),
        },
        // Not what is understood.
        &|facts| at(facts, 22).kind = FactKind::Other,
        &|facts| at(facts, 23).kind = FactKind::Other,
        // The factors are made by the graph, or the input changes on the way.
        &|facts| at(facts, 0).writes = 1_000_020..1_000_021,
        &|facts| {
            let changed = Fact {
                writes: 0..50,
                ..fact(90, &[], FactKind::Other)
            };
            let first = facts.iter().position(|fact| fact.id == 20).unwrap();
            facts.insert(first, changed);
        },
    ];
    for (i, spoil) in spoils.iter().enumerate() {
        let mut facts = adapted_layer();
        spoil(&mut facts);
        let plan = find(&facts, true);
        let of_q = plan.segments.iter().find(|s| s.weights[0].node == 1);
        assert!(of_q.is_some_and(|s| s.additions.is_empty()), "{i}");
        // Factors are no weights.
        let n: usize = plan.segments.iter().map(|s| s.weights.len()).sum();
        assert_eq!(n, 5 + usize::from(i == 6), "{i}");
    }
}

#[test]
fn an_adapter_that_is_not_understood_ends_a_feed_forward_part() {
    for id in [30, 42, 53] {
        let mut facts = adapted_layer();
        at(&mut facts, id).n_uses = None;
        let plan = find(&facts, true);
        let kinds: Vec<_> = plan.segments.iter().map(|s| s.kind).collect();
        let fused = kinds.contains(&DenseKind::FeedForward);
        // The result of the whole part may have any readers.
        assert_eq!(fused, id == 53, "{id}");
    }
}
