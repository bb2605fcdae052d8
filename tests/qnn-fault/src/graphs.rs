//! Functions of graphs: building and executing.

use std::sync::Arc;

use crate::abi::{self, APP_READ, APP_WRITE, At, Encoding, STATIC, Tensor};
use crate::compute::{self, Values};
use crate::fault::Wrong;
use crate::functions::{CONTEXT_INVALID_HANDLE, GRAPH_NOT_FINALIZED, Handle, MEM_ALLOC, Status};
use crate::memory::{self, Memory};
use crate::number;
use crate::state::{Graph, Object, State, enter, lock};

const GRAPH_FINALIZED: Status = 6024;
const GRAPH_INVALID_HANDLE: Status = 6001;
const GRAPH_INVALID_TENSOR: Status = 6004;
const OP_PACKAGE_VALIDATION: Status = 3110;
const TENSOR_EXISTS: Status = 7003;
const TENSOR_INVALID_PARAM: Status = 7004;

/// An operation by value: 80 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Op([u64; 10]);

/// A graph that is being built, and its context's next tensor id.
fn building(state: &mut State, handle: Handle) -> Result<(&mut Graph, usize), Status> {
    let entry = state.objects.get_mut(&handle).ok_or(GRAPH_INVALID_HANDLE)?;
    let context = entry.parents.first().copied().unwrap_or(0);
    let Object::Graph(graph) = &mut entry.object else {
        return Err(GRAPH_INVALID_HANDLE);
    };
    let graph = Arc::make_mut(graph);
    if graph.finalized {
        return Err(GRAPH_FINALIZED);
    }
    Ok((graph, context))
}

pub(crate) unsafe extern "C" fn tensor_create_graph_tensor(
    handle: Handle,
    tensor: *mut u8,
) -> Status {
    // SAFETY: a tensor that, with all that it points to, lives through the call.
    let at = unsafe { At::new(tensor) };
    let id = match enter("tensorCreateGraphTensor").and_then(|_| add_tensor(handle, at)) {
        Ok(id) => id,
        Err(code) => return code,
    };
    // SAFETY: the id of the tensor, which the caller gave to be written; its place is version 1's.
    unsafe { at.inside(8).write(&id.to_le_bytes()) };
    0
}

fn add_tensor(handle: Handle, at: At) -> Result<u32, Status> {
    let mut tensor = abi::tensor(at).ok_or(TENSOR_INVALID_PARAM)?;
    let size = number::size(tensor.data_type).ok_or(TENSOR_INVALID_PARAM)?;
    if tensor.dims.is_empty()
        || tensor.dims.contains(&0)
        || matches!(tensor.encoding, Encoding::Other(_))
    {
        return Err(TENSOR_INVALID_PARAM);
    }
    let mut state = lock();
    if tensor.kind == STATIC && tensor.data.len() != size * tensor.n_elements() {
        // The real library would read beyond.
        state.violations += 1;
        return Err(TENSOR_INVALID_PARAM);
    }
    let (graph, context) = building(&mut state, handle)?;
    if graph.tensors.iter().any(|other| other.name == tensor.name) {
        return Err(TENSOR_EXISTS);
    }
    let Some(Object::Context(context)) = state
        .objects
        .get_mut(&context)
        .map(|entry| &mut entry.object)
    else {
        return Err(CONTEXT_INVALID_HANDLE);
    };
    tensor.id = context.next_id;
    context.next_id += 1;
    context.size_bytes += tensor.data.len() as u64;
    state.notice_peak();
    let id = tensor.id;
    building(&mut state, handle)?.0.tensors.push(tensor);
    Ok(id)
}

pub(crate) extern "C" fn backend_validate_op_config(_backend: Handle, op: Op) -> Status {
    if let Err(code) = enter("backendValidateOpConfig") {
        return code;
    }
    // SAFETY: a node whose parts live through the call.
    let node = abi::node(unsafe { At::new(op.0.as_ptr().cast()) });
    if node.is_some_and(|node| compute::supports(&node)) {
        0
    } else {
        OP_PACKAGE_VALIDATION
    }
}

pub(crate) extern "C" fn graph_add_node(handle: Handle, op: Op) -> Status {
    if let Err(code) = enter("graphAddNode") {
        return code;
    }
    // SAFETY: a node whose parts live through the call.
    let node = abi::node(unsafe { At::new(op.0.as_ptr().cast()) });
    let mut state = lock();
    let Some(mut node) = node else {
        return GRAPH_INVALID_TENSOR;
    };
    for tensor in node.inputs.iter_mut().chain(&mut node.outputs) {
        tensor.data.clear();
    }
    match building(&mut state, handle) {
        Ok((graph, _)) => {
            graph.nodes.push(node);
            0
        }
        Err(code) => code,
    }
}

/// Constants are decoded here, so that a caller that frees them earlier is not noticed; what it may change afterwards, is not
/// read again.
pub(crate) extern "C" fn graph_finalize(
    handle: Handle,
    _profile: Handle,
    _signal: Handle,
) -> Status {
    if let Err(code) = enter("graphFinalize") {
        return code;
    }
    let mut state = lock();
    let formula = state.faults.formula;
    match building(&mut state, handle) {
        Ok((graph, _)) => {
            let known = |tensor: &Tensor| graph.tensors.iter().any(|other| other.id == tensor.id);
            let fits = graph.nodes.iter().all(|node| {
                compute::supports(node) && node.inputs.iter().chain(&node.outputs).all(known)
            });
            if !fits {
                return MEM_ALLOC;
            }
            graph.finalize(formula);
            0
        }
        Err(code) => code,
    }
}

pub(crate) unsafe extern "C" fn graph_execute(
    handle: Handle,
    inputs: *const u8,
    n_inputs: u32,
    outputs: *mut u8,
    n_outputs: u32,
    _profile: Handle,
    _signal: Handle,
) -> Status {
    if let Err(code) = enter("graphExecute") {
        return code;
    }
    let (graph, context, wrong, formula) = {
        let mut state = lock();
        let entry = state.objects.get(&handle);
        let Some((Object::Graph(graph), parents)) = entry.map(|e| (&e.object, &e.parents)) else {
            return GRAPH_INVALID_HANDLE;
        };
        let (graph, context) = (Arc::clone(graph), parents.first().copied().unwrap_or(0));
        if !graph.finalized {
            return GRAPH_NOT_FINALIZED;
        }
        let n = state.executions;
        state.executions += 1;
        let due = state.faults.wrong.filter(|(_, after)| n >= *after);
        let wrong = due.map(|(wrong, _)| wrong);
        (graph, context, wrong, state.faults.formula)
    };
    // SAFETY: tensors that live through the call, as many as said.
    let inputs = unsafe { At::new(inputs) };
    let mut values = Values::new();
    for i in 0..n_inputs as usize {
        match matching(&graph, context, APP_WRITE, inputs.inside(144 * i)) {
            Ok((tensor, data, size, _held)) => {
                let mut numbers = number::decode(tensor, &data.bytes(size), formula);
                if wrong == Some(Wrong::Inputs) && i > 0 {
                    numbers.fill(0.0);
                }
                values.insert(tensor.id, numbers);
            }
            Err(code) => return code,
        }
    }
    if values.len() != graph.of_kind(APP_WRITE).count() {
        return GRAPH_INVALID_TENSOR;
    }
    for node in &graph.nodes {
        compute::run(node, &graph.constants, &mut values);
    }
    // SAFETY: as above.
    let outputs = unsafe { At::new(outputs) };
    for at in (0..n_outputs as usize).map(|i| outputs.inside(144 * i)) {
        let (tensor, data, size, _held) = match matching(&graph, context, APP_READ, at) {
            Ok(found) => found,
            Err(code) => return code,
        };
        let result = spoil(values.remove(&tensor.id).unwrap_or_default(), tensor, wrong);
        let bytes = number::encode(tensor, &result);
        // SAFETY: the caller's buffer for this output is `size` bytes long.
        unsafe { data.write(&bytes[..size.min(bytes.len())]) };
    }
    0
}

/// A tensor of a graph, its memory in an execution, the bytes of that, and what keeps it mapped.
type Matching<'g> = (&'g Tensor, At, usize, Option<Memory>);

/// The graph's own tensor for one of an execution, and its memory. A wrong size is a misuse: the real library would go on.
fn matching(graph: &Graph, context: Handle, kind: u32, at: At) -> Result<Matching<'_>, Status> {
    let given = abi::tensor(at).ok_or(GRAPH_INVALID_TENSOR)?;
    let own = graph.of_kind(kind).find(|tensor| tensor.id == given.id);
    let memory = memory::of(at, context);
    let (own, (data, size, held)) = own.zip(memory).ok_or(GRAPH_INVALID_TENSOR)?;
    let needed = number::size(own.data_type).unwrap_or(0) * own.n_elements();
    if size != needed || given.dims != own.dims || given.data_type != own.data_type {
        lock().violations += 1;
        return Err(GRAPH_INVALID_TENSOR);
    }
    Ok((own, data, size, held))
}

fn spoil(mut values: Vec<f32>, tensor: &Tensor, wrong: Option<Wrong>) -> Vec<f32> {
    match wrong {
        None | Some(Wrong::Inputs) => {}
        Some(Wrong::Scale) => values.iter_mut().for_each(|value| *value *= 1.5),
        Some(Wrong::Row) => {
            let row = tensor.dims.last().map_or(1, |&dim| dim as usize);
            let start = values.len().saturating_sub(row);
            values[start..].fill(0.0);
        }
        Some(Wrong::Nan) => values[..1].fill(f32::NAN),
    }
    values
}
