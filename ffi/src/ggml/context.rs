//! Contexts, tensors and the builders of graphs.
//!
//! Builders are ggml's, under ggml's names, without the prefix. As in ggml, operands of impossible shape abort the
//! process: callers check shapes where data enters (model files, row plans), not here.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use super::api::Api;
use super::sys;
use super::types::Type;

/// A builder of one operand.
pub(crate) type Builder1 =
    unsafe extern "C" fn(*mut sys::ggml_context, *mut sys::ggml_tensor) -> *mut sys::ggml_tensor;

/// A builder of two operands.
pub(crate) type Builder2 = unsafe extern "C" fn(
    *mut sys::ggml_context,
    *mut sys::ggml_tensor,
    *mut sys::ggml_tensor,
) -> *mut sys::ggml_tensor;

/// Owning handle of a `ggml_context` that holds tensor descriptions but no tensor data.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) api: &'static Api,
    pub(crate) raw: NonNull<sys::ggml_context>,
    /// Contexts of foreign tensors that ours refer to.
    keeps: Mutex<Vec<Arc<Inner>>>,
}

// SAFETY: a ggml context has no thread affinity (ggml.h keeps no thread-local state in it); it is mutated only by the
// builders of `Context`, which are called by one thread at a time: see the impl of `Sync`.
unsafe impl Send for Inner {}
// SAFETY: shared references allow building, which is not synchronised by ggml; every builder holds the lock of `keeps`
// while it calls ggml.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ggml_init and is freed once, here.
        unsafe { (self.api.ggml_free)(self.raw.as_ptr()) };
    }
}

/// Non-owning description of a tensor; keeps its context alive. Its data belongs to a
/// [`TensorSet`](super::memory::TensorSet) or a [`GraphRunner`](super::memory::GraphRunner).
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) raw: NonNull<sys::ggml_tensor>,
    pub(crate) ctx: Arc<Inner>,
}

// SAFETY: a tensor description has no thread affinity; it is written by builders only (under the context's lock) and by
// the owners of memory, which need `&mut self`.
unsafe impl Send for Tensor {}
// SAFETY: as for Send; shared use only reads fields.
unsafe impl Sync for Tensor {}

/// Non-owning description of a graph; keeps its context alive.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(crate) raw: NonNull<sys::ggml_cgraph>,
    pub(crate) ctx: Arc<Inner>,
}

// SAFETY: as for `Tensor`.
unsafe impl Send for Graph {}
// SAFETY: as for `Tensor`.
unsafe impl Sync for Graph {}

impl Tensor {
    fn field<T>(&self, read: impl FnOnce(&sys::ggml_tensor) -> T) -> T {
        // SAFETY: `raw` points into the context that `ctx` keeps alive, and ggml never moves a tensor.
        read(unsafe { self.raw.as_ref() })
    }

    /// Returns the shape, ggml order (fastest first).
    #[must_use]
    pub fn ne(&self) -> [i64; 4] {
        self.field(|t| t.ne)
    }

    /// Returns the strides in bytes.
    #[must_use]
    pub fn nb(&self) -> [usize; 4] {
        self.field(|t| t.nb)
    }

    /// Returns the element type.
    #[must_use]
    pub fn type_(&self) -> Type {
        Type(self.field(|t| t.type_))
    }

    /// Returns the size of the data in bytes.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        // SAFETY: `raw` is a live tensor, see `field`.
        unsafe { (self.ctx.api.ggml_nbytes)(self.raw.as_ptr()) }
    }

    /// Tells whether the tensor lies in a buffer.
    pub(crate) fn has_data(&self) -> bool {
        self.field(|t| !t.data.is_null() && !t.buffer.is_null())
    }

    pub(crate) fn is_view(&self) -> bool {
        self.field(|t| !t.view_src.is_null())
    }

    pub(crate) fn op_code(&self) -> u32 {
        self.field(|t| t.op)
    }

    pub(crate) fn flags(&self) -> i32 {
        self.field(|t| t.flags)
    }

    pub(crate) fn op_param(&self, i: usize) -> i32 {
        self.field(|t| t.op_params[i])
    }
}

impl Context {
    /// Makes a context with room for `n_tensors` tensors and, when `graph_size` is not 0, one graph of that many nodes.
    ///
    /// # Panics
    /// When ggml cannot allocate the descriptions (a few hundred bytes per tensor).
    #[must_use]
    pub fn new(api: &'static Api, n_tensors: usize, graph_size: usize) -> Self {
        // SAFETY: a pure function.
        let tensor = unsafe { (api.ggml_tensor_overhead)() };
        let graph = if graph_size == 0 {
            0
        } else {
            // SAFETY: a pure function of its arguments.
            unsafe { (api.ggml_graph_overhead_custom)(graph_size, false) }
        };
        let params = sys::ggml_init_params {
            mem_size: (n_tensors + 1) * tensor + graph,
            mem_buffer: ptr::null_mut(),
            no_alloc: true,
        };
        // SAFETY: the parameters are valid; ggml allocates the memory itself.
        let raw = NonNull::new(unsafe { (api.ggml_init)(params) })
            .expect("ggml allocates a context of tensor descriptions");
        Self {
            inner: Arc::new(Inner {
                api,
                raw,
                keeps: Mutex::new(Vec::new()),
            }),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the table of functions.
    #[must_use]
    pub fn api(&self) -> &'static Api {
        self.inner.api
    }

    /// Runs a builder under the context's lock, keeping the contexts of its operands alive.
    fn build(
        &self,
        operands: &[&Tensor],
        builder: impl FnOnce(&Api, *mut sys::ggml_context) -> *mut sys::ggml_tensor,
    ) -> Tensor {
        let mut keeps = self
            .inner
            .keeps
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for operand in operands {
            if !Arc::ptr_eq(&operand.ctx, &self.inner)
                && !keeps.iter().any(|k| Arc::ptr_eq(k, &operand.ctx))
            {
                keeps.push(Arc::clone(&operand.ctx));
            }
        }
        let raw = builder(self.inner.api, self.inner.raw.as_ptr());
        Tensor {
            raw: NonNull::new(raw).expect("ggml builders return a tensor or abort"),
            ctx: Arc::clone(&self.inner),
        }
    }

    /// Makes a tensor of 1 to 4 dimensions without data.
    ///
    /// # Panics
    /// When `ne` has no or more than four dimensions.
    #[must_use]
    pub fn new_tensor(&self, type_: Type, ne: &[i64]) -> Tensor {
        let n_dims = i32::try_from(ne.len())
            .ok()
            .filter(|n| (1..=4).contains(n))
            .expect("1 to 4 dimensions");
        // SAFETY: the context is alive and locked; `ne` has `n_dims` entries.
        self.build(&[], |api, ctx| unsafe {
            (api.ggml_new_tensor)(ctx, type_.0, n_dims, ne.as_ptr())
        })
    }

    /// Names a tensor, for logs and debuggers; longer names are cut by ggml.
    pub fn set_name(&self, tensor: &Tensor, name: &str) {
        if let Ok(name) = CString::new(name) {
            // SAFETY: the tensor is alive; ggml copies the NUL-terminated name.
            unsafe { (self.inner.api.ggml_set_name)(tensor.raw.as_ptr(), name.as_ptr()) };
        }
    }

    /// Marks a tensor as input of a graph: it gets memory of its own.
    pub fn set_input(&self, tensor: &Tensor) {
        // SAFETY: the tensor is alive; ggml sets a flag.
        unsafe { (self.inner.api.ggml_set_input)(tensor.raw.as_ptr()) };
    }

    /// Marks a tensor as output of a graph: its memory is not reused.
    pub fn set_output(&self, tensor: &Tensor) {
        // SAFETY: the tensor is alive; ggml sets a flag.
        unsafe { (self.inner.api.ggml_set_output)(tensor.raw.as_ptr()) };
    }

    /// `a + b`, with `b` broadcast.
    #[must_use]
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive (here and in every builder below).
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_add)(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// `a * b` by element, with `b` broadcast.
    #[must_use]
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_mul)(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// Matrix product: `a` `[k, n]`, `b` `[k, m]` → `[n, m]` f32.
    #[must_use]
    pub fn mul_mat(&self, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_mul_mat)(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// Matrix products with chosen matrices: `as_` `[k, n, n_matrices]`, `b` `[k, n_used, m]`, `ids` i32
    /// `[n_used, m]` → `[n, n_used, m]` f32.
    #[must_use]
    pub fn mul_mat_id(&self, as_: &Tensor, b: &Tensor, ids: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[as_, b, ids], |api, ctx| unsafe {
            (api.ggml_mul_mat_id)(ctx, as_.raw.as_ptr(), b.raw.as_ptr(), ids.raw.as_ptr())
        })
    }

    /// Root-mean-square normalisation of each row.
    #[must_use]
    pub fn rms_norm(&self, a: &Tensor, eps: f32) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_rms_norm)(ctx, a.raw.as_ptr(), eps)
        })
    }

    /// Normalisation of each row to mean 0 and variance 1.
    #[must_use]
    pub fn norm(&self, a: &Tensor, eps: f32) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_norm)(ctx, a.raw.as_ptr(), eps)
        })
    }

    /// `a * s + b`.
    #[must_use]
    pub fn scale(&self, a: &Tensor, s: f32, b: f32) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_scale_bias)(ctx, a.raw.as_ptr(), s, b)
        })
    }

    /// Calls a builder of one operand.
    pub(crate) fn build_1(&self, builder: Builder1, a: &Tensor) -> Tensor {
        // SAFETY: context and operand are alive; the builder is one of ggml's.
        self.build(&[a], |_api, ctx| unsafe { builder(ctx, a.raw.as_ptr()) })
    }

    /// Calls a builder of two operands.
    pub(crate) fn build_2(&self, builder: Builder2, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive; the builder is one of ggml's.
        self.build(&[a, b], |_api, ctx| unsafe {
            builder(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// `swish(min(a, limit), alpha) * (clamp(b, ±limit) + 1)`.
    #[must_use]
    pub(crate) fn swiglu_oai(&self, a: &Tensor, b: &Tensor, alpha: f32, limit: f32) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_swiglu_oai)(ctx, a.raw.as_ptr(), b.raw.as_ptr(), alpha, limit)
        })
    }

    /// `silu(a) * b`.
    #[must_use]
    pub fn swiglu_split(&self, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_swiglu_split)(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// Rows of `a` at the i32 indices `b`, as f32.
    #[must_use]
    pub fn get_rows(&self, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_get_rows)(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// Writes the rows of `b` into `a` at the i64 indices `c`; returns a view of `a`.
    #[must_use]
    pub fn set_rows(&self, a: &Tensor, b: &Tensor, c: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b, c], |api, ctx| unsafe {
            (api.ggml_set_rows)(ctx, a.raw.as_ptr(), b.raw.as_ptr(), c.raw.as_ptr())
        })
    }

    /// A contiguous copy.
    #[must_use]
    pub fn cont(&self, a: &Tensor) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_cont)(ctx, a.raw.as_ptr())
        })
    }

    /// Copies `a` into `b`, converting the type; returns a view of `b`.
    #[must_use]
    pub fn cpy(&self, a: &Tensor, b: &Tensor) -> Tensor {
        // SAFETY: context and operands are alive.
        self.build(&[a, b], |api, ctx| unsafe {
            (api.ggml_cpy)(ctx, a.raw.as_ptr(), b.raw.as_ptr())
        })
    }

    /// The same data under a 2-D shape.
    #[must_use]
    pub fn reshape_2d(&self, a: &Tensor, ne0: i64, ne1: i64) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_reshape_2d)(ctx, a.raw.as_ptr(), ne0, ne1)
        })
    }

    /// The same data under a 3-D shape.
    #[must_use]
    pub fn reshape_3d(&self, a: &Tensor, ne0: i64, ne1: i64, ne2: i64) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_reshape_3d)(ctx, a.raw.as_ptr(), ne0, ne1, ne2)
        })
    }

    /// A 2-D window; stride and offset in bytes.
    #[must_use]
    pub fn view_2d(&self, a: &Tensor, ne0: i64, ne1: i64, nb1: usize, offset: usize) -> Tensor {
        // SAFETY: context and operand are alive; ggml asserts that the window lies inside `a`.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_view_2d)(ctx, a.raw.as_ptr(), ne0, ne1, nb1, offset)
        })
    }

    /// A 3-D window; strides and offset in bytes.
    #[must_use]
    pub fn view_3d(
        &self,
        a: &Tensor,
        ne: [i64; 3],
        nb1: usize,
        nb2: usize,
        offset: usize,
    ) -> Tensor {
        let [ne0, ne1, ne2] = ne;
        // SAFETY: context and operand are alive; ggml asserts that the window lies inside `a`.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_view_3d)(ctx, a.raw.as_ptr(), ne0, ne1, ne2, nb1, nb2, offset)
        })
    }

    /// Axis `i` of `a` becomes axis `axes[i]`.
    #[must_use]
    pub fn permute(&self, a: &Tensor, axes: [i32; 4]) -> Tensor {
        let [a0, a1, a2, a3] = axes;
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_permute)(ctx, a.raw.as_ptr(), a0, a1, a2, a3)
        })
    }

    /// Swaps the first two axes.
    #[must_use]
    pub fn transpose(&self, a: &Tensor) -> Tensor {
        // SAFETY: context and operand are alive.
        self.build(&[a], |api, ctx| unsafe {
            (api.ggml_transpose)(ctx, a.raw.as_ptr())
        })
    }

    /// `softmax(a * scale + mask)` over rows.
    #[must_use]
    pub fn soft_max_ext(
        &self,
        a: &Tensor,
        mask: Option<&Tensor>,
        scale: f32,
        max_bias: f32,
    ) -> Tensor {
        let operands: Vec<&Tensor> = [Some(a), mask].into_iter().flatten().collect();
        let mask = mask.map_or(ptr::null_mut(), |m| m.raw.as_ptr());
        // SAFETY: context and operands are alive; ggml takes NULL for "no mask".
        self.build(&operands, |api, ctx| unsafe {
            (api.ggml_soft_max_ext)(ctx, a.raw.as_ptr(), mask, scale, max_bias)
        })
    }

    /// Rotary embedding of `a` `[head_dim, n_head, n_rows]` at the i32 positions `pos`, without scaling.
    /// `mode` is `GGML_ROPE_TYPE_*` (0 interleaved pairs, 2 NEOX).
    #[must_use]
    pub fn rope(&self, a: &Tensor, pos: &Tensor, n_dims: i32, mode: i32, freq_base: f32) -> Tensor {
        self.build(&[a, pos], |api, ctx| {
            let no_factors = ptr::null_mut();
            // SAFETY: context and operands are alive; NULL means "no frequency factors" (ggml.h).
            unsafe {
                (api.ggml_rope_ext)(
                    ctx,
                    a.raw.as_ptr(),
                    pos.raw.as_ptr(),
                    no_factors,
                    n_dims,
                    mode,
                    0,
                    freq_base,
                    1.0,
                    0.0,
                    1.0,
                    0.0,
                    0.0,
                )
            }
        })
    }

    /// Attention: `q` `[d, n_rows, n_head]`, `k` and `v` `[d, n_kv, n_head_kv]`, `mask` f16 `[n_kv, n_rows]` →
    /// `[d, n_head, n_rows]` f32.
    #[must_use]
    pub fn flash_attn_ext(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: &Tensor,
        scale: f32,
    ) -> Tensor {
        self.build(&[q, k, v, mask], |api, ctx| {
            // SAFETY: context and operands are alive.
            unsafe {
                (api.ggml_flash_attn_ext)(
                    ctx,
                    q.raw.as_ptr(),
                    k.raw.as_ptr(),
                    v.raw.as_ptr(),
                    mask.raw.as_ptr(),
                    scale,
                    0.0,
                    0.0,
                )
            }
        })
    }

    /// Makes an empty graph for up to `size` nodes; the context must have been made with that `graph_size`.
    ///
    /// # Panics
    /// Never: ggml returns a graph or aborts.
    #[must_use]
    pub fn new_graph(&self, size: usize) -> Graph {
        let _lock = self
            .inner
            .keeps
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is alive and locked.
        let raw =
            unsafe { (self.inner.api.ggml_new_graph_custom)(self.inner.raw.as_ptr(), size, false) };
        Graph {
            raw: NonNull::new(raw).expect("ggml returns a graph or aborts"),
            ctx: Arc::clone(&self.inner),
        }
    }
}

impl Graph {
    /// Appends `tensor` and everything it needs that is not in the graph yet.
    ///
    /// # Panics
    /// When the tensor is of another context: its parents might not outlive the graph.
    pub fn build_forward_expand(&self, tensor: &Tensor) {
        assert!(
            Arc::ptr_eq(&self.ctx, &tensor.ctx),
            "nodes are built in the context of their graph"
        );
        let _lock = self
            .ctx
            .keeps
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: graph and tensor are alive and of one context, which is locked.
        unsafe { (self.ctx.api.ggml_build_forward_expand)(self.raw.as_ptr(), tensor.raw.as_ptr()) };
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        // SAFETY: the graph is alive.
        let n = unsafe { (self.ctx.api.ggml_graph_n_nodes)(self.raw.as_ptr()) };
        usize::try_from(n).unwrap_or(0)
    }
}
