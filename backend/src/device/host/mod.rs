//! The machine's own CPU: a pool of threads and the best kernel for each weight type.
//!
//! Kernels are chosen once, when the device is made. `LLADA_NPU_KERNEL` names others to use.

mod disjoint;
mod mul_mat;
pub mod pool;
#[cfg(test)]
mod tests;

use llada_npu_kernels::op::mul_mat::MulMat as Kernel;
use llada_npu_kernels::{WeightType, registry};

use crate::device::{Accelerator, DeviceError, MulMat, MulMatShape};
use crate::knobs::LLADA_NPU_KERNEL;
use mul_mat::{Scratch, index};
use pool::Pool;

/// A kernel and its name.
type Chosen = (&'static str, Kernel);

/// Owning: the host's CPU as a device, with threads of its own.
#[derive(Debug)]
pub struct Host {
    pool: Pool,
    /// In the order of [`WeightType::ALL`].
    kernels: [Chosen; 4],
    scratch: Scratch,
}

impl Host {
    /// Makes a device with `n_threads` threads, the caller's among them, and the kernels of `LLADA_NPU_KERNEL`, if set.
    ///
    /// # Errors
    ///
    /// When `LLADA_NPU_KERNEL` names a kernel that does not exist or needs another CPU, or no thread can be started.
    pub fn new(n_threads: usize) -> Result<Self, DeviceError> {
        Self::with_kernels(n_threads, &LLADA_NPU_KERNEL.get()?)
    }

    /// Makes a device that uses the named kernels, and the best ones for weight types none is named for.
    ///
    /// # Errors
    ///
    /// When a kernel does not exist or needs another CPU, or no thread can be started.
    pub fn with_kernels(n_threads: usize, names: &[String]) -> Result<Self, DeviceError> {
        let kernels = choose(names)?;
        for (name, kernel) in &kernels {
            log::debug!("mul_mat {}: {name}", kernel.ty().name());
        }
        Ok(Self {
            pool: Pool::new(n_threads)?,
            kernels,
            scratch: Scratch::default(),
        })
    }

    /// Returns the name of the kernel for each weight type.
    pub fn kernel_names(&self) -> impl Iterator<Item = (WeightType, &'static str)> {
        self.kernels
            .iter()
            .map(|(name, kernel)| (kernel.ty(), *name))
    }
}

/// Returns the named kernels, and the best ones for types none is named for.
fn choose(names: &[String]) -> Result<[Chosen; 4], DeviceError> {
    let mut kernels = WeightType::ALL.map(|ty| registry::best(registry::mul_mat(ty)));
    for name in names {
        let mut lists = WeightType::ALL.iter().flat_map(|ty| registry::mul_mat(*ty));
        let Some(kernel) = lists.find(|kernel| kernel.name == name) else {
            let known = WeightType::ALL
                .iter()
                .flat_map(|ty| registry::mul_mat(*ty))
                .map(|kernel| kernel.name);
            return Err(DeviceError::UnknownKernel {
                name: name.clone(),
                known: known.collect(),
            });
        };
        let selected = kernel
            .select()
            .ok_or_else(|| DeviceError::KernelUnavailable { name: name.clone() })?;
        let ty = selected.ty();
        kernels[index(ty)] = (kernel.name, selected);
    }
    Ok(kernels)
}

impl Accelerator for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn supports_mul_mat(&self, shape: &MulMatShape) -> bool {
        shape.check().is_ok()
    }

    fn mul_mat(&mut self, op: MulMat<'_>) -> Result<(), DeviceError> {
        let (_, kernel) = &self.kernels[index(op.ty)];
        mul_mat::run(&mut self.pool, kernel, &mut self.scratch, op)
    }

    fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError> {
        self.pool.set_n_threads(n_threads)
    }
}
