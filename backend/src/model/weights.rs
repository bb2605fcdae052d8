//! The tensors a model is made of, found by name and checked by shape and type.

#![deny(unsafe_code)]

use std::collections::HashMap;

use thiserror::Error;

use super::arch::Hparams;
use super::error::LoadErrorKind;
use super::gguf::{GgmlType, Shape};
use super::mapped_file::MappedView;
use super::shards::PlacedTensor;

/// What can be wrong with the tensors.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightError {
    /// A tensor the architecture needs is absent.
    #[error("tensor `{name}` is missing")]
    Missing {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor has another shape than the hyper-parameters ask for.
    #[error("tensor `{name}`: shape {actual}, expected {expected:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape found.
        actual: Shape,
        /// Shape needed.
        expected: Vec<u64>,
    },
    /// A tensor has a type that the engine does not compute with.
    #[error("tensor `{name}`: type {actual}, expected {expected}")]
    Type {
        /// Name of the tensor.
        name: String,
        /// Type found.
        actual: &'static str,
        /// Types that would do.
        expected: &'static str,
    },
    /// A tensor the architecture has no use for: the file is of another model than it says.
    #[error("tensor `{name}` is not part of architecture `{architecture}`")]
    Unexpected {
        /// Name of the tensor.
        name: String,
        /// Name of the architecture.
        architecture: &'static str,
    },
    /// A NaN, an infinity or an invalid scale.
    #[error("tensor `{name}`: invalid number in block {block} of type {ty}")]
    InvalidData {
        /// Name of the tensor.
        name: String,
        /// Which block, from 0.
        block: usize,
        /// Type of the tensor.
        ty: &'static str,
    },
}

impl WeightError {
    /// What a caller may do about it.
    pub const fn kind(&self) -> LoadErrorKind {
        match self {
            Self::Type { .. } | Self::Unexpected { .. } => LoadErrorKind::Unsupported,
            _ => LoadErrorKind::Invalid,
        }
    }
}

/// One weight: description and bytes.
#[derive(Clone, Debug)]
pub struct Weight {
    name: String,
    ty: GgmlType,
    shape: Shape,
    data: MappedView,
}

impl Weight {
    /// Name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of the elements.
    pub const fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Shape, `ne[0]` first.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// The data, exactly as long as type and shape ask for.
    pub const fn data(&self) -> &MappedView {
        &self.data
    }

    /// Looks for NaN, infinities and invalid scales.
    ///
    /// # Errors
    /// [`WeightError::InvalidData`] names the first block found.
    pub fn check_data(&self) -> Result<(), WeightError> {
        match self.ty.first_invalid_block(&self.data) {
            None => Ok(()),
            Some(block) => Err(WeightError::InvalidData {
                name: self.name.clone(),
                block,
                ty: self.ty.name(),
            }),
        }
    }
}

/// Index into [`Weights::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(usize);

impl WeightId {
    /// Position in [`Weights::all`].
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A matrix `[n_in, n_out]` and an optional bias `[n_out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// The matrix.
    pub weight: WeightId,
    /// F32, added to the product.
    pub bias: Option<WeightId>,
}

/// Projection to queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Three matrices.
    Split {
        /// `[n_embd, n_embd_q]`.
        q: Linear,
        /// `[n_embd, n_embd_kv]`.
        k: Linear,
        /// `[n_embd, n_embd_kv]`.
        v: Linear,
    },
    /// One matrix `[n_embd, n_embd_q + 2 n_embd_kv]`, rows of Q first, then K, then V.
    Fused {
        /// Matrix, and bias when that is fused too.
        qkv: Linear,
        /// Separate biases of Q, K and V, when `qkv` has none.
        biases: [Option<WeightId>; 3],
    },
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// `[n_embd]`.
    pub attn_norm: WeightId,
    /// Queries, keys and values.
    pub qkv: Qkv,
    /// `[n_embd_q, n_embd]`.
    pub attn_output: Linear,
    /// `[n_embd]`.
    pub ffn_norm: WeightId,
    /// `[n_embd, n_ff]`.
    pub ffn_gate: Linear,
    /// `[n_embd, n_ff]`.
    pub ffn_up: Linear,
    /// `[n_ff, n_embd]`.
    pub ffn_down: Linear,
}

/// All weights of a model.
#[derive(Debug)]
pub struct Weights {
    all: Vec<Weight>,
    /// `[n_embd, n_vocab]`.
    pub token_embd: WeightId,
    /// `[n_embd]`.
    pub output_norm: WeightId,
    /// `[n_embd, n_vocab]`; the very tensor of `token_embd` in models that tie them.
    pub output: Linear,
    /// Layers in order.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// Finds and checks every tensor; `n_vocab` is the tokenizer's, when it has one.
    pub(super) fn new(
        tensors: Vec<PlacedTensor>,
        hparams: &Hparams,
        n_vocab: Option<u32>,
    ) -> Result<Self, WeightError> {
        let mut finder = Finder::new(tensors);
        let n_embd = u64::from(hparams.n_embd);
        let token_embd = finder.require("token_embd.weight")?;
        let n_vocab = n_vocab.map_or(finder.all[token_embd.0].shape.ne()[1], u64::from);
        finder.check_matrix(token_embd, n_embd, n_vocab)?;
        let output_norm = finder.vector("output_norm.weight", n_embd)?;
        let output = match finder.find("output.weight") {
            None => token_embd,
            Some(output) => finder.check_matrix(output, n_embd, n_vocab)?,
        };
        let output = Linear {
            weight: output,
            bias: finder.optional_vector("output.bias", n_vocab)?,
        };
        let layers = (0..hparams.n_layer)
            .map(|il| finder.layer(il, hparams))
            .collect::<Result<_, _>>()?;
        finder.check_all_used(hparams.architecture)?;
        Ok(Self {
            all: finder.all,
            token_embd,
            output_norm,
            output,
            layers,
        })
    }

    /// Every weight once, in the files' order.
    pub fn all(&self) -> &[Weight] {
        &self.all
    }

    /// The weight with this id.
    pub fn get(&self, id: WeightId) -> &Weight {
        &self.all[id.0]
    }

    /// Length of a row of logits.
    pub fn n_vocab(&self) -> u64 {
        self.get(self.token_embd).shape.ne()[1]
    }

    /// Number of elements of all weights.
    pub fn n_params(&self) -> u64 {
        self.all
            .iter()
            .map(|weight| weight.shape.n_elements())
            .sum()
    }

    /// Number of bytes of all weights.
    pub fn size_bytes(&self) -> u64 {
        self.all.iter().map(|weight| weight.data.len() as u64).sum()
    }
}

/// Tensors by name, and which of them were asked for.
struct Finder {
    all: Vec<Weight>,
    by_name: HashMap<String, usize>,
    used: Vec<bool>,
}

impl Finder {
    fn new(tensors: Vec<PlacedTensor>) -> Self {
        let weight = |tensor: PlacedTensor| {
            let data = tensor
                .file
                .view(tensor.info.range())
                .expect("a TensorInfo's range is proven inside its file");
            let (ty, shape) = (tensor.info.ty(), tensor.info.shape());
            Weight {
                name: tensor.info.name().to_owned(),
                ty,
                shape,
                data,
            }
        };
        let all: Vec<_> = tensors.into_iter().map(weight).collect();
        let by_name = all
            .iter()
            .enumerate()
            .map(|(index, weight)| (weight.name.clone(), index))
            .collect();
        let used = vec![false; all.len()];
        Self { all, by_name, used }
    }

    fn find(&mut self, name: &str) -> Option<WeightId> {
        let index = *self.by_name.get(name)?;
        self.used[index] = true;
        Some(WeightId(index))
    }

    fn require(&mut self, name: &str) -> Result<WeightId, WeightError> {
        self.find(name).ok_or_else(|| WeightError::Missing {
            name: name.to_owned(),
        })
    }

    fn check_shape(&self, id: WeightId, expected: &[u64]) -> Result<(), WeightError> {
        let weight = &self.all[id.0];
        if weight.shape.is(expected) {
            return Ok(());
        }
        let (name, actual, expected) = (weight.name.clone(), weight.shape, expected.to_vec());
        Err(WeightError::Shape {
            name,
            actual,
            expected,
        })
    }

    fn check_matrix(&self, id: WeightId, n_in: u64, n_out: u64) -> Result<WeightId, WeightError> {
        self.check_shape(id, &[n_in, n_out])?;
        let weight = &self.all[id.0];
        if weight.ty.is_weight() {
            return Ok(id);
        }
        let (name, actual) = (weight.name.clone(), weight.ty.name());
        Err(WeightError::Type {
            name,
            actual,
            expected: "a float or quantised type",
        })
    }

    fn check_vector(&self, id: WeightId, len: u64) -> Result<WeightId, WeightError> {
        self.check_shape(id, &[len])?;
        let weight = &self.all[id.0];
        if weight.ty == GgmlType::F32 {
            return Ok(id);
        }
        Err(WeightError::Type {
            name: weight.name.clone(),
            actual: weight.ty.name(),
            expected: "f32",
        })
    }

    fn vector(&mut self, name: &str, len: u64) -> Result<WeightId, WeightError> {
        let id = self.require(name)?;
        self.check_vector(id, len)
    }

    fn optional_vector(&mut self, name: &str, len: u64) -> Result<Option<WeightId>, WeightError> {
        self.find(name)
            .map(|id| self.check_vector(id, len))
            .transpose()
    }

    /// `{base}.weight` and, if present, `{base}.bias`.
    fn linear(&mut self, base: &str, n_in: u64, n_out: u64) -> Result<Linear, WeightError> {
        let weight = self.require(&format!("{base}.weight"))?;
        self.check_matrix(weight, n_in, n_out)?;
        Ok(Linear {
            weight,
            bias: self.optional_vector(&format!("{base}.bias"), n_out)?,
        })
    }

    fn qkv(&mut self, blk: &str, hparams: &Hparams) -> Result<Qkv, WeightError> {
        let n_embd = u64::from(hparams.n_embd);
        let (n_q, n_kv) = (
            u64::from(hparams.n_embd_q()),
            u64::from(hparams.n_embd_kv()),
        );
        let parts = [("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)];
        if self.find(&format!("{blk}.attn_qkv.weight")).is_none() {
            let [q, k, v] =
                parts.map(|(name, n_out)| self.linear(&format!("{blk}.{name}"), n_embd, n_out));
            return Ok(Qkv::Split {
                q: q?,
                k: k?,
                v: v?,
            });
        }
        let qkv = self.linear(&format!("{blk}.attn_qkv"), n_embd, n_q + 2 * n_kv)?;
        let mut biases = [None; 3];
        if qkv.bias.is_none() {
            for (bias, (name, n_out)) in biases.iter_mut().zip(parts) {
                *bias = self.optional_vector(&format!("{blk}.{name}.bias"), n_out)?;
            }
        }
        Ok(Qkv::Fused { qkv, biases })
    }

    fn layer(&mut self, il: u32, hparams: &Hparams) -> Result<Layer, WeightError> {
        let blk = format!("blk.{il}");
        let (n_embd, n_ff) = (u64::from(hparams.n_embd), u64::from(hparams.n_ff));
        Ok(Layer {
            attn_norm: self.vector(&format!("{blk}.attn_norm.weight"), n_embd)?,
            qkv: self.qkv(&blk, hparams)?,
            attn_output: self.linear(
                &format!("{blk}.attn_output"),
                hparams.n_embd_q().into(),
                n_embd,
            )?,
            ffn_norm: self.vector(&format!("{blk}.ffn_norm.weight"), n_embd)?,
            ffn_gate: self.linear(&format!("{blk}.ffn_gate"), n_embd, n_ff)?,
            ffn_up: self.linear(&format!("{blk}.ffn_up"), n_embd, n_ff)?,
            ffn_down: self.linear(&format!("{blk}.ffn_down"), n_ff, n_embd)?,
        })
    }

    /// A tensor that nobody asked for would change what the model computes.
    fn check_all_used(&self, architecture: &'static str) -> Result<(), WeightError> {
        match self.used.iter().position(|used| !used) {
            None => Ok(()),
            Some(index) => Err(WeightError::Unexpected {
                name: self.all[index].name.clone(),
                architecture,
            }),
        }
    }
}
