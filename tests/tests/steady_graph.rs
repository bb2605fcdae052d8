//! A graph that an instance of the device has computed is computed again without asking for memory, by any thread.

#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a failing test panics; an allocator is what is tested"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use ggml_llada_npu::abi;
use ggml_llada_npu::abi::resident::Budget;
use ggml_llada_npu::knobs::Policy;
use ggml_llada_npu::memory::runtime::Limits;
use llada_npu_ffi::ggml::{Api, Context, GraphRunner, Tensor, TensorSet, Type};
use llada_npu_tests::llama;

/// The system's allocator, and how often it was asked.
struct Counting(AtomicUsize);

// SAFETY: hands every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(AtomicUsize::new(0));

/// Rounds in a row without an allocation that count as steady, and rounds after which none may be left.
const QUIET_ROUNDS: usize = 20;
const MAX_ROUNDS: usize = 1000;

const N_EMBD: i64 = 256;
const N_HEAD: i64 = 4;
const N_FF: i64 = 512;
const N_KV: i64 = 96;
const N_VOCAB: i64 = 160;

/// Weights of a layer, its K/V store, and what a text brings.
struct Tensors {
    embd: Tensor,
    norm: Tensor,
    /// Q, K, V and output.
    attn: [Tensor; 4],
    up: [Tensor; 2],
    down: Tensor,
    head: Tensor,
    kv: [Tensor; 2],
    tokens: Tensor,
    positions: Tensor,
    slots: Tensor,
    mask: Tensor,
}

impl Tensors {
    fn new(ctx: &Context, type_: Type, n_rows: i64) -> Self {
        let matrix = |k, n| ctx.new_tensor(type_, &[k, n]);
        let (n, ff) = (N_EMBD, N_FF);
        Self {
            embd: matrix(n, N_VOCAB),
            norm: ctx.new_tensor(Type::F32, &[n]),
            attn: [0; 4].map(|_| matrix(n, n)),
            up: [0; 2].map(|_| matrix(n, ff)),
            down: matrix(ff, n),
            head: matrix(n, N_VOCAB),
            kv: [0; 2].map(|_| ctx.new_tensor(Type::F16, &[n, N_KV])),
            tokens: ctx.new_tensor(Type::I32, &[n_rows]),
            positions: ctx.new_tensor(Type::I32, &[n_rows]),
            slots: ctx.new_tensor(Type::I64, &[n_rows]),
            mask: ctx.new_tensor(Type::F16, &[N_KV, n_rows]),
        }
    }

    /// A layer as the models have it, from tokens to logits.
    fn layer(&self, ctx: &Context, n_rows: i64) -> Tensor {
        let d = N_EMBD / N_HEAD;
        let normed = |x: &Tensor| ctx.mul(&ctx.rms_norm(x, 1e-5), &self.norm);
        let heads = |x: &Tensor| ctx.reshape_3d(x, d, N_HEAD, n_rows);
        let rope = |x: &Tensor| {
            let d = i32::try_from(d).unwrap();
            ctx.rope(&heads(x), &self.positions, d, 0, 10_000.0)
        };
        let x = ctx.get_rows(&self.embd, &self.tokens);
        let h = normed(&x);
        let [q, k, v] = [0, 1, 2].map(|i| ctx.mul_mat(&self.attn[i], &h));
        let flat = |x: &Tensor| ctx.reshape_2d(x, N_EMBD, n_rows);
        let store = [flat(&rope(&k)), v];
        let [k, v] = [0, 1].map(|i| {
            let kv = ctx.set_rows(&self.kv[i], &store[i], &self.slots);
            ctx.permute(&ctx.reshape_3d(&kv, d, N_HEAD, N_KV), [0, 2, 1, 3])
        });
        let q = ctx.permute(&rope(&q), [0, 2, 1, 3]);
        let attn = ctx.flash_attn_ext(&q, &k, &v, &self.mask, 0.125);
        let x = ctx.add(&x, &ctx.mul_mat(&self.attn[3], &flat(&attn)));
        let h = normed(&x);
        let [gate, up] = [0, 1].map(|i| ctx.mul_mat(&self.up[i], &h));
        let ffn = ctx.mul_mat(&self.down, &ctx.swiglu_split(&gate, &up));
        ctx.mul_mat(&self.head, &normed(&ctx.add(&x, &ffn)))
    }
}

fn check(type_: Type, n_rows: i64) {
    let device = abi::device().unwrap();
    let buft = device.buffer_type().unwrap();
    let api = Api::get().unwrap();
    let statics = Context::new(api, 24, 0);
    let tensors = Tensors::new(&statics, type_, n_rows);
    // Token, position and slot of every row are 0, and so is all else: what is computed does not matter.
    let mut set = TensorSet::alloc(statics, &buft).unwrap();
    set.clear(0);
    let ctx = Context::new(api, 64, 64);
    let logits = tensors.layer(&ctx, n_rows);
    ctx.set_output(&logits);
    let graph = ctx.new_graph(64);
    graph.build_forward_expand(&logits);
    let mut runner = GraphRunner::new(&buft).unwrap();
    runner.set_graph(graph).unwrap();
    let mut backend = device.init("").unwrap();
    backend.set_n_threads(2);
    let (mut n_quiet, mut n_asked) = (0, 0);
    for _ in 0..MAX_ROUNDS {
        let before = ALLOCATOR.0.load(Ordering::SeqCst);
        runner.run(&mut backend, &[], &mut set).unwrap();
        n_asked = ALLOCATOR.0.load(Ordering::SeqCst) - before;
        n_quiet = if n_asked == 0 { n_quiet + 1 } else { 0 };
        if n_quiet == QUIET_ROUNDS {
            return;
        }
    }
    panic!("{type_:?}, {n_rows} rows: {n_asked} allocations in the last of {MAX_ROUNDS} graphs");
}

// One test: others would be counted as well.
#[test]
fn graphs_ask_for_no_memory_once_they_have_run() {
    llama::init();
    for type_ in [Type::F16, Type::Q8_0, Type::Q4_0] {
        for n_rows in [1, 5, 40, 300] {
            check(type_, n_rows);
        }
    }
    // Within a budget that everything fits.
    for policy in [Policy::PlannedPipeline, Policy::Planned, Policy::Lru] {
        let limits = Limits::default();
        let budget = Budget {
            limits,
            policy,
            costs: None,
        };
        abi::set_budget(Some(budget)).unwrap();
        check(Type::Q8_0, 40);
    }
    abi::set_budget(None).unwrap();
}
