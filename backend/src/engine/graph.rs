//! The ggml graph of one forward.
//!
//! A transformer without causal mask over `n_rows` rows: K and V of the rows are written to their slots, then each row
//! attends to the window of slots under a mask. After the last attention only the rows that predict go on.

use std::ops::Range;

use llada_npu_ffi::ggml::{Context, Graph, Tensor, Type};

use super::kv::{KvStore, LayerKv};
use super::model::Model;
use crate::model::{Hparams, Layer, Linear, Qkv, RopeKind, WeightId};

/// Upper bound of the tensors of one layer: its operations, views and reshapes.
const N_TENSORS_LAYER: usize = 64;
/// Upper bound of the tensors outside the layers.
const N_TENSORS_OUTSIDE: usize = 32;

/// Most memory for the scores of one layer's attention, in bytes.
const MAX_SCORE_BYTES: u64 = 64 << 20;

/// What decides the shape of a graph: plans with the same key run in the same graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GraphKey {
    /// Rows of the forward.
    pub(super) n_rows: u32,
    /// Row indices of the K/V store that the forward attends to.
    pub(super) window: Range<u32>,
    /// Rows with logits.
    pub(super) n_out: u32,
    /// Attention is one operation, see [`is_fused`].
    pub(super) fused: bool,
}

/// Returns whether the attention of a plan is ggml's fused one, which never holds all scores, instead of two products and a
/// softmax, which run in our kernels: they do while the scores `[n_kv, n_rows, n_head]` f32 are small.
pub(super) fn is_fused(model: &Model, n_rows: u32, window: &Range<u32>) -> bool {
    let n_head = model.file().hparams().n_head;
    let n_scores: u64 = [window.end - window.start, n_rows, n_head]
        .map(u64::from)
        .iter()
        .product();
    n_scores * 4 > MAX_SCORE_BYTES
}

/// Inputs and output of a built graph.
#[derive(Clone, Debug)]
pub(super) struct ForwardGraph {
    pub(super) key: GraphKey,
    /// i32 `[n_rows]`.
    pub(super) tokens: Tensor,
    /// i32 `[n_rows]`.
    pub(super) pos: Tensor,
    /// i64 `[n_rows]`: where each row's K/V goes.
    pub(super) kv_index: Tensor,
    /// f16 `[n_kv, n_rows]`: 0 where a row sees a slot, `-inf` where it does not.
    pub(super) mask: Tensor,
    /// Rows with logits, i32 `[n_out]`, and their logits, f32 `[n_vocab, n_out]`; absent when no row predicts.
    pub(super) out: Option<(Tensor, Tensor)>,
}

/// Builds the graph for `key`.
pub(super) fn build(model: &Model, kv: &KvStore, key: GraphKey) -> (Graph, ForwardGraph) {
    let n_layer = model.file().hparams().n_layer as usize;
    let size = N_TENSORS_LAYER * n_layer + N_TENSORS_OUTSIDE;
    let ctx = Context::new(model.target().api(), size, size);
    let graph = ctx.new_graph(size);
    let input = |name: &str, ty: Type, ne: &[i64]| {
        let tensor = ctx.new_tensor(ty, ne);
        ctx.set_input(&tensor);
        ctx.set_name(&tensor, name);
        tensor
    };
    let n_rows = i64::from(key.n_rows);
    let n_kv = i64::from(key.window.end - key.window.start);
    let tokens = input("inp_tokens", Type::I32, &[n_rows]);
    let pos = input("inp_pos", Type::I32, &[n_rows]);
    let kv_index = input("inp_kv_index", Type::I64, &[n_rows]);
    let mask = input("inp_mask", Type::F16, &[n_kv, n_rows]);
    let out_rows = (key.n_out > 0).then(|| input("inp_out_rows", Type::I32, &[key.n_out.into()]));
    let builder = Builder {
        model,
        hparams: model.file().hparams(),
        ctx: &ctx,
        graph: &graph,
        key: &key,
        pos,
        kv_index,
        mask,
    };
    let hidden = builder.layers(kv.layers(), &tokens, out_rows.as_ref());
    let out = out_rows
        .zip(hidden)
        .map(|(rows, hidden)| (rows, builder.logits(&hidden)));
    let Builder {
        pos,
        kv_index,
        mask,
        ..
    } = builder;
    (
        graph,
        ForwardGraph {
            key,
            tokens,
            pos,
            kv_index,
            mask,
            out,
        },
    )
}

struct Builder<'a> {
    model: &'a Model,
    hparams: &'a Hparams,
    ctx: &'a Context,
    graph: &'a Graph,
    key: &'a GraphKey,
    pos: Tensor,
    kv_index: Tensor,
    mask: Tensor,
}

impl Builder<'_> {
    fn weight(&self, id: WeightId) -> &Tensor {
        self.model.tensor(id)
    }

    /// `weight x + bias`.
    fn linear(&self, linear: Linear, x: &Tensor) -> Tensor {
        let product = self.ctx.mul_mat(self.weight(linear.weight), x);
        self.biased(product, linear.bias)
    }

    fn biased(&self, x: Tensor, bias: Option<WeightId>) -> Tensor {
        match bias {
            None => x,
            Some(bias) => self.ctx.add(&x, self.weight(bias)),
        }
    }

    fn norm(&self, x: &Tensor, weight: WeightId) -> Tensor {
        self.ctx.mul(
            &self.ctx.rms_norm(x, self.hparams.rms_eps),
            self.weight(weight),
        )
    }

    fn n_rows(&self) -> i64 {
        self.key.n_rows.into()
    }

    /// All layers; `None` when no row predicts: the last K/V is then all that is wanted.
    fn layers(&self, kv: &[LayerKv], tokens: &Tensor, out_rows: Option<&Tensor>) -> Option<Tensor> {
        let weights = self.model.file().weights();
        let mut x = self.ctx.get_rows(self.weight(weights.token_embd), tokens);
        for (il, (layer, kv)) in weights.layers.iter().zip(kv).enumerate() {
            let is_last = il + 1 == weights.layers.len();
            let normed = self.norm(&x, layer.attn_norm);
            let (q, kv) = self.qkv(layer, &normed, kv);
            if is_last && out_rows.is_none() {
                self.graph.build_forward_expand(&kv.k);
                self.graph.build_forward_expand(&kv.v);
                return None;
            }
            let mut attn = self.linear(layer.attn_output, &self.attention(&q, &kv));
            if let (true, Some(rows)) = (is_last, out_rows) {
                attn = self.ctx.get_rows(&attn, rows);
                x = self.ctx.get_rows(&x, rows);
            }
            x = self.ctx.add(&attn, &x);
            let ffn = self.feed_forward(layer, &self.norm(&x, layer.ffn_norm));
            x = self.ctx.add(&ffn, &x);
        }
        Some(x)
    }

    /// Q of the rows, `[n_embd_head, n_head, n_rows]` rotated, and the store of this layer with the rows' K/V written.
    fn qkv(&self, layer: &Layer, x: &Tensor, store: &LayerKv) -> (Tensor, LayerKv) {
        let [q, k, v] = self.project(layer, x);
        let k = self.ctx.reshape_2d(
            &self.rope(&k),
            self.hparams.n_embd_kv().into(),
            self.n_rows(),
        );
        let written = LayerKv {
            k: self.ctx.set_rows(&store.k, &k, &self.kv_index),
            v: self.ctx.set_rows(&store.v, &v, &self.kv_index),
        };
        (self.rope(&q), written)
    }

    /// Q and K as `[n_embd_head, heads, n_rows]`, V as `[n_embd_kv, n_rows]`.
    fn project(&self, layer: &Layer, x: &Tensor) -> [Tensor; 3] {
        let Hparams {
            n_head, n_head_kv, ..
        } = *self.hparams;
        let n_embd_head = i64::from(self.hparams.n_embd_head);
        let heads =
            |x: &Tensor, n: u32| self.ctx.reshape_3d(x, n_embd_head, n.into(), self.n_rows());
        match layer.qkv {
            Qkv::Split { q, k, v } => {
                let [q, k, v] = [q, k, v].map(|linear| self.linear(linear, x));
                [heads(&q, n_head), heads(&k, n_head_kv), v]
            }
            Qkv::Fused { qkv, biases } => {
                let qkv = self.linear(qkv, x);
                let (n_q, n_kv) = (self.hparams.n_embd_q(), self.hparams.n_embd_kv());
                let parts = [(0, n_q), (n_q, n_kv), (n_q + n_kv, n_kv)];
                let [q, k, v] = [0, 1, 2].map(|i| {
                    let (start, n) = parts[i];
                    let offset = start as usize * size_of::<f32>();
                    let part = self
                        .ctx
                        .view_2d(&qkv, n.into(), self.n_rows(), qkv.nb()[1], offset);
                    let part = if i == 2 { part } else { self.ctx.cont(&part) };
                    self.biased(part, biases[i])
                });
                [heads(&q, n_head), heads(&k, n_head_kv), v]
            }
        }
    }

    fn rope(&self, x: &Tensor) -> Tensor {
        let mode = match self.hparams.rope {
            RopeKind::Norm => 0,
            RopeKind::NeoX => 2,
        };
        let n_dims =
            i32::try_from(self.hparams.n_embd_head).expect("bounded when the model was loaded");
        self.ctx
            .rope(x, &self.pos, n_dims, mode, self.hparams.rope_freq_base)
    }

    /// `[n_embd_q, n_rows]`: each row's mixture of the values that it sees.
    fn attention(&self, q: &Tensor, kv: &LayerKv) -> Tensor {
        let q = self.ctx.permute(q, [0, 2, 1, 3]);
        let (k, v) = (self.window(&kv.k), self.window(&kv.v));
        #[expect(clippy::cast_precision_loss, reason = "head lengths are small")]
        let scale = 1.0 / (self.hparams.n_embd_head as f32).sqrt();
        let mixed = if self.key.fused {
            self.ctx.flash_attn_ext(&q, &k, &v, &self.mask, scale)
        } else {
            let scores = self.ctx.mul_mat(&k, &q);
            let shares = self.ctx.soft_max_ext(&scores, Some(&self.mask), scale, 0.0);
            let v = self.ctx.cont(&self.ctx.permute(&v, [1, 0, 2, 3]));
            let mixed = self.ctx.mul_mat(&v, &shares);
            self.ctx.cont(&self.ctx.permute(&mixed, [0, 2, 1, 3]))
        };
        self.ctx
            .reshape_2d(&mixed, self.hparams.n_embd_q().into(), self.n_rows())
    }

    /// The window of a store tensor as `[n_embd_head, n_kv, n_head_kv]`.
    fn window(&self, store: &Tensor) -> Tensor {
        let Range { start, end } = self.key.window;
        let [_, row, ..] = store.nb();
        let ne = [
            self.hparams.n_embd_head,
            end - start,
            self.hparams.n_head_kv,
        ]
        .map(i64::from);
        let head = row / self.hparams.n_head_kv as usize;
        self.ctx.view_3d(store, ne, row, head, row * start as usize)
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> Tensor {
        let (gate, up) = (self.linear(layer.ffn_gate, x), self.linear(layer.ffn_up, x));
        self.linear(layer.ffn_down, &self.ctx.swiglu_split(&gate, &up))
    }

    fn logits(&self, x: &Tensor) -> Tensor {
        let weights = self.model.file().weights();
        let logits = self.linear(weights.output, &self.norm(x, weights.output_norm));
        self.ctx.set_output(&logits);
        self.ctx.set_name(&logits, "logits");
        self.graph.build_forward_expand(&logits);
        logits
    }
}
