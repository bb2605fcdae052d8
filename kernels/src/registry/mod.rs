//! Every implementation of every operation: the one list that dispatch, tests, benches and the force knob read.
//!
//! One file per operation.

mod attention;
mod binary;
mod copy;
mod gemm;
mod glu;
mod mul_mat;
mod norm;
mod probe;
mod rope;
mod soft_max;
mod unary;

pub use attention::attention;
pub use binary::binary;
pub use copy::copy;
pub use gemm::gemm;
pub use glu::glu;
pub use mul_mat::mul_mat;
pub use norm::norm;
pub use probe::int8_probe;
pub use rope::rope;
pub use soft_max::soft_max;
pub use unary::unary;

use crate::WeightType;
use crate::tile::TileType;

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

/// Returns the name of every kernel there is.
pub fn names() -> impl Iterator<Item = &'static str> {
    let mul_mat = WeightType::ALL
        .into_iter()
        .flat_map(|ty| list_names(mul_mat(ty)));
    let gemm = TileType::ALL
        .into_iter()
        .flat_map(|ty| list_names(gemm(ty)));
    mul_mat
        .chain(gemm)
        .chain(list_names(attention()))
        .chain(list_names(binary()))
        .chain(list_names(copy()))
        .chain(list_names(glu()))
        .chain(list_names(norm()))
        .chain(list_names(rope()))
        .chain(list_names(soft_max()))
        .chain(list_names(unary()))
}

/// The list of an operation on rows: one algorithm for every instruction set, and the reference.
macro_rules! row_kernels {
    ($op:literal, $kernel:ident) => {{
        static KERNELS: &[Kernel<$kernel>] = &[
            #[cfg(target_arch = "x86_64")]
            Kernel {
                name: concat!("x86_64-", $op, "-avx512f"),
                select: || {
                    let isa = crate::x86_64::row::Avx512::detect()?;
                    Some($kernel(Box::new(crate::vector::Vectored(isa))))
                },
            },
            #[cfg(target_arch = "x86_64")]
            Kernel {
                name: concat!("x86_64-", $op, "-avx2fma"),
                select: || {
                    let isa = crate::x86_64::Avx2::detect()?;
                    Some($kernel(Box::new(crate::vector::Vectored(isa))))
                },
            },
            #[cfg(target_arch = "aarch64")]
            Kernel {
                name: concat!("aarch64-", $op, "-neon"),
                select: || {
                    let isa = crate::aarch64::Neon::detect()?;
                    Some($kernel(Box::new(crate::vector::Vectored(isa))))
                },
            },
            Kernel {
                name: concat!("generic-", $op),
                select: || {
                    let isa = crate::generic::row::Baseline;
                    Some($kernel(Box::new(crate::vector::Vectored(isa))))
                },
            },
            Kernel {
                name: concat!("reference-", $op),
                select: || Some($kernel(Box::new(crate::reference::Reference))),
            },
        ];
        KERNELS
    }};
}
use row_kernels;

fn list_names<F>(kernels: &'static [Kernel<F>]) -> impl Iterator<Item = &'static str> {
    kernels.iter().map(|kernel| kernel.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_last_of_each_list_is_available() {
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
            }
        }
        assert!(attention().last().is_some_and(|k| k.select().is_some()));
        let mut names: Vec<_> = names().collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
