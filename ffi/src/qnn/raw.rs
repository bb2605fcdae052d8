//! A described graph in the ABI's structures, which point into the description.

use std::ffi::{CStr, CString};
use std::ptr;

use super::spec::{GraphSpec, Kind, Node, Param};
use super::tensor::{DataType, Quantization, Scratch, TensorType, length, quantize_params};
use super::{Error, Failure, sys};

/// The package of QNN's own operations.
const PACKAGE: &CStr = c"qti.aisw";

/// A graph in the ABI's structures.
///
/// # Invariants
/// Pointers in `tensors` lead to `names`, `scales`, `spec` and data that `spec` borrows; none of these change while this lives.
pub(super) struct RawGraph<'s> {
    spec: &'s GraphSpec<'s>,
    names: Vec<CString>,
    scales: Vec<Scratch>,
    /// Those of the description, then parameters that are tensors.
    tensors: Vec<sys::Tensor>,
    /// For each node its parameters.
    params: Vec<Vec<RawParam>>,
}

struct RawParam {
    name: CString,
    value: RawValue,
}

enum RawValue {
    Scalar(sys::Scalar),
    /// Its place in `tensors`.
    Tensor(usize),
}

impl<'s> RawGraph<'s> {
    /// Translates a description that was checked.
    pub(super) fn new(spec: &'s GraphSpec<'s>) -> Self {
        // INVARIANT: `add` points to names, which lie on the heap; the description is borrowed.
        let mut raw = Self {
            spec,
            names: Vec::new(),
            scales: Vec::new(),
            tensors: Vec::new(),
            params: Vec::new(),
        };
        for tensor in &spec.tensors {
            let kind = match tensor.kind {
                Kind::Input => sys::TENSOR_APP_WRITE,
                Kind::Output => sys::TENSOR_APP_READ,
                Kind::Native => sys::TENSOR_NATIVE,
                Kind::Constant => sys::TENSOR_STATIC,
            };
            raw.add(&tensor.name, kind, &tensor.ty, tensor.data);
        }
        for node in &spec.nodes {
            let params = node
                .params
                .iter()
                .map(|(name, param)| raw.param(node, name, param))
                .collect();
            raw.params.push(params);
        }
        raw
    }

    fn add(&mut self, name: &str, kind: u32, ty: &TensorType<'s>, data: &'s [u8]) -> usize {
        let name = c_string(name);
        let mut scales = Scratch::default();
        let mut tensor = tensor(&name, kind, ty, &ty.dims, &mut scales);
        if kind == sys::TENSOR_STATIC {
            tensor.v1.memory.client = client_buffer(data.as_ptr().cast_mut(), data.len());
        }
        self.names.push(name);
        self.scales.push(scales);
        self.tensors.push(tensor);
        self.tensors.len() - 1
    }

    fn param(&mut self, node: &'s Node, name: &str, param: &'s Param) -> RawParam {
        let scalar = |data_type: DataType, value: u32| {
            RawValue::Scalar(sys::Scalar {
                data_type: data_type.to_raw(),
                value: u64::from(value),
            })
        };
        let value = match param {
            Param::Bool(value) => scalar(DataType::Bool8, u32::from(*value)),
            Param::U32(value) => scalar(DataType::Uint32, *value),
            Param::F32(value) => scalar(DataType::Float32, value.to_bits()),
            Param::U32s(dims, values) => {
                let name = c_string(&format!("{}:{name}", node.name));
                let ty = TensorType {
                    data_type: DataType::Uint32,
                    dims: Vec::new(),
                    quantization: Quantization::None,
                };
                let mut tensor = tensor(
                    &name,
                    sys::TENSOR_STATIC,
                    &ty,
                    dims,
                    &mut Scratch::default(),
                );
                let data = values.as_ptr().cast::<u8>().cast_mut();
                tensor.v1.memory.client = client_buffer(data, size_of_val(values.as_slice()));
                self.names.push(name);
                self.tensors.push(tensor);
                RawValue::Tensor(self.tensors.len() - 1)
            }
        };
        RawParam {
            name: c_string(name),
            value,
        }
    }

    pub(super) fn n_nodes(&self) -> usize {
        self.spec.nodes.len()
    }

    /// All tensors, for the library to write their ids.
    pub(super) fn tensors_mut(&mut self) -> &mut [sys::Tensor] {
        &mut self.tensors
    }

    /// The id that the library gave to a tensor of the description.
    pub(super) fn id(&self, i: usize) -> u32 {
        self.tensors[i].v1.id
    }

    /// A node, with ids as they are now.
    pub(super) fn node(&self, i: usize) -> RawNode<'_> {
        let node = &self.spec.nodes[i];
        let params = self.params[i].iter().map(|param| {
            let (kind, value) = match param.value {
                RawValue::Scalar(scalar) => {
                    // Zero beyond the scalar: the union is compared by no one, but recorders copy it whole.
                    let mut value = sys::ParamValue {
                        tensor: empty_tensor(),
                    };
                    value.scalar = scalar;
                    (sys::PARAM_SCALAR, value)
                }
                RawValue::Tensor(at) => (
                    sys::PARAM_TENSOR,
                    sys::ParamValue {
                        tensor: self.tensors[at],
                    },
                ),
            };
            sys::Param {
                kind,
                name: param.name.as_ptr(),
                value,
            }
        });
        RawNode {
            name: c_string(&node.name),
            op: c_string(&node.op),
            params: params.collect(),
            inputs: node.inputs.iter().map(|id| self.tensors[id.0]).collect(),
            outputs: node.outputs.iter().map(|id| self.tensors[id.0]).collect(),
            _graph: self,
        }
    }

    /// The error of a node that the library refuses.
    pub(super) fn refusal(&self, i: usize, failure: Failure) -> Error {
        Error::Node {
            node: self.spec.nodes[i].name.clone(),
            op: self.spec.nodes[i].op.clone(),
            failure: Box::new(failure),
        }
    }
}

/// A node in the ABI's structures; what they point to is borrowed from the graph.
pub(super) struct RawNode<'g> {
    name: CString,
    op: CString,
    params: Vec<sys::Param>,
    inputs: Vec<sys::Tensor>,
    outputs: Vec<sys::Tensor>,
    _graph: &'g RawGraph<'g>,
}

impl RawNode<'_> {
    /// What functions take by value; good while this lives.
    pub(super) fn config(&self) -> sys::OpConfig {
        sys::OpConfig {
            version: 1,
            v1: sys::OpConfigV1 {
                name: self.name.as_ptr(),
                package: PACKAGE.as_ptr(),
                op: self.op.as_ptr(),
                n_params: length(self.params.len()),
                params: slice_or_null(&self.params),
                n_inputs: length(self.inputs.len()),
                inputs: slice_or_null(&self.inputs),
                n_outputs: length(self.outputs.len()),
                outputs: slice_or_null(&self.outputs),
            },
        }
    }
}

fn slice_or_null<T>(slice: &[T]) -> *const T {
    if slice.is_empty() {
        ptr::null()
    } else {
        slice.as_ptr()
    }
}

/// A name that was checked to hold no NUL byte.
pub(super) fn c_string(name: &str) -> CString {
    CString::new(name).expect("names of a checked description hold no NUL byte")
}

/// A tensor without data. It points to all that it is given.
pub(super) fn tensor(
    name: &CStr,
    kind: u32,
    ty: &TensorType<'_>,
    dims: &[u32],
    scales: &mut Scratch,
) -> sys::Tensor {
    let mut tensor = empty_tensor();
    tensor.v1.name = name.as_ptr();
    tensor.v1.kind = kind;
    tensor.v1.data_type = ty.data_type.to_raw();
    tensor.v1.quantize_params = quantize_params(&ty.quantization, scales);
    tensor.v1.rank = length(dims.len());
    tensor.v1.dims = dims.as_ptr();
    tensor
}

pub(super) fn client_buffer(data: *mut u8, size: usize) -> sys::ClientBuffer {
    sys::ClientBuffer {
        data: data.cast(),
        size: length(size),
    }
}

fn empty_tensor() -> sys::Tensor {
    sys::Tensor {
        version: 1,
        v1: sys::TensorV1 {
            id: 0,
            name: ptr::null(),
            kind: 0,
            data_format: sys::DATA_FORMAT_DENSE,
            data_type: sys::UNDEFINED,
            quantize_params: quantize_params(&Quantization::None, &mut Scratch::default()),
            rank: 0,
            dims: ptr::null(),
            memory_type: sys::MEMORY_RAW,
            memory: sys::TensorMemory {
                client: client_buffer(ptr::null_mut(), 0),
            },
        },
        room: [0; 3],
    }
}
