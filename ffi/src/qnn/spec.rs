//! A graph as a plain description: tensors and nodes, with constants borrowed. Nothing here calls the library.

use std::collections::HashSet;

use super::SpecError;
use super::tensor::{DataType, Quantization, TensorType};

/// A tensor of the [`GraphSpec`] that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId(pub(super) usize);

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Input,
    Output,
    Native,
    Constant,
}

#[derive(Debug)]
pub(super) struct Tensor<'d> {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) ty: TensorType<'d>,
    pub(super) data: &'d [u8],
}

/// A parameter of a node.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Param {
    /// A boolean.
    Bool(bool),
    /// A number.
    U32(u32),
    /// A float.
    F32(f32),
    /// A tensor of numbers, such as strides: its dimensions and values.
    U32s(Vec<u32>, Vec<u32>),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) op: String,
    pub(super) params: Vec<(String, Param)>,
    pub(super) inputs: Vec<TensorId>,
    pub(super) outputs: Vec<TensorId>,
}

/// With what HTP computes floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Singles, where the hardware can.
    Float32,
    /// Halves.
    Float16,
}

/// Options of a graph; `None` leaves a choice to the library. Only HTP is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraphOptions {
    /// With what floats are computed.
    pub precision: Option<Precision>,
    /// Fast memory to use, in MiB; 0: all.
    pub vtcm_mb: Option<u32>,
    /// How hard finalising tries, 1 to 3.
    pub optimization: Option<u32>,
    /// Vector threads.
    pub hvx_threads: Option<u32>,
}

/// A graph to be built by [`Context::build`](super::Context::build), with data of constants borrowed for `'d`: a constant's data
/// outlives finalising because building borrows this.
#[derive(Debug)]
pub struct GraphSpec<'d> {
    pub(super) name: String,
    pub(super) options: GraphOptions,
    pub(super) tensors: Vec<Tensor<'d>>,
    pub(super) nodes: Vec<Node>,
    names: HashSet<String>,
}

impl<'d> GraphSpec<'d> {
    /// A graph without nodes. Names of graphs are unique in a context.
    pub fn new(name: &str, options: GraphOptions) -> Self {
        Self {
            name: name.to_owned(),
            options,
            tensors: Vec::new(),
            nodes: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a tensor that the caller fills before each execution. Executions take inputs in the order they were added.
    ///
    /// # Errors
    /// [`SpecError`]: names, dimensions, quantisation by channel or block.
    pub fn input(&mut self, name: &str, ty: TensorType<'d>) -> Result<TensorId, SpecError> {
        self.tensor(name, Kind::Input, ty, &[])
    }

    /// Adds a tensor that the caller reads after each execution, in the order they were added.
    ///
    /// # Errors
    /// As [`Self::input`].
    pub fn output(&mut self, name: &str, ty: TensorType<'d>) -> Result<TensorId, SpecError> {
        self.tensor(name, Kind::Output, ty, &[])
    }

    /// Adds a tensor between two nodes.
    ///
    /// # Errors
    /// As [`Self::input`].
    pub fn native(&mut self, name: &str, ty: TensorType<'d>) -> Result<TensorId, SpecError> {
        self.tensor(name, Kind::Native, ty, &[])
    }

    /// Adds a tensor with data, such as weights; numbers of fewer than 8 bits lie in bytes, sign-extended.
    ///
    /// # Errors
    /// [`SpecError`]: names, dimensions, quantisation, size of the data.
    pub fn constant(
        &mut self,
        name: &str,
        ty: TensorType<'d>,
        data: &'d [u8],
    ) -> Result<TensorId, SpecError> {
        self.tensor(name, Kind::Constant, ty, data)
    }

    fn tensor(
        &mut self,
        name: &str,
        kind: Kind,
        ty: TensorType<'d>,
        data: &'d [u8],
    ) -> Result<TensorId, SpecError> {
        self.name_is_free(name)?;
        ty.check(name)?;
        let by_tensor = matches!(
            ty.quantization,
            Quantization::None | Quantization::PerTensor { .. }
        );
        if kind != Kind::Constant && !by_tensor {
            return Err(SpecError::Quantization {
                tensor: name.to_owned(),
                what: "only constants are quantised by channel or block",
            });
        }
        if kind == Kind::Constant && data.len() != ty.size_bytes() {
            return Err(SpecError::Data {
                tensor: name.to_owned(),
                needed: ty.size_bytes(),
                found: data.len(),
            });
        }
        self.tensors.push(Tensor {
            name: name.to_owned(),
            kind,
            ty,
            data,
        });
        Ok(TensorId(self.tensors.len() - 1))
    }

    fn name_is_free(&mut self, name: &str) -> Result<(), SpecError> {
        if name.is_empty() || name.contains('\0') {
            return Err(SpecError::Name(name.to_owned()));
        }
        if !self.names.insert(name.to_owned()) {
            return Err(SpecError::Duplicate(name.to_owned()));
        }
        Ok(())
    }

    /// `y = x · wᵀ`: `x` `[m, k]` (or `[1, 1, m, k]`), `w` a constant or input `[n, k]`, `y` `[m, n]`. The natural form of a
    /// ggml product, whose weight rows are `[n][k]`; takes weights in [`Quantization::FloatBlocks`] with halves.
    ///
    /// # Errors
    /// [`SpecError::Operand`], [`SpecError::Duplicate`].
    pub fn fully_connected(
        &mut self,
        name: &str,
        x: TensorId,
        w: TensorId,
        y: TensorId,
    ) -> Result<(), SpecError> {
        let (_, k) = self.matrix(name, x, 2)?;
        let (n, w_k) = self.matrix(name, w, 2)?;
        let m = self.rows(name, x)?;
        self.expect_shape(name, w, w_k == k, "not as many columns as the input")?;
        let dims = &self.at(name, y)?.ty.dims;
        self.expect_shape(name, y, *dims == [m, n], "not [rows, outputs]")?;
        self.node(name, "FullyConnected", &[], &[x, w], &[y])
    }

    /// `y = x · w` or, with `transpose_w`, `y = x · wᵀ`: `x` `[…, m, k]`, `w` `[…, k, n]` or `[…, n, k]`, `y` `[…, m, n]`. For weights in
    /// [`Quantization::FloatBlocks`] everything has to be of rank 4.
    ///
    /// # Errors
    /// [`SpecError::Operand`], [`SpecError::Duplicate`].
    pub fn mat_mul(
        &mut self,
        name: &str,
        x: TensorId,
        w: TensorId,
        transpose_w: bool,
        y: TensorId,
    ) -> Result<(), SpecError> {
        let rank = self.at(name, x)?.ty.dims.len();
        let (m, k) = self.matrix(name, x, rank)?;
        let (w_rows, w_columns) = self.matrix(name, w, rank)?;
        let (w_k, n) = if transpose_w {
            (w_columns, w_rows)
        } else {
            (w_rows, w_columns)
        };
        self.expect_shape(name, w, w_k == k, "its inner dimension is not the input's")?;
        let blocks = matches!(
            self.at(name, w)?.ty.quantization,
            Quantization::FloatBlocks { .. }
        );
        self.expect_shape(
            name,
            w,
            !blocks || rank == 4,
            "weights in blocks need rank 4",
        )?;
        let of_y = self.matrix(name, y, rank)?;
        self.expect_shape(name, y, of_y == (m, n), "not [rows, columns]")?;
        let params = [
            ("transpose_in0", Param::Bool(false)),
            ("transpose_in1", Param::Bool(transpose_w)),
        ];
        self.node(name, "MatMul", &params, &[x, w], &[y])
    }

    /// `y = x · w` as a convolution with a kernel of one pixel: `x` `[1, 1, m, k]`, `w` `[1, 1, k, n]`, `y` `[1, 1, m, n]`. Takes weights
    /// of 8 and 4 bits per channel (axis 3) with fixed-point activations.
    ///
    /// # Errors
    /// [`SpecError::Operand`], [`SpecError::Duplicate`].
    pub fn conv2d_1x1(
        &mut self,
        name: &str,
        x: TensorId,
        w: TensorId,
        y: TensorId,
    ) -> Result<(), SpecError> {
        let (m, k) = self.matrix(name, x, 4)?;
        let (w_k, n) = self.matrix(name, w, 4)?;
        self.expect_shape(name, w, w_k == k, "not as many input channels as the input")?;
        let flat = self.at(name, w)?.ty.dims[..2] == [1, 1];
        self.expect_shape(name, w, flat, "more than one pixel")?;
        let of_y = self.matrix(name, y, 4)?;
        self.expect_shape(name, y, of_y == (m, n), "not [1, 1, rows, outputs]")?;
        let params = [
            ("stride", Param::U32s(vec![2], vec![1, 1])),
            ("pad_amount", Param::U32s(vec![2, 2], vec![0; 4])),
            ("dilation", Param::U32s(vec![2], vec![1, 1])),
            ("group", Param::U32(1)),
        ];
        self.node(name, "Conv2d", &params, &[x, w], &[y])
    }

    /// Adds any operation of QNN's own package, by QNN's names: `ElementWiseAdd`, `ElementWiseMultiply`, `Sigmoid`, `Cast`, `Convert`,
    /// `Quantize`, `Dequantize`, `Reshape`, `RmsNorm`, … Its shapes are the library's to judge. `MatMul` without its two
    /// parameters, which would crash the library, gets them as false.
    ///
    /// # Errors
    /// [`SpecError::Operand`] for tensors that are not this graph's, outputs that cannot be written, or inputs that no
    /// earlier node wrote; [`SpecError::Duplicate`], [`SpecError::Name`].
    pub fn node(
        &mut self,
        name: &str,
        op: &str,
        params: &[(&str, Param)],
        inputs: &[TensorId],
        outputs: &[TensorId],
    ) -> Result<(), SpecError> {
        self.name_is_free(name)?;
        let mut named: Vec<(String, Param)> = Vec::new();
        for (param, value) in params {
            if let Param::U32s(dims, values) = value {
                let ty = TensorType::new(DataType::Uint32, dims);
                ty.check(param)?;
                if ty.n_elements() != values.len() {
                    return Err(SpecError::Data {
                        tensor: (*param).to_owned(),
                        needed: ty.size_bytes(),
                        found: 4 * values.len(),
                    });
                }
            }
            named.push(((*param).to_owned(), value.clone()));
        }
        if op == "MatMul" {
            for param in ["transpose_in0", "transpose_in1"] {
                if !named.iter().any(|(name, _)| name == param) {
                    named.push((param.to_owned(), Param::Bool(false)));
                }
            }
        }
        for text in [op].into_iter().chain(params.iter().map(|param| param.0)) {
            if text.is_empty() || text.contains('\0') {
                return Err(SpecError::Name(text.to_owned()));
            }
        }
        self.check_operands(name, inputs, outputs)?;
        self.nodes.push(Node {
            name: name.to_owned(),
            op: op.to_owned(),
            params: named,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
        });
        Ok(())
    }

    fn check_operands(
        &self,
        node: &str,
        inputs: &[TensorId],
        outputs: &[TensorId],
    ) -> Result<(), SpecError> {
        for &id in inputs {
            let tensor = self.at(node, id)?;
            let ready = match tensor.kind {
                Kind::Input | Kind::Constant => true,
                Kind::Native | Kind::Output => self.is_written(id),
            };
            self.expect_shape(node, id, ready, "is read before a node writes it")?;
        }
        for (i, &id) in outputs.iter().enumerate() {
            let tensor = self.at(node, id)?;
            let writable = matches!(tensor.kind, Kind::Native | Kind::Output);
            self.expect_shape(node, id, writable, "cannot be written")?;
            let once = !self.is_written(id) && !outputs[..i].contains(&id);
            self.expect_shape(node, id, once, "is written twice")?;
        }
        Ok(())
    }

    fn is_written(&self, id: TensorId) -> bool {
        self.nodes.iter().any(|node| node.outputs.contains(&id))
    }

    fn at(&self, node: &str, id: TensorId) -> Result<&Tensor<'d>, SpecError> {
        self.tensors.get(id.0).ok_or_else(|| SpecError::Operand {
            node: node.to_owned(),
            tensor: format!("#{}", id.0),
            what: "is not of this graph",
        })
    }

    fn expect_shape(
        &self,
        node: &str,
        id: TensorId,
        holds: bool,
        what: &'static str,
    ) -> Result<(), SpecError> {
        if holds {
            return Ok(());
        }
        Err(self.operand(node, id, what))
    }

    /// Type and dimensions of a tensor.
    pub(super) fn shape(
        &self,
        node: &str,
        id: TensorId,
    ) -> Result<(DataType, Vec<u32>), SpecError> {
        let ty = &self.at(node, id)?.ty;
        Ok((ty.data_type, ty.dims.clone()))
    }

    /// What is wrong with an operand.
    pub(super) fn operand(&self, node: &str, id: TensorId, what: &'static str) -> SpecError {
        SpecError::Operand {
            node: node.to_owned(),
            tensor: self
                .tensors
                .get(id.0)
                .map_or_else(String::new, |tensor| tensor.name.clone()),
            what,
        }
    }

    /// The last two dimensions of a tensor of at least this rank; exactly it, where it is above 2.
    fn matrix(&self, node: &str, id: TensorId, rank: usize) -> Result<(u32, u32), SpecError> {
        let dims = &self.at(node, id)?.ty.dims;
        let fits = dims.len() >= 2 && (rank <= 2 || dims.len() == rank);
        self.expect_shape(node, id, fits, "has the wrong rank")?;
        Ok((dims[dims.len() - 2], dims[dims.len() - 1]))
    }

    /// The product of all dimensions but the last.
    fn rows(&self, node: &str, id: TensorId) -> Result<u32, SpecError> {
        let dims = &self.at(node, id)?.ty.dims;
        Ok(dims[..dims.len() - 1].iter().product())
    }

    /// Checks the whole: at least one node, input and output, no tensor that is written or read by nothing.
    ///
    /// # Errors
    /// [`SpecError::Empty`], [`SpecError::Loose`], [`SpecError::Name`].
    pub fn check(&self) -> Result<(), SpecError> {
        if self.name.is_empty() || self.name.contains('\0') {
            return Err(SpecError::Name(self.name.clone()));
        }
        let has = |kind| self.tensors.iter().any(|tensor| tensor.kind == kind);
        for (there, what) in [
            (!self.nodes.is_empty(), "node"),
            (has(Kind::Input), "input"),
            (has(Kind::Output), "output"),
        ] {
            if !there {
                return Err(SpecError::Empty {
                    graph: self.name.clone(),
                    what,
                });
            }
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            let id = TensorId(i);
            let read = self.nodes.iter().any(|node| node.inputs.contains(&id));
            let what = match tensor.kind {
                Kind::Output | Kind::Native if !self.is_written(id) => "no node writes it",
                Kind::Input | Kind::Native | Kind::Constant if !read => "no node reads it",
                _ => continue,
            };
            return Err(SpecError::Loose {
                tensor: tensor.name.clone(),
                what,
            });
        }
        Ok(())
    }

    /// Tensors of a kind, in the order they were added.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (TensorId, &Tensor<'d>)> {
        let tensors = self.tensors.iter().enumerate();
        tensors
            .filter(move |(_, tensor)| tensor.kind == kind)
            .map(|(i, tensor)| (TensorId(i), tensor))
    }
}

/// A type of an input or output as one that borrows nothing; these have no scales by channel or block.
pub(super) fn owned(ty: &TensorType<'_>) -> TensorType<'static> {
    let quantization = match &ty.quantization {
        Quantization::PerTensor { scale, offset } => Quantization::PerTensor {
            scale: *scale,
            offset: *offset,
        },
        Quantization::None => Quantization::None,
        _ => unreachable!("inputs and outputs are quantised per tensor"),
    };
    TensorType {
        data_type: ty.data_type,
        dims: ty.dims.clone(),
        quantization,
    }
}

#[cfg(test)]
mod tests;
