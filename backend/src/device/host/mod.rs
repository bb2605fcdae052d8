//! The machine's own CPU: a pool of threads and the best kernel for each weight type.
//!
//! Kernels are chosen once, when the device is made. `LLADA_NPU_KERNEL` names others to use.

mod attention;
mod disjoint;
mod mul_mat;
pub mod pool;
#[cfg(test)]
mod tests;

use llada_npu_kernels::op::attention::Attention;
use llada_npu_kernels::op::mul_mat::MulMat as Kernel;
use llada_npu_kernels::{WeightType, registry};

use crate::device::{
    Accelerator, DeviceError, FlashAttn, FlashAttnShape, MulMat, MulMatShape, Op, OperandError,
    Spec, Task,
};
use crate::knobs::LLADA_NPU_KERNEL;
use attention::Partials;
use mul_mat::{Scratch, index};
use pool::Pool;

/// A kernel and its name.
type Chosen<F> = (&'static str, F);

/// Owning: the host's CPU as a device, with threads of its own.
#[derive(Debug)]
pub struct Host {
    pool: Pool,
    /// In the order of [`WeightType::ALL`].
    kernels: [Chosen<Kernel>; 4],
    attention: Chosen<Attention>,
    scratch: Scratch,
    partials: Partials,
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
        let attention = choose_from(registry::attention(), names)?;
        for (name, kernel) in &kernels {
            log::debug!("mul_mat {}: {name}", kernel.ty().name());
        }
        Ok(Self {
            pool: Pool::new(n_threads)?,
            kernels,
            attention,
            scratch: Scratch::default(),
            partials: Partials::default(),
        })
    }

    /// Computes a product.
    fn mul_mat(&mut self, op: MulMat<'_>) -> Result<(), DeviceError> {
        let (_, kernel) = &self.kernels[index(op.ty)];
        mul_mat::run(&mut self.pool, kernel, &mut self.scratch, op)
    }

    /// Returns the name of the kernel for each weight type.
    pub fn kernel_names(&self) -> impl Iterator<Item = (WeightType, &'static str)> {
        self.kernels
            .iter()
            .map(|(name, kernel)| (kernel.ty(), *name))
    }
}

/// Tells whether a host computes the operation: the same answer for every host.
#[must_use]
pub fn supports(spec: &Spec) -> bool {
    check(spec).is_ok()
}

fn check(spec: &Spec) -> Result<(), OperandError> {
    match spec.op {
        Op::MulMat => MulMatShape::of(spec)?.check(),
        Op::FlashAttnExt(params) => FlashAttnShape::of(spec, params).map(|_| ()),
    }
}

/// Returns the named kernels, and the best ones for types none is named for.
fn choose(names: &[String]) -> Result<[Chosen<Kernel>; 4], DeviceError> {
    if let Some(name) = names
        .iter()
        .find(|name| !registry::names().any(|known| known == **name))
    {
        return Err(DeviceError::UnknownKernel {
            name: name.clone(),
            known: registry::names().collect(),
        });
    }
    let [f32, f16, q8_0, q4_0] =
        WeightType::ALL.map(|ty| choose_from(registry::mul_mat(ty), names));
    Ok([f32?, f16?, q8_0?, q4_0?])
}

/// Returns the kernel of a list that is named last, or the best one if none is named.
fn choose_from<F>(
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

impl Accelerator for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn supports(&self, spec: &Spec) -> bool {
        supports(spec)
    }

    fn run(&mut self, task: Task<'_>) -> Result<(), DeviceError> {
        match task.spec.op {
            Op::MulMat => self.mul_mat(MulMat::new(task)?),
            Op::FlashAttnExt(params) => {
                let (_, kernel) = &self.attention;
                let op = FlashAttn::new(task, params)?;
                attention::run(&mut self.pool, kernel, &mut self.partials, op)
            }
        }
    }

    fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError> {
        self.pool.set_n_threads(n_threads)
    }
}
