//! Every implementation of every operation: the one list that dispatch, tests, benches and the force knob read.
//!
//! One file per operation.

mod attention;
mod gemm;
mod mul_mat;

pub use attention::attention;
pub use gemm::gemm;
pub use mul_mat::mul_mat;

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
    mul_mat.chain(gemm).chain(list_names(attention()))
}

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
