//! The shims around a backend that misbehaves: what the host sees of it. API 3, in this process.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use llada_npu_ffi::ggml::plugin::host::Host;
use llada_npu_ffi::ggml::plugin::view::{GraphView, Node};
use llada_npu_ffi::ggml::plugin::{
    AbortCallback, BackendImpl, BufferImpl, BufferTypeImpl, DeviceImpl, DeviceMemory, Installed,
    ProcAddress, RegImpl,
};
use llada_npu_ffi::ggml::{Api, Context, GraphRunner, Status, Tensor, TensorSet, Type};
use llada_npu_ffi::{Region, StableBytes};
use llama_cpp_sys_2 as llama;

/// Counts what reaches the implementation.
#[derive(Debug, Default)]
struct Calls {
    graph_compute: AtomicU32,
    dropped: AtomicU32,
}

#[derive(Debug)]
struct Bad(Arc<Calls>);
#[derive(Debug)]
struct BadBuffer(Region);
#[derive(Debug)]
struct BadBackend(Arc<Calls>);

impl RegImpl for Bad {
    type Device = Self;

    fn name(&self) -> &'static CStr {
        c"bad"
    }

    fn device(&self) -> &Self {
        self
    }

    fn proc_address(&self, _name: &CStr) -> Option<ProcAddress> {
        panic!("no names")
    }
}

impl DeviceImpl for Bad {
    type BufferType = Self;
    type Backend = BadBackend;

    fn name(&self) -> &'static CStr {
        c"bad"
    }

    fn description(&self) -> &CStr {
        c"panics"
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory {
            free_bytes: 1,
            total_bytes: 2,
        }
    }

    fn buffer_type(&self) -> &Self {
        self
    }

    fn init_backend(&self, _params: Option<&CStr>) -> Option<BadBackend> {
        Some(BadBackend(Arc::clone(&self.0)))
    }

    fn supports_op(&self, _op: Node<'_>) -> bool {
        true
    }
}

impl BufferTypeImpl for Bad {
    type Buffer = BadBuffer;

    fn name(&self) -> &'static CStr {
        c"bad"
    }

    fn alloc_buffer(&self, size_bytes: usize) -> Option<BadBuffer> {
        Region::anonymous(size_bytes).ok().map(BadBuffer)
    }

    fn alignment_bytes(&self) -> usize {
        64
    }

    fn max_size_bytes(&self) -> usize {
        usize::MAX
    }
}

impl BufferImpl for BadBuffer {
    fn region(&self) -> &Region {
        &self.0
    }

    fn reading<R>(&self, _address: usize, _size_bytes: usize, copy: impl FnOnce() -> R) -> R {
        copy()
    }

    fn writing<R>(&self, _address: usize, _size_bytes: usize, copy: impl FnOnce() -> R) -> R {
        copy()
    }
}

impl Drop for BadBackend {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
        panic!("even here");
    }
}

impl BackendImpl for BadBackend {
    type Error = Status;

    fn name(&self) -> &'static CStr {
        c"bad"
    }

    fn guid(&self) -> &'static [u8; 16] {
        &[7; 16]
    }

    fn set_n_threads(&mut self, _n_threads: u32) {}

    fn set_abort_callback(&mut self, _callback: Option<AbortCallback>) {}

    fn graph_compute(&mut self, graph: &mut GraphView<'_>) -> Result<(), Status> {
        self.0.graph_compute.fetch_add(1, Ordering::Relaxed);
        let _node = graph.node(graph.n_nodes());
        Ok(())
    }
}

fn installed() -> (Installed<Bad>, Arc<Calls>) {
    // The host's own libraries are loaded with the program.
    // SAFETY: takes nothing; refers to the library so that it is linked.
    unsafe { llama::ggml_backend_load_all() };
    let calls = Arc::new(Calls::default());
    let host = Host::probe(true).unwrap();
    assert!(host.counts_uses());
    (Installed::new(&host, Bad(Arc::clone(&calls))), calls)
}

#[test]
fn a_panic_fails_the_graph_and_the_instance_but_not_the_host() {
    let (reg, calls) = installed();
    let buft = reg.buffer_type();
    let statics = Context::new(Api::get().unwrap(), 1, 0);
    let a = statics.new_tensor(Type::F32, &[4]);
    let mut set = TensorSet::alloc(statics, &buft).unwrap();
    let ctx = Context::new(Api::get().unwrap(), 4, 4);
    let graph = ctx.new_graph(4);
    graph.build_forward_expand(&ctx.add(&a, &a));
    let mut runner = GraphRunner::new(&buft).unwrap();
    runner.set_graph(graph).unwrap();

    let mut backend = reg.device().init("").unwrap();
    for _ in 0..3 {
        let result = runner.run(&mut backend, &[], &mut set);
        assert_eq!(result, Err(Status::FAILED));
    }
    // The first call panicked, the others were refused before they got there.
    assert_eq!(calls.graph_compute.load(Ordering::Relaxed), 1);
    drop(backend);
    assert_eq!(calls.dropped.load(Ordering::Relaxed), 1);

    // Another instance is another chance.
    let mut backend = reg.device().init("").unwrap();
    let result = runner.run(&mut backend, &[], &mut set);
    assert_eq!(result, Err(Status::FAILED));
    assert_eq!(calls.graph_compute.load(Ordering::Relaxed), 2);
}

/// Bytes on the heap.
#[derive(Debug)]
struct Heap(Vec<u8>);

// SAFETY: the vector is never touched after it is made, so its bytes stay where they are.
unsafe impl StableBytes for Heap {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_read_only_buffer_refuses_writes_and_lives_on() {
    let (reg, _calls) = installed();
    let shared = Arc::new(Heap((0..64).collect()));
    let weak = Arc::downgrade(&shared);
    let buffer = reg.adopt(BadBuffer(Region::shared(shared)));
    let ctx = Context::new(Api::get().unwrap(), 1, 0);
    let tensor: Tensor = ctx.new_tensor(Type::F32, &[4]);
    // Any offset will do: mapped files align less than buffers.
    let mut set = TensorSet::place(ctx, buffer, &[(tensor.clone(), 3)]).unwrap();
    let mut bytes = [0; 4];
    set.read(&tensor, 1, &mut bytes).unwrap();
    assert_eq!(bytes, [4, 5, 6, 7]);
    set.write(&tensor, 0, &[9; 16]).unwrap();
    set.clear(0);
    assert_eq!(
        weak.upgrade().unwrap().0[3..19],
        (3..19).collect::<Vec<u8>>()
    );
    drop(set);
    assert!(weak.upgrade().is_none(), "the buffer kept its bytes");
}
