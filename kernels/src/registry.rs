//! Every implementation of every operation: the one list that dispatch, tests, benches and the force knob read.

use crate::WeightType;
use crate::generic;
use crate::op::mul_mat::MulMat;
use crate::panel::Panel;
use crate::reference::mul_mat::Reference;
#[cfg(target_arch = "x86_64")]
use crate::x86_64;

/// One implementation of an operation.
#[derive(Debug)]
pub struct Kernel<F> {
    /// `{arch}-{types}-{feature}`.
    pub name: &'static str,
    select: fn() -> Option<F>,
}

impl<F> Kernel<F> {
    /// Returns the implementation if this CPU can run it.
    pub fn select(&self) -> Option<F> {
        (self.select)()
    }
}

/// Returns the kernel named first that this CPU can run.
///
/// # Panics
///
/// Never with the lists of this module: the last of each is always available.
pub fn best<F>(kernels: &[Kernel<F>]) -> (&'static str, F) {
    let mut available = kernels
        .iter()
        .filter_map(|kernel| Some((kernel.name, kernel.select()?)));
    available
        .next()
        .expect("the last kernel of a list is always available")
}

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
        select: || Some(panel(x86_64::avx512::float::F32::detect()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-f32-avx2fma",
        select: || Some(panel(x86_64::avx2::float::F32::detect()?)),
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
        select: || Some(panel(x86_64::avx512::float::F16::detect()?)),
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "x86_64-f16-avx2fma",
        select: || Some(panel(x86_64::avx2::float::F16::detect()?)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_last_of_each_list_is_available() {
        let mut names = Vec::new();
        for ty in WeightType::ALL {
            let list = mul_mat(ty);
            assert!(
                list.last().is_some_and(|kernel| kernel.select().is_some()),
                "{ty:?}"
            );
            for kernel in list {
                assert!(kernel.name.contains(ty.name()), "{}", kernel.name);
                assert!(
                    kernel.select().is_none_or(|k| k.ty() == ty),
                    "{}",
                    kernel.name
                );
                names.push(kernel.name);
            }
        }
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
