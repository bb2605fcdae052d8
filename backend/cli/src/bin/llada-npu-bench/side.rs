//! A backend under test.

use std::time::Instant;

use ggml_llada_npu::abi;
use llada_npu_ffi::ggml::backend::Device;
use llada_npu_ffi::ggml::{Api, Backend, BufferType, Context, GraphRunner, Tensor, TensorSet};

use crate::Error;
use crate::cell::Shape;

/// A backend instance and where its tensors lie.
#[derive(Debug)]
pub(crate) struct Side {
    api: &'static Api,
    device: Device,
    backend: Backend,
    plain: BufferType,
    /// Types to try for weights before the plain one.
    repacked: Vec<BufferType>,
}

/// Static tensors of one shape: the copies that runs go through.
#[derive(Debug)]
pub(crate) struct Copies {
    set: TensorSet,
    /// Operands of the operation besides the activations.
    operands: Vec<Vec<Tensor>>,
    /// Name of the buffer type they lie in.
    pub(crate) buft: String,
}

/// Graphs over all copies, for one operation.
#[derive(Debug)]
pub(crate) struct Graphs {
    activations: TensorSet,
    /// Each with its number of operations.
    runners: Vec<(GraphRunner, usize)>,
    /// The first result of the first graph.
    result: Tensor,
    next: usize,
}

impl Side {
    /// The llada-npu device.
    pub(crate) fn ours(api: &'static Api, threads: usize) -> Result<Self, Error> {
        Self::new(api, abi::device()?, Vec::new(), threads)
    }

    /// ggml's CPU backend, with its repacking buffer types.
    pub(crate) fn ggml(api: &'static Api, threads: usize) -> Result<Self, Error> {
        let device = Device::cpu(api).ok_or(Error::NoCpu)?;
        Self::new(api, device, device.extra_buffer_types(), threads)
    }

    fn new(
        api: &'static Api,
        device: Device,
        repacked: Vec<BufferType>,
        threads: usize,
    ) -> Result<Self, Error> {
        let mut backend = device.init("").ok_or(Error::NoBackend)?;
        backend.set_n_threads(u32::try_from(threads).unwrap_or(u32::MAX));
        Ok(Self {
            api,
            device,
            backend,
            plain: device.buffer_type().ok_or(Error::NoBackend)?,
            repacked,
        })
    }

    /// Makes `n` copies of the operands, repacked where the device computes the operation with them so.
    pub(crate) fn copies(&self, shape: &Shape, n: usize, data: &[u8]) -> Result<Copies, Error> {
        let types = self.repacked.iter().chain([&self.plain]);
        for (i, buft) in types.enumerate() {
            let ctx = Context::new(self.api, n * shape.n_operands(), 0);
            let operands: Vec<Vec<Tensor>> = (0..n).map(|_| shape.operands(&ctx)).collect();
            let Ok(set) = TensorSet::alloc(ctx, buft) else {
                continue;
            };
            let ops = Context::new(self.api, shape.n_activations() + 1, 0);
            let activations = shape.activations(&ops);
            let op = shape.op(&ops, &operands[0], &activations);
            if i < self.repacked.len() && !self.device.supports_op(&op) {
                continue;
            }
            let buft = buft.name();
            let mut copies = Copies {
                set,
                operands,
                buft,
            };
            for tensor in copies.operands.iter().flatten() {
                copies.set.write(tensor, 0, &data[..tensor.n_bytes()])?;
            }
            return Ok(copies);
        }
        Err(Error::NoBackend)
    }

    /// Makes graphs of `per_graph` operations each over all copies.
    pub(crate) fn graphs(
        &self,
        shape: &Shape,
        copies: &Copies,
        per_graph: usize,
    ) -> Result<Graphs, Error> {
        let ctx = Context::new(self.api, shape.n_activations(), 0);
        let tensors = shape.activations(&ctx);
        let mut activations = TensorSet::alloc(ctx, &self.plain)?;
        for tensor in &tensors {
            activations.write(tensor, 0, &shape.activation_data(tensor))?;
        }
        let (mut runners, mut result) = (Vec::new(), None);
        for operands in copies.operands.chunks(per_graph) {
            // Room for operations, their operands, and the activations.
            let size = operands.len() * (1 + shape.n_operands()) + shape.n_activations();
            let ctx = Context::new(self.api, operands.len(), size);
            let graph = ctx.new_graph(size);
            for operands in operands {
                let op = shape.op(&ctx, operands, &tensors);
                ctx.set_output(&op);
                graph.build_forward_expand(&op);
                result.get_or_insert(op);
            }
            let mut runner = GraphRunner::new(&self.plain)?;
            runner.set_graph(graph)?;
            runners.push((runner, operands.len()));
        }
        Ok(Graphs {
            activations,
            runners,
            result: result.ok_or(Error::NoBackend)?,
            next: 0,
        })
    }

    /// Computes the next graph and returns the seconds it took and its operations.
    pub(crate) fn run(
        &mut self,
        graphs: &mut Graphs,
        copies: &Copies,
    ) -> Result<(f64, usize), Error> {
        let next = (graphs.next + 1) % graphs.runners.len();
        let (runner, n_ops) = &mut graphs.runners[std::mem::replace(&mut graphs.next, next)];
        let start = Instant::now();
        runner.run(&mut self.backend, &[&copies.set], &mut graphs.activations)?;
        Ok((start.elapsed().as_secs_f64(), *n_ops))
    }
}

impl Graphs {
    /// Returns the number of graphs.
    pub(crate) fn len(&self) -> usize {
        self.runners.len()
    }

    /// Returns the first result of the first graph.
    pub(crate) fn result(&self) -> Result<Vec<f32>, Error> {
        let mut floats = vec![0.0; self.result.n_bytes() / size_of::<f32>()];
        self.runners[0].0.read_slice(&self.result, &mut floats)?;
        Ok(floats)
    }
}
