//! Attention with known results, as operands of ggml's operation.

use ggml_llada_npu::device::{Accelerator, FlashAttnParams, Layout, Op, Source, Spec, Task};
use ggml_llada_npu::memory::KvTiles;
use half::f16;
use llada_npu_ffi::ggml::Type;
use llada_npu_ffi::ggml::plugin::Arrangement;

use crate::linear::{Random, halves};

/// Sizes of an operation.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows of Q.
    pub n_tokens: usize,
    /// Positions of K and V.
    pub n_kv: usize,
    /// Heads of Q.
    pub n_head: usize,
    /// Heads of K and V.
    pub n_head_kv: usize,
    /// Elements of a row of Q and K, of one head.
    pub d_k: usize,
    /// Elements of a row of V.
    pub d_v: usize,
    /// Batches.
    pub n3: usize,
}

impl Sizes {
    /// One batch, rows of one length.
    pub fn new([n_tokens, n_kv]: [usize; 2], [n_head, n_head_kv]: [usize; 2], d: usize) -> Self {
        Self {
            n_tokens,
            n_kv,
            n_head,
            n_head_kv,
            d_k: d,
            d_v: d,
            n3: 1,
        }
    }
}

/// Operands that only depend on a seed.
#[derive(Debug, Clone)]
pub struct Attention {
    /// Sizes.
    pub sizes: Sizes,
    /// Parameters.
    pub params: FlashAttnParams,
    /// `[d_k, n_head, n_tokens, n3]`.
    pub q: Vec<f32>,
    /// `[d_k, n_head_kv, n_kv, n3]`, half floats in ggml's plain layout.
    pub k: Vec<u8>,
    /// `[d_v, n_head_kv, n_kv, n3]`, likewise.
    pub v: Vec<u8>,
    /// `[n_kv, n_tokens, 1, n3]`, half floats.
    pub mask: Option<Vec<u8>>,
    /// K and V lie in tiles; the references do not look at them then.
    tiles: Option<[Vec<u8>; 2]>,
}

impl Attention {
    /// Makes operands with scores of about 1, and a mask that hides two positions of five, and everything from every seventh row.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub fn new(sizes: Sizes, seed: u64) -> Self {
        let Sizes {
            n_tokens,
            n_kv,
            n_head,
            n_head_kv,
            d_k,
            d_v,
            n3,
        } = sizes;
        let mut random = Random::new(seed);
        let mut numbers = |n: usize| -> Vec<f32> { (0..n).map(|_| 2.0 * random.half()).collect() };
        let q = numbers(d_k * n_head * n_tokens * n3);
        let k = halves(&numbers(d_k * n_head_kv * n_kv * n3));
        let v = halves(&numbers(d_v * n_head_kv * n_kv * n3));
        let mask = numbers(n_kv * n_tokens * n3).into_iter().enumerate();
        let mask = mask.map(|(i, x)| {
            let (row, position) = (i / n_kv, i % n_kv);
            let is_hidden = row % 7 == 6 || (x > 0.4 && position != row % n_kv);
            if is_hidden { f32::NEG_INFINITY } else { x }
        });
        Self {
            sizes,
            params: FlashAttnParams {
                scale: 1.0 / (d_k as f32).sqrt(),
                max_bias: 0.0,
                softcap: 0.0,
            },
            q,
            k,
            v,
            mask: Some(halves(&mask.collect::<Vec<_>>())),
            tiles: None,
        }
    }

    /// Keeps K and V in tiles.
    ///
    /// # Panics
    /// Where sizes are not whole tiles.
    pub fn tiled(mut self) -> Self {
        let Sizes {
            n_head_kv,
            d_k,
            d_v,
            ..
        } = self.sizes;
        let tiles = [(&self.k, KvTiles::K, d_k), (&self.v, KvTiles::V, d_v)];
        self.tiles = Some(tiles.map(|(rows, tiles, d)| {
            let mut bytes = vec![0; rows.len()];
            assert!(tiles.write(&mut bytes, 2 * d * n_head_kv, 0, rows));
            bytes
        }));
        self
    }

    /// The operation.
    pub fn spec(&self) -> Spec {
        let Sizes {
            n_tokens,
            n_kv,
            n_head,
            n_head_kv,
            d_k,
            d_v,
            n3,
        } = self.sizes;
        // As they lie in memory: all heads of a row side by side.
        let by_head = |type_, size, d: usize, n: usize, n_head: usize| Layout {
            type_,
            ne: [d, n, n_head, n3],
            nb: [size, size * d * n_head, size * d, size * d * n_head * n],
        };
        let op = match self.tiles {
            Some(_) => Op::FlashAttnTiles(self.params),
            None => Op::FlashAttnExt(self.params),
        };
        let mask = Layout::contiguous(Type::F16, 2, [n_kv, n_tokens, 1, n3]);
        Spec {
            op,
            dst: Layout::contiguous(Type::F32, 4, [d_v, n_head, n_tokens, n3]),
            srcs: [
                Some(by_head(Type::F32, 4, d_k, n_tokens, n_head)),
                Some(by_head(Type::F16, 2, d_k, n_kv, n_head_kv)),
                Some(by_head(Type::F16, 2, d_v, n_kv, n_head_kv)),
                self.mask.as_ref().map(|_| mask),
                None,
            ],
        }
    }

    fn with_task<R>(&self, dst: &mut [u8], body: impl FnOnce(Task<'_>) -> R) -> R {
        let q: Vec<u8> = self.q.iter().flat_map(|x| x.to_le_bytes()).collect();
        let [k, v] = match &self.tiles {
            Some([k, v]) => [k, v],
            None => [&self.k, &self.v],
        };
        let mask = self.mask.as_ref();
        let srcs = [
            Source::Data(&q),
            Source::Data(k),
            Source::Data(v),
            mask.map_or(Source::Missing, |mask| Source::Data(mask)),
            Source::Missing,
        ];
        body(Task {
            spec: self.spec(),
            dst,
            srcs,
            weights: None,
        })
    }

    fn n_results(&self) -> usize {
        let Sizes {
            n_tokens,
            n_head,
            d_v,
            n3,
            ..
        } = self.sizes;
        d_v * n_head * n_tokens * n3
    }

    /// Has the accelerator compute it, and nobody else; `None` where it does not.
    pub fn offload(&self, accelerator: &mut dyn Accelerator) -> Option<Vec<f32>> {
        let mut out = vec![f32::NAN; self.n_results()];
        let dst = bytemuck::cast_slice_mut(&mut out);
        let is_done = self.with_task(dst, |mut task| accelerator.offload(&mut task));
        is_done.then_some(out)
    }

    /// Has it computed, whoever does.
    ///
    /// # Panics
    /// Where that fails.
    pub fn run(&self, accelerator: &mut dyn Accelerator) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n_results()];
        let dst = bytemuck::cast_slice_mut(&mut out);
        self.with_task(dst, |mut task| {
            if !accelerator.offload(&mut task) {
                accelerator.run(task).expect("the host computes it");
            }
        });
        out
    }

    /// Computes it in f64; rows that see nothing are zero.
    pub fn reference(&self) -> Vec<f64> {
        let Sizes {
            n_tokens,
            n_head,
            n3,
            ..
        } = self.sizes;
        let heads = (0..n3 * n_tokens).flat_map(|row| (0..n_head).map(move |head| (row, head)));
        heads
            .flat_map(|(row, head)| self.reference_of(row, head))
            .collect()
    }

    fn reference_of(&self, row: usize, head: usize) -> Vec<f64> {
        let Sizes {
            n_tokens,
            n_kv,
            n_head,
            n_head_kv,
            d_k,
            d_v,
            ..
        } = self.sizes;
        let i3 = row / n_tokens;
        let q = &self.q[(row * n_head + head) * d_k..][..d_k];
        let values = |bytes: &[u8], row: usize, d: usize| -> Vec<f64> {
            let halves = bytes[2 * d * row..][..2 * d].as_chunks().0.iter();
            halves
                .map(|&half| f16::from_le_bytes(half).to_f64())
                .collect()
        };
        let at = |position| (i3 * n_kv + position) * n_head_kv + head / (n_head / n_head_kv);
        let score = |position: usize| {
            let products = values(&self.k, at(position), d_k).into_iter().zip(q);
            let product: f64 = products.map(|(k, &q)| k * f64::from(q)).sum();
            let mask = self.mask.as_ref();
            let mask = mask.map_or(0.0, |mask| values(mask, row * n_kv + position, 1)[0]);
            product * f64::from(self.params.scale) + mask
        };
        let scores: Vec<f64> = (0..n_kv).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sums = vec![0.0; d_v];
        if largest == f64::NEG_INFINITY {
            return sums;
        }
        let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = powers.iter().sum();
        for (position, power) in powers.iter().enumerate().filter(|(_, power)| **power > 0.0) {
            for (sum, v) in sums.iter_mut().zip(values(&self.v, at(position), d_v)) {
                *sum += power / total * v;
            }
        }
        sums
    }
}
