//! The contexts that are there, with all that executing their graphs needs. Two threads work with them: one builds and executes,
//! the other makes contexts from binaries and frees them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use llada_npu_ffi::qnn::{
    Context, ContextBinary, Data, DataMut, Device, Error, Graph, GraphInterface, TensorInfo,
};

use super::super::part::Element;
use super::super::worker::Beat;
use super::shared::{Place, Plain, Pool, Side};
use super::{Exchange, GraphElements, Made};
use crate::sync::lock;

/// All contexts of a device, by number. Only the library's threads hold it: who drops it last frees them.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    contexts: Mutex<HashMap<u64, Arc<Loaded>>>,
    next: AtomicU64,
    pool: Pool,
}

/// A context. What is dropped first comes first.
#[derive(Debug)]
pub(super) struct Loaded {
    graphs: Mutex<Vec<LoadedGraph>>,
    context: Context,
}

#[derive(Debug)]
struct LoadedGraph {
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    interface: GraphInterface,
    /// `None` until it is executed: finding it waits for those that run.
    graph: Option<Graph>,
}

impl Shelf {
    /// Returns where inputs and outputs lie.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes a new context.
    pub(super) fn add(&self, context: Context, beat: &Beat) -> Result<Made, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let graphs = self.put(number, context, beat)?;
        Ok(Made {
            context: number,
            graphs,
            finalize: std::time::Duration::ZERO,
        })
    }

    /// Takes a context under a number.
    fn put(&self, number: u64, context: Context, beat: &Beat) -> Result<Vec<GraphElements>, Error> {
        let interfaces = context.interfaces();
        let elements: Option<Vec<_>> = interfaces.iter().map(elements).collect();
        let elements = elements.ok_or(Error::Binary("a graph that is not ours"))?;
        let place = |side, tensors: &[TensorInfo]| -> Vec<Place> {
            let places = tensors.iter().enumerate();
            places
                .map(|(i, tensor)| {
                    let place = self.pool.place(&context, side, i, tensor.ty());
                    beat.tick();
                    place
                })
                .collect()
        };
        let graph = |interface: GraphInterface| LoadedGraph {
            inputs: place(Side::Input, interface.inputs()),
            outputs: place(Side::Output, interface.outputs()),
            interface,
            graph: None,
        };
        let graphs = Mutex::new(interfaces.into_iter().map(graph).collect());
        let loaded = Arc::new(Loaded { graphs, context });
        lock(&self.contexts).insert(number, loaded);
        Ok(elements)
    }

    pub(super) fn get(&self, number: u64) -> Result<Arc<Loaded>, Error> {
        let found = lock(&self.contexts).get(&number).map(Arc::clone);
        found.ok_or(Error::Binary("no such context"))
    }

    /// Makes a context from a file's bytes: a new one, or one that was there before under the same number.
    pub(super) fn load(
        &self,
        device: &Device,
        number: Option<u64>,
        bytes: &[u8],
        key: &[u8],
        beat: &Beat,
    ) -> Result<Made, Error> {
        let binary = ContextBinary::from_bytes(bytes, key)?;
        let context = Context::from_binary(device, &binary)?;
        beat.tick();
        match number {
            None => self.add(context, beat),
            Some(context_number) => Ok(Made {
                graphs: self.put(context_number, context, beat)?,
                context: context_number,
                finalize: std::time::Duration::ZERO,
            }),
        }
    }

    /// Frees a context, once nobody executes it.
    pub(super) fn free(&self, number: u64) {
        let loaded = lock(&self.contexts).remove(&number);
        drop(loaded);
        self.pool.tidy();
    }
}

impl Loaded {
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Executes a graph. Tells how many inputs and outputs were shared with the NPU; `None` where nothing was executed.
    pub(super) fn execute(
        &self,
        graph: usize,
        plain: &mut Plain,
        data: &mut dyn Exchange,
    ) -> Result<Option<u64>, Error> {
        let mut graphs = lock(&self.graphs);
        let of = graphs
            .get_mut(graph)
            .ok_or(Error::Binary("no such graph"))?;
        if of.graph.is_none() {
            of.graph = Some(self.context.graph(of.interface.name())?);
        }
        let graph = of.graph.as_mut().ok_or(Error::Binary("no such graph"))?;
        let (mut inputs, mut outputs) = (plain.take(&of.inputs), plain.take(&of.outputs));
        let mut to_fill = of.inputs.iter().zip(&mut inputs).enumerate();
        if !to_fill.all(|(i, (place, bytes))| place.with(bytes, |bytes| data.write(i, bytes))) {
            return Ok(None);
        }
        let given: Vec<_> = (of.inputs.iter().zip(&inputs))
            .map(|(place, bytes)| match place {
                Place::Shared(handle) => Data::Shared(handle),
                Place::Plain(_) => Data::Bytes(bytes),
            })
            .collect();
        let mut room: Vec<_> = (of.outputs.iter().zip(&mut outputs))
            .map(|(place, bytes)| match place {
                Place::Shared(handle) => DataMut::Shared(handle),
                Place::Plain(_) => DataMut::Bytes(bytes),
            })
            .collect();
        graph.execute(&given, &mut room)?;
        drop((given, room));
        for (i, (place, bytes)) in of.outputs.iter().zip(&mut outputs).enumerate() {
            place.with(bytes, |bytes| data.read(i, bytes));
        }
        plain.put_back(&of.inputs, inputs);
        plain.put_back(&of.outputs, outputs);
        let all = of.inputs.iter().chain(&of.outputs);
        Ok(Some(all.filter(|place| place.is_shared()).count() as u64))
    }
}

fn elements(graph: &GraphInterface) -> Option<GraphElements> {
    let of = |tensor: &TensorInfo| Element::of(tensor.ty());
    Some(GraphElements {
        input: of(graph.inputs().first()?)?,
        outputs: graph.outputs().iter().map(of).collect::<Option<_>>()?,
    })
}
