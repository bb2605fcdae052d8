//! Every attention kernel against exact mixtures, computed here in f64 from the definition.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Mutex;

use common::each_kernel;
use llada_npu_kernels::op::attention::{
    Attend, Attention, HeadRows, MAX_ROWS, Scores, StateLayout, finish, merge,
};
use llada_npu_kernels::op::convert::{dequantize_row, f32_to_f16_row};
use llada_npu_kernels::tile::kv::{self, HeadTiles, Role};
use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};
use proptest::prelude::*;

/// A small deterministic generator.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58476d1ce4e5b9) >> 16
    }

    /// Within 2.
    fn float(&mut self) -> f32 {
        (0..2)
            .map(|_| (self.next() % 2001) as f32 / 1000.0 - 1.0)
            .sum()
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// How K and V lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Store {
    F32,
    F16,
    Tiles,
}

const STORES: [Store; 3] = [Store::F32, Store::F16, Store::Tiles];

/// What the mask hides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hides {
    NoMask,
    Nothing,
    /// Single positions.
    Some,
    /// Runs of positions, and everything from the first row.
    Runs,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    n_heads: usize,
    n_tokens: usize,
    d_k: usize,
    d_v: usize,
    n_kv: usize,
    store: Store,
    hides: Hides,
    softcap: f32,
    has_slopes: bool,
}

const SHAPE: Shape = Shape {
    n_heads: 1,
    n_tokens: 3,
    d_k: 64,
    d_v: 64,
    n_kv: 40,
    store: Store::F16,
    hides: Hides::Some,
    softcap: 0.0,
    has_slopes: false,
};

/// Operands as values, and as bytes at odd addresses.
struct Case {
    shape: Shape,
    scale: f32,
    slopes: Vec<f32>,
    q: Vec<Vec<f32>>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    mask: Vec<Vec<f32>>,
    q_bytes: Vec<Vec<u8>>,
    k_bytes: Vec<u8>,
    v_bytes: Vec<u8>,
    mask_bytes: Vec<u8>,
}

const GAP: usize = 6;

fn f32_bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn f16_bytes(row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 2 * row.len()];
    f32_to_f16_row(row, &mut bytes);
    bytes
}

/// One odd byte, then rows with a gap after each.
fn lay(rows: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0xff];
    for row in rows {
        bytes.extend_from_slice(row);
        bytes.extend_from_slice(&[0xff; GAP]);
    }
    bytes
}

impl Case {
    fn random(shape: Shape, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let Shape { d_k, d_v, n_kv, .. } = shape;
        let mut rows =
            |n: usize, d: usize| -> Vec<Vec<f32>> { (0..n).map(|_| rng.floats(d)).collect() };
        let q = rows(shape.n_heads * shape.n_tokens, d_k);
        let (k, v) = (rows(n_kv, d_k), rows(n_kv, d_v));
        let slopes = if shape.has_slopes {
            rows(1, shape.n_heads).remove(0)
        } else {
            Vec::new()
        };
        let slopes = slopes.iter().map(|s| s.abs() + 0.1).collect();
        let mask = (0..shape.n_tokens)
            .map(|token| mask_row(shape, token, &mut rng))
            .collect();
        let mut case = Self {
            shape,
            scale: 1.0 / (d_k as f32).sqrt(),
            slopes,
            q,
            k,
            v,
            mask,
            q_bytes: vec![],
            k_bytes: vec![],
            v_bytes: vec![],
            mask_bytes: vec![],
        };
        case.lay();
        case
    }

    /// Writes the bytes, and rounds the values to what the bytes hold.
    fn lay(&mut self) {
        let Shape {
            n_heads,
            n_tokens,
            n_kv,
            store,
            ..
        } = self.shape;
        let heads = (0..n_heads).map(|head| {
            let rows: Vec<_> = (0..n_tokens)
                .map(|token| f32_bytes(&self.q[token * n_heads + head]))
                .collect();
            lay(&rows)
        });
        self.q_bytes = heads.collect();
        for (role, rows, bytes) in [
            (Role::K, &mut self.k, &mut self.k_bytes),
            (Role::V, &mut self.v, &mut self.v_bytes),
        ] {
            if store == Store::F32 {
                *bytes = lay(&rows.iter().map(|row| f32_bytes(row)).collect::<Vec<_>>());
                continue;
            }
            let halves: Vec<_> = rows.iter().map(|row| f16_bytes(row)).collect();
            for (row, halves) in rows.iter_mut().zip(&halves) {
                dequantize_row(WeightType::F16, halves, row);
            }
            *bytes = if store == Store::F16 {
                lay(&halves)
            } else {
                tiles(role, &halves, n_kv)
            };
        }
        let halves: Vec<_> = self.mask.iter().map(|row| f16_bytes(row)).collect();
        for (row, halves) in self.mask.iter_mut().zip(&halves) {
            dequantize_row(WeightType::F16, halves, row);
        }
        self.mask_bytes = lay(&halves);
    }

    fn head(&self, role: Role) -> HeadRows<'_> {
        let Shape { n_kv, store, .. } = self.shape;
        let (d, bytes) = match role {
            Role::K => (self.shape.d_k, &self.k_bytes),
            Role::V => (self.shape.d_v, &self.v_bytes),
        };
        let plain = |ty: WeightType| {
            let nb1 = ty.row_size(d).unwrap() + GAP;
            HeadRows::Plain(WeightRows::new(ty, d, n_kv, nb1, &bytes[1..]).unwrap())
        };
        match store {
            Store::F32 => plain(WeightType::F32),
            Store::F16 => plain(WeightType::F16),
            // The second of three heads.
            Store::Tiles => {
                HeadRows::Tiles(HeadTiles::new(role, 3 * d, d, d, n_kv, bytes).unwrap())
            }
        }
    }

    /// Results `[row][d_v]` of a kernel that sees the positions in parts, some of them in a state of their own.
    fn run(&self, kernel: &Attention, cuts: &[usize]) -> Vec<Vec<f32>> {
        let Shape {
            n_heads,
            n_tokens,
            d_k,
            d_v,
            n_kv,
            hides,
            softcap,
            ..
        } = self.shape;
        let q: Vec<_> = self
            .q_bytes
            .iter()
            .map(|bytes| F32Rows::new(d_k, n_tokens, 4 * d_k + GAP, &bytes[1..]).unwrap())
            .collect();
        let layout = StateLayout::new(n_heads * n_tokens, d_v);
        let mut scratch = vec![f32::NAN; kernel.scratch_len(n_heads * n_tokens, d_k, d_v)];
        let mut state = vec![f32::NAN; layout.len()];
        let mut other = state.clone();
        layout.clear(&mut state);
        let mut start = 0;
        for (i, &end) in cuts.iter().chain([&n_kv]).enumerate() {
            let n = end - start;
            let part = |head| match head {
                HeadRows::Plain(rows) => HeadRows::Plain(WeightRows::slice(&rows, start, n)),
                HeadRows::Tiles(tiles) => HeadRows::Tiles(tiles.slice(start, n)),
            };
            let mask = WeightRows::new(
                WeightType::F16,
                n,
                n_tokens,
                2 * n_kv + GAP,
                &self.mask_bytes[1 + 2 * start..],
            );
            let op = Attend {
                q: &q,
                k: part(self.head(Role::K)),
                v: part(self.head(Role::V)),
                mask: (hides != Hides::NoMask).then(|| mask.unwrap()),
                scores: Scores {
                    scale: self.scale,
                    softcap,
                    slopes: &self.slopes,
                },
            };
            if i % 2 == 0 {
                kernel.attend(&op, &mut state, &mut scratch);
            } else {
                layout.clear(&mut other);
                kernel.attend(&op, &mut other, &mut scratch);
                merge(layout, &mut state, &mut other);
            }
            start = end;
        }
        (0..n_heads * n_tokens)
            .map(|r| {
                let mut out = vec![f32::NAN; d_v];
                finish(layout, &mut state, r, &mut out);
                out
            })
            .collect()
    }

    /// The definition, and what two implementations may differ by at most; half of what the kernel may be off.
    fn exact(&self, name: &str, r: usize) -> (Vec<f64>, f64) {
        let Shape {
            n_heads,
            d_k,
            d_v,
            n_kv,
            hides,
            softcap,
            ..
        } = self.shape;
        let (token, head) = (r / n_heads, r % n_heads);
        let mut out = vec![0.0; d_v];
        let (mut sum, mut a, mut b, mut c) = (0.0, 0f64, 0f64, 0f64);
        let greatest = self.q[r].iter().fold(0.0f32, |max, q| max.max(q.abs()));
        for j in 0..n_kv {
            let slope = self.slopes.get(head).copied().unwrap_or(1.0);
            let mask = if hides == Hides::NoMask {
                0.0
            } else {
                f64::from(slope * self.mask[token][j])
            };
            if mask == f64::NEG_INFINITY {
                continue;
            }
            let products = self.q[r]
                .iter()
                .zip(&self.k[j])
                .map(|(q, k)| f64::from(*q) * f64::from(*k));
            let (dot, magnitude) = products.fold((0.0, 0.0), |(s, m), p| (s + p, m + p.abs()));
            let mut score = dot * f64::from(self.scale);
            if softcap != 0.0 {
                score = f64::from(softcap) * (score / f64::from(softcap)).tanh();
            }
            // Greater shifts cancel in the quotient; these keep the exponentials finite.
            let p = (score + mask).exp();
            sum += p;
            a = a.max(magnitude * f64::from(self.scale) + mask.abs());
            let keys: f64 = self.k[j].iter().map(|k| f64::from(k.abs())).sum();
            c = c.max(f64::from(self.scale * greatest) * (d_k as f64 + keys));
            for (out, v) in out.iter_mut().zip(&self.v[j]) {
                *out += p * f64::from(*v);
                b = b.max(f64::from(v.abs()));
            }
        }
        if sum > 0.0 {
            out.iter_mut().for_each(|out| *out /= sum);
        }
        let terms = d_k as f64 * a + a + f64::from(softcap) + n_kv as f64 + 8.0;
        // Where half floats are multiplied as such.
        let c = 2f64.powi(-14) * c;
        let (halves, small) = match name {
            _ if self.shape.store == Store::F32 => (0.0, 0.0),
            "aarch64-attention-fhm" => (a + 1.0 + c, 0.0),
            "aarch64-attention-fp16" => (11.0 * a + 11.0 + c, n_kv as f64 * 2f64.powi(-26)),
            _ => (0.0, 0.0),
        };
        let tolerance = b * (2f64.powi(-21) * terms + 2f64.powi(-9) * halves);
        (out, tolerance + small)
    }

    /// Returns the greatest share of the tolerance that a kernel used.
    fn check(&self, name: &str, kernel: &Attention, cuts: &[usize]) -> f64 {
        let mut worst = 0f64;
        for (r, out) in self.run(kernel, cuts).iter().enumerate() {
            let (exact, tolerance) = self.exact(name, r);
            for (d, (out, exact)) in out.iter().zip(&exact).enumerate() {
                let error = (f64::from(*out) - exact).abs();
                // Half of what two implementations may differ by; 0 equals 0.
                assert!(
                    error <= tolerance / 2.0,
                    "{name} {:?} {cuts:?} row {r} element {d}: {out} for {exact}",
                    self.shape
                );
                if tolerance > 0.0 {
                    worst = worst.max(error / (tolerance / 2.0));
                }
            }
        }
        worst
    }
}

/// Three heads' tiles, the second of which holds the rows; the others, and positions that are not there, are NaN.
fn tiles(role: Role, halves: &[Vec<u8>], n_kv: usize) -> Vec<u8> {
    let d = halves.first().map_or(32, |row| row.len() / 2);
    let mut tiles = vec![0xff; kv::size_bytes(3 * d, n_kv).unwrap()];
    for (row, halves) in halves.iter().enumerate() {
        let mut x = vec![0xff; 6 * d];
        x[2 * d..4 * d].copy_from_slice(halves);
        kv::write_matrix_row(role, &mut tiles, row, &x);
    }
    tiles
}

fn mask_row(shape: Shape, token: usize, rng: &mut Rng) -> Vec<f32> {
    let mut row: Vec<f32> = (0..shape.n_kv).map(|_| -rng.float().abs()).collect();
    match shape.hides {
        Hides::NoMask | Hides::Nothing => {}
        Hides::Some => row.iter_mut().for_each(|m| {
            if rng.next().is_multiple_of(3) {
                *m = f32::NEG_INFINITY;
            }
        }),
        Hides::Runs => {
            let n = shape.n_kv as u64;
            let (start, end) = (rng.next() % (n + 1), rng.next() % (n + 1));
            for (j, m) in row.iter_mut().enumerate() {
                if token == 0 || (start..end).contains(&(j as u64)) {
                    *m = f32::NEG_INFINITY;
                }
            }
        }
    }
    row
}

/// The kernels that this CPU can run.
fn kernels() -> Vec<(&'static str, Attention)> {
    let list = registry::attention().iter();
    list.filter_map(|kernel| Some((kernel.name, kernel.select()?)))
        .collect()
}

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
