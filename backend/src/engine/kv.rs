//! The K/V of a session.
//!
//! Per layer one K and one V tensor `[n_embd_kv, n_slots]`; the rows of both lie as [`slot`](super::slot) says.

use llada_npu_ffi::ggml::{Context, Tensor, TensorSet, Type};

use super::error::EngineError;
use super::slot::Capacity;
use super::target::Target;

/// Element type of K or V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit: for exactness.
    F32,
    /// 16-bit.
    #[default]
    F16,
}

impl KvType {
    const fn ggml(self) -> Type {
        match self {
            Self::F32 => Type::F32,
            Self::F16 => Type::F16,
        }
    }
}

/// K and V of one layer, `[n_embd_kv, n_slots]`.
#[derive(Clone, Debug)]
pub(super) struct LayerKv {
    pub(super) k: Tensor,
    pub(super) v: Tensor,
}

/// Owning store of all layers' K/V.
#[derive(Debug)]
pub(super) struct KvStore {
    target: Target,
    type_k: KvType,
    type_v: KvType,
    n_embd_kv: u32,
    capacity: Capacity,
    layers: Vec<LayerKv>,
    set: TensorSet,
}

impl KvStore {
    /// Makes a zeroed store for `n_layer` layers. Zeroed, because attention multiplies the values of slots that a row
    /// does not see by zero, and zero times NaN is NaN.
    pub(super) fn new(
        target: Target,
        (type_k, type_v): (KvType, KvType),
        n_layer: u32,
        n_embd_kv: u32,
        need: Capacity,
    ) -> Result<Self, EngineError> {
        let capacity = need.rounded();
        // ggml takes no tensor without rows.
        let n_slots = i64::from(capacity.n_slots().max(1));
        let ctx = Context::new(target.api(), 2 * n_layer as usize, 0);
        let mut layers = Vec::with_capacity(n_layer as usize);
        for il in 0..n_layer {
            let tensor = |name: &str, ty: KvType| {
                let tensor = ctx.new_tensor(ty.ggml(), &[n_embd_kv.into(), n_slots]);
                ctx.set_name(&tensor, &format!("{name}_l{il}"));
                tensor
            };
            layers.push(LayerKv {
                k: tensor("cache_k", type_k),
                v: tensor("cache_v", type_v),
            });
        }
        let mut set = TensorSet::alloc(ctx, target.buffer_type())
            .map_err(EngineError::memory("K/V store"))?;
        set.clear(0);
        Ok(Self {
            target,
            type_k,
            type_v,
            n_embd_kv,
            capacity,
            layers,
            set,
        })
    }

    /// Grows to at least `need`, keeping what the slots hold. Returns whether tensors changed.
    pub(super) fn reserve(&mut self, need: Capacity) -> Result<bool, EngineError> {
        let old = self.capacity;
        let wanted = old.max(need);
        if wanted == old {
            return Ok(false);
        }
        #[expect(clippy::cast_possible_truncation, reason = "made from a u32")]
        let n_layer = self.layers.len() as u32;
        let types = (self.type_k, self.type_v);
        let mut grown = Self::new(self.target, types, n_layer, self.n_embd_kv, wanted)?;
        // The boundary between scratch and store moves; the two together stay one block.
        let n_slots = old.n_scratch + old.n_store;
        let shift = grown.capacity.n_scratch - old.n_scratch;
        let mut bytes = Vec::new();
        for (from, to) in self.layers.iter().zip(&grown.layers) {
            for (from, to) in [(&from.k, &to.k), (&from.v, &to.v)] {
                let row = from.nb()[1];
                bytes.resize(row * n_slots as usize, 0);
                self.set
                    .read(from, 0, &mut bytes)
                    .map_err(EngineError::memory("K/V store"))?;
                let offset = row * shift as usize;
                grown
                    .set
                    .write(to, offset, &bytes)
                    .map_err(EngineError::memory("K/V store"))?;
            }
        }
        *self = grown;
        Ok(true)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.set.clear(0);
    }

    /// Where slots lie.
    pub(super) const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Layers in order.
    pub(super) fn layers(&self) -> &[LayerKv] {
        &self.layers
    }

    /// Owner of the memory.
    pub(super) const fn set(&self) -> &TensorSet {
        &self.set
    }
}
