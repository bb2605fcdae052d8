//! A loaded model: the file's weights as tensors of the target.

use std::path::Path;
use std::sync::Arc;

use llada_npu_ffi::ggml::{Context, Tensor, TensorSet, Type};

use super::error::EngineError;
use super::target::Target;
use crate::decode::{Family, ModelTraits, Token};
use crate::model::mapped_file::MappedFile;
use crate::model::{ModelFile, Schedule, Weight, WeightId};

/// Alignment of tensors that kernels may rely on, in bytes: that of GGUF files unless they say otherwise.
const TENSOR_ALIGNMENT: usize = 32;
/// Block length where the file does not say it.
const DEFAULT_BLOCK_LENGTH: u32 = 32;

/// What to do while loading.
pub struct LoadOptions<'a> {
    /// Look for NaN, infinities and invalid scales in all weights.
    pub check_tensors: bool,
    /// Gets the share done, 0 to 1; returning `false` cancels.
    pub progress: &'a mut dyn FnMut(f32) -> bool,
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("check_tensors", &self.check_tensors)
            .finish_non_exhaustive()
    }
}

/// A model on a target. Immutable: sessions share it.
#[derive(Debug)]
pub struct Model {
    file: ModelFile,
    target: Target,
    /// One per file, or one for all.
    sets: Vec<TensorSet>,
    /// By [`WeightId::index`].
    tensors: Vec<Tensor>,
}

impl Model {
    /// Maps, checks and places the model at `path`.
    ///
    /// # Errors
    /// [`EngineError::Load`] for the file, [`EngineError::Memory`] for the target, [`EngineError::Cancelled`] when
    /// `progress` says so.
    pub fn load(
        path: &Path,
        target: Target,
        options: &mut LoadOptions<'_>,
    ) -> Result<Arc<Self>, EngineError> {
        let file = ModelFile::open(path)?;
        if file.tokens().mask.is_none() {
            log::warn!(
                "key `tokenizer.ggml.mask_token_id` is missing and no token is `<|mdm_mask|>` or `<|mask|>`: \
                 the mask token must be given by option `mask-id`"
            );
        }
        let mut go_on = true;
        if options.check_tensors {
            file.check_data(&mut |share| {
                go_on = (options.progress)(share * 0.99);
                go_on
            })?;
        }
        if !go_on {
            return Err(EngineError::Cancelled);
        }
        let (sets, tensors) = match place(&file, target)? {
            Some(placed) => placed,
            None => copy(&file, target)?,
        };
        if !(options.progress)(1.0) {
            return Err(EngineError::Cancelled);
        }
        Ok(Arc::new(Self {
            file,
            target,
            sets,
            tensors,
        }))
    }

    /// The file: shape, tokens, weights.
    pub const fn file(&self) -> &ModelFile {
        &self.file
    }

    /// Where the weights are.
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// Tensor of a weight.
    pub fn tensor(&self, id: WeightId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// Owners of the weights' memory.
    pub(super) fn sets(&self) -> Vec<&TensorSet> {
        self.sets.iter().collect()
    }

    /// What the decoder needs to know, for canvases of up to `n_ctx` positions.
    pub fn traits(&self, n_ctx: u32) -> ModelTraits {
        let tokens = self.file.tokens();
        let token = |id: Option<u32>| id.and_then(|id| Token::try_from(id).ok());
        ModelTraits {
            mask: token(tokens.mask),
            eos: token(tokens.eos),
            eot: token(tokens.eot),
            n_vocab: tokens.n_vocab,
            n_ctx,
            shift_logits: tokens.shift_logits,
            default_block_length: DEFAULT_BLOCK_LENGTH,
            family: match self.file.hparams().schedule {
                Schedule::Blocks => Family::Llada,
                Schedule::Timesteps => Family::Dream,
            },
        }
    }
}

type Placed = (Vec<TensorSet>, Vec<Tensor>);

fn describe(ctx: &Context, weight: &Weight) -> Tensor {
    // A `Shape` fits 63 bits.
    let ne = weight.shape().ne().map(u64::cast_signed);
    let n_dims = ne
        .iter()
        .rposition(|&ne| ne != 1)
        .map_or(1, |last| last + 1);
    let tensor = ctx.new_tensor(Type(weight.ty().id()), &ne[..n_dims]);
    // ggml names leaves that have no name when a graph is built, which would write to a shared tensor.
    ctx.set_name(&tensor, weight.name());
    tensor
}

/// Weights as they lie in the mapped files; `None` where the target or the file's alignment does not allow it.
fn place(file: &ModelFile, target: Target) -> Result<Option<Placed>, EngineError> {
    let weights = file.weights().all();
    if weights
        .iter()
        .any(|weight| !weight.data().range().start.is_multiple_of(TENSOR_ALIGNMENT))
    {
        log::warn!(
            "weights are not aligned to {TENSOR_ALIGNMENT} bytes in the file and are copied"
        );
        return Ok(None);
    }
    let mut files: Vec<&Arc<MappedFile>> = Vec::new();
    for weight in weights {
        if !files
            .iter()
            .any(|file| Arc::ptr_eq(file, weight.data().file()))
        {
            files.push(weight.data().file());
        }
    }
    let mut sets = Vec::new();
    let mut tensors: Vec<Option<Tensor>> = vec![None; weights.len()];
    for mapped in files {
        let Some(buffer) = target.adopt(mapped) else {
            return Ok(None);
        };
        let here = |weight: &Weight| Arc::ptr_eq(weight.data().file(), mapped);
        let ctx = Context::new(target.api(), weights.iter().filter(|w| here(w)).count(), 0);
        let mut placements = Vec::new();
        for (slot, weight) in tensors
            .iter_mut()
            .zip(weights)
            .filter(|(_, weight)| here(weight))
        {
            let tensor = describe(&ctx, weight);
            placements.push((tensor.clone(), weight.data().range().start));
            *slot = Some(tensor);
        }
        sets.push(
            TensorSet::place(ctx, buffer, &placements)
                .map_err(EngineError::memory("mapped weights"))?,
        );
    }
    let tensors = tensors
        .into_iter()
        .map(|tensor| tensor.expect("every weight lies in one of the files"))
        .collect();
    Ok(Some((sets, tensors)))
}

/// Weights in a buffer of the target.
fn copy(file: &ModelFile, target: Target) -> Result<Placed, EngineError> {
    let weights = file.weights().all();
    let ctx = Context::new(target.api(), weights.len(), 0);
    let tensors: Vec<_> = weights
        .iter()
        .map(|weight| describe(&ctx, weight))
        .collect();
    let mut set =
        TensorSet::alloc(ctx, target.buffer_type()).map_err(EngineError::memory("weights"))?;
    for (tensor, weight) in tensors.iter().zip(weights) {
        set.write(tensor, 0, weight.data())
            .map_err(EngineError::memory("weights"))?;
    }
    Ok((vec![set], tensors))
}
