//! The K/V of a session.
//!
//! Per layer one K and one V tensor `[n_embd_kv, n_slots]`; the rows of both lie as [`slot`](super::slot) says. Where the
//! device has tiles, half floats lie in tiles: 32 slots are a block.

use std::ops::Range;

use llada_npu_ffi::ggml::{BufferType, Context, Tensor, TensorSet, Type};

use super::error::EngineError;
use super::slot::{Capacity, GROWTH};
use super::target::Target;
use crate::decode::plan::Stream;

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

/// Makes one zeroed tensor per layer.
fn tensors(
    target: &Target,
    buft: &BufferType,
    name: &str,
    ty: KvType,
    ne: [i64; 2],
    n_layer: u32,
) -> Result<(Vec<Tensor>, TensorSet), EngineError> {
    let ctx = Context::new(target.api(), n_layer as usize, 0);
    let tensor = |il: u32| {
        let tensor = ctx.new_tensor(ty.ggml(), &ne);
        ctx.set_name(&tensor, &format!("{name}_l{il}"));
        tensor
    };
    let tensors = (0..n_layer).map(tensor).collect();
    let mut set = TensorSet::alloc(ctx, buft).map_err(EngineError::memory("K/V store"))?;
    set.clear(0);
    Ok((tensors, set))
}

/// Owning store of all layers' K/V.
#[derive(Debug)]
pub(super) struct KvStore {
    target: Target,
    type_k: KvType,
    type_v: KvType,
    n_embd_head: u32,
    n_embd_kv: u32,
    capacity: Capacity,
    layers: Vec<LayerKv>,
    /// Of K, and of V.
    sets: [TensorSet; 2],
}

/// Slots of a block of tiles, and elements of a tile.
const TILE: u32 = 32;
const _: () = assert!(GROWTH.is_multiple_of(TILE), "regions are whole blocks");

impl KvStore {
    /// Makes a zeroed store for `n_layer` layers. Zeroed, because attention multiplies the values of slots that a row
    /// does not see by zero, and zero times NaN is NaN.
    pub(super) fn new(
        target: Target,
        (type_k, type_v): (KvType, KvType),
        n_layer: u32,
        (n_embd_head, n_embd_kv): (u32, u32),
        need: Capacity,
    ) -> Result<Self, EngineError> {
        let capacity = need.rounded();
        // ggml takes no tensor without rows.
        let n_slots = i64::from(capacity.n_slots().max(TILE));
        let is_tiled =
            (type_k, type_v) == (KvType::F16, KvType::F16) && n_embd_head.is_multiple_of(TILE);
        let tiles = target.kv_tiles().filter(|_| is_tiled);
        let [k_buft, v_buft] = tiles.unwrap_or([*target.buffer_type(); 2]);
        let ne = [n_embd_kv.into(), n_slots];
        let (k, k_set) = tensors(&target, &k_buft, "cache_k", type_k, ne, n_layer)?;
        let (v, v_set) = tensors(&target, &v_buft, "cache_v", type_v, ne, n_layer)?;
        let layers = k.into_iter().zip(v).map(|(k, v)| LayerKv { k, v });
        Ok(Self {
            target,
            type_k,
            type_v,
            n_embd_head,
            n_embd_kv,
            capacity,
            layers: layers.collect(),
            sets: [k_set, v_set],
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
        let n_embd = (self.n_embd_head, self.n_embd_kv);
        let mut grown = Self::new(self.target, types, n_layer, n_embd, wanted)?;
        // The boundary between scratch and store moves; the two together stay one block.
        let n_slots = old.n_scratch + old.n_store;
        let shift = grown.capacity.n_scratch - old.n_scratch;
        let mut bytes = Vec::new();
        for (from, to) in self.layers.iter().zip(&grown.layers) {
            for (i, (from, to)) in [(&from.k, &to.k), (&from.v, &to.v)].into_iter().enumerate() {
                let row = from.nb()[1];
                bytes.resize(row * n_slots as usize, 0);
                self.sets[i]
                    .read(from, 0, &mut bytes)
                    .map_err(EngineError::memory("K/V store"))?;
                let offset = row * shift as usize;
                grown.sets[i]
                    .write(to, offset, &bytes)
                    .map_err(EngineError::memory("K/V store"))?;
            }
        }
        *self = grown;
        Ok(true)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sets.iter_mut().for_each(|set| set.clear(0));
    }

    /// Smallest range of row indices that the device attends to and that holds everything the streams see: whole blocks
    /// of tiles.
    pub(super) fn window(&self, streams: &[Stream]) -> Range<u32> {
        let Range { start, end } = self.capacity.window(streams);
        start / TILE * TILE..end.next_multiple_of(TILE)
    }

    /// Whether the device attends in one operation to every kind of K and V.
    pub(super) const fn is_fused(&self) -> bool {
        self.target.kv_tiles().is_some()
    }

    /// Where slots lie.
    pub(super) const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Layers in order.
    pub(super) fn layers(&self) -> &[LayerKv] {
        &self.layers
    }

    /// Owners of the memory.
    pub(super) const fn sets(&self) -> [&TensorSet; 2] {
        let [k, v] = &self.sets;
        [k, v]
    }
}
