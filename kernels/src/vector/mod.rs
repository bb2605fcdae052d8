//! Row operations of the tuned families: one algorithm each, in safe Rust shaped for vectors, compiled once per
//! instruction set.
//!
//! A [`Body`] holds the arguments of an operation; [`Isa::run`] calls it from a function that is compiled with the
//! instructions, into which it is inlined. What plain Rust cannot say, half floats above all, is a method of [`Isa`].
//! `Vectored<I>` is the implementation of every operation for one instruction set.

#![deny(unsafe_code)]

mod binary;
mod convert;
mod glu;
mod math;
mod norm;
mod rope;
mod soft_max;
mod unary;

use std::fmt::Debug;

/// Elements that are converted at a time, and partial sums of a reduction: two vectors of AVX2.
pub(crate) const LANES: usize = 16;

/// An instruction set. A value of the type proves that the CPU has it.
pub(crate) trait Isa: Copy + Debug + Send + Sync + 'static {
    /// Whether a product and a sum with one rounding are one instruction.
    const FMA: bool;

    /// Runs a body in code compiled for the instruction set.
    fn run<B: Body>(self, body: B) -> B::Output;

    /// Returns the values of half floats, little endian; exact, NaN stays NaN.
    fn widen(self, x: &[u8; 2 * LANES]) -> [f32; LANES];

    /// Returns `x * cos + y * sin` for every element, `y` being its neighbour in pairs 0 and 1, 2 and 3, …
    #[inline(always)]
    fn rotate_pairs(
        self,
        x: &[f32; LANES],
        cos: &[f32; LANES],
        sin: &[f32; LANES],
    ) -> [f32; LANES] {
        std::array::from_fn(|i| mul_add::<Self>(x[i], cos[i], x[i ^ 1] * sin[i]))
    }

    /// Rounds to half floats, little endian (to nearest, ties to even; overflow to infinity).
    fn narrow(self, x: &[f32; LANES]) -> [u8; 2 * LANES];
}

/// The arguments of an operation, and the code that is compiled for each instruction set.
pub(crate) trait Body {
    /// What the operation returns.
    type Output;

    /// Does it. Implementations are `#[inline(always)]`, and so is what they call.
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

/// Every row operation, with one instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectored<I>(pub(crate) I);

/// `a * b + c`, with one rounding where that is fast.
#[inline(always)]
fn mul_add<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
    if I::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Writes `f` of every element of x, or of `out` itself.
#[inline(always)]
fn map(x: Option<&[f32]>, out: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        None => out.iter_mut().for_each(|out| *out = f(*out)),
        Some(x) => out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x)),
    }
}

/// Writes `f` of every pair of elements; `None` stands for `out` itself.
#[inline(always)]
fn map_2(a: Option<&[f32]>, b: Option<&[f32]>, out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (a, b) {
        (None, None) => map(None, out, |x| f(x, x)),
        (None, Some(b)) => out
            .iter_mut()
            .zip(b)
            .for_each(|(out, b)| *out = f(*out, *b)),
        (Some(a), None) => out
            .iter_mut()
            .zip(a)
            .for_each(|(out, a)| *out = f(*a, *out)),
        (Some(a), Some(b)) => {
            let operands = a.iter().zip(b);
            out.iter_mut()
                .zip(operands)
                .for_each(|(out, (a, b))| *out = f(*a, *b));
        }
    }
}

/// Returns the sum of `f` of every element, in `2 * LANES` partial sums.
#[inline(always)]
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let (chunks, tail) = x.as_chunks::<{ 2 * LANES }>();
    let mut sums = [0.0; 2 * LANES];
    for chunk in chunks {
        for i in 0..2 * LANES {
            sums[i] += f(chunk[i]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(tail) {
        *sum += f(*x);
    }
    fold(sums, |a, b| a + b)
}

/// Returns the largest element, or -infinity of none; NaN is passed over.
#[inline(always)]
fn max(x: &[f32]) -> f32 {
    let (chunks, tail) = x.as_chunks::<{ 2 * LANES }>();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut most = [f32::NEG_INFINITY; 2 * LANES];
    for chunk in chunks {
        for i in 0..2 * LANES {
            most[i] = larger(most[i], chunk[i]);
        }
    }
    for (most, x) in most.iter_mut().zip(tail) {
        *most = larger(*most, *x);
    }
    fold(most, larger)
}

/// Reduces halves with halves.
#[inline(always)]
fn fold(mut x: [f32; 2 * LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut n = LANES;
    while n > 0 {
        for i in 0..n {
            x[i] = f(x[i], x[i + n]);
        }
        n /= 2;
    }
    x[0]
}
