//! `MUL_MAT` on the pool: x is packed once, then weight rows are shared out.
//!
//! Rows of x in one plane (a matrix of the outer dimensions) are packed into groups, all planes in one scratch buffer.
//! Then every plane's product is cut into chunks of up to [`W_CHUNK`] weight rows times [`X_CHUNK`] rows of x. A chunk
//! is computed into a buffer on the stack and copied to its place, since its rows are apart in the output. Each result
//! is computed by one kernel call in an order that does not depend on the number of threads.

use llada_npu_kernels::op::mul_mat::{MulMat as Kernel, PanelLayout};
use llada_npu_kernels::{F32Rows, ShapeError, WeightRows, WeightType};

use super::disjoint::Disjoint;
use super::pool::{Panicked, Pool};
use crate::device::{DeviceError, MulMat, MulMatShape};

/// Most weight rows of a chunk.
const W_CHUNK: usize = 32;

/// Fewest weight rows of a chunk, where there are more: whole tiles of every kernel.
const W_CHUNK_MIN: usize = 8;

/// Most rows of x in a chunk.
const X_CHUNK: usize = 64;

/// Products that are worth claiming an item for: about a microsecond.
const ITEM_PRODUCTS: usize = 1 << 16;

/// Elements to pack that are worth claiming an item for.
const ITEM_ELEMENTS: usize = 1 << 12;

/// Cache line of every CPU we know; vectors are at most as long.
const ALIGN: usize = 64;

/// Owning: memory for packed rows, kept from operation to operation. Grows to what the largest asked for.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    /// Returns `size_bytes` bytes at an aligned address, with any contents.
    pub(super) fn bytes(&mut self, size_bytes: usize) -> Result<&mut [u8], DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { size_bytes };
        let needed = size_bytes.checked_add(ALIGN).ok_or_else(out_of_memory)?;
        if self.0.len() < needed {
            self.0.clear();
            self.0
                .try_reserve_exact(needed)
                .map_err(|_refused| out_of_memory())?;
            self.0.resize(needed, 0);
        }
        let start = self.0.as_ptr().align_offset(ALIGN);
        Ok(&mut self.0[start..][..size_bytes])
    }
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Weight rows of a chunk.
    w_chunk: usize,
    n_w_chunks: usize,
    n_x_chunks: usize,
    n_chunks: usize,
    /// Chunks claimed at a time.
    per_item: usize,
}

impl Cut {
    /// Cuts a product of `n_planes` times `[k, n]` by `[k, m]`, nothing of it empty.
    fn new(k: usize, n: usize, m: usize, n_planes: usize, n_threads: usize) -> Self {
        let n_x_chunks = m.div_ceil(X_CHUNK);
        let products = |w_chunk: usize| {
            k.saturating_mul(w_chunk)
                .saturating_mul(m.min(X_CHUNK))
                .max(1)
        };
        let mut w_chunk = W_CHUNK;
        // Smaller chunks where there are few, while each is still worth claiming.
        while w_chunk > W_CHUNK_MIN
            && n.div_ceil(w_chunk) * n_x_chunks * n_planes < 4 * n_threads
            && products(w_chunk / 2) >= ITEM_PRODUCTS
        {
            w_chunk /= 2;
        }
        let n_w_chunks = n.div_ceil(w_chunk);
        let n_chunks = n_w_chunks * n_x_chunks * n_planes;
        let per_item = (ITEM_PRODUCTS / products(w_chunk)).max(1);
        Self {
            w_chunk,
            n_w_chunks,
            n_x_chunks,
            n_chunks,
            per_item,
        }
    }

    fn n_items(&self) -> usize {
        self.n_chunks.div_ceil(self.per_item)
    }
}

/// Computes a product with one kernel.
pub(super) fn run(
    pool: &mut Pool,
    kernel: &Kernel,
    scratch: &mut Scratch,
    op: MulMat<'_>,
) -> Result<(), DeviceError> {
    let shape = op.check()?;
    if op.dst.is_empty() {
        return Ok(());
    }
    let product = Product {
        kernel,
        shape,
        src0: op.src0.data,
        src1: op.src1.data,
        layout: layout(kernel, &shape),
    };
    let n_planes = shape.ne1[2] * shape.ne1[3];
    let plane_size_bytes = product.layout.panel_size_bytes();
    let size_bytes = n_planes.checked_mul(plane_size_bytes);
    let panel = scratch.bytes(size_bytes.ok_or(DeviceError::OutOfMemory {
        size_bytes: usize::MAX,
    })?)?;
    product.pack(pool, panel)?;
    product.multiply(pool, panel, op.dst)?;
    Ok(())
}

fn layout(kernel: &Kernel, shape: &MulMatShape) -> PanelLayout {
    kernel.layout(shape.ne1[0], shape.ne1[1])
}

impl From<Panicked> for DeviceError {
    fn from(_: Panicked) -> Self {
        Self::Panicked
    }
}

/// A product whose operands have been checked.
struct Product<'a> {
    kernel: &'a Kernel,
    shape: MulMatShape,
    src0: &'a [u8],
    src1: &'a [u8],
    layout: PanelLayout,
}

impl Product<'_> {
    /// Packs the rows of x of every plane into `panel`.
    fn pack(&self, pool: &mut Pool, panel: &mut [u8]) -> Result<(), Panicked> {
        let (layout, group_size) = (&self.layout, self.layout.group_size_bytes());
        if group_size == 0 {
            // Rows without elements.
            return Ok(());
        }
        let n_groups = panel.len() / group_size;
        let per_item = (ITEM_ELEMENTS / (layout.k() * layout.lanes())).max(1);
        let panel = Disjoint::new(panel);
        pool.for_each(n_groups.div_ceil(per_item), |item| {
            for group in item * per_item..n_groups.min((item + 1) * per_item) {
                let (plane, g) = (group / layout.n_groups(), group % layout.n_groups());
                let x = self.x_plane(plane);
                let start = g * layout.lanes();
                let rows = x.slice(start, layout.lanes().min(x.n_rows() - start));
                // SAFETY: groups are disjoint, and the pool runs every item, and with it every group, once.
                let out = unsafe { panel.part(group * group_size, group_size) };
                self.kernel.prepare(layout, &rows, out);
            }
        })
    }

    /// Multiplies, with x packed.
    fn multiply(&self, pool: &mut Pool, panel: &[u8], dst: &mut [f32]) -> Result<(), Panicked> {
        let [k, n, ..] = self.shape.ne0;
        let [_, m, ne2, ne3] = self.shape.ne1;
        let cut = Cut::new(k, n, m, ne2 * ne3, pool.n_threads());
        let dst = Disjoint::new(dst);
        pool.for_each(cut.n_items(), |item| {
            for chunk in item * cut.per_item..cut.n_chunks.min((item + 1) * cut.per_item) {
                // x changes fastest, so that the weights of a chunk stay in the cache.
                let (rest, x_chunk) = (chunk / cut.n_x_chunks, chunk % cut.n_x_chunks);
                let (plane, w_chunk) = (rest / cut.n_w_chunks, rest % cut.n_w_chunks);
                self.chunk(
                    panel,
                    &dst,
                    plane,
                    w_chunk * cut.w_chunk,
                    cut.w_chunk,
                    x_chunk * X_CHUNK,
                );
            }
        })
    }

    /// Computes the results of up to `w_chunk` weight rows from `w0` on with up to `X_CHUNK` rows of x from `x0` on.
    fn chunk(
        &self,
        panel: &[u8],
        dst: &Disjoint<'_, f32>,
        plane: usize,
        w0: usize,
        w_chunk: usize,
        x0: usize,
    ) {
        let (n, m) = (self.shape.ne0[1], self.shape.ne1[1]);
        let weights = self.w_plane(plane).slice(w0, w_chunk.min(n - w0));
        let (n_weights, n_rows) = (weights.n_rows(), X_CHUNK.min(m - x0));
        let layout = &self.layout;
        let groups = x0 / layout.lanes()..(x0 + n_rows).div_ceil(layout.lanes());
        let start = plane * layout.panel_size_bytes() + groups.start * layout.group_size_bytes();
        let x = &panel[start..][..groups.len() * layout.group_size_bytes()];
        let mut out = [0.0; W_CHUNK * X_CHUNK];
        self.kernel.mul_mat(
            layout,
            &weights,
            x,
            n_rows,
            &mut out[..n_rows * n_weights],
            n_weights,
        );
        for (i, row) in out.chunks_exact(n_weights).take(n_rows).enumerate() {
            // SAFETY: chunks have different rows of x or different weight rows, and the pool runs every chunk once.
            let out = unsafe { dst.part((plane * m + x0 + i) * n + w0, n_weights) };
            out.copy_from_slice(row);
        }
    }

    /// Returns the indices of a plane in dimensions 2 and 3 of x.
    fn plane_index(&self, plane: usize) -> (usize, usize) {
        (plane % self.shape.ne1[2], plane / self.shape.ne1[2])
    }

    fn x_plane(&self, plane: usize) -> F32Rows<'_> {
        let MulMatShape { ne1, nb1, .. } = self.shape;
        let (i2, i3) = self.plane_index(plane);
        let plane = || {
            F32Rows::new(
                ne1[0],
                ne1[1],
                nb1[1],
                self.src1.get(i2 * nb1[2] + i3 * nb1[3]..).unwrap_or(&[]),
            )
        };
        checked(plane())
    }

    fn w_plane(&self, plane: usize) -> WeightRows<'_> {
        let MulMatShape {
            ty, ne0, nb0, ne1, ..
        } = self.shape;
        let (i2, i3) = self.plane_index(plane);
        let (i2, i3) = (i2 / (ne1[2] / ne0[2]), i3 / (ne1[3] / ne0[3]));
        let plane = self.src0.get(i2 * nb0[2] + i3 * nb0[3]..).unwrap_or(&[]);
        checked(WeightRows::new(ty, ne0[0], ne0[1], nb0[1], plane))
    }
}

fn checked<T>(plane: Result<T, ShapeError>) -> T {
    plane.expect("`MulMat::check` found every plane inside its bytes")
}

/// Returns the position of a type among [`WeightType::ALL`].
pub(super) fn index(ty: WeightType) -> usize {
    match ty {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Q8_0 => 2,
        WeightType::Q4_0 => 3,
    }
}
