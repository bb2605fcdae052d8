//! Attention over half floats, multiplied [as such](crate::aarch64::half), by the [shared algorithm](crate::flash).
//!
//! A packed group has a half of each of eight rows of Q for every element, scaled by a power of two so that the largest of
//! a row is in `1 .. 2`, then an f32 of each row that its scores are multiplied with. The panel of K has a line of 32
//! positions for each element; the panel of V, for each 32 elements, a line of them for each position. Probabilities are
//! rounded to half floats before they are added up. Over `F32` rows this is [NEON](Neon)'s attention.

use std::arch::aarch64::*;

use super::Neon;
use super::half::{Lanes, Line, Multiply, ROWS, Rows, VECTORS, normaliser};
use super::lanes;
use super::mem::*;
use crate::WeightType;
use crate::flash::{Flash, Micro, RowScores, SCORES, ScoreRow, StepMask};
use crate::lanes::Lanes as _;
use crate::lanes::attention::{Scale, SoftMax};
use crate::op::attention::{Attend, HeadRows, Implementation, STEP, State};
use crate::tile::TILE;
use crate::tile::kv::{LINE_SIZE_BYTES, Tile};

/// Bytes of a vector.
const VECTOR: usize = 16;

/// Most lines of a product: all that sums of half floats may be of.
const LINES: usize = 32;

/// What probabilities are multiplied with: their products with small values do not vanish in sums of half floats.
const UNIT: f32 = 16.0;

/// Attention over half floats with a CPU's products of them, over others with [`Neon`].
#[derive(Debug)]
pub(crate) struct HalfAttention<M> {
    half: Flash<Half<M>>,
    float: Flash<lanes::Attention>,
}

impl<M: Multiply> HalfAttention<M> {
    /// Returns the implementation if this CPU can run it.
    pub(crate) fn detect() -> Option<Self> {
        Some(Self {
            half: Flash(Half {
                products: M::detect()?,
                vectors: Neon::detect()?,
            }),
            float: Flash(lanes::attention()?),
        })
    }
}

fn is_float(rows: &HeadRows<'_>) -> bool {
    matches!(rows, HeadRows::Plain(rows) if rows.ty() != WeightType::F16)
}

impl<M: Multiply> Implementation for HalfAttention<M> {
    fn scratch_len(&self, n_rows: usize, d_k: usize, d_v: usize) -> usize {
        let float = self.float.scratch_len(n_rows, d_k, d_v);
        self.half.scratch_len(n_rows, d_k, d_v).max(float)
    }

    fn attend(&self, op: &Attend<'_>, state: State<'_>, stride: usize, scratch: &mut [f32]) {
        if is_float(&op.k) || is_float(&op.v) {
            self.float.attend(op, state, stride, scratch);
        } else {
            self.half.attend(op, state, stride, scratch);
        }
    }
}

/// The functions of a CPU with products of half floats.
#[derive(Clone, Copy, Debug)]
struct Half<M> {
    products: M,
    vectors: Neon,
}

/// Returns the lines of a panel, which has room for twice as many.
fn lines(panel: &[f32]) -> &[Line] {
    as_bytes(panel).as_chunks().0.as_chunks().0
}

/// Returns the lines of a panel, to be written.
fn lines_mut(panel: &mut [f32]) -> &mut [Line] {
    as_bytes_mut(panel).as_chunks_mut().0.as_chunks_mut().0
}

impl<M: Multiply> Micro for Half<M> {
    const MR: usize = ROWS;
    const GROUP_TAIL: usize = ROWS;

    fn pack(&self, group: &mut [f32]) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { pack(group) }
    }

    fn keys(&self, rows: &[&[u8]], _half: bool, panel: &mut [[f32; STEP]]) {
        let d = panel.len();
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { keys(rows, &mut lines_mut(panel.as_flattened_mut())[..d]) }
    }

    fn key_tiles(&self, tiles: &[Tile], panel: &mut [[f32; STEP]]) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { unzip_tiles(tiles, lines_mut(panel.as_flattened_mut())) }
    }

    fn values(&self, rows: &[&[u8]], _half: bool, panel: &mut [f32], stride: usize) {
        let n_strips = stride.div_ceil(TILE);
        let strips = &mut lines_mut(panel).as_chunks_mut::<STEP>().0[..n_strips];
        for (kv, row) in rows.iter().enumerate() {
            let (whole, _) = row.as_chunks::<VECTOR>();
            let (whole, _) = whole.as_chunks::<VECTORS>();
            for (lines, whole) in strips.iter_mut().zip(whole) {
                lines[kv] = *whole;
            }
            for (strip, lines) in strips.iter_mut().enumerate().skip(whole.len()) {
                for (v, out) in lines[kv].iter_mut().enumerate() {
                    *out = vector(row, strip * VECTORS + v);
                }
            }
        }
    }

    fn value_tiles(&self, tiles: &[Tile], panel: &mut [f32], _stride: usize) {
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { unzip_tiles(tiles, lines_mut(panel)) }
    }

    fn scores(&self, q: &[f32], panel: &[[f32; STEP]], scores: &mut [ScoreRow], at: usize) {
        let (d, n) = (panel.len(), scores.len());
        for row in &mut *scores {
            row[at..at + STEP].fill(0.0);
        }
        let factors = q.last_chunk().expect("factors behind the halves");
        let lanes: &[Lanes] = &as_bytes(q).as_chunks().0[..d];
        let lines = lines(panel.as_flattened())[..d].chunks(LINES);
        for (lines, lanes) in lines.zip(lanes.chunks(LINES)) {
            let out = Rows {
                floats: scores.as_flattened_mut(),
                stride: SCORES,
                offset: at,
            };
            self.products.multiply(lines, lanes, factors, n, out);
        }
    }

    fn soft_max(
        &self,
        scores: &mut ScoreRow,
        steps: &[StepMask<'_>],
        row: RowScores,
        max: f32,
    ) -> (f32, f32) {
        self.vectors.run(SoftMax::<false, true> {
            scores,
            steps,
            row,
            max,
        })
    }

    fn scale(&self, x: &mut [f32], factor: f32) {
        self.vectors.run(Scale { x, factor });
    }

    fn mix(
        &self,
        scores: &[ScoreRow],
        at: usize,
        n: usize,
        panel: &[f32],
        acc: &mut [f32],
        stride: usize,
    ) {
        let mut lanes = [[0; VECTOR]; STEP];
        // SAFETY: `self` is made only where the features of the callee were detected.
        unsafe { probabilities(scores, at, &mut lanes) };
        let n_rows = scores.len();
        for (strip, lines) in lines(panel).chunks(STEP).enumerate() {
            let first = strip * TILE;
            if first >= stride {
                break;
            }
            let multiply = |floats: &mut [f32], stride, offset| {
                let out = Rows {
                    floats,
                    stride,
                    offset,
                };
                let (lines, lanes) = (&lines[..n], &lanes[..n]);
                self.products
                    .multiply(lines, lanes, &[1.0 / UNIT; ROWS], n_rows, out);
            };
            if first + TILE <= stride {
                multiply(acc, stride, first);
                continue;
            }
            // A last strip that is not full.
            let mut whole = [0.0; ROWS * TILE];
            let rows = || whole_rows(n_rows, stride, first);
            for (r, part) in rows().enumerate() {
                whole[r * TILE..][..part.len()].copy_from_slice(&acc[part]);
            }
            multiply(&mut whole, TILE, 0);
            for (r, part) in rows().enumerate() {
                let len = part.len();
                acc[part].copy_from_slice(&whole[r * TILE..][..len]);
            }
        }
    }
}

/// Returns where the floats of each row from `first` on lie.
fn whole_rows(
    n_rows: usize,
    stride: usize,
    first: usize,
) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..n_rows).map(move |r| r * stride + first..(r + 1) * stride)
}

/// Returns eight halves of a row, zeros behind its end.
#[inline]
fn vector(row: &[u8], i: usize) -> [u8; VECTOR] {
    let rest = row.get(VECTOR * i..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(vector) => *vector,
        None => padded(rest),
    }
}

/// Turns the floats of a group into halves and factors.
#[target_feature(enable = "neon")]
fn pack(group: &mut [f32]) {
    let (floats, tail) = group.split_at_mut(group.len() - ROWS);
    let mut max = [vdupq_n_u32(0); 2];
    for eight in floats.as_chunks::<ROWS>().0 {
        // The bits of magnitudes order as these do, NaN above all.
        for (max, four) in max.iter_mut().zip(eight.as_chunks().0) {
            let magnitudes = vabsq_f32(load_f32(four));
            *max = vmaxq_u32(*max, vreinterpretq_u32_f32(magnitudes));
        }
    }
    let mut factors = [0.0; ROWS];
    for (factors, max) in factors.as_chunks_mut().0.iter_mut().zip(max) {
        store_f32(factors, vreinterpretq_f32_u32(max));
    }
    for (factor, inverse) in factors.iter_mut().zip(tail) {
        *factor = normaliser(*factor, 0);
        *inverse = factor.recip();
    }
    let factors = factors.as_chunks().0;
    let factors = [load_f32(&factors[0]), load_f32(&factors[1])];
    for i in 0..floats.len() / ROWS {
        let eight: &[[f32; 4]] = floats[i * ROWS..].as_chunks().0;
        let low = vmulq_f32(load_f32(&eight[0]), factors[0]);
        let high = vmulq_f32(load_f32(&eight[1]), factors[1]);
        let halves = narrow_f32(low, high);
        store_u16(&mut as_bytes_mut(floats).as_chunks_mut().0[i], halves);
    }
}

/// Writes a line of positions for each element.
#[target_feature(enable = "neon")]
fn keys(rows: &[&[u8]], lines: &mut [Line]) {
    for side in 0..VECTORS {
        let row = |kv: usize| rows.get(side * 8 + kv).copied().unwrap_or(&[]);
        let rows: [&[u8]; 8] = std::array::from_fn(row);
        // Eights that all rows have.
        let wholes = rows.map(|row| row.as_chunks::<VECTOR>().0);
        let n = wholes.iter().map(|row| row.len()).min().unwrap_or(0);
        let wholes = wholes.map(|row| &row[..n]);
        for (c, lines) in lines.chunks_mut(8).enumerate() {
            let mut m = [vdupq_n_u16(0); 8];
            for kv in 0..8 {
                m[kv] = if c < n {
                    load_u16(&wholes[kv][c])
                } else {
                    load_u16(&vector(rows[kv], c))
                };
            }
            for (line, v) in lines.iter_mut().zip(transpose_u16(m)) {
                store_u16(&mut line[side], v);
            }
        }
    }
}

/// Writes two lines for each line of the tiles, in which their elements are interleaved.
#[target_feature(enable = "neon")]
fn unzip_tiles(tiles: &[Tile], lines: &mut [Line]) {
    let interleaved = tiles
        .iter()
        .flat_map(|tile| tile.as_chunks::<LINE_SIZE_BYTES>().0);
    for (line, [even, odd]) in interleaved.zip(lines.as_chunks_mut().0) {
        unzip_halves(line, even, odd);
    }
}

/// Writes the probabilities of a step, half floats in value, times `UNIT`; a lane for each row.
#[target_feature(enable = "neon")]
fn probabilities(scores: &[ScoreRow], at: usize, lanes: &mut [Lanes; STEP]) {
    for (side, lanes) in lanes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut m = [vdupq_n_u16(0); 8];
        for (v, row) in m.iter_mut().zip(scores) {
            let fours: &[[f32; 4]] = row[at + 8 * side..].as_chunks().0;
            let load = |i: usize| vmulq_n_f32(load_f32(&fours[i]), UNIT);
            *v = narrow_f32(load(0), load(1));
        }
        for (lanes, v) in lanes.iter_mut().zip(transpose_u16(m)) {
            store_u16(lanes, v);
        }
    }
}
