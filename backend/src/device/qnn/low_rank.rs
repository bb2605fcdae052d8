//! Low-rank additions as graphs take them: two matrices of half floats beside the input, filled up to one of a few ranks.
//!
//! A graph has room for a rank, and no more than that is built into it: other factors, other scales, and several additions to one
//! product (their factors one below the other, or side by side) are other inputs of the same graph. The scale is part of `b`. Both
//! factors of each rank are multiplied with powers of two that undo each other, so that their largest elements are of one size:
//! what an adapter holds may be small enough to lose digits in half floats.

use std::collections::HashMap;
use std::sync::Arc;

use half::f16;

use super::weight::QnnType;
use crate::device::{Addition, Dense, DenseWeight, ReadWeight};
use crate::memory::{PlainGuard, Watch};

/// Ranks that graphs have room for.
const ROOMS: [usize; 6] = [8, 16, 32, 64, 128, 256];

/// Returns the largest rank that has a graph.
pub(super) fn max_rank() -> usize {
    ROOMS[ROOMS.len() - 1]
}

/// Returns what graphs of a segment have room for, by weight: 0 where nothing is added, the rank itself where it is too large.
pub(super) fn rooms(segment: &Dense) -> Vec<usize> {
    let room = |weight: usize| {
        let rank: usize = segment.additions_to(weight).map(|add| add.a.n).sum();
        let fits = ROOMS.into_iter().find(|&room| room >= rank);
        if rank == 0 { 0 } else { fits.unwrap_or(rank) }
    };
    (0..segment.weights.len()).map(room).collect()
}

/// The factors of what is added to one product, as inputs of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Factors {
    /// `[k, room]`, half floats.
    pub(super) a: Arc<Vec<u8>>,
    /// `[room, n]`, half floats.
    pub(super) b: Arc<Vec<u8>>,
}

/// An addition's numbers: `rank` rows `a` of `k` elements, `n` rows `b` of `rank`.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) scale: f32,
}

impl Factors {
    /// Lays additions to a product of `n` rows of `k` elements out. `None` for numbers that half floats do not hold.
    ///
    /// # Panics
    /// When the terms are not of that shape, or of a larger rank than there is room for.
    pub(super) fn new(terms: &[Term], k: usize, n: usize, room: usize) -> Option<Self> {
        let mut a = Vec::with_capacity(2 * room * k);
        let mut columns: Vec<Vec<f32>> = Vec::with_capacity(room);
        for term in terms {
            let rank = term.a.len() / k;
            assert_eq!((term.a.len(), term.b.len()), (rank * k, n * rank), "shape");
            for (r, row) in term.a.chunks_exact(k).enumerate() {
                let column = term.b.iter().skip(r).step_by(rank);
                let column: Vec<f32> = column.map(|b| b * term.scale).collect();
                let factor = balance(largest(row)?, largest(&column)?);
                a.extend(
                    row.iter()
                        .flat_map(|a| f16::from_f32(a * factor).to_le_bytes()),
                );
                columns.push(column.iter().map(|b| b / factor).collect());
            }
        }
        assert!(columns.len() <= room, "no room for rank {}", columns.len());
        a.resize(2 * room * k, 0);
        let mut b = vec![0; 2 * n * room];
        for (i, row) in b.chunks_exact_mut(2 * room).enumerate() {
            for (element, column) in row.as_chunks_mut().0.iter_mut().zip(&columns) {
                *element = f16::from_f32(column[i]).to_le_bytes();
            }
        }
        let all_finite = super::part::all_finite(&a) && super::part::all_finite(&b);
        all_finite.then(|| Self {
            a: Arc::new(a),
            b: Arc::new(b),
        })
    }
}

/// Returns the largest absolute value; `None` where a number is none.
fn largest(values: &[f32]) -> Option<f32> {
    let largest = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    (largest.is_finite() && !values.iter().any(|x| x.is_nan())).then_some(largest)
}

/// Returns the power of two that makes `a` times it, and `b` divided by it, of one size.
fn balance(a: f32, b: f32) -> f32 {
    if a == 0.0 || b == 0.0 {
        return 1.0;
    }
    ((b.log2() - a.log2()) / 2.0).round().exp2()
}

/// A matrix: address, type, shape.
type Matrix = (usize, u32, usize, usize);

/// Which factors, with the bits of their scale; and the room.
type Key = (Vec<(Matrix, Matrix, u32)>, usize);

/// What was made of them; `None` for numbers that half floats do not hold, or that cannot be read.
#[derive(Clone, Debug)]
struct Made {
    watches: Vec<Arc<Watch>>,
    factors: Option<Factors>,
}

/// The factors of the graph at hand. What did not change since the graph before is taken from that.
#[derive(Debug, Default)]
pub(super) struct FactorCache {
    made: HashMap<Key, Made>,
    n_failed: u64,
}

impl FactorCache {
    /// Returns the factors of each weight of each segment; the inner `None`: there is no addition. The outer one: there is one
    /// that graphs do not take.
    pub(super) fn of_graph(
        &mut self,
        segments: &[Dense],
        guard: &PlainGuard<'_>,
        read: &mut ReadWeight<'_>,
    ) -> Vec<Option<Vec<Option<Factors>>>> {
        let before = std::mem::take(&mut self.made);
        let mut of_segment = |segment: &Dense| {
            let of_weight = |(i, room): (usize, usize)| {
                if room == 0 {
                    return Some(None);
                }
                self.of_weight(segment, i, room, &before, guard, read)
                    .map(Some)
            };
            rooms(segment)
                .into_iter()
                .enumerate()
                .map(of_weight)
                .collect()
        };
        segments.iter().map(&mut of_segment).collect()
    }

    /// Returns how many were found not to be taken since this was asked last.
    pub(super) fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.n_failed)
    }

    fn of_weight(
        &mut self,
        segment: &Dense,
        weight: usize,
        room: usize,
        before: &HashMap<Key, Made>,
        guard: &PlainGuard<'_>,
        read: &mut ReadWeight<'_>,
    ) -> Option<Factors> {
        if room > max_rank() {
            return None;
        }
        let additions: Vec<&Addition> = segment.additions_to(weight).collect();
        let key = key(&additions, room);
        let is_same = |made: &&Made| !made.watches.iter().any(|watch| watch.has_changed());
        let made = if let Some(made) = before.get(&key).filter(is_same) {
            made.clone()
        } else {
            let both = additions.iter().flat_map(|add| [&add.a, &add.b]);
            let watches = both.map(|w| guard.watch(w.address, w.size_bytes)).collect();
            let factors = make(&additions, &segment.weights[weight], room, read);
            self.n_failed += u64::from(factors.is_none());
            // What may change unseen is not kept.
            let Some(watches) = watches else {
                return factors;
            };
            Made { watches, factors }
        };
        let factors = made.factors.clone();
        self.made.insert(key, made);
        factors
    }
}

fn key(additions: &[&Addition], room: usize) -> Key {
    let of = |add: &&Addition| {
        let of = |w: &DenseWeight| (w.address, w.ggml_type, w.k, w.n);
        (of(&add.a), of(&add.b), add.scale.to_bits())
    };
    (additions.iter().map(of).collect(), room)
}

fn make(
    additions: &[&Addition],
    weight: &DenseWeight,
    room: usize,
    read: &mut ReadWeight<'_>,
) -> Option<Factors> {
    let term = |add: &&Addition| {
        Some(Term {
            a: values(&add.a, read)?,
            b: values(&add.b, read)?,
            scale: add.scale,
        })
    };
    let terms: Vec<Term> = additions.iter().map(term).collect::<Option<_>>()?;
    Factors::new(&terms, weight.k, weight.n, room)
}

/// Reads the numbers of a factor.
fn values(factor: &DenseWeight, read: &mut ReadWeight<'_>) -> Option<Vec<f32>> {
    let ty = QnnType::from_ggml_type(factor.ggml_type)?;
    let row_size = ty.row_size(factor.k)?;
    let mut values = None;
    read(factor.node, &mut |bytes| {
        if bytes.len() != row_size * factor.n {
            return;
        }
        let values = values.insert(vec![0.0; factor.k * factor.n]);
        let rows = values.chunks_exact_mut(factor.k);
        for (out, row) in rows.zip(bytes.chunks_exact(row_size)) {
            ty.dequantize_row(row, out);
        }
    });
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves(bytes: &[u8]) -> Vec<f32> {
        let chunks = bytes.as_chunks().0;
        chunks
            .iter()
            .map(|&half| f16::from_le_bytes(half).to_f32())
            .collect()
    }

    #[test]
    fn several_additions_are_one_of_their_ranks_together() {
        let (k, n, room) = (3, 2, 8);
        let terms = [
            Term {
                a: vec![1.0, 2.0, 3.0, -1.0, 0.5, 0.0],
                b: vec![1.0, 2.0, 3.0, 4.0],
                scale: 0.5,
            },
            Term {
                a: vec![0.25, 0.0, 1.0],
                b: vec![8.0, -4.0],
                scale: -2.0,
            },
        ];
        let factors = Factors::new(&terms, k, n, room).unwrap();
        let (a, b) = (halves(&factors.a), halves(&factors.b));
        assert_eq!((a.len(), b.len()), (room * k, n * room));
        for row in 0..n {
            for column in 0..k {
                let got: f32 = (0..room)
                    .map(|r| b[row * room + r] * a[r * k + column])
                    .sum();
                let of = |term: &Term| {
                    let rank = term.a.len() / k;
                    let product = |r: usize| term.b[row * rank + r] * term.a[r * k + column];
                    term.scale * (0..rank).map(product).sum::<f32>()
                };
                assert_eq!(got, terms.iter().map(of).sum::<f32>());
            }
        }
        assert!(a[3 * k..].iter().all(|&x| x == 0.0));
    }

    #[test]
    fn small_factors_keep_their_digits() {
        let term = Term {
            a: vec![1.25, -3.0],
            b: vec![1.2345e-7, 2e-7],
            scale: 0.5,
        };
        let factors = Factors::new(std::slice::from_ref(&term), 2, 2, 8).unwrap();
        let (a, b) = (halves(&factors.a), halves(&factors.b));
        for (row, &of_b) in term.b.iter().enumerate() {
            for (column, of_a) in term.a.iter().enumerate() {
                let (got, expected) = (b[8 * row] * a[column], 0.5 * of_b * of_a);
                assert!((got / expected - 1.0).abs() < 1e-3, "{got} {expected}");
            }
        }
    }

    #[test]
    fn what_half_floats_do_not_hold_is_refused() {
        for (a, b, scale) in [
            (f32::NAN, 1.0, 1.0),
            (1.0, f32::INFINITY, 1.0),
            (1.0, 1.0, f32::NAN),
            (1e6, 1e6, 1.0),
        ] {
            let term = Term {
                a: vec![a],
                b: vec![b],
                scale,
            };
            assert_eq!(Factors::new(&[term], 1, 1, 8), None, "{a} {b} {scale}");
        }
        let zero = Term {
            a: vec![0.0],
            b: vec![3.0],
            scale: 1.0,
        };
        assert!(Factors::new(&[zero], 1, 1, 8).is_some());
    }
}
