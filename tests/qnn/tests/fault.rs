//! `llada_npu_ffi::qnn` over the library that fails on demand.

use std::sync::Arc;

use llada_npu_ffi::qnn::{
    Backend, Context, ContextBinary, ContextOptions, Data, DataMut, DataType, Device,
    DeviceOptions, Error, ErrorCode, Graph, GraphOptions, Library, MemHandle, PowerConfig,
    Provider, SharedAllocator, Soc, TensorType,
};
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::linear::{self, Weights};

fn graph(context: &Context, w: &Weights) -> Result<Graph, Error> {
    context.build(&linear::fully_connected(
        "g",
        3,
        w,
        GraphOptions::default(),
    )?)
}

/// Everything from opening to reading a binary back; the NMSE of both graphs.
fn whole(fault: &Fault) -> Result<[f64; 2], Error> {
    let device = fault.device()?;
    let context = Context::new(&device, ContextOptions::default())?;
    let w = Weights::blocks(16, 64, 4, 32, false, 7);
    let x = linear::inputs(3, 64, 7);
    let wanted = linear::reference(&x, &w.values, 64);
    let mut built = graph(&context, &w)?;
    let first = linear::nmse(&linear::run(&mut built, &x)?, &wanted);
    let bytes = context.binary()?.to_bytes(b"key");
    drop((context, built));
    let read = Context::from_binary(&device, &ContextBinary::from_bytes(&bytes, b"key")?)?;
    let mut read = read.graph("g")?;
    Ok([first, linear::nmse(&linear::run(&mut read, &x)?, &wanted)])
}

#[test]
fn without_a_fault_everything_works_and_is_freed() {
    let fault = Fault::new("");
    for error in whole(&fault).unwrap() {
        assert!(error < 1e-6, "NMSE {error:e}");
    }
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
    assert_eq!(fault.calls("graphFinalize"), 1);
    assert_eq!(fault.calls("graphExecute"), 2);
}

#[test]
fn what_the_library_says_of_itself() {
    let fault = Fault::new("build v1.2.3; core 2.36.1; backend 5.47.0");
    let library = Library::open(fault.path(), Provider::Htp).unwrap();
    assert_eq!(library.build_id(), "v1.2.3");
    assert_eq!(library.core_version().to_string(), "2.36.1");
    assert_eq!(library.backend_version().to_string(), "5.47.0");
    let platform = Backend::new(&library).unwrap().platform().unwrap();
    assert_eq!(
        (platform.soc, platform.arch, platform.vtcm_mb),
        (Soc::SM8650, 75, 8)
    );
    // Another library's words have a form that is not known here.
    let other = Fault::new("provider CPU_QTI_AISW");
    let library = Library::open(other.path(), Provider::Cpu).unwrap();
    assert_eq!(Backend::new(&library).unwrap().platform(), None);
    assert_eq!(other.calls("deviceGetPlatformInfo"), 0);
}

#[test]
fn libraries_that_are_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("libtext.so");
    std::fs::write(&text, "no library").unwrap();
    for path in [&text, &dir.path().join("libmissing.so")] {
        assert!(matches!(
            Library::open(path, Provider::Htp),
            Err(Error::Open { .. })
        ));
    }
    let other = Library::open("libc.so.6".as_ref(), Provider::Htp);
    assert!(matches!(other, Err(Error::Symbol { .. })), "{other:?}");
    for (faults, part) in [
        ("core 2.31.9", "core version 2.31.9"),
        ("core 3.0.0", "core version 3.0.0"),
        ("backend 4.99.0", "backend version 4.99.0"),
        ("backend 6.0.0", "backend version 6.0.0"),
        (
            "provider CPU_QTI_AISW",
            "no provider `HTP_QTI_AISW`, it has [CPU_QTI_AISW]",
        ),
        ("no-providers", "no provider `HTP_QTI_AISW`, it has []"),
    ] {
        let fault = Fault::new(faults);
        let text = Library::open(fault.path(), Provider::Htp)
            .unwrap_err()
            .to_string();
        assert!(text.contains(part), "{faults}: {text}");
    }
}

/// Calls of [`whole`], all of which the library has to have.
const CALLS: [&str; 17] = [
    "logCreate",
    "backendCreate",
    "deviceCreate",
    "contextCreate",
    "backendValidateOpConfig",
    "graphCreate",
    "tensorCreateGraphTensor",
    "graphAddNode",
    "graphFinalize",
    "graphExecute",
    "contextGetBinarySize",
    "contextGetBinary",
    "contextCreateFromBinary",
    "graphRetrieve",
    "contextFree",
    "backendFree",
    "logFree",
];

#[test]
fn a_library_without_a_function_is_refused() {
    for call in CALLS.into_iter().filter(|call| *call != "deviceCreate") {
        let fault = Fault::new(&format!("missing {call}"));
        let library = Library::open(fault.path(), Provider::Htp);
        assert!(
            matches!(library, Err(Error::Missing { call: found }) if found == call),
            "{call}"
        );
    }
    let fault = Fault::new("missing deviceCreate");
    assert!(matches!(
        fault.device(),
        Err(Error::Missing {
            call: "deviceCreate"
        })
    ));
    for call in [
        "backendGetBuildId",
        "errorGetMessage",
        "deviceGetPlatformInfo",
    ] {
        let fault = Fault::new(&format!("missing {call}"));
        assert!(whole(&fault).is_ok(), "{call}");
    }
}

#[test]
fn every_call_may_fail() {
    for call in CALLS.into_iter().filter(|call| !call.ends_with("Free")) {
        let fault = Fault::new(&format!("fail {call} 4711"));
        let error = whole(&fault).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode(4711)), "{call}");
        let text = error.to_string();
        let part = format!("{call}: error 4711 (backend): fault 4711");
        assert!(text.contains(&part), "{text}");
        assert_eq!((fault.alive(), fault.violations()), (0, 0), "{call}");
    }
    for call in ["logFree", "backendFree", "deviceFree", "contextFree"] {
        let fault = Fault::new(&format!("fail {call} 4711"));
        assert!(
            whole(&fault).is_ok(),
            "{call}: an error in a destructor is logged"
        );
    }
}

#[test]
fn the_library_s_last_message_is_part_of_the_error() {
    let fault = Fault::new("fail graphFinalize 1002");
    let error = graph(&fault.context(), &Weights::halves(8, 8, 1)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("fault 1002: fault: graphFinalize answers 1002"),
        "{text}"
    );
}

#[test]
fn success_without_a_handle_is_an_error() {
    for call in [
        "logCreate",
        "backendCreate",
        "deviceCreate",
        "contextCreate",
        "graphCreate",
        "contextCreateFromBinary",
        "graphRetrieve",
    ] {
        let fault = Fault::new(&format!("null {call}"));
        let error = whole(&fault).unwrap_err();
        assert!(
            matches!(error, Error::Answer { call: found, .. } if found == call),
            "{call}: {error}"
        );
    }
}

#[test]
fn buffers_of_the_wrong_size_never_reach_the_library() {
    let fault = Fault::new("");
    let mut graph = graph(&fault.context(), &Weights::halves(4, 8, 1)).unwrap();
    let (x, mut y) = (vec![0; 2 * 3 * 8], vec![0; 2 * 3 * 4]);
    for (n_x, n_y) in [
        (0, y.len()),
        (x.len() - 1, y.len()),
        (x.len(), 0),
        (x.len(), y.len() - 2),
    ] {
        let error = graph.execute(
            &[Data::Bytes(&x[..n_x])],
            &mut [DataMut::Bytes(&mut y[..n_y])],
        );
        assert!(matches!(error, Err(Error::Size { .. })), "{n_x} {n_y}");
    }
    let none = graph.execute(&[], &mut [DataMut::Bytes(&mut y)]);
    assert!(matches!(none, Err(Error::Count { what: "inputs", .. })));
    let none = graph.execute(&[Data::Bytes(&x)], &mut []);
    assert!(matches!(
        none,
        Err(Error::Count {
            what: "outputs",
            ..
        })
    ));
    assert_eq!(fault.calls("graphExecute"), 0);
    graph
        .execute(&[Data::Bytes(&x)], &mut [DataMut::Bytes(&mut y)])
        .unwrap();
    assert_eq!(fault.violations(), 0);
}

#[test]
fn a_refused_node_leaves_the_context_as_it_was() {
    let fault = Fault::new("");
    let context = fault.context();
    let w = Weights::blocks(4, 40, 4, 20, false, 1);
    let refused = graph(&context, &w).unwrap_err();
    assert!(
        matches!(&refused, Error::Node { op, .. } if op == "FullyConnected"),
        "{refused}"
    );
    assert_eq!(refused.code(), Some(ErrorCode::OP_PACKAGE_VALIDATION));
    assert_eq!(fault.calls("graphCreate"), 0);
    assert!(graph(&context, &Weights::blocks(4, 64, 4, 32, false, 1)).is_ok());
    let again = graph(&context, &Weights::halves(4, 64, 1)).unwrap_err();
    assert_eq!(again.code(), Some(ErrorCode::GRAPH_INVALID_NAME));
    assert!(context.binary().is_ok());
}

#[test]
fn a_graph_that_failed_half_way_spoils_its_context() {
    for call in ["tensorCreateGraphTensor", "graphAddNode", "graphFinalize"] {
        let fault = Fault::new(&format!("fail {call} 1002"));
        let context = fault.context();
        let w = Weights::halves(4, 8, 1);
        assert_eq!(
            graph(&context, &w).unwrap_err().code(),
            Some(ErrorCode::MEM_ALLOC)
        );
        fault.set("");
        assert!(matches!(graph(&context, &w), Err(Error::Broken)));
        assert!(matches!(context.binary(), Err(Error::Broken)));
        assert!(context.graph_names().is_empty());
    }
}

#[test]
fn owners_may_go_in_any_order() {
    let fault = Fault::new("");
    let library = Library::open(fault.path(), Provider::Htp).unwrap();
    let backend = Backend::new(&library).unwrap();
    let device = Device::new(&backend, DeviceOptions::default()).unwrap();
    let context = Context::new(&device, ContextOptions::default()).unwrap();
    let w = Weights::halves(4, 8, 1);
    let mut graph = graph(&context, &w).unwrap();
    drop((library, backend, device, context));
    assert_eq!(
        fault.alive(),
        4,
        "the graph keeps the logger, the backend, the device and the context"
    );
    let x = linear::inputs(3, 8, 1);
    assert!(
        linear::nmse(
            &linear::run(&mut graph, &x).unwrap(),
            &linear::reference(&x, &w.values, 8)
        ) < 1e-6
    );
    drop(graph);
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}

#[test]
fn a_binary_is_good_for_its_key_and_library() {
    let fault = Fault::new("core 2.40.0");
    let device = fault.device().unwrap();
    let context = Context::new(&device, ContextOptions::default()).unwrap();
    drop(graph(&context, &Weights::halves(4, 8, 1)).unwrap());
    let bytes = context.binary().unwrap().to_bytes(b"soc 57, v1");
    assert_eq!(
        ContextBinary::from_bytes(&bytes, b"soc 57, v2"),
        Err(Error::Binary("made for something else"))
    );
    let binary = ContextBinary::from_bytes(&bytes, b"soc 57, v1").unwrap();
    let read = Context::from_binary(&device, &binary).unwrap();
    assert_eq!(read.graph_names(), ["g"]);
    assert!(matches!(read.graph("other"), Err(Error::Binary(_))));
    fault.set("core 2.39.0");
    let error = Context::from_binary(&device, &binary).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::CONTEXT_BINARY));
}

/// A phone's library looks for the chip itself and is not told.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_chip_is_where_every_release_reads_it() {
    let fault = Fault::new("");
    let library = Library::open(fault.path(), Provider::Htp).unwrap();
    let backend = Backend::new(&library).unwrap();
    for soc in [Soc::SM8550, Soc::SM8650, Soc::SM8750, Soc::SM8850] {
        assert!(
            Device::new(&backend, DeviceOptions { soc: Some(soc) }).is_ok(),
            "{soc}"
        );
    }
    let unknown = Device::new(
        &backend,
        DeviceOptions {
            soc: Some(Soc(9999)),
        },
    )
    .unwrap_err();
    assert_eq!(unknown.code(), Some(ErrorCode::DEVICE_INVALID_CONFIG));
}

#[test]
fn what_is_not_supported_says_so() {
    let fault = Fault::new("");
    let context = fault.context();
    let buffer = Arc::new(SharedAllocator::memfd().allocate(32).unwrap());
    let ty = TensorType::new(DataType::Float16, &[4, 4]);
    let shared = MemHandle::register(&context, &buffer, &ty).unwrap_err();
    assert_eq!(shared.code(), Some(ErrorCode::NOT_SUPPORTED));
    let vote = PowerConfig::new(context.device()).unwrap_err();
    assert_eq!(vote.code(), Some(ErrorCode::NOT_SUPPORTED));
}

#[test]
fn one_graph_had_twice_runs_once_at_a_time() {
    let fault = Fault::new("");
    let context = fault.context();
    let w = Weights::halves(16, 64, 1);
    let built = graph(&context, &w).unwrap();
    let x = linear::inputs(3, 64, 1);
    let wanted = linear::reference(&x, &w.values, 64);
    std::thread::scope(|scope| {
        for mut graph in [
            built,
            context.graph("g").unwrap(),
            context.graph("g").unwrap(),
        ] {
            let (x, wanted) = (&x, &wanted);
            scope.spawn(move || {
                for _ in 0..8 {
                    assert!(linear::nmse(&linear::run(&mut graph, x).unwrap(), wanted) < 1e-6);
                }
            });
        }
    });
    assert_eq!((fault.calls("graphExecute"), fault.violations()), (24, 0));
}

/// The thread that is lost in the library is left behind when the process ends.
#[test]
fn a_call_that_never_returns_does_not_keep_others_from_ending() {
    let fault = Fault::new("hang contextCreate");
    let device = fault.device().unwrap();
    let other_device = Device::new(device.backend(), DeviceOptions::default()).unwrap();
    let lost = device.clone();
    std::thread::spawn(move || Context::new(&lost, ContextOptions::default()).map(drop));
    while fault.calls("contextCreate") == 0 {
        std::thread::yield_now();
    }
    drop((device, other_device));
    assert_eq!(fault.calls("deviceFree"), 0, "it gave up");
    assert!(Library::open(fault.path(), Provider::Htp).is_ok());
    let other = Fault::new("");
    assert!(whole(&other).is_ok(), "another library is not concerned");
}

#[test]
fn graphs_run_and_are_built_on_many_threads() {
    let fault = Fault::new("");
    let context = fault.context();
    std::thread::scope(|scope| {
        for i in 0..4_u64 {
            let context = context.clone();
            scope.spawn(move || {
                for j in 0..4 {
                    let w = Weights::blocks(16, 64, 4, 32, true, 10 * i + j);
                    let error = linear::error_of(&context, &format!("g{i}.{j}"), 3, &w).unwrap();
                    assert!(error < 1e-6, "NMSE {error:e}");
                }
            });
        }
    });
    assert_eq!(context.graph_names().len(), 16);
    drop(context);
    assert_eq!((fault.alive(), fault.violations()), (0, 0));
}
