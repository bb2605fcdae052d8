//! Shapes and kinds of K and V, chosen and at random.

use std::sync::Mutex;

use llada_npu_kernels::op::attention::MAX_ROWS;
use llada_npu_kernels::registry;
use proptest::prelude::*;

use crate::case::{Case, Hides, SHAPE, STORES, Shape, Store, kernels};
use crate::common::each_kernel;

#[test]
fn shapes_from_none_to_many() {
    each_kernel(registry::attention(), |name, attention| {
        let mut worst = 0f64;
        let mut check = |shape, cuts: &[usize]| {
            let case = Case::random(shape, 1);
            worst = worst.max(case.check(name, attention, cuts));
        };
        for store in STORES {
            for hides in [Hides::NoMask, Hides::Nothing, Hides::Some, Hides::Runs] {
                for n_kv in [1, 31, 32, 33, 127, 128, 129, 300] {
                    check(
                        Shape {
                            n_kv,
                            store,
                            hides,
                            ..SHAPE
                        },
                        &[],
                    );
                }
                check(
                    Shape {
                        n_kv: 300,
                        store,
                        hides,
                        ..SHAPE
                    },
                    &[32, 64, 256],
                );
            }
            for (n_heads, n_tokens) in [
                (1, 1),
                (2, 1),
                (1, 4),
                (5, 1),
                (3, 2),
                (7, 1),
                (4, 2),
                (3, 3),
                (1, 31),
                (4, 16),
            ] {
                check(
                    Shape {
                        n_heads,
                        n_tokens,
                        store,
                        ..SHAPE
                    },
                    &[32],
                );
            }
            for (d_k, d_v) in [(32, 32), (96, 96), (128, 128), (64, 128), (256, 32)] {
                for n_tokens in [1, 9] {
                    check(
                        Shape {
                            n_tokens,
                            d_k,
                            d_v,
                            store,
                            ..SHAPE
                        },
                        &[],
                    );
                }
            }
            check(
                Shape {
                    n_heads: 3,
                    softcap: 2.0,
                    store,
                    ..SHAPE
                },
                &[],
            );
            check(
                Shape {
                    n_heads: 3,
                    has_slopes: true,
                    store,
                    ..SHAPE
                },
                &[],
            );
        }
        // What is not whole tiles.
        for store in [Store::F16, Store::F32] {
            for (d_k, d_v) in [
                (1, 1),
                (2, 3),
                (40, 40),
                (72, 72),
                (80, 80),
                (15, 17),
                (192, 128),
                (576, 512),
            ] {
                for n_tokens in [1, 9] {
                    check(
                        Shape {
                            n_tokens,
                            d_k,
                            d_v,
                            store,
                            ..SHAPE
                        },
                        &[],
                    );
                }
            }
            for cuts in [&[1][..], &[7, 39], &[0, 40]] {
                check(SHAPE, cuts);
            }
        }
        println!("{name}: worst error {worst:.3} of the tolerance");
    });
}

/// Errors of either sign stay far below what the worst of them could add up to.
#[test]
fn usual_errors_cancel() {
    for (name, kernel) in kernels() {
        let mut worst = 0f64;
        for store in STORES {
            for (n_heads, n_tokens, d_k, d_v) in [
                (1, 1, 64, 64),
                (3, 1, 128, 96),
                (1, 7, 96, 128),
                (5, 3, 32, 32),
            ] {
                let shape = Shape {
                    n_heads,
                    n_tokens,
                    d_k,
                    d_v,
                    n_kv: 333,
                    store,
                    ..SHAPE
                };
                let case = Case::random(shape, 8);
                let (mut errors, mut squares) = (0.0, 0.0);
                for (r, out) in case.run(&kernel, &[]).iter().enumerate() {
                    for (out, exact) in out.iter().zip(case.exact(name, r).0) {
                        errors += (f64::from(*out) - exact).powi(2);
                        squares += exact.powi(2);
                    }
                }
                let nmse = errors / squares;
                let limit = match name {
                    _ if store == Store::F32 => 1e-11,
                    "aarch64-attention-fhm" => 1.5e-7,
                    "aarch64-attention-fp16" => 1.5e-6,
                    _ => 1e-11,
                };
                assert!(nmse < limit, "{name} {shape:?}: NMSE {nmse:e}");
                worst = worst.max(nmse);
            }
        }
        println!("{name}: worst error in the mean, NMSE {worst:e}");
    }
}

#[test]
#[should_panic(expected = "rows of a call")]
fn too_many_rows_are_refused() {
    let (_, kernel) = registry::best(registry::attention());
    let n_tokens = MAX_ROWS + 1;
    Case::random(Shape { n_tokens, ..SHAPE }, 1).run(&kernel, &[]);
}

static WORST: Mutex<f64> = Mutex::new(0.0);

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_shapes(
        n_heads in 1usize..6,
        n_tokens in 1usize..11,
        d in 1usize..5,
        n_kv in 1usize..400,
        store in 0usize..3,
        hides in 0usize..4,
        softcap in prop_oneof![Just(0.0f32), 1.0f32..50.0],
        has_slopes: bool,
        cut in 0usize..13,
        seed: u64,
    ) {
        let hides = [Hides::NoMask, Hides::Nothing, Hides::Some, Hides::Runs][hides];
        let store = STORES[store];
        let shape = Shape { n_heads, n_tokens, d_k: 32 * d, d_v: 32 * d, n_kv, store, hides, softcap, has_slopes };
        let case = Case::random(shape, seed);
        let cut = (32 * cut).min(n_kv / 32 * 32);
        for (name, kernel) in kernels() {
            let worst = case.check(name, &kernel, &[cut]);
            let mut all = WORST.lock().unwrap();
            if worst > *all {
                println!("{name}: {worst:.3} of the tolerance, {shape:?}");
                *all = worst;
            }
        }
    }
}
