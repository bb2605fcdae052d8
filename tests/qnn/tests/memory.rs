//! Shared memory, registered with the library that fails on demand.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::Arc;

use llada_npu_ffi::qnn::{
    Context, ContextOptions, Data, DataMut, Error, Graph, GraphOptions, MemHandle, SharedAllocator,
    SharedBuffer, TensorType,
};
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::linear::{self, Weights};

fn graph(context: &Context, w: &Weights) -> Graph {
    let spec = linear::fully_connected("g", 3, w, GraphOptions::default()).unwrap();
    context.build(&spec).unwrap()
}

fn buffer(size_bytes: usize) -> Arc<SharedBuffer> {
    Arc::new(SharedAllocator::memfd().allocate(size_bytes).unwrap())
}

/// Types and names of a graph's input and output.
fn types(graph: &Graph) -> ([TensorType<'static>; 2], [String; 2]) {
    let (input, output) = (
        &graph.interface().inputs()[0],
        &graph.interface().outputs()[0],
    );
    let types = [input.ty().clone(), output.ty().clone()];
    (
        types,
        [input, output].map(|tensor| tensor.name().to_owned()),
    )
}

#[test]
fn executions_use_registered_buffers_without_a_copy() {
    let fault = Fault::new("memory");
    let context = fault.context();
    let w = Weights::halves(16, 64, 1);
    let mut graph = graph(&context, &w);
    let (types, names) = types(&graph);
    let [x_buffer, y_buffer] = [0, 1].map(|i: usize| buffer(types[i].size_bytes()));
    let register = |i: usize, buffer| MemHandle::register(&context, buffer, &types[i]).unwrap();
    let (x_memory, y_memory) = (register(0, &x_buffer), register(1, &y_buffer));
    for seed in 1..4 {
        let x = linear::inputs(3, 64, seed);
        let wanted = linear::reference(&x, &w.values, 64);
        x_buffer.with(|bytes| bytes.copy_from_slice(&linear::halves(&x)));
        let (input, output) = (Data::Shared(&x_memory), DataMut::Shared(&y_memory));
        graph.execute(&[input], &mut [output]).unwrap();
        let y = y_buffer.with(|bytes| linear::from_halves(bytes));
        assert!(linear::nmse(&y, &wanted) < 1e-6);
    }
    assert_eq!((fault.shared(), fault.calls("memRegister")), (6, 2));
    // One buffer cannot be input and output; a registration is good for its context alone, and for its size.
    let twice = register(1, &x_buffer);
    let (input, output) = (Data::Shared(&x_memory), DataMut::Shared(&twice));
    let error = graph.execute(&[input], &mut [output]).unwrap_err();
    assert!(matches!(error, Error::Answer { .. }), "{error}");
    let other = fault.context();
    let foreign = MemHandle::register(&other, &x_buffer, &types[0]).unwrap();
    let (input, output) = (Data::Shared(&foreign), DataMut::Shared(&y_memory));
    let error = graph.execute(&[input], &mut [output]).unwrap_err();
    assert!(error.to_string().contains("another context"), "{error}");
    let (input, output) = (Data::Shared(&y_memory), DataMut::Shared(&x_memory));
    let error = graph.execute(&[input], &mut [output]).unwrap_err();
    assert!(error.to_string().contains(&names[0]), "{error}");
    let short = MemHandle::register(&context, &buffer(8), &types[0]).unwrap_err();
    assert!(matches!(short, Error::Size { .. }), "{short}");
    assert_eq!(fault.shared(), 6);
    drop((x_memory, y_memory, twice, foreign, other, graph, context));
    assert_eq!(fault.calls("memDeRegister"), 4);
    assert_eq!([&x_buffer, &y_buffer].map(Arc::strong_count), [1, 1]);
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}

#[test]
fn buffers_are_given_back_while_other_graphs_run() {
    let fault = Fault::new("memory");
    let context = fault.context();
    let w = Weights::halves(16, 64, 1);
    let mut graph = graph(&context, &w);
    let (types, _) = types(&graph);
    let shared = buffer(types[0].size_bytes());
    let x = linear::inputs(3, 64, 1);
    fault.set("memory; slow graphExecute 500");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while fault.calls("graphExecute") == 0 {
                std::thread::yield_now();
            }
            let start = std::time::Instant::now();
            drop(MemHandle::register(&context, &shared, &types[0]).unwrap());
            assert!(start.elapsed() < std::time::Duration::from_millis(400));
        });
        linear::run(&mut graph, &x).unwrap();
    });
    assert_eq!(fault.calls("memDeRegister"), 1);
    // Not while a context is made that never comes, and the one who gives it back does not wait for ever.
    let shared = MemHandle::register(&context, &shared, &types[0]).unwrap();
    fault.set("memory; hang contextCreate");
    let (device, n) = (context.device().clone(), fault.calls("contextCreate"));
    std::thread::spawn(move || Context::new(&device, ContextOptions::default()).map(drop));
    while fault.calls("contextCreate") == n {
        std::thread::yield_now();
    }
    let (buffer, n_owners) = (
        Arc::clone(shared.buffer()),
        Arc::strong_count(shared.buffer()),
    );
    drop(shared);
    assert_eq!((fault.calls("memDeRegister"), fault.violations()), (1, 0));
    // What the library may still have is not freed.
    assert_eq!(Arc::strong_count(&buffer), n_owners);
}
