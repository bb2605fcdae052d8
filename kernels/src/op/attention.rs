//! `FLASH_ATTN_EXT`: mixtures of values by the softmax of scores, in one pass over the positions.
//!
//! For each row of Q and the positions `j` it sees:
//!
//! ```text
//! s[j] = scale * sum over d of q[d] * k[j][d]
//! s[j] = softcap * tanh(s[j] / softcap)                  where softcap is not 0
//! s[j] = s[j] + slope * mask[j]                          where there is a mask
//! out  = sum over j of exp(s[j]) * v[j] / sum over j of exp(s[j])
//! ```
//!
//! K and V are plain rows or fp16 tiles. All arithmetic is f32, and nothing but K and V themselves is rounded to half
//! floats, except in two kernels (below).
//! A position whose mask is `-inf` is not seen: its K has no influence, and its V none if it is finite (a whole run of
//! [`STEP`] positions, counted from the first one, that no row of a call sees is not read at all). A row that sees
//! nothing gives zeros. NaN makes the rows that see it NaN, infinities make them meaningless, and no others.
//!
//! The result of a row does not depend, in any bit, on the rows that share its call.
//!
//! With `A = max |scale| * sum |q * k|` and `B = max |v|` over what a row sees, results of two implementations differ by
//! at most `B * 2^-21 * (d * A + A + softcap + n + 8)`, `n` being the positions. Probabilities below `2^-120` of the largest may
//! be taken as 0.
//!
//! Where K and V are half floats, `aarch64-attention-fhm` and `aarch64-attention-fp16` round the other operands of their
//! products to half floats as well: rows of Q, scaled by a power of two, and the exponentials. (ggml's CPU backend does so
//! with Q, and adds the mixture as half floats.) Products are exact and sums f32 with `fhm`; `fp16` adds 32 products at
//! a time as half floats. With `C = |scale| * max |q| * max (d + sum |k|)` that adds up to `B * 2^-10 * (A + 1 + 2^-14 * C)`
//! with the one, to first order, and `B * 2^-10 * (11 * A + 11 + 2^-14 * C) + n * 2^-27` with the other; errors of either sign cancel,
//! so that the usual one is a small fraction of that.
//!
//! A call handles the heads of Q that share one head of K and V, and any run of positions. Its result is a *state*
//! ([`StateLayout`]): calls on further positions continue it, states of disjoint runs of positions are merged
//! ([`merge`]), and [`finish`] divides. So the work of one row can be shared out over positions too.

use std::fmt::Debug;

use crate::tile::kv::{HeadTiles, Role};
use crate::{F32Rows, WeightRows, WeightType};

/// Positions that are looked at together: those of a tile.
pub const STEP: usize = 32;

/// Most rows of a call: rows of Q times heads.
pub const MAX_ROWS: usize = 64;

/// K or V of one head, `[d, n_kv]`.
#[derive(Clone, Copy, Debug)]
pub enum HeadRows<'a> {
    /// Plain rows of `F16` or `F32`.
    Plain(WeightRows<'a>),
    /// Tiles.
    Tiles(HeadTiles<'a>),
}

impl HeadRows<'_> {
    /// Returns the elements of a row.
    pub fn d(&self) -> usize {
        match self {
            Self::Plain(rows) => rows.k(),
            Self::Tiles(tiles) => tiles.d(),
        }
    }

    /// Returns the positions.
    pub fn n_kv(&self) -> usize {
        match self {
            Self::Plain(rows) => rows.n_rows(),
            Self::Tiles(tiles) => tiles.n_rows(),
        }
    }

    fn check(&self, role: Role) {
        match self {
            Self::Plain(rows) => assert!(
                matches!(rows.ty(), WeightType::F16 | WeightType::F32),
                "{role:?} of type {}",
                rows.ty().name()
            ),
            Self::Tiles(tiles) => assert_eq!(tiles.role(), role, "role of tiles"),
        }
    }
}

/// What becomes of a product of q and k before its exponential is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores<'a> {
    /// Factor of the product.
    pub scale: f32,
    /// Bound of the scaled product; 0 for none.
    pub softcap: f32,
    /// Factors of the mask, one per head; empty for 1.
    pub slopes: &'a [f32],
}

/// One call: rows of Q over positions of one head of K and V.
///
/// Row `r = token * n_heads + head` of the call is row `token` of `q[head]`; all heads see the positions of `mask`'s row
/// `token`.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// Rows of Q of each head, `[d_k, n_tokens]`.
    pub q: &'a [F32Rows<'a>],
    /// Keys, `[d_k, n_kv]`.
    pub k: HeadRows<'a>,
    /// Values, `[d_v, n_kv]`.
    pub v: HeadRows<'a>,
    /// `F16`, `[n_kv, n_tokens]`.
    pub mask: Option<WeightRows<'a>>,
    /// What happens to scores.
    pub scores: Scores<'a>,
}

impl Attend<'_> {
    /// Returns the rows of Q per head.
    pub fn n_tokens(&self) -> usize {
        self.q.first().map_or(0, F32Rows::n_rows)
    }

    /// Returns the rows of the call.
    pub fn n_rows(&self) -> usize {
        self.q.len() * self.n_tokens()
    }

    /// Returns a row of Q.
    pub(crate) fn q_row(&self, r: usize) -> &[u8] {
        self.q[r % self.q.len()].row(r / self.q.len())
    }

    /// Returns the mask of a row from position `start` on, as half floats, and its factor.
    pub(crate) fn mask_row(&self, r: usize, start: usize) -> Option<(&[[u8; 2]], f32)> {
        let (token, head) = (r / self.q.len(), r % self.q.len());
        let row = self.mask.as_ref()?.row(token);
        let slope = self.scores.slopes.get(head).copied().unwrap_or(1.0);
        Some((&row.as_chunks().0[start..], slope))
    }

    /// Tells whether a row sees one of the positions `start..start + n`.
    pub(crate) fn sees(&self, start: usize, n: usize) -> bool {
        let Some(mask) = &self.mask else { return true };
        (0..mask.n_rows()).any(|token| {
            let row = &mask.row(token).as_chunks::<2>().0[start..start + n];
            row.iter().any(|half| *half != HIDDEN)
        })
    }
}

/// `-inf` as a half float: the mask of a position that is not seen.
pub(crate) const HIDDEN: [u8; 2] = [0x00, 0xfc];

/// Where the state of a call lies in a slice of floats: per row a mixture not yet divided, padded to 16 floats; then the
/// greatest score of each row; then the sum of each row's exponentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayout {
    n_rows: usize,
    d_v: usize,
}

impl StateLayout {
    /// Returns the layout for `n_rows` rows of `d_v` values.
    pub const fn new(n_rows: usize, d_v: usize) -> Self {
        Self { n_rows, d_v }
    }

    /// Returns the floats from one row's mixture to the next one's.
    pub const fn stride(self) -> usize {
        self.d_v.next_multiple_of(16)
    }

    /// Returns the floats of a state; whole cache lines.
    pub const fn len(self) -> usize {
        (self.n_rows * (self.stride() + 2)).next_multiple_of(16)
    }

    /// Tells whether a state has no floats.
    pub const fn is_empty(self) -> bool {
        self.n_rows == 0
    }

    /// Makes a state of rows that have seen nothing.
    ///
    /// # Panics
    ///
    /// When `state` is not [`len`](Self::len) floats.
    pub fn clear(self, state: &mut [f32]) {
        let State { acc, max, sum } = self.split(state);
        acc.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
    }

    pub(crate) fn split(self, state: &mut [f32]) -> State<'_> {
        assert_eq!(state.len(), self.len(), "floats of a state");
        let (acc, stats) = state.split_at_mut(self.n_rows * self.stride());
        let (max, sum) = stats[..2 * self.n_rows].split_at_mut(self.n_rows);
        State { acc, max, sum }
    }
}

/// Parts of a state.
pub(crate) struct State<'a> {
    pub(crate) acc: &'a mut [f32],
    pub(crate) max: &'a mut [f32],
    pub(crate) sum: &'a mut [f32],
}

/// What a kernel family implements; [`Attention`] has checked the arguments.
pub(crate) trait Implementation: Debug + Send + Sync {
    /// See [`Attention::scratch_len`].
    fn scratch_len(&self, n_rows: usize, d_k: usize, d_v: usize) -> usize;
    /// See [`Attention::attend`]; there is a row and a position.
    fn attend(&self, op: &Attend<'_>, state: State<'_>, stride: usize, scratch: &mut [f32]);
}

/// Owning: one implementation of attention. Holding it proves that this CPU can run it.
#[derive(Debug)]
pub struct Attention(pub(crate) Box<dyn Implementation>);

impl Attention {
    /// Returns the floats of memory that a call with up to `n_rows` rows needs, of any contents.
    pub fn scratch_len(&self, n_rows: usize, d_k: usize, d_v: usize) -> usize {
        self.0.scratch_len(n_rows, d_k, d_v)
    }

    /// Lets the rows of `op` see its positions, beside what they have seen before.
    ///
    /// `state`: of [`StateLayout::new`]`(op.n_rows(), d_v)`; `scratch`: at least as long as
    /// [`scratch_len`](Self::scratch_len) says.
    ///
    /// # Panics
    ///
    /// When lengths and shapes do not go together, K or V is of another type, or there are more than [`MAX_ROWS`] rows.
    pub fn attend(&self, op: &Attend<'_>, state: &mut [f32], scratch: &mut [f32]) {
        op.k.check(Role::K);
        op.v.check(Role::V);
        let (n_tokens, n_kv) = (op.n_tokens(), op.k.n_kv());
        assert_eq!(op.v.n_kv(), n_kv, "positions of V");
        for q in op.q {
            assert_eq!(q.k(), op.k.d(), "elements of a row of Q");
            assert_eq!(q.n_rows(), n_tokens, "rows of Q per head");
        }
        if let Some(mask) = &op.mask {
            assert_eq!(mask.ty(), WeightType::F16, "type of the mask");
            assert_eq!(
                (mask.k(), mask.n_rows()),
                (n_kv, n_tokens),
                "shape of the mask"
            );
        }
        let n_slopes = op.scores.slopes.len();
        assert!(n_slopes == 0 || n_slopes == op.q.len(), "slopes of heads");
        assert!(op.n_rows() <= MAX_ROWS, "{} rows of a call", op.n_rows());
        let needed = self.scratch_len(op.n_rows(), op.k.d(), op.v.d());
        assert!(
            scratch.len() >= needed,
            "scratch of {} floats, {needed} needed",
            scratch.len()
        );
        let layout = StateLayout::new(op.n_rows(), op.v.d());
        let state = layout.split(state);
        if op.n_rows() > 0 && n_kv > 0 && op.v.d() > 0 {
            self.0.attend(op, state, layout.stride(), scratch);
        }
    }
}

/// Adds to a state what the rows have seen in `other`, which is left in any state.
///
/// # Panics
///
/// When a slice is not a state of `layout`.
pub fn merge(layout: StateLayout, state: &mut [f32], other: &mut [f32]) {
    let (into, from) = (layout.split(state), layout.split(other));
    let stride = layout.stride();
    for r in 0..layout.n_rows {
        let max = into.max[r].max(from.max[r]);
        // Rows that have seen nothing have the greatest score -inf.
        let share = |old: f32| if old == max { 1.0 } else { (old - max).exp() };
        let (a, b) = (share(into.max[r]), share(from.max[r]));
        into.max[r] = max;
        into.sum[r] = into.sum[r] * a + from.sum[r] * b;
        let from = &from.acc[r * stride..(r + 1) * stride];
        for (into, from) in into.acc[r * stride..].iter_mut().zip(from) {
            *into = *into * a + from * b;
        }
    }
}

/// Divides the mixtures of row `r` by their sum, into `out`, `[d_v]`.
///
/// # Panics
///
/// When `state` is not one of `layout`, there is no row `r`, or `out` has another length.
pub fn finish(layout: StateLayout, state: &mut [f32], r: usize, out: &mut [f32]) {
    let State { acc, sum, .. } = layout.split(state);
    assert_eq!(out.len(), layout.d_v, "values of a row");
    let sum = sum[r];
    let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    for (out, acc) in out.iter_mut().zip(&acc[r * layout.stride()..]) {
        *out = acc * factor;
    }
}
