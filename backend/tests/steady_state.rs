//! A device that has computed an operation once computes it again without asking for memory.

#![expect(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a failing test panics; an allocator and buffers are what is tested"
)]

use std::alloc::{GlobalAlloc, Layout as Bytes, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ggml_llada_npu::device::host::Host;
use ggml_llada_npu::device::{Accelerator, Layout, Op, Source, Spec, Task};
use ggml_llada_npu::memory::store::Source as Origin;
use ggml_llada_npu::memory::{Keep, WeightStore};
use llada_npu_ffi::Region;
use llada_npu_ffi::ggml::Type;

/// The system's allocator, and how often it was asked.
struct Counting(AtomicUsize);

// SAFETY: hands every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Bytes) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Bytes) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(AtomicUsize::new(0));

/// Rounds in a row without an allocation that count as steady, and rounds after which none may be left.
const QUIET_ROUNDS: usize = 20;
const MAX_ROUNDS: usize = 1000;

/// Runs a product of `ne0` `Q8_0` or F32 weights with rows `ne1`, planes chosen by `ids` if there are any.
fn check(type_: Type, ne0: [usize; 4], ne1: [usize; 4], ids: Option<(&[i32], usize)>) {
    let (block, blck_size) = if type_ == Type::Q8_0 {
        (34, 32)
    } else {
        (4, 1)
    };
    let row_size = ne0[0] / blck_size * block;
    let size = row_size * ne0[1] * ne0[2];
    let store = WeightStore::new(Keep::Memory);
    let region = Arc::new(Region::anonymous(size).unwrap());
    store.add_buffer(Arc::clone(&region), Origin::Written);
    let x = vec![0u8; 4 * ne1.iter().product::<usize>()];
    let id_bytes: Vec<u8> = ids.map_or(Vec::new(), |(ids, _)| {
        ids.iter().flat_map(|id| id.to_ne_bytes()).collect()
    });
    let (op, dst_ne, id_layout) = match ids {
        None => (Op::MulMat, [ne0[1], ne1[1], ne1[2], 1], None),
        Some((ids, n_used)) => {
            let n_tokens = ids.len() / n_used;
            let layout = Layout::contiguous(Type::I32, 4, [n_used, n_tokens, 1, 1]);
            (Op::MulMatId, [ne0[1], n_used, n_tokens, 1], Some(layout))
        }
    };
    let mut srcs = [None; _];
    let nb = [
        block,
        row_size,
        row_size * ne0[1],
        row_size * ne0[1] * ne0[2],
    ];
    #[rustfmt::skip]
    let src0 = Layout { type_, ne: ne0, nb };
    srcs[..3].copy_from_slice(&[
        Some(src0),
        Some(Layout::contiguous(Type::F32, 4, ne1)),
        id_layout,
    ]);
    let dst = Layout::contiguous(Type::F32, 4, dst_ne);
    let spec = Spec { op, dst, srcs };
    let mut out = vec![0f32; dst_ne.iter().product()];
    let mut host = Host::with_kernels(3, &[]).unwrap();
    // A thread of the pool asks for its memory with the first part of the work that it happens to get: rounds settle when each
    // has had one. Memory asked for by every operation would never let them.
    let (mut n_quiet, mut n_asked) = (0, 0);
    for _ in 0..MAX_ROUNDS {
        let before = ALLOCATOR.0.load(Ordering::SeqCst);
        let weights = store.plain();
        // SAFETY: one borrow at a time; the store reads the bytes of this one alone.
        let plain = unsafe { region.bytes_mut(region.address(), size) }.unwrap();
        let mut sources = [Source::Missing; _];
        sources[0] = Source::Data(plain);
        sources[1] = Source::Data(&x);
        if ids.is_some() {
            sources[2] = Source::Data(&id_bytes);
        }
        let dst: &mut [f32] = &mut out;
        host.start_graph();
        host.run(Task {
            spec,
            dst: bytemuck::cast_slice_mut(dst),
            srcs: sources,
            weights: Some(&weights),
        })
        .unwrap();
        n_asked = ALLOCATOR.0.load(Ordering::SeqCst) - before;
        n_quiet = if n_asked == 0 { n_quiet + 1 } else { 0 };
        if n_quiet == QUIET_ROUNDS {
            return;
        }
    }
    panic!("{type_:?} {ne0:?} {ne1:?}: {n_asked} allocations in the last of {MAX_ROUNDS} rounds");
}

// One test: others would be counted as well.
#[test]
fn products_ask_for_no_memory_once_they_have_run() {
    for type_ in [Type::Q8_0, Type::F32] {
        for m in [1, 5, 40, 300] {
            check(type_, [256, 100, 1, 1], [256, m, 1, 1], None);
        }
        check(type_, [64, 40, 2, 1], [64, 7, 4, 1], None);
        check(
            type_,
            [64, 40, 4, 1],
            [64, 2, 3, 1],
            Some((&[0, 3, 3, 1, 1, 0], 2)),
        );
    }
}
