//! Contexts as objects of the memory runtime, over the library that fails on demand.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;

use ggml_llada_npu::device::contexts::{BinaryFile, ContextMapping, Contexts};
use ggml_llada_npu::memory::runtime::{
    Class, Costs, Limits, Object, ObjectId, Planner, Policy, SegmentId, Session, SessionError,
    Workload,
};
use llada_npu_ffi::qnn::{
    Backend, Context, ContextOptions, Device, DeviceOptions, GraphOptions, Library, Provider, Soc,
};
use llada_npu_qnn_tests::Fault;
use llada_npu_qnn_tests::linear::{self, Weights};

const N_CONTEXTS: usize = 6;
const KEY: &[u8] = b"chip and library";

fn device(path: &Path) -> Device {
    let library = Library::open(path, Provider::Htp).unwrap();
    let backend = Backend::new(&library).unwrap();
    let soc = Some(Soc::SM8650);
    Device::new(&backend, DeviceOptions { soc }).unwrap()
}

fn weights(i: usize) -> Weights {
    Weights::blocks(16, 64, 4, 32, false, 7 + i as u64)
}

/// Contexts of one product each, in files; a session over them, and what it has mapped.
struct Model {
    session: Session,
    contexts: Contexts,
    limit: usize,
    dir: tempfile::TempDir,
}

impl Model {
    fn new(fault: &Fault, policy: Policy) -> Self {
        let device = device(fault.path());
        let dir = tempfile::tempdir().unwrap();
        let (mut workload, mut files, mut largest) = (Workload::new(), Vec::new(), 0);
        for i in 0..N_CONTEXTS {
            let context = Context::new(&device, ContextOptions::default()).unwrap();
            let w = weights(i);
            let spec = linear::fully_connected("g", 3, &w, GraphOptions::default()).unwrap();
            drop(context.build(&spec).unwrap());
            let bytes = context.binary().unwrap().to_bytes(KEY);
            let path = dir.path().join(format!("{i}.bin"));
            std::fs::write(&path, &bytes).unwrap();
            files.push(Some(BinaryFile {
                path,
                key: KEY.to_vec(),
            }));
            largest = largest.max(bytes.len() as u64);
            let object = Object::new(format!("layers {i}"), bytes.len() as u64, Class::LongLived);
            let context = workload.add_object(object);
            workload.add_segment(format!("segment {i}"), [context]);
        }
        // Two fit, and a half of the third.
        let limit = 2;
        let budget_bytes = largest.next_multiple_of(4096) * limit as u64;
        let limits = Limits {
            budget_bytes,
            max_map_bytes: budget_bytes,
            ..Limits::default()
        };
        let costs = Costs {
            map_seconds_per_gb: 0.0,
            ..Costs::default()
        };
        let planner = Planner::new(workload, limits, policy, costs).unwrap();
        let mapping = ContextMapping::new(device, files);
        let contexts = mapping.contexts();
        let session = Session::new(planner, Box::new(mapping)).unwrap();
        Self {
            session,
            contexts,
            limit,
            dir,
        }
    }

    /// Runs a step: every product is right, computed by the context of its segment.
    fn step(&mut self) -> Result<(), SessionError> {
        let all: Vec<_> = (0..N_CONTEXTS).map(SegmentId).collect();
        self.session.begin(&all)?;
        for i in 0..N_CONTEXTS {
            self.session.enter()?;
            let x = linear::inputs(3, 64, 7);
            let wanted = linear::reference(&x, &weights(i).values, 64);
            let context = self.contexts.get(ObjectId(i)).expect("mapped");
            let mut graph = context.graph("g").unwrap();
            let error = linear::nmse(&linear::run(&mut graph, &x).unwrap(), &wanted);
            assert!(error < 1e-6, "{i}: NMSE {error:e}");
            drop((graph, context));
            self.session.leave()?;
            assert!(self.n_mapped() <= self.limit);
        }
        self.session.end();
        Ok(())
    }

    fn n_mapped(&self) -> usize {
        let all = (0..N_CONTEXTS).map(ObjectId);
        all.filter(|object| self.contexts.get(*object).is_some())
            .count()
    }
}

#[test]
fn contexts_come_and_go_within_the_budget_and_compute_what_they_should() {
    for policy in Policy::ALL {
        let fault = Fault::new("");
        let mut model = Model::new(&fault, policy);
        for _ in 0..3 {
            model.step().unwrap();
        }
        model.session.finish();
        assert_eq!(model.n_mapped(), 0, "{policy}");
        let report = model.session.report().transfers;
        assert!(report.n_maps >= 6 && report.n_maps == report.n_unmaps);
        drop(model);
        assert_eq!((fault.alive(), fault.violations()), (0, 0), "{policy}");
    }
}

#[test]
fn a_context_that_cannot_be_made_fails_one_step_by_name_and_nothing_is_lost() {
    for policy in Policy::ALL {
        let fault = Fault::new("");
        let mut model = Model::new(&fault, policy);
        model.step().unwrap();
        model.session.finish();
        fault.set("fail contextCreateFromBinary 1002");
        let error = model.step().unwrap_err().to_string();
        assert!(
            error.contains("`segment 0`") && error.contains("no address space for `layers 0`"),
            "{error}"
        );
        assert!(error.contains("bytes"), "{error}");
        model.session.end();
        assert_eq!(model.n_mapped(), 0, "{policy}");
        fault.set("");
        model.step().unwrap();
        // A file that is damaged is refused before the library sees it.
        model.session.finish();
        let path = model.dir.path().join("3.bin");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = model.step().unwrap_err().to_string();
        assert!(
            error.contains("`layers 3`") && error.contains("3.bin"),
            "{error}"
        );
        drop(model);
        assert_eq!((fault.alive(), fault.violations()), (0, 0), "{policy}");
    }
}
