//! A call: its operands, what a kernel makes of them, and what it should.

use llada_npu_kernels::op::attention::{
    Attend, Attention, HeadRows, Scores, StateLayout, finish, merge,
};
use llada_npu_kernels::op::convert::{dequantize_row, f32_to_f16_row};
use llada_npu_kernels::tile::kv::{self, HeadTiles, Role};
use llada_npu_kernels::{F32Rows, WeightRows, WeightType, registry};

/// A small deterministic generator.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58476d1ce4e5b9) >> 16
    }

    /// Within 2.
    pub(crate) fn float(&mut self) -> f32 {
        (0..2)
            .map(|_| (self.next() % 2001) as f32 / 1000.0 - 1.0)
            .sum()
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// How K and V lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Store {
    F32,
    F16,
    Tiles,
}

pub(crate) const STORES: [Store; 3] = [Store::F32, Store::F16, Store::Tiles];

/// What the mask hides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hides {
    NoMask,
    Nothing,
    /// Single positions.
    Some,
    /// Runs of positions, and everything from the first row.
    Runs,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) n_heads: usize,
    pub(crate) n_tokens: usize,
    pub(crate) d_k: usize,
    pub(crate) d_v: usize,
    pub(crate) n_kv: usize,
    pub(crate) store: Store,
    pub(crate) hides: Hides,
    pub(crate) softcap: f32,
    pub(crate) has_slopes: bool,
}

pub(crate) const SHAPE: Shape = Shape {
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
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) scale: f32,
    pub(crate) slopes: Vec<f32>,
    pub(crate) q: Vec<Vec<f32>>,
    pub(crate) k: Vec<Vec<f32>>,
    pub(crate) v: Vec<Vec<f32>>,
    pub(crate) mask: Vec<Vec<f32>>,
    pub(crate) q_bytes: Vec<Vec<u8>>,
    pub(crate) k_bytes: Vec<u8>,
    pub(crate) v_bytes: Vec<u8>,
    pub(crate) mask_bytes: Vec<u8>,
}

pub(crate) const GAP: usize = 6;

pub(crate) fn f32_bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub(crate) fn f16_bytes(row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 2 * row.len()];
    f32_to_f16_row(row, &mut bytes);
    bytes
}

/// One odd byte, then rows with a gap after each.
pub(crate) fn lay(rows: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0xff];
    for row in rows {
        bytes.extend_from_slice(row);
        bytes.extend_from_slice(&[0xff; GAP]);
    }
    bytes
}

impl Case {
    pub(crate) fn random(shape: Shape, seed: u64) -> Self {
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
    pub(crate) fn lay(&mut self) {
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

    pub(crate) fn head(&self, role: Role) -> HeadRows<'_> {
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
    pub(crate) fn run(&self, kernel: &Attention, cuts: &[usize]) -> Vec<Vec<f32>> {
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
    pub(crate) fn exact(&self, name: &str, r: usize) -> (Vec<f64>, f64) {
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
    pub(crate) fn check(&self, name: &str, kernel: &Attention, cuts: &[usize]) -> f64 {
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
pub(crate) fn tiles(role: Role, halves: &[Vec<u8>], n_kv: usize) -> Vec<u8> {
    let d = halves.first().map_or(32, |row| row.len() / 2);
    let mut tiles = vec![0xff; kv::size_bytes(3 * d, n_kv).unwrap()];
    for (row, halves) in halves.iter().enumerate() {
        let mut x = vec![0xff; 6 * d];
        x[2 * d..4 * d].copy_from_slice(halves);
        kv::write_matrix_row(role, &mut tiles, row, &x);
    }
    tiles
}

pub(crate) fn mask_row(shape: Shape, token: usize, rng: &mut Rng) -> Vec<f32> {
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
pub(crate) fn kernels() -> Vec<(&'static str, Attention)> {
    let list = registry::attention().iter();
    list.filter_map(|kernel| Some((kernel.name, kernel.select()?)))
        .collect()
}
