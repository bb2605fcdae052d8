//! Products.

use super::Kernel;
use crate::WeightType;
#[cfg(target_arch = "aarch64")]
use crate::aarch64::{lanes, rows};
use crate::generic;
use crate::op::mul_mat::MulMat;
use crate::panel::Panel;
use crate::reference::mul_mat::Reference;
#[cfg(target_arch = "x86_64")]
use crate::x86_64;

/// Returns the kernels of [`crate::op::mul_mat`] for weights of a type: best first, the reference last.
pub fn mul_mat(ty: WeightType) -> &'static [Kernel<MulMat>] {
    match ty {
        WeightType::F32 => MUL_MAT_F32,
        WeightType::F16 => MUL_MAT_F16,
        WeightType::Q8_0 => MUL_MAT_Q8_0,
        WeightType::Q4_0 => MUL_MAT_Q4_0,
    }
}

static MUL_MAT_F32: &[Kernel<MulMat>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-f32-avx512f",
        select: || Some(panel(x86_64::avx512::lanes::rows::<4>()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-f32-avx2fma",
        select: || Some(panel(x86_64::avx2::lanes::rows::<4>()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-f32-neon",
        select: || Some(panel(lanes::rows::<4>()?)),
    },
    Kernel {
        name: "generic-f32",
        select: || Some(panel(generic::float::F32)),
    },
    Kernel {
        name: "reference-f32",
        select: || Some(reference(WeightType::F32)),
    },
];

static MUL_MAT_F16: &[Kernel<MulMat>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-f16-avx512f",
        select: || Some(panel(x86_64::avx512::lanes::rows::<2>()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-f16-avx2fma",
        select: || Some(panel(x86_64::avx2::lanes::rows::<2>()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-f16-neon",
        select: || Some(panel(lanes::rows::<2>()?)),
    },
    Kernel {
        name: "generic-f16",
        select: || Some(panel(generic::float::F16)),
    },
    Kernel {
        name: "reference-f16",
        select: || Some(reference(WeightType::F16)),
    },
];

static MUL_MAT_Q8_0: &[Kernel<MulMat>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-q8_0q8_0-avx512vnni",
        select: || Some(panel(x86_64::avx512::quant::Q8_0::detect()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-q8_0q8_0-avx2",
        select: || Some(panel(x86_64::avx2::quant::Q8_0::detect()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-q8_0q8_0-dotprod",
        select: || Some(panel(rows::DotQ8_0::detect()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-q8_0q8_0-neon",
        select: || Some(panel(rows::LongQ8_0::detect()?)),
    },
    Kernel {
        name: "generic-q8_0q8_0",
        select: || Some(panel(generic::quant::Q8_0)),
    },
    Kernel {
        name: "reference-q8_0q8_0",
        select: || Some(reference(WeightType::Q8_0)),
    },
];

static MUL_MAT_Q4_0: &[Kernel<MulMat>] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-q4_0q8_0-avx512vnni",
        select: || Some(panel(x86_64::avx512::quant::Q4_0::detect()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-q4_0q8_0-avx2",
        select: || Some(panel(x86_64::avx2::quant::Q4_0::detect()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-q4_0q8_0-dotprod",
        select: || Some(panel(rows::DotQ4_0::detect()?)),
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "aarch64-q4_0q8_0-neon",
        select: || Some(panel(rows::LongQ4_0::detect()?)),
    },
    Kernel {
        name: "generic-q4_0q8_0",
        select: || Some(panel(generic::quant::Q4_0)),
    },
    Kernel {
        name: "reference-q4_0q8_0",
        select: || Some(reference(WeightType::Q4_0)),
    },
];

fn panel<M: crate::panel::Micro>(micro: M) -> MulMat {
    MulMat(Box::new(Panel(micro)))
}

fn reference(ty: WeightType) -> MulMat {
    MulMat(Box::new(Reference(ty)))
}
