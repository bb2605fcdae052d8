//! Attention in Qualcomm's own library, on the emulation of its x86-64 build, K and V being inputs.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;
use std::time::Duration;

use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::qnn::{Qnn, RowCounts, Session};
use ggml_llada_npu::knobs;
use llada_npu_ffi::qnn::Soc;
use llada_npu_qnn_tests::attention::{Attention, Sizes};
use llada_npu_qnn_tests::case::{case, directory};
use llada_npu_qnn_tests::htp::at_most;
use llada_npu_qnn_tests::linear;
use llada_npu_qnn_tests::session::of_library;

/// The largest error; half floats and HTP's softmax come to 2e-6 to 3e-6.
const MAX_NMSE: f64 = 1e-5;

fn open() -> (Qnn, Arc<Session>) {
    let mut settings = of_library(directory());
    settings.attention = knobs::Attention::Npu;
    settings.open.soc = Some(Soc::SM8650);
    settings.rows = RowCounts::new(&[32, 64, 128]);
    settings.timeout = Duration::from_secs(600);
    let session = Arc::new(Session::open(settings, None).unwrap());
    let qnn = Qnn::new(Host::new(1).unwrap(), Arc::clone(&session));
    (qnn, session)
}

fn check(qnn: &mut Qnn, what: &str, operands: &Attention) {
    let found = operands.offload(qnn);
    let found = found.unwrap_or_else(|| panic!("{what}: the library did not compute it"));
    let error = linear::nmse(&found, &operands.reference());
    at_most(what, error, MAX_NMSE);
}

fn check_heads(n_head: usize, d: usize) {
    let (mut qnn, session) = open();
    let mut n = 0;
    for n_tokens in [1, 32, 100] {
        for n_kv in [1, 40, 300] {
            let sizes = Sizes::new([n_tokens, n_kv], [n_head, 2], d);
            let what = format!("{n_tokens} rows, {n_kv} positions, {n_head} heads over 2 of {d}");
            n += 1;
            check(&mut qnn, &what, &Attention::new(sizes, n));
        }
    }
    let report = session.report();
    assert_eq!((report.n_attentions, report.refused.len()), (n, 0));
    // Two row counts, three counts of positions.
    assert_eq!((report.n_graphs_built, report.n_overflows), (6, 0));
}

#[test]
fn attention_with_heads_of_64() {
    case("attention_with_heads_of_64", || {
        check_heads(2, 64);
        check_heads(8, 64);
    });
}

#[test]
fn attention_with_heads_of_128() {
    case("attention_with_heads_of_128", || {
        check_heads(2, 128);
        check_heads(8, 128);
    });
}

#[test]
fn attention_over_tiles_batches_and_without_a_mask() {
    case("attention_over_tiles_batches_and_without_a_mask", || {
        let (mut qnn, _session) = open();
        let sizes = Sizes::new([5, 96], [4, 2], 64);
        check(&mut qnn, "tiles", &Attention::new(sizes, 1).tiled());
        let mut operands = Attention::new(sizes, 2);
        operands.mask = None;
        check(&mut qnn, "no mask", &operands);
        let batches = Sizes {
            n3: 3,
            d_v: 32,
            ..sizes
        };
        check(&mut qnn, "3 batches", &Attention::new(batches, 3));
        // A mask far from zero is one near zero.
        let far = |x: &f32| x - 1000.0;
        let mask = linear::from_halves(&Attention::new(sizes, 4).mask.unwrap());
        let rounded = linear::halves(&mask.iter().map(far).collect::<Vec<_>>());
        operands.mask = Some(rounded);
        check(&mut qnn, "a mask of -1000", &operands);
        // As many positions as graphs have room for.
        let sizes = Sizes::new([3, 4000], [2, 1], 64);
        check(&mut qnn, "4000 positions", &Attention::new(sizes, 5));
    });
}

/// How errors grow with scores, and where the host takes over.
#[test]
fn large_scores() {
    case("large_scores", || {
        let (mut qnn, session) = open();
        for (factor, limit) in [(4.0, 1e-5), (8.0, 3e-5)] {
            let mut operands = Attention::new(Sizes::new([32, 300], [4, 2], 64), 6);
            operands.params.scale *= factor;
            let found = operands.offload(&mut qnn).unwrap();
            let error = linear::nmse(&found, &operands.reference());
            at_most(&format!("scores of {factor}"), error, limit);
        }
        // What all keys have in common makes scores large, not their differences.
        let mut operands = Attention::new(Sizes::new([32, 300], [4, 2], 64), 6);
        operands.params.scale *= 4.0;
        for element in operands.k.as_chunks_mut().0 {
            let x = half::f16::from_le_bytes(*element).to_f32() + 8.0;
            *element = half::f16::from_f32(x).to_le_bytes();
        }
        let found = operands.offload(&mut qnn).unwrap();
        let error = linear::nmse(&found, &operands.reference());
        at_most("keys with a common part", error, 1e-5);
        let mut operands = Attention::new(Sizes::new([32, 300], [4, 2], 64), 6);
        operands.params.scale *= 400.0;
        assert!(operands.offload(&mut qnn).is_none());
        assert_eq!(session.report().n_overflows, 1);
    });
}
