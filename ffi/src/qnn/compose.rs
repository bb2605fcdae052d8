//! Functions of several operations, where HTP's own are absent or too coarse.

use super::SpecError;
use super::spec::{GraphSpec, Param, TensorId};
use super::tensor::{DataType, TensorType};

/// One half, as a half and as a single.
const HALF_F16: &[u8] = &0x3800_u16.to_le_bytes();
const HALF_F32: &[u8] = &0.5_f32.to_le_bytes();

impl GraphSpec<'_> {
    /// `y = x · sigmoid(x)` of floats, as `u + u · tanh(u)` with `u = x / 2`. HTP's `Sigmoid` is off by up to 8e-4: a gated unit with it has
    /// an NMSE of 1e-5 in halves, with this 4e-7 (measured on the emulation of release 2.51).
    ///
    /// # Errors
    /// [`SpecError::Operand`] for tensors that are no floats of one shape; [`SpecError::Duplicate`]: it takes the names `{name}.half`, `.u`,
    /// `.tanh` and `.product`, and those of its nodes.
    pub fn silu(&mut self, name: &str, x: TensorId, y: TensorId) -> Result<(), SpecError> {
        let (data_type, dims) = self.shape(name, x)?;
        let half = match data_type {
            DataType::Float16 => HALF_F16,
            DataType::Float32 => HALF_F32,
            _ => return Err(self.operand(name, x, "is no float")),
        };
        if self.shape(name, y)? != (data_type, dims.clone()) {
            return Err(self.operand(name, y, "has another type or shape than the input"));
        }
        let named = |part: &str| format!("{name}.{part}");
        let ty = || TensorType::new(data_type, &dims);
        let one = vec![1; dims.len()];
        let half = self.constant(&named("half"), TensorType::new(data_type, &one), half)?;
        let u = self.native(&named("u"), ty())?;
        let tanh = self.native(&named("tanh"), ty())?;
        let product = self.native(&named("product"), ty())?;
        let none: &[(&str, Param)] = &[];
        self.node(
            &named("halve"),
            "ElementWiseMultiply",
            none,
            &[x, half],
            &[u],
        )?;
        self.node(&named("op"), "Tanh", none, &[u], &[tanh])?;
        self.node(
            &named("multiply"),
            "ElementWiseMultiply",
            none,
            &[u, tanh],
            &[product],
        )?;
        self.node(&named("add"), "ElementWiseAdd", none, &[u, product], &[y])
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::GraphOptions;
    use super::*;

    #[test]
    fn silu_takes_floats_of_one_shape() {
        let mut spec = GraphSpec::new("g", GraphOptions::default());
        let half = |dims: &[u32]| TensorType::new(DataType::Float16, dims);
        let x = spec.input("x", half(&[2, 3])).unwrap();
        let y = spec.output("y", half(&[2, 3])).unwrap();
        let other = spec.output("other", half(&[3, 2])).unwrap();
        let whole = spec
            .input("whole", TensorType::new(DataType::Int32, &[2, 3]))
            .unwrap();
        assert!(spec.silu("a", x, other).is_err());
        assert!(spec.silu("b", whole, y).is_err());
        spec.silu("c", x, y).unwrap();
        assert_eq!(spec.nodes.len(), 4);
    }
}
