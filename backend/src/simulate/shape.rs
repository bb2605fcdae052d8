//! The shapes of models: matrices, sizes, and the segments that a forward runs through.

use crate::decode::{Family, ModelTraits, Token};
use crate::model::gguf::GgmlType;
use crate::model::{Layer, Linear, ModelFile, Qkv, Schedule, Weights};

/// A name that nothing has, and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct UnknownName(pub(super) &'static str);

/// Why there is no such shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No published model has this name.
    #[error("expected llada-8b, dream-7b or llama-8b-ar")]
    Name,
    /// The model cannot have weights of this type.
    #[error("rows of {k} elements are not whole blocks of {quant}")]
    Blocks {
        /// Name of the type.
        quant: &'static str,
        /// Elements of a row.
        k: u64,
    },
}

/// A weight matrix `[k, n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Name of the tensor.
    pub name: String,
    /// Elements of a row.
    pub k: u64,
    /// Rows.
    pub n: u64,
    /// Bytes in the type of the weights.
    pub size_bytes: u64,
}

impl Matrix {
    /// Returns the multiply-accumulates of one row of x.
    #[must_use]
    pub const fn macs(&self) -> u64 {
        self.k * self.n
    }
}

/// Matrices that run as a whole: a segment of a forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Name.
    pub name: String,
    /// Whether it is the output projection, which only rows that predict something enter; else it is a layer, with attention.
    pub is_head: bool,
    /// What it reads.
    pub matrices: Vec<Matrix>,
}

impl Block {
    /// Returns the multiply-accumulates of one row, attention itself apart.
    #[must_use]
    pub fn macs(&self) -> u64 {
        self.matrices.iter().map(Matrix::macs).sum()
    }

    /// Returns the bytes of the weights.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.matrices.iter().map(|matrix| matrix.size_bytes).sum()
    }

    fn layer(layer: u32, matrices: Vec<Matrix>) -> Self {
        Self {
            name: format!("layer {layer}"),
            is_head: false,
            matrices,
        }
    }

    fn head(matrices: Vec<Matrix>) -> Self {
        Self {
            name: "head".to_owned(),
            is_head: true,
            matrices,
        }
    }
}

/// The shape of a model: all that the simulator knows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Name.
    pub name: String,
    /// Type of the weights, or of most of them.
    pub quant: String,
    /// Whether it decodes one token after the other.
    pub is_autoregressive: bool,
    /// Blocks in the order in which they run, the head last. Norms, biases and the token embedding, which the host looks up,
    /// are not among them.
    pub blocks: Vec<Block>,
    /// Layers.
    pub n_layer: u32,
    /// Elements of a row of the residual stream.
    pub n_embd: u64,
    /// Elements of a row of Q.
    pub n_embd_q: u64,
    /// Elements of a row of K, and of V.
    pub n_embd_kv: u64,
    /// Elements of a row inside the feed-forward network.
    pub n_ff: u64,
    /// Rows of the head.
    pub n_vocab: u64,
    /// Largest canvas.
    pub n_ctx: u32,
    /// Which official code it comes with.
    pub family: Family,
    /// Row `i - 1` predicts position `i`.
    pub shift_logits: bool,
}

/// The numbers of a model that has no file.
struct Named {
    name: &'static str,
    is_autoregressive: bool,
    n_layer: u32,
    n_embd: u64,
    n_embd_kv: u64,
    n_ff: u64,
    n_vocab: u64,
    n_ctx: u32,
    family: Family,
    shift_logits: bool,
}

/// Published shapes.
const NAMED: [Named; 3] = [
    Named {
        name: "llada-8b",
        is_autoregressive: false,
        n_layer: 32,
        n_embd: 4096,
        n_embd_kv: 4096,
        n_ff: 12288,
        n_vocab: 126_464,
        n_ctx: 4096,
        family: Family::Llada,
        shift_logits: false,
    },
    Named {
        name: "dream-7b",
        is_autoregressive: false,
        n_layer: 28,
        n_embd: 3584,
        n_embd_kv: 512,
        n_ff: 18944,
        n_vocab: 152_064,
        n_ctx: 2048,
        family: Family::Dream,
        shift_logits: true,
    },
    Named {
        name: "llama-8b-ar",
        is_autoregressive: true,
        n_layer: 32,
        n_embd: 4096,
        n_embd_kv: 1024,
        n_ff: 14336,
        n_vocab: 128_256,
        n_ctx: 8192,
        family: Family::Llada,
        shift_logits: false,
    },
];

impl ModelShape {
    /// Returns a published shape, all of its matrices in one type.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub fn named(name: &str, quant: GgmlType) -> Result<Self, ShapeError> {
        let named = NAMED
            .iter()
            .find(|named| named.name.eq_ignore_ascii_case(name));
        let named = named.ok_or(ShapeError::Name)?;
        let &Named {
            n_layer,
            n_embd,
            n_embd_kv,
            n_ff,
            n_vocab,
            ..
        } = named;
        let matrix = |name: String, k: u64, n: u64| {
            let row = quant.row_size(k).ok_or(ShapeError::Blocks {
                quant: quant.name(),
                k,
            })?;
            Ok(Matrix {
                name,
                k,
                n,
                size_bytes: row * n,
            })
        };
        let mut blocks = Vec::new();
        for layer in 0..n_layer {
            let parts = [
                ("attn_q", n_embd, n_embd),
                ("attn_k", n_embd, n_embd_kv),
                ("attn_v", n_embd, n_embd_kv),
                ("attn_output", n_embd, n_embd),
                ("ffn_gate", n_embd, n_ff),
                ("ffn_up", n_embd, n_ff),
                ("ffn_down", n_ff, n_embd),
            ];
            let of_layer =
                parts.map(|(part, k, n)| matrix(format!("blk.{layer}.{part}.weight"), k, n));
            blocks.push(Block::layer(
                layer,
                of_layer.into_iter().collect::<Result<_, _>>()?,
            ));
        }
        blocks.push(Block::head(vec![matrix(
            "output.weight".to_owned(),
            n_embd,
            n_vocab,
        )?]));
        Ok(Self {
            name: named.name.to_owned(),
            quant: quant.name().to_owned(),
            is_autoregressive: named.is_autoregressive,
            blocks,
            n_layer,
            n_embd,
            n_embd_q: n_embd,
            n_embd_kv,
            n_ff,
            n_vocab,
            n_ctx: named.n_ctx,
            family: named.family,
            shift_logits: named.shift_logits,
        })
    }

    /// Returns the shape of a model file, whose matrices keep their types.
    #[must_use]
    pub fn of_file(name: &str, file: &ModelFile) -> Self {
        let (hparams, tokens, weights) = (file.hparams(), file.tokens(), file.weights());
        let layers = (0..).zip(&weights.layers);
        let layers =
            layers.map(|(layer, of_layer)| Block::layer(layer, layer_matrices(weights, of_layer)));
        let head = Block::head(matrices(weights, &[weights.output]));
        let blocks = layers.chain(std::iter::once(head)).collect();
        Self {
            name: name.to_owned(),
            quant: weights
                .get(weights.layers[0].ffn_up.weight)
                .ty()
                .name()
                .to_owned(),
            is_autoregressive: false,
            blocks,
            n_layer: hparams.n_layer,
            n_embd: hparams.n_embd.into(),
            n_embd_q: hparams.n_embd_q().into(),
            n_embd_kv: hparams.n_embd_kv().into(),
            n_ff: hparams.n_ff.into(),
            n_vocab: weights.n_vocab(),
            n_ctx: hparams.n_ctx_train,
            family: match hparams.schedule {
                Schedule::Blocks => Family::Llada,
                Schedule::Timesteps => Family::Dream,
            },
            shift_logits: tokens.shift_logits,
        }
    }

    /// Returns what the decoder is to know: the mask is the last token, and no token ends the text.
    pub(super) fn traits(&self) -> ModelTraits {
        let n_vocab = u32::try_from(self.n_vocab)
            .unwrap_or(u32::MAX)
            .max(MIN_VOCAB);
        ModelTraits {
            mask: Token::try_from(n_vocab - 1).ok(),
            eos: None,
            eot: None,
            n_vocab,
            n_ctx: self.n_ctx,
            shift_logits: self.shift_logits,
            default_block_length: 32,
            family: self.family,
        }
    }

    /// Returns the multiply-accumulates of one row in all layers.
    #[must_use]
    pub fn layer_macs(&self) -> f64 {
        let layers = self.blocks.iter().filter(|block| !block.is_head);
        number(layers.map(Block::macs).sum())
    }

    /// Returns the multiply-accumulates of one row in the head.
    #[must_use]
    pub fn head_macs(&self) -> f64 {
        let heads = self.blocks.iter().filter(|block| block.is_head);
        number(heads.map(Block::macs).sum())
    }

    /// Returns the bytes of all matrices.
    #[must_use]
    pub fn weight_bytes(&self) -> f64 {
        number(self.blocks.iter().map(Block::size_bytes).sum())
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn n_segments(&self) -> f64 {
        number(self.blocks.len() as u64)
    }
}

/// Words that the simulated decoder needs: nothing, two tokens, the mask.
const MIN_VOCAB: u32 = 4;

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes and operations of a model are far below 2^53"
)]
pub(super) fn number(n: u64) -> f64 {
    n as f64
}

fn matrices(weights: &Weights, linears: &[Linear]) -> Vec<Matrix> {
    let matrix = |linear: &Linear| {
        let weight = weights.get(linear.weight);
        let ne = weight.shape().ne();
        Matrix {
            name: weight.name().to_owned(),
            k: ne[0],
            n: ne[1],
            size_bytes: weight.data().len() as u64,
        }
    };
    linears.iter().map(matrix).collect()
}

fn layer_matrices(weights: &Weights, layer: &Layer) -> Vec<Matrix> {
    let Layer {
        attn_output,
        ffn_gate,
        ffn_up,
        ffn_down,
        ..
    } = *layer;
    let mut linears = match layer.qkv {
        Qkv::Split { q, k, v } => vec![q, k, v],
        Qkv::Fused { qkv, .. } => vec![qkv],
    };
    linears.extend([attn_output, ffn_gate, ffn_up, ffn_down]);
    matrices(weights, &linears)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_shapes_have_the_published_sizes() {
        let shape = |name| ModelShape::named(name, GgmlType::Q4_0).unwrap();
        let llada = shape("llada-8b");
        // 4 x 4096 x 4096 + 3 x 4096 x 12288 per layer, 4.5 bits each.
        assert_eq!(llada.blocks[0].size_bytes(), 122_683_392);
        assert_eq!(
            llada.weight_bytes(),
            32.0 * 122_683_392.0 + 4096.0 * 126_464.0 * 0.5625
        );
        assert_eq!(llada.blocks.len(), 33);
        let dream = shape("dream-7b");
        assert_eq!(dream.blocks[0].size_bytes(), 131_088_384);
        assert_eq!(shape("llama-8b-ar").layer_macs(), 6_979_321_856.0);
        let f16 = ModelShape::named("llada-8b", GgmlType::F16).unwrap();
        assert_eq!(f16.weight_bytes() * 4.5, llada.weight_bytes() * 16.0);
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let error = |name, quant| ModelShape::named(name, quant).unwrap_err();
        assert_eq!(error("llada-9b", GgmlType::Q4_0), ShapeError::Name);
    }
}
