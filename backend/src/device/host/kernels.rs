//! Which kernel computes what: the best that the CPU can run, or one that is named.

use llada_npu_kernels::op::attention::Attention;
use llada_npu_kernels::op::binary::Binary;
use llada_npu_kernels::op::copy::CopyRow;
use llada_npu_kernels::op::gemm::Gemm;
use llada_npu_kernels::op::glu::Glu;
use llada_npu_kernels::op::mul_mat::MulMat;
use llada_npu_kernels::op::norm::Norm;
use llada_npu_kernels::op::rope::Rope;
use llada_npu_kernels::op::soft_max::SoftMax;
use llada_npu_kernels::op::unary::Unary;
use llada_npu_kernels::tile::TileType;
use llada_npu_kernels::{WeightType, registry};

use super::nearest::nearest;
use crate::device::DeviceError;

/// Names that a message about an unknown one gives.
const N_NEAREST: usize = 3;

/// A kernel and its name.
pub(super) type Chosen<F> = (&'static str, F);

/// Owning: one kernel for each operation.
#[derive(Debug)]
pub(super) struct Kernels {
    /// In the order of [`WeightType::ALL`].
    pub(super) mul_mat: Vec<Chosen<MulMat>>,
    /// In the order of [`TileType::ALL`].
    pub(super) gemm: Vec<Chosen<Gemm>>,
    pub(super) attention: Chosen<Attention>,
    pub(super) binary: Chosen<Binary>,
    pub(super) copy: Chosen<CopyRow>,
    pub(super) glu: Chosen<Glu>,
    pub(super) norm: Chosen<Norm>,
    pub(super) rope: Chosen<Rope>,
    pub(super) soft_max: Chosen<SoftMax>,
    pub(super) unary: Chosen<Unary>,
}

impl Kernels {
    /// Takes the named kernels, and the best ones for operations none is named for.
    ///
    /// # Errors
    ///
    /// When a kernel does not exist or needs another CPU.
    pub(super) fn choose(names: &[String]) -> Result<Self, DeviceError> {
        let known = |name: &&String| registry::names().any(|known| known == **name);
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(DeviceError::UnknownKernel {
                name: name.clone(),
                nearest: nearest(name, registry::names(), N_NEAREST),
            });
        }
        let mul_mat = |ty| choose(registry::mul_mat(ty), names);
        let gemm = |ty| choose(registry::gemm(ty), names);
        Ok(Self {
            mul_mat: WeightType::ALL
                .into_iter()
                .map(mul_mat)
                .collect::<Result<_, _>>()?,
            gemm: TileType::ALL
                .into_iter()
                .map(gemm)
                .collect::<Result<_, _>>()?,
            attention: choose(registry::attention(), names)?,
            binary: choose(registry::binary(), names)?,
            copy: choose(registry::copy(), names)?,
            glu: choose(registry::glu(), names)?,
            norm: choose(registry::norm(), names)?,
            rope: choose(registry::rope(), names)?,
            soft_max: choose(registry::soft_max(), names)?,
            unary: choose(registry::unary(), names)?,
        })
    }

    /// Returns what computes each operation, and what the CPU cannot run.
    pub(super) fn families(&self) -> Vec<Family> {
        let mul_mat = self.mul_mat.iter().map(|(used, kernel)| {
            let ty = kernel.ty();
            family("mul_mat", Some(ty.name()), used, registry::mul_mat(ty))
        });
        let gemm = self.gemm.iter().map(|(used, kernel)| {
            let ty = kernel.ty();
            family(
                "mul_mat on tiles",
                Some(ty.name()),
                used,
                registry::gemm(ty),
            )
        });
        let rows = [
            family("attention", None, self.attention.0, registry::attention()),
            family(
                "add, sub, mul, div",
                None,
                self.binary.0,
                registry::binary(),
            ),
            family(
                "cpy, get_rows, set_rows",
                None,
                self.copy.0,
                registry::copy(),
            ),
            family("glu", None, self.glu.0, registry::glu()),
            family("norm, rms_norm", None, self.norm.0, registry::norm()),
            family("rope", None, self.rope.0, registry::rope()),
            family("soft_max", None, self.soft_max.0, registry::soft_max()),
            family("unary", None, self.unary.0, registry::unary()),
        ];
        mul_mat.chain(gemm).chain(rows).collect()
    }
}

/// The kernels of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// What they compute.
    pub op: &'static str,
    /// Type of the weights, of products.
    pub weights: Option<&'static str>,
    /// The one that computes it.
    pub used: &'static str,
    /// Those that could compute it instead, best first.
    pub others: Vec<&'static str>,
    /// Those that this CPU cannot run, best first.
    pub unavailable: Vec<&'static str>,
}

fn family<F>(
    op: &'static str,
    weights: Option<&'static str>,
    used: &'static str,
    list: &'static [registry::Kernel<F>],
) -> Family {
    let names_of = |available: bool| {
        let kernels = list
            .iter()
            .filter(move |kernel| kernel.select().is_some() == available);
        kernels
            .map(|kernel| kernel.name)
            .filter(move |&name| name != used)
            .collect()
    };
    Family {
        op,
        weights,
        used,
        others: names_of(true),
        unavailable: names_of(false),
    }
}

/// Returns the kernel of a list that is named last, or the best one if none is named.
fn choose<F>(
    list: &'static [registry::Kernel<F>],
    names: &[String],
) -> Result<Chosen<F>, DeviceError> {
    let mut named = names
        .iter()
        .rev()
        .filter_map(|name| list.iter().find(|k| k.name == name));
    let Some(kernel) = named.next() else {
        return Ok(registry::best(list));
    };
    let name = kernel.name;
    kernel
        .select()
        .map(|selected| (name, selected))
        .ok_or_else(|| DeviceError::KernelUnavailable {
            name: name.to_owned(),
        })
}
