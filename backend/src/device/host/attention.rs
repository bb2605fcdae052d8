//! `FLASH_ATTN_EXT` on the pool.
//!
//! The work is cut three ways: heads of K and V (with the heads of Q that share them), runs of rows of Q, and, where heads
//! are few, runs of positions, whose states are merged in order. The runs of positions are shared out where there are not
//! enough rows to share out. How positions are cut depends on heads and positions alone: a row's result depends neither on
//! the number of threads nor on the rows beside it.

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use llada_npu_kernels::op::attention::{
    Attend, Attention, HeadRows, MAX_ROWS, Scores, StateLayout, finish, merge,
};
use llada_npu_kernels::tile::kv::{HeadTiles, Role};
use llada_npu_kernels::{F32Rows, ShapeError, WeightRows, WeightType};

use super::disjoint::Disjoint;
use super::pool::{Panicked, Pool};
use super::row_op::alibi_slope;
use crate::device::{DeviceError, FlashAttn, FlashAttnShape, Layout};

/// Pieces of work that are worth having: enough for the threads of any machine.
const MANY_ITEMS: usize = 64;

/// Floats of a cache line.
const ALIGN: usize = 16;

/// Fewest positions of a run, where they are cut.
const MIN_RUN: usize = 512;

thread_local! {
    /// Memory of a thread for one item, kept from item to item.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Owning: memory kept from operation to operation.
#[derive(Debug, Default)]
pub(super) struct Partials {
    states: Vec<f32>,
    slopes: Vec<f32>,
}

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Heads of Q in a call, all of one head of K and V.
    n_heads: usize,
    /// Rows of Q per head in a call.
    n_tokens: usize,
    /// Positions of a run.
    n_kv: usize,
    /// Calls over the heads of one head of K and V, over rows, and over positions.
    n_head_calls: usize,
    n_token_calls: usize,
    n_runs: usize,
    /// Heads of K and V, times dimension 3.
    n_planes: usize,
}

impl Cut {
    fn new(shape: &FlashAttnShape) -> Self {
        let FlashAttnShape { q, k, mask, .. } = shape;
        let group = shape.n_heads_per_kv();
        // Heads of a call share a mask.
        let n_heads = match mask {
            Some(mask) if mask.ne[2] > 1 => 1,
            _ => group.min(MAX_ROWS),
        };
        let even = |n: usize, most: usize| n.div_ceil(n.div_ceil(most).max(1)).max(1);
        let n_heads = even(group, n_heads);
        let n_tokens = even(q.ne[1], MAX_ROWS / n_heads);
        let (n_head_calls, n_token_calls) = (group.div_ceil(n_heads), q.ne[1].div_ceil(n_tokens));
        let n_planes = k.ne[2] * q.ne[3];
        let most_runs = MANY_ITEMS.div_ceil((n_head_calls * n_planes).max(1));
        let n_kv = k.ne[1].div_ceil(most_runs).max(MIN_RUN);
        let n_kv = n_kv.next_multiple_of(128);
        Self {
            n_heads,
            n_tokens,
            n_kv,
            n_head_calls,
            n_token_calls,
            n_runs: k.ne[1].div_ceil(n_kv).max(1),
            n_planes,
        }
    }

    fn n_calls(&self) -> usize {
        self.n_planes * self.n_head_calls * self.n_token_calls
    }
}

/// Computes attention with one kernel.
pub(super) fn run(
    pool: &mut Pool,
    kernel: &Attention,
    partials: &mut Partials,
    op: FlashAttn<'_>,
) -> Result<(), DeviceError> {
    if op.dst.is_empty() {
        return Ok(());
    }
    let shape = op.shape;
    let cut = Cut::new(&shape);
    let Partials { states, slopes } = partials;
    slopes.clear();
    if shape.params.max_bias > 0.0 {
        let n_heads = shape.q.ne[2];
        slopes.extend((0..n_heads).map(|h| alibi_slope(shape.params.max_bias, n_heads, h)));
    }
    let state_len = StateLayout::new(cut.n_heads * cut.n_tokens, shape.v.ne[0]).len();
    let is_shared = cut.n_runs > 1 && cut.n_calls() < MANY_ITEMS;
    let pass = Pass {
        kernel,
        shape,
        cut,
        q: op.q,
        k: op.k,
        v: op.v,
        mask: op.mask,
        slopes,
        state_len,
    };
    let dst = Disjoint::new(op.dst);
    if !is_shared {
        pool.for_each(cut.n_calls(), |call| {
            with_scratch(pass.scratch_len() + 2 * state_len, |scratch| {
                let len = pass.layout(call).len();
                let (state, scratch) = scratch.split_at_mut(len);
                let (other, scratch) = scratch.split_at_mut(len);
                pass.attend(call, 0, state, scratch);
                for run in 1..cut.n_runs {
                    pass.attend(call, run, other, scratch);
                    merge(pass.layout(call), state, other);
                }
                pass.write(call, state, &dst);
            });
        })?;
        return Ok(());
    }
    reserve(states, cut.n_calls() * cut.n_runs * state_len + ALIGN)?;
    let states = Disjoint::new(aligned(states));
    pass.attend_runs(pool, &states)?;
    pool.for_each(cut.n_calls(), |call| {
        let state = |run: usize| {
            // SAFETY: states do not overlap, and of each call, which runs once, every state is lent once.
            unsafe {
                states.part(
                    (call * cut.n_runs + run) * state_len,
                    pass.layout(call).len(),
                )
            }
        };
        let first = state(0);
        for run in 1..cut.n_runs {
            merge(pass.layout(call), first, state(run));
        }
        pass.write(call, first, &dst);
    })?;
    Ok(())
}

/// Returns the floats from the first that starts a cache line on.
fn aligned(floats: &mut [f32]) -> &mut [f32] {
    let start = floats.as_ptr().align_offset(4 * ALIGN).min(floats.len());
    &mut floats[start..]
}

/// Makes `floats` at least `len` long.
fn reserve(floats: &mut Vec<f32>, len: usize) -> Result<(), DeviceError> {
    let more = len.saturating_sub(floats.len());
    let out_of_memory = |_refused| DeviceError::OutOfMemory {
        size_bytes: len.saturating_mul(4),
    };
    floats.try_reserve(more).map_err(out_of_memory)?;
    if more > 0 {
        floats.resize(len, 0.0);
    }
    Ok(())
}

/// Lends this thread's memory, at least `len` floats of any contents.
fn with_scratch(len: usize, body: impl FnOnce(&mut [f32])) {
    SCRATCH.with_borrow_mut(|scratch| {
        let needed = len + ALIGN;
        if scratch.len() < needed {
            scratch.resize(needed, 0.0);
        }
        body(&mut aligned(scratch)[..len]);
    });
}

/// One operation.
struct Pass<'a> {
    kernel: &'a Attention,
    shape: FlashAttnShape,
    cut: Cut,
    q: &'a [u8],
    k: &'a [u8],
    v: &'a [u8],
    mask: Option<&'a [u8]>,
    slopes: &'a [f32],
    state_len: usize,
}

/// The rows of a call.
#[derive(Clone, Copy)]
struct Call {
    i3: usize,
    head_kv: usize,
    /// First head of Q, and their number.
    head: usize,
    n_heads: usize,
    /// First row of Q, and their number.
    token: usize,
    n_tokens: usize,
}

impl Pass<'_> {
    fn call(&self, call: usize) -> Call {
        let Cut {
            n_head_calls,
            n_token_calls,
            ..
        } = self.cut;
        // Rows change fastest, so that K and V stay in the cache.
        let (rest, token_call) = (call / n_token_calls, call % n_token_calls);
        let (plane, head_call) = (rest / n_head_calls, rest % n_head_calls);
        let n_head_kv = self.shape.k.ne[2];
        let (i3, head_kv) = (plane / n_head_kv, plane % n_head_kv);
        let group = self.shape.n_heads_per_kv();
        let first = head_call * self.cut.n_heads;
        let token = token_call * self.cut.n_tokens;
        Call {
            i3,
            head_kv,
            head: head_kv * group + first,
            n_heads: self.cut.n_heads.min(group - first),
            token,
            n_tokens: self.cut.n_tokens.min(self.shape.q.ne[1] - token),
        }
    }

    fn layout(&self, call: usize) -> StateLayout {
        let call = self.call(call);
        StateLayout::new(call.n_heads * call.n_tokens, self.shape.v.ne[0])
    }

    fn scratch_len(&self) -> usize {
        let n_rows = self.cut.n_heads * self.cut.n_tokens;
        self.kernel
            .scratch_len(n_rows, self.shape.k.ne[0], self.shape.v.ne[0])
    }

    /// Computes the state of every call over every run of positions.
    fn attend_runs(&self, pool: &mut Pool, states: &Disjoint<'_, f32>) -> Result<(), Panicked> {
        let Cut {
            n_runs,
            n_token_calls,
            ..
        } = self.cut;
        pool.for_each(self.cut.n_calls() * n_runs, |item| {
            let (rest, token_call) = (item / n_token_calls, item % n_token_calls);
            let (call, run) = ((rest / n_runs) * n_token_calls + token_call, rest % n_runs);
            let start = (call * n_runs + run) * self.state_len;
            // SAFETY: states do not overlap, and the pool runs every item, and with it every pair, once.
            let state = unsafe { states.part(start, self.layout(call).len()) };
            with_scratch(self.scratch_len(), |scratch| {
                self.attend(call, run, state, scratch)
            });
        })
    }

    /// Computes the state of a call over a run of positions.
    fn attend(&self, call: usize, run: usize, state: &mut [f32], scratch: &mut [f32]) {
        let FlashAttnShape {
            q,
            k,
            v,
            mask,
            params,
            ..
        } = &self.shape;
        self.layout(call).clear(state);
        let call = self.call(call);
        let start = run * self.cut.n_kv;
        let n = self.cut.n_kv.min(k.ne[1] - start);
        let mut heads = [F32Rows::EMPTY; MAX_ROWS];
        for (i, head) in heads.iter_mut().take(call.n_heads).enumerate() {
            let bytes = plane(self.q, q, call.head + i, call.i3);
            let rows = F32Rows::new(q.ne[0], q.ne[1], q.nb[1], bytes);
            *head = checked(rows).slice(call.token, call.n_tokens);
        }
        let i3 = call.i3 / (q.ne[3] / k.ne[3]);
        let head = |role, data, layout: &Layout| {
            if self.shape.tiles {
                let tiles = tiles(role, data, layout, call.head_kv);
                HeadRows::Tiles(tiles.slice(start, n))
            } else {
                let rows = plain(data, layout, call.head_kv, i3);
                HeadRows::Plain(rows.slice(start, n))
            }
        };
        let mask = mask.as_ref().zip(self.mask).map(|(mask, data)| {
            let (i2, i3) = (call.head % mask.ne[2], call.i3 % mask.ne[3]);
            let bytes = plane(data, mask, i2, i3).get(2 * start..).unwrap_or(&[]);
            let rows = WeightRows::new(WeightType::F16, n, mask.ne[1], mask.nb[1], bytes);
            checked(rows).slice(call.token, call.n_tokens)
        });
        let op = Attend {
            q: &heads[..call.n_heads],
            k: head(Role::K, self.k, k),
            v: head(Role::V, self.v, v),
            mask,
            scores: Scores {
                scale: params.scale,
                softcap: params.softcap,
                slopes: self
                    .slopes
                    .get(call.head..call.head + call.n_heads)
                    .unwrap_or(&[]),
            },
        };
        self.kernel.attend(&op, state, scratch);
    }

    /// Writes the results of a call.
    fn write(&self, call: usize, state: &mut [f32], dst: &Disjoint<'_, f32>) {
        let layout = self.layout(call);
        let call = self.call(call);
        let [_, n_tokens, n_heads, _] = self.shape.q.ne;
        let d = self.shape.v.ne[0];
        for r in 0..call.n_heads * call.n_tokens {
            let (token, head) = (call.token + r / call.n_heads, call.head + r % call.n_heads);
            let row = (call.i3 * n_tokens + token) * n_heads + head;
            // SAFETY: calls have different rows or heads, and the pool runs every call once.
            finish(layout, state, r, unsafe { dst.part(row * d, d) });
        }
    }
}

/// Returns the bytes of an operand from the first row of a plane on.
fn plane<'a>(data: &'a [u8], layout: &Layout, i2: usize, i3: usize) -> &'a [u8] {
    data.get(i2 * layout.nb[2] + i3 * layout.nb[3]..)
        .unwrap_or(&[])
}

fn plain<'a>(data: &'a [u8], layout: &Layout, i2: usize, i3: usize) -> WeightRows<'a> {
    let ty = WeightType::from_ggml_type(layout.type_.0).expect("checked with the shape");
    let bytes = plane(data, layout, i2, i3);
    checked(WeightRows::new(
        ty,
        layout.ne[0],
        layout.ne[1],
        layout.nb[1],
        bytes,
    ))
}

fn tiles<'a>(role: Role, data: &'a [u8], layout: &Layout, head: usize) -> HeadTiles<'a> {
    let [d, n_kv, n_heads, _] = layout.ne;
    checked(HeadTiles::new(role, d * n_heads, head * d, d, n_kv, data))
}

fn checked<T>(rows: Result<T, ShapeError>) -> T {
    rows.expect("`FlashAttn::new` found every plane inside its bytes")
}
