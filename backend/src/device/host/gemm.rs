//! `MUL_MAT` and `MUL_MAT_ID` on tiles: x is packed once, then strips of weights are shared out.
//!
//! A product is a list of [`Job`]s: rows of x times one plane of weights. `MUL_MAT` has one for each plane of x. In
//! `MUL_MAT_ID` every row chooses its plane (its expert): rows are gathered by plane first, so that each plane is read
//! once, and results go back to where their rows came from.
//!
//! Threads claim runs of strips, ever shorter ones: memory is read fastest far in one go, and in the end nobody waits long
//! for the others. A run is multiplied with one group of rows after the other, so that a group stays in the cache while the
//! strips of the run pass by.

use std::ops::Range;

use bytemuck::try_cast_slice_mut;
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::F32Rows;
use llada_npu_kernels::op::gemm::{Gemm, GemmLayout};
use llada_npu_kernels::tile::{TILE, TileType};

use super::disjoint::Disjoint;
use super::experts::{Choice, Rows};
use super::mul_mat::Scratch;
use super::pool::{Panicked, Pool};
use crate::device::{DeviceError, Layout, OperandError, Source, Spec, Task};
use crate::memory::shape::TileShape;
use crate::memory::tiles::Tiles;

/// Elements to pack that are worth claiming an item for.
const ITEM_ELEMENTS: usize = 1 << 13;

/// Most strips of a run that several groups of rows pass over: they stay in the cache.
const RUN_STRIPS: usize = 8;

/// Rows of a group whose results fit the stack; and so few that clearing room for more would take a while of its own.
const STACK_ROWS: [usize; 2] = [128, 8];

/// A product with tiled weights: shapes and strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The weights, planes in the order of memory.
    pub(super) weight: TileShape,
    /// Outer dimensions of the weights.
    ne0: [usize; 2],
    ne1: [usize; 4],
    nb1: [usize; 4],
    /// How rows choose planes, `MUL_MAT_ID` alone.
    choice: Option<Choice>,
}

impl Shape {
    /// Reads the shape of a product: contiguous weights of a type with tiles, f32 rows, and a contiguous f32 result.
    /// `src2`, where there is one, says which plane of the weights each row meets.
    ///
    /// # Errors
    ///
    /// When it is another.
    pub(super) fn of(spec: &Spec) -> Result<Self, OperandError> {
        let (src0, src1) = (spec.src(0)?, spec.src(1)?);
        let weight = weight_shape(src0).ok_or(OperandError::Type {
            src: 0,
            type_: src0.type_,
        })?;
        if src1.type_ != Type::F32 || src1.nb[0] != size_of::<f32>() {
            let type_ = src1.type_;
            return Err(OperandError::Type { src: 1, type_ });
        }
        let (k0, k1) = (src0.ne[0], src1.ne[0]);
        if k0 != k1 {
            return Err(OperandError::RowLength { k0, k1 });
        }
        let shape = Self {
            weight,
            ne0: [src0.ne[2], src0.ne[3]],
            ne1: src1.ne,
            nb1: src1.nb,
            choice: None,
        };
        let (shape, dst) = match spec.srcs[2] {
            None => (shape, shape.check_planes(src0.ne[1])?),
            Some(ids) => shape.with_ids(&ids, src0.ne[1])?,
        };
        if spec.dst.type_ != Type::F32 || spec.dst.ne != dst || !spec.dst.is_contiguous(4) {
            return Err(OperandError::Dst);
        }
        Ok(shape)
    }

    /// Returns the shape of the result of `MUL_MAT`.
    fn check_planes(&self, n: usize) -> Result<[usize; 4], OperandError> {
        for dim in [2, 3] {
            let (ne0, ne1) = (self.ne0[dim - 2], self.ne1[dim]);
            if !ne1.is_multiple_of(ne0) {
                return Err(OperandError::Broadcast { dim, ne0, ne1 });
            }
        }
        Ok([n, self.ne1[1], self.ne1[2], self.ne1[3]])
    }

    /// Returns the product with indices, and the shape of its result.
    fn with_ids(mut self, ids: &Layout, n: usize) -> Result<(Self, [usize; 4]), OperandError> {
        if self.ne0[1] != 1 {
            return Err(OperandError::Shape { src: 0 });
        }
        let choice = Choice::of(ids, &self.ne1, &self.nb1, self.ne0[0])?;
        self.choice = Some(choice);
        Ok((self, choice.dst(n)))
    }
}

/// Returns the tiles of a contiguous weight; `None` where it has none.
pub(super) fn weight_shape(src0: &Layout) -> Option<TileShape> {
    let [k, n, ne2, ne3] = src0.ne;
    let shape = TileShape::new(src0.type_.0, k, n, ne2.checked_mul(ne3)?)?;
    let row_size = shape.plain_size_bytes() / (n * shape.n_planes());
    let dense = [
        shape.matrix().ty().type_size(),
        row_size,
        row_size * n,
        row_size * n * ne2,
    ];
    let is_dense = (0..4).all(|dim| dim > 0 && src0.ne[dim] == 1 || src0.nb[dim] == dense[dim]);
    is_dense.then_some(shape)
}

/// Returns the position of a type among [`TileType::ALL`].
pub(super) fn index(ty: TileType) -> usize {
    match ty {
        TileType::F16 => 0,
        TileType::Q4_0 => 1,
        TileType::Q4_1 => 2,
        TileType::Q8_0 => 3,
        TileType::Q4K => 4,
        TileType::Q6K => 5,
    }
}

/// Rows of x times one plane of weights.
#[derive(Clone, Copy, Debug)]
struct Job {
    /// Where the rows start in the bytes of x.
    x: usize,
    plane: usize,
    /// Where the results of the first row start; or, with indices, its place in the list of rows.
    out: usize,
    layout: GemmLayout,
    /// Where its packed rows start.
    panel: usize,
    /// Number of its first item, when packing and when multiplying.
    first: [usize; 2],
}

/// Owning: memory of products, kept from operation to operation.
#[derive(Debug, Default)]
pub(super) struct Work {
    jobs: Vec<Job>,
    panel: Scratch,
}

/// Computes a product whose weights are `tiles`.
pub(super) fn run(
    pool: &mut Pool,
    gemm: &Gemm,
    work: &mut Work,
    rows: &mut Rows,
    shape: &Shape,
    tiles: &Tiles,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let x = data(&task, 1)?;
    let ids = shape.choice.map(|_| data(&task, 2)).transpose()?;
    let dst: &mut [f32] = try_cast_slice_mut(task.dst).map_err(|_unaligned| OperandError::Dst)?;
    if dst.is_empty() {
        return Ok(());
    }
    let Work { jobs, panel } = work;
    jobs.clear();
    let mut product = Product {
        gemm,
        tiles,
        x,
        row_stride: shape.nb1[1],
        slots: None,
    };
    if let Some((choice, ids)) = shape.choice.zip(ids) {
        let sorted = rows.sort(pool, &choice, x, ids)?;
        product.x = sorted.x;
        product.row_stride = size_of::<f32>() * shape.ne1[0];
        product.slots = Some(sorted.slots);
        expert_jobs(shape, gemm, sorted.starts, jobs);
    } else {
        plane_jobs(shape, gemm, jobs);
    }
    product.run(pool, jobs, panel, dst)
}

/// Returns the bytes of an operand that is not the result's memory.
///
/// # Errors
///
/// When there is none.
pub(super) fn data<'a>(task: &Task<'a>, src: usize) -> Result<&'a [u8], OperandError> {
    match task.srcs[src] {
        Source::Data(data) => Ok(data),
        Source::InPlace => Err(OperandError::InPlace { src }),
        Source::Missing => Err(OperandError::Missing { src }),
    }
}

/// The jobs of `MUL_MAT`.
fn plane_jobs(shape: &Shape, gemm: &Gemm, jobs: &mut Vec<Job>) {
    let [k, m, ne2, ne3] = shape.ne1;
    let n = shape.weight.n();
    let (r2, r3) = (ne2 / shape.ne0[0], ne3 / shape.ne0[1]);
    let layout = gemm.layout(k, m);
    for (i3, i2) in (0..ne3).flat_map(|i3| (0..ne2).map(move |i2| (i3, i2))) {
        jobs.push(Job {
            x: i2 * shape.nb1[2] + i3 * shape.nb1[3],
            plane: i2 / r2 + i3 / r3 * shape.ne0[0],
            out: (i2 + i3 * ne2) * m * n,
            layout,
            panel: 0,
            first: [0; 2],
        });
    }
}

/// The jobs of `MUL_MAT_ID`: planes that some row chose.
fn expert_jobs(shape: &Shape, gemm: &Gemm, starts: &[u32], jobs: &mut Vec<Job>) {
    let k = shape.ne1[0];
    for (plane, rows) in starts.windows(2).enumerate() {
        let (first, n_rows) = (rows[0] as usize, (rows[1] - rows[0]) as usize);
        if n_rows > 0 {
            jobs.push(Job {
                x: first * k * size_of::<f32>(),
                plane,
                out: first,
                layout: gemm.layout(k, n_rows),
                panel: 0,
                first: [0; 2],
            });
        }
    }
}

/// A product whose operands have been checked.
struct Product<'a> {
    gemm: &'a Gemm,
    tiles: &'a Tiles,
    x: &'a [u8],
    /// Bytes from one row of x to the next.
    row_stride: usize,
    /// With indices: which row each is.
    slots: Option<&'a [u32]>,
}

impl Product<'_> {
    fn run(
        &self,
        pool: &mut Pool,
        jobs: &mut [Job],
        panel: &mut Scratch,
        dst: &mut [f32],
    ) -> Result<(), DeviceError> {
        let n_threads = pool.n_threads();
        let (mut size, mut items) = (0_usize, [0; 2]);
        for job in &mut *jobs {
            self.rows(job)?;
            (job.panel, job.first) = (size, items);
            items[0] += job.layout.n_units().div_ceil(units_per_item(&job.layout));
            items[1] += self.runs(job, n_threads).count();
            size = size.checked_add(job.layout.panel_size_bytes()).ok_or(
                DeviceError::OutOfMemory {
                    size_bytes: usize::MAX,
                },
            )?;
        }
        let panel = panel.bytes(size)?;
        self.pack(pool, jobs, items[0], panel)?;
        self.multiply(pool, jobs, items[1], panel, dst)?;
        Ok(())
    }

    fn n_strips(&self) -> usize {
        self.tiles.shape().matrix().n_strips()
    }

    /// Returns how the strips of a job are shared out.
    fn runs(&self, job: &Job, n_threads: usize) -> Runs {
        let most = match job.layout.n_groups() {
            0 | 1 => usize::MAX,
            _ => RUN_STRIPS,
        };
        Runs {
            n: self.n_strips(),
            n_threads,
            most,
        }
    }

    fn rows(&self, job: &Job) -> Result<F32Rows<'_>, OperandError> {
        let too_short = OperandError::TooShort {
            src: 1,
            available: self.x.len(),
        };
        let (k, n_rows) = (job.layout.k(), job.layout.n_rows());
        let bytes = self.x.get(job.x..).ok_or(too_short)?;
        F32Rows::new(k, n_rows, self.row_stride, bytes).map_err(|_short| too_short)
    }

    fn pack(
        &self,
        pool: &mut Pool,
        jobs: &[Job],
        n_items: usize,
        panel: &mut [u8],
    ) -> Result<(), Panicked> {
        let panel = Disjoint::new(panel);
        pool.for_each(n_items, |item| {
            let job = job_of(jobs, item, 0);
            let units = nth(
                item - job.first[0],
                units_per_item(&job.layout),
                job.layout.n_units(),
            );
            let bytes = job.layout.unit_bytes(units.clone());
            // SAFETY: units of a job are disjoint, and so are the panels of jobs; the pool runs every item once.
            let out = unsafe { panel.part(job.panel + bytes.start, bytes.len()) };
            let rows = self.rows(job).expect("checked before");
            self.gemm.prepare(&job.layout, &rows, units, out);
        })
    }

    fn multiply(
        &self,
        pool: &mut Pool,
        jobs: &[Job],
        n_items: usize,
        panel: &[u8],
        dst: &mut [f32],
    ) -> Result<(), Panicked> {
        let n_threads = pool.n_threads();
        let dst = Disjoint::new(dst);
        pool.for_each(n_items, |item| {
            let job = job_of(jobs, item, 1);
            let strips = self.runs(job, n_threads).nth(item - job.first[1]);
            for group in 0..job.layout.n_groups() {
                let bytes = job.layout.group_bytes(group);
                let x = &panel[job.panel + bytes.start..job.panel + bytes.end];
                let n_rows = job.layout.rows(group).len();
                let strips = strips.clone();
                if n_rows <= STACK_ROWS[1] {
                    let mut out = [[0.0; TILE]; STACK_ROWS[1]];
                    self.run_of(job, strips, group, x, &mut out[..n_rows], &dst);
                } else if n_rows <= STACK_ROWS[0] {
                    let mut out = [[0.0; TILE]; STACK_ROWS[0]];
                    self.run_of(job, strips, group, x, &mut out[..n_rows], &dst);
                } else {
                    let mut out = vec![[0.0; TILE]; n_rows];
                    self.run_of(job, strips, group, x, &mut out, &dst);
                }
            }
        })
    }

    /// Multiplies a run of strips with one group of rows.
    fn run_of(
        &self,
        job: &Job,
        strips: Range<usize>,
        group: usize,
        x: &[u8],
        out: &mut [[f32; TILE]],
        dst: &Disjoint<'_, f32>,
    ) {
        let shape = self.tiles.shape();
        let (n, plane) = (shape.n(), self.tiles.plane(job.plane));
        for strip in strips {
            let size = shape.strip_size_bytes();
            let tiles = &plane[strip * size..][..size];
            self.gemm.strip(&job.layout, tiles, x, out);
            let n_weights = shape.matrix().strip_rows(strip);
            for (row, results) in job.layout.rows(group).zip(&*out) {
                let start = match self.slots {
                    None => job.out + row * n,
                    Some(slots) => slots[job.out + row] as usize * n,
                };
                // SAFETY: a strip's results of a row are written by the one item that has the strip and the row's job.
                let to = unsafe { dst.part(start + strip * TILE, n_weights) };
                to.copy_from_slice(&results[..n_weights]);
            }
        }
    }
}

/// How `n` strips are shared out: each run is a part of what is left, at least one strip and at most `most`.
#[derive(Clone, Copy, Debug)]
struct Runs {
    n: usize,
    n_threads: usize,
    most: usize,
}

impl Runs {
    /// Returns the run that starts at a strip.
    fn at(self, start: usize) -> Range<usize> {
        let len = ((self.n - start) / (2 * self.n_threads)).min(self.most);
        start..self.n.min(start + len.max(1))
    }

    fn count(self) -> usize {
        let starts = std::iter::successors(Some(0), |&start| Some(self.at(start).end));
        starts.take_while(|&start| start < self.n).count()
    }

    fn nth(self, i: usize) -> Range<usize> {
        (0..i).fold(self.at(0), |run, _| self.at(run.end))
    }
}

/// Returns the job that an item is part of; `pass` is 0 when packing, 1 when multiplying.
fn job_of(jobs: &[Job], item: usize, pass: usize) -> &Job {
    &jobs[jobs.partition_point(|job| job.first[pass] <= item) - 1]
}

/// Returns part `i` of `0..len`, parts being `size` long but the last.
fn nth(i: usize, size: usize, len: usize) -> Range<usize> {
    i * size..len.min((i + 1) * size)
}

fn units_per_item(layout: &GemmLayout) -> usize {
    (ITEM_ELEMENTS / (TILE * layout.rows(0).len().max(1))).max(1)
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
