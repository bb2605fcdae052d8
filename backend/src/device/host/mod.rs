//! The machine's own CPU: a pool of threads and the best kernel for each weight type.
//!
//! Kernels are chosen once, when the device is made. `LLADA_NPU_KERNEL` names others to use.

mod attention;
mod copy;
mod disjoint;
mod experts;
mod gemm;
mod half;
mod kernels;
mod kv_rows;
mod mul_mat;
mod nearest;
pub mod pool;
mod rope;
mod row_op;
mod rows;
#[cfg(test)]
mod tests;

use crate::device::{
    Accelerator, DeviceError, FlashAttn, FlashAttnShape, MulMat, MulMatShape, Op, OperandError,
    Spec, Task,
};
use crate::knobs::LLADA_NPU_KERNEL;
use attention::Partials;
pub use kernels::Family;
use kernels::Kernels;
use mul_mat::{Scratch, index};
use pool::Pool;
use rope::Angles;

/// Owning: the host's CPU as a device, with threads of its own.
#[derive(Debug)]
pub struct Host {
    pool: Pool,
    kernels: Kernels,
    scratch: Scratch,
    partials: Partials,
    kv_rows: Vec<usize>,
    angles: Angles,
    work: gemm::Work,
    rows: experts::Rows,
    wide: Vec<f32>,
    opens_tiles: bool,
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
        let kernels = Kernels::choose(names)?;
        for family in kernels.families() {
            let weights = family
                .weights
                .map_or(String::new(), |ty| format!(", {ty} weights"));
            log::debug!("{}{weights}: {}", family.op, family.used);
        }
        Ok(Self {
            pool: Pool::new(n_threads)?,
            kernels,
            scratch: Scratch::default(),
            partials: Partials::default(),
            kv_rows: Vec::new(),
            angles: Angles::default(),
            work: gemm::Work::default(),
            rows: experts::Rows::default(),
            wide: Vec::new(),
            opens_tiles: false,
        })
    }

    /// Has products open tiles that are closed, instead of refusing: for instances that run without a budget, beside others that
    /// have one.
    #[must_use]
    pub fn opening_tiles(self, opens_tiles: bool) -> Self {
        Self {
            opens_tiles,
            ..self
        }
    }

    /// Computes `MUL_MAT` or `MUL_MAT_ID`, on tiles where the weights have them.
    fn product(&mut self, task: Task<'_>) -> Result<(), DeviceError> {
        let pool = &mut self.pool;
        if let Some(weights) = task.weights
            && let Ok(shape) = gemm::Shape::of(&task.spec)
        {
            let plain = gemm::data(&task, 0)?;
            let address = plain.as_ptr() as usize;
            if let Some(tiles) = weights.tiles(address, &shape.weight, plain, pool) {
                let reading = if self.opens_tiles {
                    tiles.reading_opened()
                } else {
                    tiles.reading()
                };
                // Held until the product is done: sessions of other instances may close the tiles.
                let Some(_reading) = reading else {
                    let size_bytes = tiles.shape().size_bytes();
                    return Err(DeviceError::NotMapped { size_bytes });
                };
                let (_, gemm) = &self.kernels.gemm[gemm::index(shape.weight.matrix().ty())];
                let (work, rows) = (&mut self.work, &mut self.rows);
                return gemm::run(pool, gemm, work, rows, &shape, &tiles, task);
            }
        }
        if task.spec.op == Op::MulMatId {
            let shape = experts::Shape::of(&task.spec)?;
            let (_, kernel) = &self.kernels.mul_mat[index(shape.ty())];
            let (scratch, rows) = (&mut self.scratch, &mut self.rows);
            return experts::run(pool, kernel, scratch, rows, &shape, task);
        }
        self.mul_mat(MulMat::new(task)?)
    }

    /// Computes a product with weights in ggml's layout.
    fn mul_mat(&mut self, op: MulMat<'_>) -> Result<(), DeviceError> {
        let (_, kernel) = &self.kernels.mul_mat[index(op.ty)];
        mul_mat::run(&mut self.pool, kernel, &mut self.scratch, op)
    }

    /// Returns the kernels of every operation.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        self.kernels.families()
    }
}

/// Tells whether a host computes the operation: the same answer for every host.
#[must_use]
pub fn supports(spec: &Spec) -> bool {
    check(spec).is_ok()
}

fn check(spec: &Spec) -> Result<(), OperandError> {
    match &spec.op {
        Op::MulMat => {
            let wide = half::widened(spec);
            let spec = wide.as_ref().unwrap_or(spec);
            let plain = MulMatShape::of(spec).and_then(|shape| shape.check());
            plain.or_else(|error| gemm::Shape::of(spec).map_or(Err(error), |_| Ok(())))
        }
        Op::MulMatId => {
            let plain = experts::Shape::of(spec).map(|_| ());
            plain.or_else(|error| gemm::Shape::of(spec).map_or(Err(error), |_| Ok(())))
        }
        Op::Binary(_) => row_op::check_binary(spec),
        Op::Cpy => copy::check_cpy(spec),
        Op::GetRows => copy::check_get_rows(spec),
        Op::Glu { .. } => row_op::check_glu(spec),
        Op::Norm { .. } | Op::RmsNorm { .. } | Op::Scale { .. } | Op::Unary(_) => {
            row_op::check_map(spec)
        }
        Op::Rope(params) => rope::check(spec, params),
        Op::SetRows => copy::check_set_rows(spec),
        Op::SoftMax { .. } => row_op::check_soft_max(spec),
        Op::FlashAttnExt(_) | Op::FlashAttnTiles(_) => FlashAttnShape::of(spec).map(|_| ()),
        Op::SetKvRows(_) => kv_rows::check(spec),
    }
}

impl Accelerator for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn start_graph(&mut self) {
        self.pool.follow_caller();
    }

    fn supports(&self, spec: &Spec) -> bool {
        supports(spec)
    }

    fn run(&mut self, task: Task<'_>) -> Result<(), DeviceError> {
        check(&task.spec)?;
        if let Some(spec) = half::widened(&task.spec) {
            let mut wide = std::mem::take(&mut self.wide);
            let result = half::widen(&mut self.pool, task, spec, &mut wide)
                .and_then(|task| self.product(task));
            self.wide = wide;
            return result;
        }
        let (pool, kernels) = (&mut self.pool, &self.kernels);
        match task.spec.op {
            Op::MulMat | Op::MulMatId => self.product(task),
            Op::FlashAttnExt(_) | Op::FlashAttnTiles(_) => {
                let op = FlashAttn::new(task)?;
                attention::run(pool, &kernels.attention.1, &mut self.partials, op)
            }
            Op::Binary(op) => row_op::binary(pool, &kernels.binary.1, op, task),
            Op::Cpy => copy::cpy(pool, &kernels.copy.1, task),
            Op::GetRows => copy::get_rows(pool, &kernels.copy.1, task),
            Op::Glu { op, swapped } => row_op::glu(pool, &kernels.glu.1, op, swapped, task),
            Op::Norm { eps } => row_op::map(pool, task, |x, out| kernels.norm.1.norm(x, eps, out)),
            Op::RmsNorm { eps } => {
                row_op::map(pool, task, |x, out| kernels.norm.1.rms_norm(x, eps, out))
            }
            Op::Rope(params) => rope::run(pool, &kernels.rope.1, &mut self.angles, &params, task),
            Op::Scale { scale, bias } => row_op::map_elements(pool, task, |x, out| {
                kernels.unary.1.scale(scale, bias, x, out);
            }),
            Op::SetRows => copy::set_rows(pool, &kernels.copy.1, task),
            Op::SoftMax { scale, max_bias } => {
                row_op::soft_max(pool, &kernels.soft_max.1, scale, max_bias, task)
            }
            Op::Unary(op) => {
                row_op::map_elements(pool, task, |x, out| kernels.unary.1.unary(op, x, out))
            }
            Op::SetKvRows(tiles) => {
                kv_rows::run(pool, &kernels.copy.1, &mut self.kv_rows, tiles, task)
            }
        }
    }

    fn set_n_threads(&mut self, n_threads: usize) -> Result<(), DeviceError> {
        self.pool.set_n_threads(n_threads)
    }
}
