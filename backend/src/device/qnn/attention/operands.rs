//! Operands of ggml's operation as a graph takes them, and its result.

use half::f16;
use llada_npu_kernels::tile::kv::{Role, read_matrix_row};

use super::{AttentionForm, HIDDEN, MAX_SCORE};
use crate::device::qnn::part::all_finite;
use crate::device::qnn::rows::Piece;
use crate::device::{FlashAttn, Layout};

/// Some rows of an operation, filled up to what a graph has room for.
pub(in super::super) struct Operands {
    /// Q, K, V and mask.
    pub(in super::super) inputs: Vec<Vec<u8>>,
    /// Rows that see nothing.
    is_blind: Vec<bool>,
}

/// Gathers the rows of a piece of batch `i3`; `None` for numbers with which half floats would not do.
pub(in super::super) fn gather(
    op: &FlashAttn<'_>,
    form: &AttentionForm,
    piece: Piece,
    i3: usize,
) -> Option<Operands> {
    let shape = &op.shape;
    let mask = Mask::gather(op, form, piece, i3)?;
    let (q, q_lengths) = queries(op, form, piece, i3);
    let i3_kv = i3 / (shape.q.ne[3] / shape.k.ne[3]);
    let rows = |role, data, layout| Positions {
        role: shape.tiles.then_some(role),
        data,
        layout,
        i3: i3_kv,
    };
    let mut k = rows(Role::K, op.k, &shape.k).gather(form.n_kv, &mask.is_seen);
    centre(&mut k, form.d_k * form.n_head_kv, &mask.is_seen);
    let v = rows(Role::V, op.v, &shape.v).gather(form.n_kv, &mask.is_seen);
    let k_lengths = lengths(&k, form.d_k, form.n_head_kv);
    let is_finite = [&q, &k, &v].into_iter().all(|halves| all_finite(halves));
    let mut bounds = q_lengths.iter().zip(&k_lengths).map(|(q, k)| q * k);
    let is_bounded = bounds.all(|bound| bound <= MAX_SCORE);
    (is_finite && is_bounded).then_some(Operands {
        inputs: vec![q, k, v, mask.bytes],
        is_blind: mask.is_blind,
    })
}

/// Writes the rows of a piece of batch `i3` from the graph's output; false where a number is none.
pub(in super::super) fn write(
    op: &mut FlashAttn<'_>,
    operands: &Operands,
    piece: Piece,
    i3: usize,
    output: &[u8],
) -> bool {
    let [_, n_tokens, n_head, _] = op.shape.q.ne;
    let row = n_head * op.shape.v.ne[0];
    let dst = &mut op.dst[(i3 * n_tokens + piece.start) * row..][..piece.n_rows * row];
    let rows = dst.chunks_exact_mut(row).zip(output.chunks_exact(2 * row));
    for ((to, from), &is_blind) in rows.zip(&operands.is_blind) {
        if is_blind {
            to.fill(0.0);
            continue;
        }
        if !all_finite(from) {
            return false;
        }
        for (to, &half) in to.iter_mut().zip(from.as_chunks().0) {
            *to = f16::from_le_bytes(half).to_f32();
        }
    }
    true
}

/// A mask as an input, and what it says.
struct Mask {
    bytes: Vec<u8>,
    is_blind: Vec<bool>,
    /// By position: whether a row sees it.
    is_seen: Vec<bool>,
}

impl Mask {
    /// `None` where an element is `+inf` or NaN.
    fn gather(op: &FlashAttn<'_>, form: &AttentionForm, piece: Piece, i3: usize) -> Option<Self> {
        let n_kv = op.shape.k.ne[1];
        let mut mask = Self {
            bytes: vec![0; 2 * form.input_lens()[3]],
            is_blind: vec![false; piece.n_rows],
            is_seen: vec![op.mask.is_none(); n_kv],
        };
        let mut row = vec![0.0; n_kv];
        let all = mask.bytes.chunks_exact_mut(2 * form.n_kv);
        for (i, (to, is_blind)) in all.zip(&mut mask.is_blind).enumerate() {
            if let Some((layout, data)) = op.shape.mask.as_ref().zip(op.mask) {
                let at = (piece.start + i) * layout.nb[1] + i3 % layout.ne[3] * layout.nb[3];
                let halves = data[at..][..2 * n_kv].as_chunks().0;
                for (x, &half) in row.iter_mut().zip(halves) {
                    *x = f16::from_le_bytes(half).to_f32();
                }
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                if largest == f32::INFINITY || row.iter().any(|x| x.is_nan()) {
                    return None;
                }
                *is_blind = largest == f32::NEG_INFINITY;
                if *is_blind {
                    row.fill(0.0);
                } else {
                    for (x, is_seen) in row.iter_mut().zip(&mut mask.is_seen) {
                        *is_seen |= *x > f32::NEG_INFINITY;
                        *x = (*x - largest).max(HIDDEN);
                    }
                }
            }
            let padded = row.iter().copied().chain(std::iter::repeat(HIDDEN));
            put(to, padded);
        }
        Some(mask)
    }
}

/// Writes half floats.
fn put(to: &mut [u8], values: impl Iterator<Item = f32>) {
    for (to, x) in to.as_chunks_mut().0.iter_mut().zip(values) {
        *to = f16::from_f32(x).to_le_bytes();
    }
}

/// Gathers scaled rows of Q; the length of the longest, by head of K.
fn queries(
    op: &FlashAttn<'_>,
    form: &AttentionForm,
    piece: Piece,
    i3: usize,
) -> (Vec<u8>, Vec<f32>) {
    let (layout, d) = (&op.shape.q, form.d_k);
    let group = form.n_head / form.n_head_kv;
    let mut bytes = vec![0; 2 * form.input_lens()[0]];
    let mut longest = vec![0.0_f32; form.n_head_kv];
    let rows = bytes
        .chunks_exact_mut(2 * d)
        .take(piece.n_rows * form.n_head);
    for (i, to) in rows.enumerate() {
        let (row, head) = (piece.start + i / form.n_head, i % form.n_head);
        let at = row * layout.nb[1] + head * layout.nb[2] + i3 * layout.nb[3];
        let values = op.q[at..][..4 * d].as_chunks().0.iter();
        let scaled = values.map(|&x| f32::from_le_bytes(x) * op.shape.params.scale);
        put(to, scaled.clone());
        let length = scaled.map(|x| x * x).sum::<f32>().sqrt();
        let longest = &mut longest[head / group];
        *longest = longest.max(length);
    }
    (bytes, longest)
}

/// Takes the mean of the positions that are seen from each of them. That adds the same to all scores of a row, which softmax does not
/// notice; but what all keys have in common, a bias as a rule, costs scores no digits any more.
fn centre(k: &mut [u8], n: usize, is_seen: &[bool]) {
    let mut sums = vec![0.0_f32; n];
    let mut n_seen = 0.0_f32;
    let seen = |(row, is_seen): (_, &bool)| is_seen.then_some(row);
    for row in k.chunks_exact(2 * n).zip(is_seen).filter_map(seen) {
        n_seen += 1.0;
        for (sum, &half) in sums.iter_mut().zip(row.as_chunks().0) {
            *sum += f16::from_le_bytes(half).to_f32();
        }
    }
    for (row, _) in k
        .chunks_exact_mut(2 * n)
        .zip(is_seen)
        .filter(|(_, is_seen)| **is_seen)
    {
        for (half, sum) in row.as_chunks_mut().0.iter_mut().zip(&sums) {
            let x = f16::from_le_bytes(*half).to_f32() - sum / n_seen;
            *half = f16::from_f32(x).to_le_bytes();
        }
    }
}

/// Returns the length of the longest row, by head.
fn lengths(bytes: &[u8], d: usize, n_head: usize) -> Vec<f32> {
    let mut longest = vec![0.0_f32; n_head];
    for (i, row) in bytes.chunks_exact(2 * d).enumerate() {
        let squares = row.as_chunks().0.iter().map(|&half| {
            let x = f16::from_le_bytes(half).to_f32();
            x * x
        });
        let longest = &mut longest[i % n_head];
        *longest = longest.max(squares.sum::<f32>().sqrt());
    }
    longest
}

/// K or V.
struct Positions<'a> {
    /// Which of them, where it lies in tiles.
    role: Option<Role>,
    data: &'a [u8],
    layout: &'a Layout,
    i3: usize,
}

impl Positions<'_> {
    /// Copies the positions that are seen, all heads of each; zeros stand for the others, whatever lies there.
    fn gather(&self, room: usize, is_seen: &[bool]) -> Vec<u8> {
        let [d, _, n_head, _] = self.layout.ne;
        let mut bytes = vec![0; 2 * d * n_head * room];
        let positions = bytes.chunks_exact_mut(2 * d * n_head).zip(is_seen);
        for (i, (to, _)) in positions.enumerate().filter(|(_, (_, is_seen))| **is_seen) {
            if let Some(role) = self.role {
                read_matrix_row(role, self.data, i, to);
                continue;
            }
            for (head, to) in to.chunks_exact_mut(2 * d).enumerate() {
                let [_, nb1, nb2, nb3] = self.layout.nb;
                let at = i * nb1 + head * nb2 + self.i3 * nb3;
                to.copy_from_slice(&self.data[at..][..2 * d]);
            }
        }
        bytes
    }
}
