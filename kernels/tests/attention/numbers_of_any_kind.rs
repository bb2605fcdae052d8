//! What is not seen, what is extreme, and what is beside a row.

use llada_npu_kernels::registry;

use crate::case::{Case, Hides, SHAPE, STORES, Shape, Store, kernels};

#[test]
fn nothing_seen_gives_zeros() {
    for (name, kernel) in kernels() {
        for n_kv in [0, 64] {
            let mut case = Case::random(
                Shape {
                    n_kv,
                    hides: Hides::Nothing,
                    ..SHAPE
                },
                3,
            );
            case.mask
                .iter_mut()
                .flatten()
                .for_each(|m| *m = f32::NEG_INFINITY);
            case.lay();
            for out in case.run(&kernel, &[]).concat() {
                assert_eq!(out, 0.0, "{name}");
            }
        }
    }
}

/// Places where K or V is NaN must not show in rows that do not see them.
#[test]
fn what_is_not_seen_has_no_influence() {
    for (name, kernel) in kernels() {
        for store in STORES {
            let shape = Shape {
                n_kv: 100,
                hides: Hides::Nothing,
                store,
                ..SHAPE
            };
            let mut case = Case::random(shape, 4);
            for token in 0..shape.n_tokens {
                // Row 0 sees everything; the others neither the hidden position nor the hidden run.
                if token > 0 {
                    case.mask[token][5] = f32::NEG_INFINITY;
                }
                case.mask[token][64..96].fill(f32::NEG_INFINITY);
            }
            case.lay();
            let clean = case.run(&kernel, &[]);
            case.k[5][3] = f32::NAN;
            case.k[70][3] = f32::NAN;
            case.v[70].fill(f32::NAN);
            case.v[69].fill(f32::INFINITY);
            case.lay();
            let dirty = case.run(&kernel, &[]);
            assert!(dirty[0].iter().all(|v| v.is_nan()), "{name} {store:?}");
            assert_eq!(dirty[1..], clean[1..], "{name} {store:?}");
        }
    }
}

#[test]
fn extreme_scores_stay_finite() {
    for (name, kernel) in kernels() {
        for (softcap, factor) in [(0.0, 1e4), (0.0, -1e4), (30.0, 1e4), (0.0, 1e-30)] {
            let mut case = Case::random(
                Shape {
                    n_kv: 70,
                    softcap,
                    ..SHAPE
                },
                5,
            );
            case.q.iter_mut().flatten().for_each(|q| *q *= factor);
            case.lay();
            let reference = registry::attention().last().unwrap().select().unwrap();
            let expected = case.run(&reference, &[]);
            for (out, expected) in case
                .run(&kernel, &[])
                .concat()
                .iter()
                .zip(expected.concat())
            {
                assert!(
                    (out - expected).abs() <= 2e-2,
                    "{name} {softcap} {factor}: {out} {expected}"
                );
            }
        }
    }
}

/// Q, K and V whose products no half float holds.
#[test]
fn half_floats_of_any_size_keep_the_tolerance() {
    for (name, kernel) in kernels() {
        for store in [Store::F16, Store::Tiles] {
            for (q, k, v) in [
                (1e-4, 1e4, 3e4),
                (1e-5, 3e4, 1.0),
                (1e30, 1e-30, 1e-6),
                (1e4, 1e-4, 6e-8),
            ] {
                let shape = Shape {
                    n_tokens: 5,
                    n_kv: 70,
                    store,
                    ..SHAPE
                };
                let mut case = Case::random(shape, 7);
                for (rows, factor) in [(&mut case.q, q), (&mut case.k, k), (&mut case.v, v)] {
                    rows.iter_mut().flatten().for_each(|x| *x *= factor);
                }
                case.lay();
                case.check(name, &kernel, &[]);
            }
        }
    }
}

/// A row gives the same bits whichever rows share its call.
#[test]
fn results_do_not_depend_on_the_other_rows() {
    for (name, kernel) in kernels() {
        for (store, hides) in STORES
            .into_iter()
            .flat_map(|s| [(s, Hides::Nothing), (s, Hides::Runs)])
        {
            let shape = Shape {
                n_tokens: 13,
                n_kv: 700,
                hides,
                store,
                ..SHAPE
            };
            let all = Case::random(shape, 6);
            let together = all.run(&kernel, &[]);
            for token in 0..13 {
                let mut alone = Case::random(shape, 6);
                alone.shape.n_tokens = 1;
                alone.q = vec![all.q[token].clone()];
                alone.mask = vec![all.mask[token].clone()];
                alone.lay();
                let alone = alone.run(&kernel, &[]);
                assert_eq!(alone[0], together[token], "{name} {store:?} {hides:?}");
            }
        }
    }
}
