//! `llada_npu_ffi::qnn` over Qualcomm's own library, whose x86-64 build emulates the tensor processor.

use std::sync::Arc;

use llada_npu_ffi::qnn::{
    Backend, Context, ContextBinary, ContextOptions, Data, DataMut, Device, DeviceOptions, Error,
    ErrorCode, GraphOptions, GraphSpec, MemHandle, PerformanceMode, PowerConfig, Precision,
    SharedAllocator, Soc,
};
use llada_npu_qnn_tests::case::case;
use llada_npu_qnn_tests::htp::{at_most, context, device, half, library, run_again};
use llada_npu_qnn_tests::linear::{self, Weights};

/// Which of [`Library`]'s facts a release has; printed, so that a log of the matrix shows them.
#[test]
fn versions_and_platform() {
    case("versions_and_platform", || {
        let library = library();
        let (core, backend) = (library.core_version(), library.backend_version());
        println!("core {core}, HTP {backend}, build {}", library.build_id());
        assert!(library.build_id().starts_with('v'));
        assert_eq!((core.major, backend.major), (2, 5));
        let platform = Backend::new(&library).unwrap().platform().unwrap();
        println!("{platform:?}");
        assert!(platform.vtcm_mb > 0 && platform.n_devices > 0);
    });
}

#[test]
fn a_context_binary_comes_back() {
    case("a_context_binary_comes_back", || {
        let device = device(Soc::SM8650);
        let context = Context::new(&device, ContextOptions::default()).unwrap();
        let weights = [
            Weights::blocks(64, 256, 4, 32, true, 17),
            Weights::halves(32, 128, 18),
        ];
        for (i, w) in weights.iter().enumerate() {
            let name = format!("g{i}");
            context
                .build(&linear::fully_connected(&name, 8, w, GraphOptions::default()).unwrap())
                .unwrap();
        }
        let key = device.library().build_id().as_bytes();
        let bytes = context.binary().unwrap().to_bytes(key);
        println!("{} bytes", bytes.len());
        drop(context);
        let binary = ContextBinary::from_bytes(&bytes, key).unwrap();
        // Read while graphs of another context run, as a pipeline does.
        let busy = Context::new(&device, ContextOptions::default()).unwrap();
        let w = Weights::halves(64, 64, 19);
        let mut running = busy
            .build(&linear::fully_connected("run", 64, &w, GraphOptions::default()).unwrap())
            .unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                for seed in 0..20 {
                    assert!(run_again(&mut running, &w, seed) < 1e-6);
                }
            });
            for round in 0..4 {
                let context = Context::from_binary(&device, &binary).unwrap();
                assert_eq!(context.graph_names(), ["g0", "g1"]);
                for (i, w) in weights.iter().enumerate() {
                    let mut graph = context.graph(&format!("g{i}")).unwrap();
                    at_most(
                        &format!("round {round}, graph {i}"),
                        run_again(&mut graph, w, round),
                        1e-6,
                    );
                }
            }
            other.join().unwrap();
        });
    });
}

#[test]
fn every_chip_is_emulated() {
    case("every_chip_is_emulated", || {
        for name in ["SM8450", "SM8550", "SM8650", "SM8750", "SM8850"] {
            let device = device(Soc::by_name(name).unwrap());
            let context = Context::new(&device, ContextOptions::default()).unwrap();
            let w = Weights::blocks(32, 128, 4, 32, false, 20);
            at_most(name, linear::error_of(&context, "g", 4, &w).unwrap(), 1e-6);
        }
        let backend = Backend::new(&library()).unwrap();
        let unknown = Device::new(
            &backend,
            DeviceOptions {
                soc: Some(Soc(9999)),
            },
        )
        .unwrap_err();
        println!("{unknown}");
        assert_eq!(unknown.code(), Some(ErrorCode::DEVICE_INVALID_CONFIG));
    });
}

#[test]
fn options_are_taken() {
    case("options_are_taken", || {
        let device = device(Soc::SM8650);
        let context = Context::new(&device, ContextOptions::default()).unwrap();
        let options = GraphOptions {
            precision: Some(Precision::Float16),
            vtcm_mb: Some(4),
            optimization: Some(3),
            hvx_threads: Some(2),
        };
        let w = Weights::blocks(32, 128, 4, 32, false, 21);
        let mut graph = context
            .build(&linear::fully_connected("g", 4, &w, options).unwrap())
            .unwrap();
        assert!(run_again(&mut graph, &w, 1) < 1e-6);
        let mut vote = PowerConfig::new(&device).unwrap();
        for mode in [
            PerformanceMode::Burst,
            PerformanceMode::High,
            PerformanceMode::Balanced,
            PerformanceMode::PowerSaver,
        ] {
            vote.set(mode).unwrap();
        }
        assert!(run_again(&mut graph, &w, 2) < 1e-6);
    });
}

#[test]
fn errors_have_codes_and_texts() {
    case("errors_have_codes_and_texts", || {
        let context = context();
        let w = Weights::halves(8, 64, 22);
        let spec = linear::fully_connected("g", 4, &w, GraphOptions::default()).unwrap();
        let graph = context.build(&spec).unwrap();
        let again = context.build(&spec).unwrap_err();
        println!("{again}");
        assert_eq!(again.code(), Some(ErrorCode::GRAPH_INVALID_NAME));
        assert!(
            again.to_string().contains("uplicate"),
            "the library's own text"
        );
        let odd = Weights::blocks(8, 40, 4, 20, false, 22);
        let refused = context
            .build(&linear::fully_connected("odd", 4, &odd, GraphOptions::default()).unwrap());
        let refused = refused.unwrap_err();
        println!("{refused}");
        assert!(matches!(refused, Error::Node { .. }));
        assert_eq!(refused.code(), Some(ErrorCode::OP_PACKAGE_VALIDATION));
        let buffer = Arc::new(SharedAllocator::memfd().allocate(32).unwrap());
        let shared = MemHandle::register(&context, &buffer, &half(&[4, 4])).unwrap_err();
        println!("{shared}");
        assert_eq!(shared.code(), Some(ErrorCode::NOT_SUPPORTED));
        drop(graph);
        assert!(context.binary().is_ok());
    });
}

#[test]
fn wrong_sizes_are_refused_before_the_library() {
    case("wrong_sizes_are_refused_before_the_library", || {
        let context = context();
        let w = Weights::halves(8, 64, 23);
        let mut graph = context
            .build(&linear::fully_connected("g", 4, &w, GraphOptions::default()).unwrap())
            .unwrap();
        let (x, mut y) = (vec![0; 2 * 4 * 64], vec![0; 2 * 4 * 8]);
        let short = graph.execute(&[Data::Bytes(&x[..10])], &mut [DataMut::Bytes(&mut y)]);
        assert!(
            matches!(
                short,
                Err(Error::Size {
                    needed: 512,
                    found: 10,
                    ..
                })
            ),
            "{short:?}"
        );
        let short = graph.execute(&[Data::Bytes(&x)], &mut [DataMut::Bytes(&mut y[..2])]);
        assert!(
            matches!(
                short,
                Err(Error::Size {
                    needed: 64,
                    found: 2,
                    ..
                })
            ),
            "{short:?}"
        );
        graph
            .execute(&[Data::Bytes(&x)], &mut [DataMut::Bytes(&mut y)])
            .unwrap();
    });
}

#[test]
fn equal_weights_are_kept_once() {
    case("equal_weights_are_kept_once", || {
        let device = device(Soc::SM8650);
        let w = Weights::blocks(256, 512, 4, 32, false, 32);
        let size = |share_weights| {
            let context = Context::new(&device, ContextOptions { share_weights }).unwrap();
            for m in [1, 8, 32] {
                let mut spec = GraphSpec::new(&format!("m{m}"), GraphOptions::default());
                let x = spec.input(&format!("x{m}"), half(&[m, 512])).unwrap();
                let y = spec.output(&format!("y{m}"), half(&[m, 256])).unwrap();
                let weight = spec.constant("w", w.ty(), &w.bytes).unwrap();
                spec.fully_connected(&format!("fc{m}"), x, weight, y)
                    .unwrap();
                let mut graph = context.build(&spec).unwrap();
                assert!(run_again(&mut graph, &w, 32) < 1e-6);
            }
            context.binary().unwrap().blob().len()
        };
        let (apart, shared) = (size(false), size(true));
        println!("binary of three graphs: {apart} bytes, with shared weights {shared}");
        assert!(shared < apart);
    });
}

#[test]
fn graphs_are_used_from_many_threads() {
    case("graphs_are_used_from_many_threads", || {
        let context = context();
        std::thread::scope(|scope| {
            for i in 0..3_u64 {
                let context = context.clone();
                scope.spawn(move || {
                    let w = Weights::blocks(64, 256, 4, 32, true, 40 + i);
                    let spec =
                        linear::fully_connected(&format!("g{i}"), 8, &w, GraphOptions::default())
                            .unwrap();
                    let mut graph = context.build(&spec).unwrap();
                    for seed in 0..8 {
                        assert!(run_again(&mut graph, &w, seed) < 1e-6);
                    }
                });
            }
        });
        assert_eq!(context.graph_names().len(), 3);
    });
}

/// Messages are formatted with the library's `va_list`; at level trace there are many.
#[test]
fn messages_arrive_formatted() {
    case("messages_arrive_formatted", || {
        use std::sync::Mutex;

        static TEXTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
        struct Keep;
        impl log::Log for Keep {
            fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
                metadata.target() == "qnn"
            }
            fn log(&self, record: &log::Record<'_>) {
                if self.enabled(record.metadata()) {
                    TEXTS.lock().unwrap().push(record.args().to_string());
                }
            }
            fn flush(&self) {}
        }
        log::set_logger(&Keep).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let w = Weights::halves(8, 64, 22);
        linear::error_of(&context(), "a_name_to_look_for", 4, &w).unwrap();
        let texts = TEXTS.lock().unwrap();
        println!("{} messages", texts.len());
        assert!(texts.iter().any(|text| text.contains("a_name_to_look_for")));
        assert!(texts.iter().all(|text| text.starts_with("QNN: ")));
    });
}
