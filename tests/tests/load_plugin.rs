//! The plug-in inside a host of backend API 3 (the ggml of `llama-cpp-sys-2`), in this process.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use llada_npu_ffi::ggml::backend::Device;
use llada_npu_ffi::ggml::{Api, Context, GraphRunner, Status, Tensor, TensorSet, Type};
use llada_npu_tests::host::plugin;
use llada_npu_tests::llama::nmse;
use llama_cpp_sys_2 as llama;

/// Loads the plug-in as every host does and returns its device.
fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let path = CString::new(plugin().as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is NUL-terminated; the plug-in is ours.
        let reg = unsafe { llama::ggml_backend_load(path.as_ptr()) };
        assert!(!reg.is_null(), "the host refused the plug-in");
        let mut devices = Device::all(Api::get().unwrap());
        devices.retain(|device| device.name() == "llada-npu");
        assert_eq!(devices.len(), 1);
        devices[0]
    })
}

fn cpu() -> Device {
    Device::cpu(Api::get().unwrap()).unwrap()
}

/// Numbers in -1..1 that are the same on every run.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..n)
        .map(|_| (next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Bytes that are a tensor of the type: floats in -1..1, or blocks with a scale of 1/64 and any quants.
fn random_bytes(type_: Type, n_elements: usize, seed: u64) -> Vec<u8> {
    const SCALE: [u8; 2] = 0x2400_u16.to_le_bytes(); // 2^-6 in f16
    let values = numbers(n_elements, seed);
    let block = |payload: usize| -> Vec<u8> {
        let quants = numbers(n_elements / 32 * payload, seed + 1);
        quants
            .chunks(payload)
            .flat_map(|chunk| {
                let payload = chunk.iter().map(|x| x.to_bits().to_le_bytes()[1]);
                SCALE.into_iter().chain(payload).collect::<Vec<u8>>()
            })
            .collect()
    };
    match type_ {
        Type::F32 => bytes_of(&values),
        // Sixteen bits of sign, exponents 2^-3 to 2^0, and any fraction.
        Type::F16 => values
            .iter()
            .flat_map(|x| {
                let bits = x.to_bits();
                let half = (bits >> 16 & 0x8000) | 0x3000 | (bits >> 8 & 0x0fff);
                u16::try_from(half).unwrap().to_le_bytes()
            })
            .collect(),
        Type::BF16 => values
            .iter()
            .flat_map(|x| u16::try_from(x.to_bits() >> 16).unwrap().to_le_bytes())
            .collect(),
        Type::Q8_0 => block(32),
        Type::Q4_0 => block(16),
        _ => panic!("no random {type_:?}"),
    }
}

/// A tensor with data.
struct Input {
    type_: Type,
    ne: Vec<i64>,
    bytes: Vec<u8>,
}

fn input(type_: Type, ne: &[i64], seed: u64) -> Input {
    let n = usize::try_from(ne.iter().product::<i64>()).unwrap();
    Input {
        type_,
        ne: ne.to_vec(),
        bytes: random_bytes(type_, n, seed),
    }
}

fn indices(type_: Type, values: &[i64]) -> Input {
    let bytes = values.iter().flat_map(|&v| match type_ {
        Type::I64 => v.to_le_bytes().to_vec(),
        _ => i32::try_from(v).unwrap().to_le_bytes().to_vec(),
    });
    Input {
        type_,
        ne: vec![i64::try_from(values.len()).unwrap()],
        bytes: bytes.collect(),
    }
}

/// Computes what `build` makes of the inputs, as f32.
fn compute(
    device: &Device,
    inputs: &[Input],
    build: impl Fn(&Context, &[Tensor]) -> Tensor,
) -> Vec<f32> {
    try_compute(device, inputs, build, |_| ()).unwrap()
}

fn try_compute(
    device: &Device,
    inputs: &[Input],
    build: impl Fn(&Context, &[Tensor]) -> Tensor,
    prepare: impl FnOnce(&mut llada_npu_ffi::ggml::Backend),
) -> Result<Vec<f32>, Status> {
    let buft = device.buffer_type().unwrap();
    let statics = Context::new(Api::get().unwrap(), inputs.len(), 0);
    let tensors: Vec<Tensor> = inputs
        .iter()
        .map(|input| statics.new_tensor(input.type_, &input.ne))
        .collect();
    let mut set = TensorSet::alloc(statics, &buft).unwrap();
    for (tensor, input) in tensors.iter().zip(inputs) {
        set.write(tensor, 0, &input.bytes).unwrap();
    }
    let ctx = Context::new(Api::get().unwrap(), 64, 64);
    let result = build(&ctx, &tensors);
    assert_eq!(result.type_(), Type::F32);
    ctx.set_output(&result);
    let graph = ctx.new_graph(64);
    graph.build_forward_expand(&result);
    let mut runner = GraphRunner::new(&buft).unwrap();
    runner.set_graph(graph).unwrap();
    let mut backend = device.init("").unwrap();
    backend.set_n_threads(2);
    prepare(&mut backend);
    runner.run(&mut backend, &[], &mut set)?;
    let mut out = vec![0.0; result.n_bytes() / 4];
    runner.read_slice(&result, &mut out).unwrap();
    Ok(out)
}

fn assert_same_as_cpu(what: &str, inputs: &[Input], build: impl Fn(&Context, &[Tensor]) -> Tensor) {
    let expected = compute(&cpu(), inputs, &build);
    assert!(
        expected.iter().any(|&x| x != 0.0),
        "{what}: nothing to compare"
    );
    let error = nmse(&compute(&device(), inputs, &build), &expected);
    assert!(error < 1e-9, "{what}: error {error:e}");
}

#[test]
fn init_returns_the_same_registry_every_time() {
    type Init = unsafe extern "C" fn() -> *mut c_void;
    device();
    // SAFETY: the plug-in is loaded already; its initialisers ran.
    let library = unsafe { libloading::Library::new(plugin()) }.unwrap();
    // SAFETY: the symbol is ggml's loader entry of this signature.
    let init = unsafe { library.get::<Init>(b"ggml_backend_init\0") }.unwrap();
    // SAFETY: the entry takes nothing.
    let score = unsafe { library.get::<unsafe extern "C" fn() -> i32>(b"ggml_backend_score\0") };
    // SAFETY: as above.
    assert!(unsafe { score.unwrap()() } > 0);
    // SAFETY: as above.
    let first = unsafe { init() };
    // SAFETY: as above.
    let second = unsafe { init() };
    assert!(!first.is_null());
    assert_eq!(first, second);
    let name = CString::new("llada-npu").unwrap();
    // SAFETY: reads the host's registry.
    let registered = unsafe { llama::ggml_backend_reg_by_name(name.as_ptr()) };
    assert_eq!(first, registered.cast());
}

#[test]
fn the_device_describes_itself() {
    let device = device();
    assert!(device.description().contains("threads"));
    assert_eq!(device.buffer_type().unwrap().name(), "llada-npu");
}

#[test]
fn products_are_those_of_the_cpu() {
    for type_ in [Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0] {
        for (n, m) in [(1, 1), (32, 1), (33, 7), (96, 70)] {
            let inputs = [input(type_, &[64, n], 1), input(Type::F32, &[64, m], 2)];
            let what = format!("{type_:?} {n}x{m}");
            assert_same_as_cpu(&what, &inputs, |ctx, t| ctx.mul_mat(&t[0], &t[1]));
        }
    }
}

#[test]
fn broadcast_and_permuted_products_are_those_of_the_cpu() {
    for type_ in [Type::F32, Type::F16] {
        // Grouped queries: keys [d, n_kv, n_head_kv] of a store [d, n_head_kv, n_kv], queries likewise.
        let inputs = [
            input(type_, &[32, 2, 40], 3),
            input(Type::F32, &[32, 8, 5], 4),
        ];
        assert_same_as_cpu("K Q", &inputs, |ctx, t| {
            let k = ctx.permute(&t[0], [0, 2, 1, 3]);
            let q = ctx.permute(&t[1], [0, 2, 1, 3]);
            ctx.mul_mat(&k, &q)
        });
    }
}

#[test]
fn a_layer_is_that_of_the_cpu() {
    let inputs = [
        input(Type::F32, &[64, 9], 5),
        input(Type::F32, &[64], 6),
        input(Type::F16, &[64, 128], 7),
        input(Type::F16, &[64, 128], 8),
        input(Type::Q8_0, &[128, 64], 9),
        indices(Type::I32, &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        indices(Type::I32, &[8, 0, 3]),
    ];
    assert_same_as_cpu("layer", &inputs, |ctx, t| {
        let norm = ctx.mul(&ctx.rms_norm(&t[0], 1e-5), &t[1]);
        let heads = ctx.reshape_3d(&norm, 16, 4, 9);
        let rope = ctx.reshape_2d(&ctx.rope(&heads, &t[5], 16, 0, 10_000.0), 64, 9);
        let gate = ctx.mul_mat(&t[2], &rope);
        let up = ctx.mul_mat(&t[3], &rope);
        let down = ctx.mul_mat(&t[4], &ctx.swiglu_split(&gate, &up));
        let out = ctx.soft_max_ext(&ctx.add(&down, &t[0]), None, 0.5, 0.0);
        ctx.get_rows(&out, &t[6])
    });
}

#[test]
fn rows_are_written_and_attended_to_as_on_the_cpu() {
    let inputs = [
        input(Type::F16, &[32, 64], 10),
        input(Type::F32, &[32, 3], 11),
        indices(Type::I64, &[7, 0, 63]),
        input(Type::F32, &[32, 32, 2], 12),
    ];
    assert_same_as_cpu("set_rows", &inputs, |ctx, t| {
        let store = ctx.set_rows(&t[0], &t[1], &t[2]);
        let k = ctx.reshape_3d(&store, 32, 64, 1);
        ctx.mul_mat(&k, &t[3])
    });
}

#[test]
fn a_set_abort_flag_ends_the_computation() {
    let inputs = [input(Type::F32, &[64, 4], 1), input(Type::F32, &[64, 4], 2)];
    let build = |ctx: &Context, t: &[Tensor]| ctx.mul_mat(&t[0], &ctx.add(&t[0], &t[1]));
    let flag = AtomicBool::new(true);
    let buft = device().buffer_type().unwrap();
    let statics = Context::new(Api::get().unwrap(), 2, 0);
    let tensors: Vec<Tensor> = inputs
        .iter()
        .map(|input| statics.new_tensor(input.type_, &input.ne))
        .collect();
    let mut set = TensorSet::alloc(statics, &buft).unwrap();
    let ctx = Context::new(Api::get().unwrap(), 8, 8);
    let graph = ctx.new_graph(8);
    graph.build_forward_expand(&build(&ctx, &tensors));
    let mut runner = GraphRunner::new(&buft).unwrap();
    runner.set_graph(graph).unwrap();
    let mut backend = device().init("").unwrap();
    let aborted = backend.with_abort_flag(&flag, |backend| runner.run(backend, &[], &mut set));
    assert_eq!(aborted, Err(Status::ABORTED));
    flag.store(false, std::sync::atomic::Ordering::Relaxed);
    let finished = backend.with_abort_flag(&flag, |backend| runner.run(backend, &[], &mut set));
    assert_eq!(finished, Ok(()));
}

#[test]
fn buffers_keep_bytes_exactly() {
    let buft = device().buffer_type().unwrap();
    let ctx = Context::new(Api::get().unwrap(), 2, 0);
    let a = ctx.new_tensor(Type::Q4_0, &[32, 3]);
    let b = ctx.new_tensor(Type::F32, &[5]);
    let mut set = TensorSet::alloc(ctx, &buft).unwrap();
    set.clear(0xa5);
    let mut bytes = vec![0; 54];
    set.read(&a, 0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![0xa5; 54]);
    set.write(&a, 7, &[1, 2, 3]).unwrap();
    set.write(&b, 0, &[9; 20]).unwrap();
    set.read(&a, 5, &mut bytes[..7]).unwrap();
    assert_eq!(bytes[..7], [0xa5, 0xa5, 1, 2, 3, 0xa5, 0xa5]);
    set.clear(0);
    set.read(&b, 0, &mut bytes[..20]).unwrap();
    assert_eq!(bytes[..20], [0; 20]);
}

#[test]
fn address_space_is_reserved_and_not_committed() {
    let buft = device().buffer_type().unwrap();
    let ctx = Context::new(Api::get().unwrap(), 1, 0);
    let tensor = ctx.new_tensor(Type::F32, &[1 << 38]); // 1 TiB
    let mut set = TensorSet::alloc(ctx, &buft).unwrap();
    set.clear(0);
    set.write(&tensor, (1 << 40) - 4, &[1, 2, 3, 4]).unwrap();
    let mut end = [0; 8];
    set.read(&tensor, (1 << 40) - 8, &mut end).unwrap();
    assert_eq!(end, [0, 0, 0, 0, 1, 2, 3, 4]);

    let ctx = Context::new(Api::get().unwrap(), 1, 0);
    let _too_large = ctx.new_tensor(Type::F32, &[1 << 60]);
    assert!(TensorSet::alloc(ctx, &buft).is_err());
}
