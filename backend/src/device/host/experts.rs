//! `MUL_MAT_ID`: every row of x chooses the plane of weights it meets.
//!
//! Rows are sorted by plane and gathered, so that each plane meets all its rows at once. Row number `slot = i1 + i2 *
//! n_used` is the `i1`-th choice of token `i2`, and its result is row `slot` of the output.

use bytemuck::{try_cast_slice, try_cast_slice_mut};
use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::WeightType;
use llada_npu_kernels::op::mul_mat::MulMat as Kernel;

use super::disjoint::Disjoint;
use super::gemm::data;
use super::mul_mat::{self, Scratch};
use super::pool::Pool;
use crate::device::{DeviceError, Layout, MulMat, MulMatShape, Operand, OperandError, Spec, Task};

/// How rows choose planes: shapes and strides of x and of the indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    n_used: usize,
    n_tokens: usize,
    ids_nb: [usize; 2],
    /// Elements of a row of x, and rows per token: 1 where all choices of a token have the same.
    x_ne: [usize; 2],
    x_nb: [usize; 2],
    n_planes: usize,
}

impl Choice {
    /// Reads i32 indices `[n_used, n_tokens]` for rows of x `[k, n_used or 1, n_tokens]` among `n_planes` planes.
    ///
    /// # Errors
    ///
    /// When they have another shape.
    pub(super) fn of(
        ids: &Layout,
        ne1: &[usize; 4],
        nb1: &[usize; 4],
        n_planes: usize,
    ) -> Result<Self, OperandError> {
        let [n_used, n_tokens, ..] = ids.ne;
        if ids.type_ != Type::I32 || ids.nb[0] != size_of::<i32>() {
            let type_ = ids.type_;
            return Err(OperandError::Type { src: 2, type_ });
        }
        let fits = ids.ne[2..] == [1, 1]
            && ne1[2..] == [n_tokens, 1]
            && ne1[1] > 0
            && n_used.is_multiple_of(ne1[1])
            && u32::try_from(n_used.saturating_mul(n_tokens)).is_ok();
        if !fits {
            return Err(OperandError::Shape { src: 2 });
        }
        Ok(Self {
            n_used,
            n_tokens,
            ids_nb: [ids.nb[0], ids.nb[1]],
            x_ne: [ne1[0], ne1[1]],
            x_nb: [nb1[1], nb1[2]],
            n_planes,
        })
    }

    /// Returns the shape of the result.
    pub(super) fn dst(&self, n: usize) -> [usize; 4] {
        [n, self.n_used, self.n_tokens, 1]
    }

    fn n_slots(&self) -> usize {
        self.n_used * self.n_tokens
    }

    /// Returns the plane that a row chose.
    fn plane(&self, ids: &[u8], slot: usize) -> Result<usize, DeviceError> {
        let [nb0, nb1] = self.ids_nb;
        let at = (slot % self.n_used) * nb0 + (slot / self.n_used) * nb1;
        let bytes = ids.get(at..).and_then(<[u8]>::first_chunk);
        let index = i32::from_ne_bytes(*bytes.ok_or(OperandError::TooShort {
            src: 2,
            available: ids.len(),
        })?);
        usize::try_from(index)
            .ok()
            .filter(|&plane| plane < self.n_planes)
            .ok_or(DeviceError::Index {
                index: index.into(),
                n_rows: self.n_planes,
            })
    }

    fn row_size(&self) -> usize {
        size_of::<f32>() * self.x_ne[0]
    }

    /// Returns where a row of x starts.
    fn row_start(&self, slot: usize) -> usize {
        slot % self.n_used % self.x_ne[1] * self.x_nb[0] + slot / self.n_used * self.x_nb[1]
    }

    /// Checks that every row of x lies inside its bytes.
    fn check_rows(&self, available: usize) -> Result<(), OperandError> {
        let last = (self.x_ne[1] - 1)
            .checked_mul(self.x_nb[0])
            .zip((self.n_tokens - 1).checked_mul(self.x_nb[1]))
            .and_then(|(a, b)| a.checked_add(b)?.checked_add(self.row_size()));
        if last.is_some_and(|end| end <= available) {
            Ok(())
        } else {
            Err(OperandError::TooShort { src: 1, available })
        }
    }
}

/// Owning: memory to sort rows in, kept from operation to operation.
#[derive(Debug, Default)]
pub(super) struct Rows {
    slots: Vec<u32>,
    starts: Vec<u32>,
    gathered: Scratch,
    /// Results in the order of sorted rows.
    results: Scratch,
}

/// Rows in the order of the planes they chose.
#[derive(Debug)]
pub(super) struct Sorted<'a> {
    /// The rows, one after another.
    pub(super) x: &'a [u8],
    /// Which row each is.
    pub(super) slots: &'a [u32],
    /// First row of each plane, and the end.
    pub(super) starts: &'a [u32],
}

impl Rows {
    /// Sorts rows by the plane they chose, rows of one plane in their order. There is at least one.
    ///
    /// # Errors
    ///
    /// When an index is that of no plane, or operands are too short.
    pub(super) fn sort(
        &mut self,
        pool: &mut Pool,
        choice: &Choice,
        x: &[u8],
        ids: &[u8],
    ) -> Result<Sorted<'_>, DeviceError> {
        choice.check_rows(x.len())?;
        let starts = &mut self.starts;
        starts.clear();
        starts.resize(choice.n_planes + 1, 0);
        for slot in 0..choice.n_slots() {
            starts[choice.plane(ids, slot)? + 1] += 1;
        }
        for i in 0..choice.n_planes {
            starts[i + 1] += starts[i];
        }
        self.slots.clear();
        self.slots.resize(choice.n_slots(), 0);
        // Each start moves on as rows are placed; in the end it is where the next plane starts.
        for (slot, number) in (0..choice.n_slots()).zip(0_u32..) {
            let next = &mut starts[choice.plane(ids, slot)?];
            self.slots[*next as usize] = number;
            *next += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
        let row_size = choice.row_size();
        let gathered = self.gathered.bytes(choice.n_slots() * row_size)?;
        let (out, slots) = (Disjoint::new(gathered), &self.slots);
        pool.for_each(slots.len(), |i| {
            let from = &x[choice.row_start(slots[i] as usize)..][..row_size];
            // SAFETY: every row has a place of its own, and the pool runs every item once.
            unsafe { out.part(i * row_size, row_size) }.copy_from_slice(from);
        })?;
        Ok(Sorted {
            x: gathered,
            slots: &self.slots,
            starts: &self.starts,
        })
    }
}

/// `MUL_MAT_ID` with weights in ggml's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    ty: WeightType,
    ne0: [usize; 4],
    nb0: [usize; 4],
    choice: Choice,
}

impl Shape {
    /// Reads the shape: weights `[k, n, n_planes]` of a type with kernels, f32 rows, a contiguous f32 result.
    ///
    /// # Errors
    ///
    /// When it is another.
    pub(super) fn of(spec: &Spec) -> Result<Self, OperandError> {
        let (src0, src1) = (spec.src(0)?, spec.src(1)?);
        let type_ = src0.type_;
        let ty = WeightType::from_ggml_type(type_.0).ok_or(OperandError::Type { src: 0, type_ })?;
        if src1.type_ != Type::F32 {
            let type_ = src1.type_;
            return Err(OperandError::Type { src: 1, type_ });
        }
        let choice = Choice::of(spec.src(2)?, &src1.ne, &src1.nb, src0.ne[2])?;
        let is_result = spec.dst.ne == choice.dst(src0.ne[1]) && spec.dst.is_contiguous(4);
        if spec.dst.type_ != Type::F32 || !is_result {
            return Err(OperandError::Dst);
        }
        let shape = Self {
            ty,
            ne0: src0.ne,
            nb0: src0.nb,
            choice,
        };
        if src0.ne[3] != 1 {
            return Err(OperandError::Shape { src: 0 });
        }
        let product = MulMatShape {
            ne1: [src1.ne[0], 1, 1, 1],
            nb1: [src1.nb[0]; 4],
            ..shape.plane(1)
        };
        product.check()?;
        Ok(shape)
    }

    /// Returns the type of the weights.
    pub(super) fn ty(&self) -> WeightType {
        self.ty
    }

    /// Returns the product of one plane with `n_rows` gathered rows.
    fn plane(&self, n_rows: usize) -> MulMatShape {
        let row_size = self.choice.row_size();
        MulMatShape {
            ty: self.ty,
            ne0: [self.ne0[0], self.ne0[1], 1, 1],
            nb0: self.nb0,
            ne1: [self.choice.x_ne[0], n_rows, 1, 1],
            nb1: [size_of::<f32>(), row_size, 0, 0],
        }
    }
}

/// Computes `MUL_MAT_ID`, plane by plane.
pub(super) fn run(
    pool: &mut Pool,
    kernel: &Kernel,
    scratch: &mut Scratch,
    rows: &mut Rows,
    shape: &Shape,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let (weights, x, ids) = (data(&task, 0)?, data(&task, 1)?, data(&task, 2)?);
    let dst: &mut [f32] = try_cast_slice_mut(task.dst).map_err(|_unaligned| OperandError::Dst)?;
    if dst.is_empty() {
        return Ok(());
    }
    let n = shape.ne0[1];
    let mut results = std::mem::take(&mut rows.results);
    let Sorted { x, slots, starts } = rows.sort(pool, &shape.choice, x, ids)?;
    let row_size = shape.choice.row_size();
    for (plane, range) in starts.windows(2).enumerate() {
        let (first, n_rows) = (range[0] as usize, (range[1] - range[0]) as usize);
        if n_rows == 0 {
            continue;
        }
        let product = shape.plane(n_rows);
        let src0 = weights.get(plane * shape.nb0[2]..).unwrap_or(&[]);
        let out = results.bytes(n_rows * n * size_of::<f32>())?;
        let op = MulMat {
            ty: shape.ty,
            src0: Operand {
                data: src0,
                ne: product.ne0,
                nb: product.nb0,
            },
            src1: Operand {
                data: &x[first * row_size..],
                ne: product.ne1,
                nb: product.nb1,
            },
            dst: try_cast_slice_mut(out).map_err(|_unaligned| OperandError::Dst)?,
        };
        mul_mat::run(pool, kernel, scratch, op)?;
        let out: &[f32] = try_cast_slice(out).map_err(|_unaligned| OperandError::Dst)?;
        for (&slot, out) in slots[first..].iter().zip(out.chunks_exact(n)) {
            dst[slot as usize * n..][..n].copy_from_slice(out);
        }
    }
    rows.results = results;
    Ok(())
}
