//! The operands of ggml's `FLASH_ATTN_EXT`, with every extent checked before anything is read.

use bytemuck::try_cast_slice_mut;
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::tile::TILE;

use super::{Layout, Op, OperandError, Source, Spec, Task};

/// Parameters of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttnParams {
    /// Factor of the products of q and k.
    pub scale: f32,
    /// `ALiBi`: steepest slope of the mask is 2 to minus 8 times this share; 0 is none.
    pub max_bias: f32,
    /// Bound of the scaled products; 0 is none.
    pub softcap: f32,
}

/// Shapes and strides of attention, without its data. Arithmetic: [`llada_npu_kernels::op::attention`].
///
/// Rows of all operands must be contiguous; everything else may have any stride.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttnShape {
    /// Parameters.
    pub params: FlashAttnParams,
    /// K and V lie in tiles ([`llada_npu_kernels::tile::kv`]): f16, whole blocks, all heads of a layer.
    pub tiles: bool,
    /// f32 `[d_k, n_tokens, r2 * n_head_kv, n3]`.
    pub q: Layout,
    /// f16 or f32 `[d_k, n_kv, n_head_kv, n3 / r3]`.
    pub k: Layout,
    /// f16 or f32 `[d_v, n_kv, n_head_kv, n3 / r3]`.
    pub v: Layout,
    /// f16 `[n_kv, at least n_tokens, …]`; the outer dimensions repeat to those of `q`.
    pub mask: Option<Layout>,
}

/// Attention with its data.
#[derive(Debug)]
pub struct FlashAttn<'a> {
    /// Shapes and strides.
    pub shape: FlashAttnShape,
    /// Rows of Q.
    pub q: &'a [u8],
    /// Keys.
    pub k: &'a [u8],
    /// Values.
    pub v: &'a [u8],
    /// The mask, if there is one.
    pub mask: Option<&'a [u8]>,
    /// Contiguous `[d_v, r2 * n_head_kv, n_tokens, n3]`.
    pub dst: &'a mut [f32],
}

impl FlashAttnShape {
    /// Reads shapes and strides, and checks that the kernels can compute this.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn of(spec: &Spec) -> Result<Self, OperandError> {
        let (params, tiles) = match spec.op {
            Op::FlashAttnExt(params) => (params, false),
            Op::FlashAttnTiles(params) => (params, true),
            _ => return Err(OperandError::Dst),
        };
        if let Some(sinks) = spec.srcs[4] {
            let type_ = sinks.type_;
            return Err(OperandError::Type { src: 4, type_ });
        }
        let shape = Self {
            params,
            tiles,
            q: *rows(spec, 0, &[Type::F32])?,
            k: *rows(spec, 1, &[Type::F16, Type::F32])?,
            v: *rows(spec, 2, &[Type::F16, Type::F32])?,
            mask: match spec.srcs[3] {
                Some(_) => Some(*rows(spec, 3, &[Type::F16])?),
                None => None,
            },
        };
        shape.check(&spec.dst)?;
        Ok(shape)
    }

    fn check(&self, dst: &Layout) -> Result<(), OperandError> {
        let Self { q, k, v, .. } = self;
        let (k0, k1) = (k.ne[0], q.ne[0]);
        if k0 != k1 {
            return Err(OperandError::RowLength { k0, k1 });
        }
        if v.ne[1..] != k.ne[1..] {
            return Err(OperandError::Shape { src: 2 });
        }
        let [_, n_tokens, n_heads, n3] = q.ne;
        for (dim, ne1) in [(2, n_heads), (3, n3)] {
            let ne0 = k.ne[dim];
            if ne0 == 0 || !ne1.is_multiple_of(ne0) {
                return Err(OperandError::Broadcast { dim, ne0, ne1 });
            }
        }
        let fits = |mask: &Layout| {
            let [n_kv, n_rows, n2, m3] = mask.ne;
            n_kv == k.ne[1]
                && n_rows >= n_tokens
                && n2 > 0
                && n_heads.is_multiple_of(n2)
                && m3 > 0
                && n3.is_multiple_of(m3)
        };
        if !self.mask.as_ref().is_none_or(fits) {
            return Err(OperandError::Shape { src: 3 });
        }
        let ne = [v.ne[0], n_heads, n_tokens, n3];
        if self.tiles {
            check_tiles(1, k)?;
            check_tiles(2, v)?;
        }
        if dst.type_ != Type::F32 || dst.ne != ne || !dst.is_contiguous(4) {
            return Err(OperandError::Dst);
        }
        Ok(())
    }

    /// Returns how many heads of Q share one of K and V.
    #[must_use]
    pub fn n_heads_per_kv(&self) -> usize {
        self.q.ne[2] / self.k.ne[2]
    }
}

/// Checks that an operand is a run of whole blocks of tiles: of all heads, each of whole tiles.
fn check_tiles(src: usize, layout: &Layout) -> Result<(), OperandError> {
    let Layout { type_, ne, nb } = *layout;
    if type_ != Type::F16 {
        return Err(OperandError::Type { src, type_ });
    }
    let [d, n_kv, n_heads, n3] = ne;
    let row = d.saturating_mul(n_heads).saturating_mul(2);
    let is_whole = d.is_multiple_of(TILE) && n_kv.is_multiple_of(TILE) && n3 == 1;
    if is_whole && nb[1] == row && (nb[2] == 2 * d || n_heads == 1) {
        Ok(())
    } else {
        Err(OperandError::Shape { src })
    }
}

/// Returns an operand of one of the types whose rows are contiguous.
fn rows<'a>(spec: &'a Spec, src: usize, types: &[Type]) -> Result<&'a Layout, OperandError> {
    let layout = spec.src(src)?;
    let type_ = layout.type_;
    if !types.contains(&type_) {
        return Err(OperandError::Type { src, type_ });
    }
    let (nb, expected) = (layout.nb[0], type_size(type_));
    if nb != expected && layout.ne[0] > 1 {
        return Err(OperandError::RowStride { src, nb, expected });
    }
    Ok(layout)
}

/// Returns the bytes of an element of a float.
pub(super) fn type_size(type_: Type) -> usize {
    if type_ == Type::F32 { 4 } else { 2 }
}

impl<'a> FlashAttn<'a> {
    /// Takes the operands.
    ///
    /// # Errors
    ///
    /// When they are not those of attention, or do not hold what their shapes say.
    pub fn new(task: Task<'a>) -> Result<Self, OperandError> {
        let shape = FlashAttnShape::of(&task.spec)?;
        let data = |src: usize, layout: &Layout| {
            let data = match task.srcs[src] {
                Source::Data(data) => data,
                Source::InPlace => return Err(OperandError::InPlace { src }),
                Source::Missing => return Err(OperandError::Missing { src }),
            };
            let span = layout.span_bytes(type_size(layout.type_) * layout.ne[0]);
            if span.is_none_or(|span| span > data.len()) {
                let available = data.len();
                return Err(OperandError::TooShort { src, available });
            }
            Ok(data)
        };
        let mask = shape.mask.map(|mask| data(3, &mask)).transpose()?;
        let (q, k, v) = (data(0, &shape.q)?, data(1, &shape.k)?, data(2, &shape.v)?);
        let dst = try_cast_slice_mut(task.dst).map_err(|_unaligned| OperandError::Dst)?;
        let (len, expected) = (dst.len(), task.spec.dst.n_elements().unwrap_or(usize::MAX));
        if len != expected {
            return Err(OperandError::OutputLength { len, expected });
        }
        Ok(Self {
            shape,
            q,
            k,
            v,
            mask,
            dst,
        })
    }
}
