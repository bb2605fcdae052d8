//! `ROPE` on the pool. The angles of a position are the same for every head and every layer, so that their table is kept
//! from node to node and made anew when positions, factors or parameters change.

use llada_npu_ffi::ggml::Type;
use llada_npu_kernels::op::rope::{MAX_F16_ROW, Rope, RopeParams};

use super::disjoint::Disjoint;
use super::pool::{Panicked, Pool};
use super::row_op::check_elements;
use super::rows::{Rows, f32_rows, for_each_row, numbers, per_item};
use crate::device::{DeviceError, OperandError, Source, Spec, Task};

/// Work of a cosine and a sine, in elements of other operations.
const ANGLE_ELEMENTS: usize = 32;

/// Owning: cosines and sines of positions.
#[derive(Debug, Default)]
pub(super) struct Angles {
    params: Option<RopeParams>,
    positions: Vec<i32>,
    factors: Option<Vec<f32>>,
    /// One table after another, by position in `positions`.
    tables: Vec<f32>,
}

impl Angles {
    /// Returns the tables of positions, one after another.
    fn tables(
        &mut self,
        pool: &mut Pool,
        params: &RopeParams,
        positions: &[i32],
        factors: Option<&[f32]>,
    ) -> Result<&[f32], Panicked> {
        let known = self.params.as_ref() == Some(params)
            && self.positions == positions
            && self.factors.as_deref() == factors;
        if !known {
            // Not known again until the tables are complete.
            self.params = None;
            self.positions.clear();
            self.positions.extend_from_slice(positions);
            self.factors = factors.map(<[f32]>::to_vec);
            fill(pool, params, positions, factors, &mut self.tables)?;
            self.params = Some(*params);
        }
        Ok(&self.tables)
    }
}

fn fill(
    pool: &mut Pool,
    params: &RopeParams,
    positions: &[i32],
    factors: Option<&[f32]>,
    tables: &mut Vec<f32>,
) -> Result<(), Panicked> {
    let len = params.table_len();
    tables.resize(len * positions.len(), 0.0);
    let tables = Disjoint::new(tables);
    let per_item = per_item(len * ANGLE_ELEMENTS, positions.len(), pool.n_threads());
    pool.for_each(positions.len().div_ceil(per_item), |item| {
        for i in item * per_item..positions.len().min((item + 1) * per_item) {
            // SAFETY: tables are disjoint, and the pool runs every item, and with it every table, once.
            let table = unsafe { tables.part(i * len, len) };
            params.fill_table(positions[i], factors, table);
        }
    })
}

/// Checks `ROPE`.
pub(super) fn check(spec: &Spec, params: &RopeParams) -> Result<(), OperandError> {
    let (x, positions) = (spec.src(0)?, spec.src(1)?);
    let type_size = match x.type_ {
        Type::F32 => 4,
        Type::F16 if x.ne[0] <= MAX_F16_ROW => 2,
        type_ => return Err(OperandError::Type { src: 0, type_ }),
    };
    check_elements(x, 0, x.type_, type_size)?;
    check_elements(positions, 1, Type::I32, 4)?;
    if !params.n_dims.is_multiple_of(2) || params.n_dims > x.ne[0] {
        return Err(OperandError::Shape { src: 0 });
    }
    if positions.ne != [x.ne[2], 1, 1, 1] {
        return Err(OperandError::Shape { src: 1 });
    }
    if let Some(factors) = &spec.srcs[2] {
        check_elements(factors, 2, Type::F32, 4)?;
        if factors.ne[0] < params.n_dims / 2 {
            return Err(OperandError::Shape { src: 2 });
        }
    }
    let dst = &spec.dst;
    let rows = dst.nb[0] == type_size && dst.has_disjoint_rows(type_size * dst.ne[0]);
    if dst.type_ == x.type_ && dst.ne == x.ne && rows {
        Ok(())
    } else {
        Err(OperandError::Dst)
    }
}

/// Computes `ROPE`.
pub(super) fn run(
    pool: &mut Pool,
    kernel: &Rope,
    angles: &mut Angles,
    params: &RopeParams,
    task: Task<'_>,
) -> Result<(), DeviceError> {
    let dst = task.spec.dst;
    let data = |src: usize| match task.srcs[src] {
        Source::Data(bytes) => Ok(bytes),
        Source::InPlace => Err(OperandError::InPlace { src }),
        Source::Missing => Err(OperandError::Missing { src }),
    };
    let positions: &[i32] = numbers(data(1)?, 1)?;
    let factors = match &task.spec.srcs[2] {
        None => None,
        Some(_) => Some(&numbers::<f32>(data(2)?, 2)?[..params.n_dims / 2]),
    };
    if positions.len() < dst.ne[2] {
        let available = size_of_val(positions);
        return Err(OperandError::TooShort { src: 1, available }.into());
    }
    let positions = &positions[..dst.ne[2]];
    let len = params.table_len();
    if dst.type_ == Type::F32 {
        let x = f32_rows(&task, 0)?;
        let tables = angles.tables(pool, params, positions, factors)?;
        for_each_row(pool, task.dst, &dst, dst.ne[0], |i, out| {
            let table = &tables[i[1] * len..][..len];
            kernel.rotate(params.pairing, table, x.map(|x| x.row(i)), out);
        })
    } else {
        let x = Rows::new(&task, 0, 2 * dst.ne[0])?;
        let tables = angles.tables(pool, params, positions, factors)?;
        for_each_row::<[u8; 2]>(pool, task.dst, &dst, dst.ne[0], |i, out| {
            let table = &tables[i[1] * len..][..len];
            let x = x.map(|x| x.bytes(i));
            kernel.rotate_f16(params.pairing, table, x, out.as_flattened_mut());
        })
    }
}
