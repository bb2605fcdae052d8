//! Attention, and products with plain rows of floats, of the families with vectors: one algorithm each, compiled once per
//! instruction set.
//!
//! A [`Body`] holds the arguments of a step; [`Lanes::run`] calls it from a function that is compiled with the
//! instructions, into which it is inlined with all operations on vectors. These have the length `L` in their types, so
//! that they take whole arrays. How many sums registers hold is up to constants of the instruction set. Products of
//! integers and of half floats are not here: the instructions for them want other layouts on every CPU.
//!
//! [`crate::vector`] does the same for operations that plain Rust can say.

#![deny(unsafe_code)]

pub(crate) mod attention;
mod exp;
pub(crate) mod float;

use std::fmt::Debug;

use crate::tile::TILE;
use crate::tile::kv::LINE_SIZE_BYTES;

pub(crate) use exp::{exp, tanh};

/// An instruction set with vectors of `L` floats. A value of the type proves that the CPU has it.
///
/// Floats are rounded once per operation, to nearest and ties to even.
pub(crate) trait Lanes<const L: usize>: Copy + Debug + Send + Sync + 'static {
    /// `L` floats.
    type Floats: Copy;

    /// Vectors that registers hold.
    const REGISTERS: usize;

    /// Where [`exp`] ends: the largest `x` whose power of two [`Self::times_power`] can multiply with.
    const EXP_MAX: f32;

    /// Runs a body in code compiled for the instruction set.
    fn run<B: Body<L>>(self, body: B) -> B::Output;

    /// Asks for bytes to come to a cache: a hint.
    fn prefetch(self, bytes: &[u8]);

    /// Returns a float in every lane.
    fn splat(self, x: f32) -> Self::Floats;

    /// Loads floats.
    fn load(self, x: &[f32; L]) -> Self::Floats;

    /// Loads floats from their bytes, in native order.
    fn load_bytes(self, x: &[[u8; 4]; L]) -> Self::Floats;

    /// Loads half floats, little endian; exact, NaN stays NaN.
    fn load_halves(self, x: &[[u8; 2]; L]) -> Self::Floats;

    /// Stores floats.
    fn store(self, out: &mut [f32; L], x: Self::Floats);

    /// Stores floats as bytes, in native order.
    fn store_bytes(self, out: &mut [[u8; 4]; L], x: Self::Floats);

    /// Returns `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// Returns `a - b`.
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// Returns `a * b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// Returns `a / b`.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// Returns `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Returns `c - a * b`, rounded once.
    fn sub_product(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Returns `sum + x * scales[i]`, rounded once; `i` is known when this is compiled.
    fn add_scaled(
        self,
        sum: Self::Floats,
        x: Self::Floats,
        scales: &[f32; 4],
        i: usize,
    ) -> Self::Floats;

    /// Returns the larger ones; of NaN and a number, either.
    fn larger(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// Returns `x` no less than `min` and no more than `max`; NaN stays NaN.
    fn clamp(self, x: Self::Floats, min: f32, max: f32) -> Self::Floats;

    /// Returns `x` where `a` and `b` differ, else `y`; NaN differs from everything.
    fn where_differ(
        self,
        a: Self::Floats,
        b: Self::Floats,
        x: Self::Floats,
        y: Self::Floats,
    ) -> Self::Floats;

    /// Rounds to integers, ties to even.
    fn round(self, x: Self::Floats) -> Self::Floats;

    /// Returns `x * 2^n`, `n` being integers that [`exp`] comes to.
    fn times_power(self, x: Self::Floats, n: Self::Floats) -> Self::Floats;

    /// Rounds through half floats and back.
    fn round_to_f16(self, x: Self::Floats) -> Self::Floats;

    /// Returns the sum of the lanes.
    fn sum(self, x: Self::Floats) -> f32;

    /// Returns the greatest lane; NaN may be passed over.
    fn greatest(self, x: Self::Floats) -> f32;

    /// Returns the transpose of a square.
    fn transpose(self, rows: [Self::Floats; L]) -> [Self::Floats; L];

    /// See [`Micro::store`](crate::panel::Micro::store).
    fn store_transposed(self, acc: &[f32], n_lanes: usize, out: &mut [f32], stride: usize);

    /// Writes the two rows of a line of an fp16 tile, in which they are interleaved, as f32.
    fn unzip(self, line: &[u8; LINE_SIZE_BYTES], even: &mut [f32; TILE], odd: &mut [f32; TILE]);
}

/// The arguments of a step, and the code that is compiled for each instruction set.
pub(crate) trait Body<const L: usize> {
    /// What it returns.
    type Output;

    /// Does it. Implementations are `#[inline(always)]`, and so is what they call.
    fn run<I: Lanes<L>>(self, isa: I) -> Self::Output;
}

/// Implements [`Lanes`]: every operation is a safe function compiled with the features that a value of the type proves.
macro_rules! lanes {
    ($isa:ident, $lanes:literal, $features:literal, $floats:ty, $registers:literal, $exp_max:literal;
     $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block)*) => {
        impl Lanes<$lanes> for $isa {
            type Floats = $floats;

            const REGISTERS: usize = $registers;
            const EXP_MAX: f32 = $exp_max;

            fn run<B: Body<$lanes>>(self, body: B) -> B::Output {
                #[target_feature(enable = $features)]
                fn compiled<B: Body<$lanes>>(isa: $isa, body: B) -> B::Output {
                    body.run(isa)
                }
                // SAFETY: `self` exists only where the features of the callee were detected.
                unsafe { compiled(self, body) }
            }

            $(
                #[inline(always)]
                fn $name(self, $($arg: $ty),*) $(-> $out)? {
                    #[inline]
                    #[target_feature(enable = $features)]
                    fn body($($arg: $ty),*) $(-> $out)? $body
                    // SAFETY: `self` exists only where the features of the callee were detected.
                    unsafe { body($($arg),*) }
                }
            )*
        }
    };
}
pub(crate) use lanes;

/// Loads half floats if elements have two bytes, else floats.
#[inline(always)]
fn load_elements<const L: usize, const SIZE: usize, I: Lanes<L>>(
    isa: I,
    x: &[[u8; SIZE]; L],
) -> I::Floats {
    let bytes = x.as_flattened();
    if SIZE == 2 {
        let halves = bytes.as_chunks().0.as_array();
        isa.load_halves(halves.expect("two bytes for each lane"))
    } else {
        let floats = bytes.as_chunks().0.as_array();
        isa.load_bytes(floats.expect("four bytes for each lane"))
    }
}

/// Returns up to `L` elements, followed by zeros.
#[inline(always)]
fn padded<const L: usize, const SIZE: usize>(elements: &[[u8; SIZE]]) -> [[u8; SIZE]; L] {
    let mut out = [[0; SIZE]; L];
    for (out, element) in out.iter_mut().zip(elements) {
        *out = *element;
    }
    out
}

/// Writes a row of elements of `SIZE` bytes as whole vectors, followed by zeros.
#[inline(always)]
fn fill<const L: usize, const SIZE: usize, I: Lanes<L>>(isa: I, row: &[u8], out: &mut [f32]) {
    let (whole, mut tail) = row.as_chunks::<SIZE>().0.as_chunks();
    let (out, rest) = out.as_chunks_mut().0.split_at_mut(whole.len());
    for (out, whole) in out.iter_mut().zip(whole) {
        isa.store(out, load_elements(isa, whole));
    }
    for out in rest {
        isa.store(out, load_elements(isa, &padded(tail)));
        tail = &[];
    }
}

/// Rows of elements of `SIZE` bytes, `L` of which are read as columns.
struct Square<'a, const L: usize, const SIZE: usize> {
    rows: [&'a [[u8; SIZE]]; L],
    /// Vectors that all rows have.
    wholes: [&'a [[[u8; SIZE]; L]]; L],
}

impl<'a, const L: usize, const SIZE: usize> Square<'a, L, SIZE> {
    /// Takes the first `L` rows; missing ones are zeros.
    #[inline(always)]
    fn new(bytes: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut rows: [&[[u8; SIZE]]; L] = [&[]; L];
        for (row, bytes) in rows.iter_mut().zip(bytes) {
            *row = bytes.as_chunks().0;
        }
        let n = rows.iter().map(|row| row.len() / L).min().unwrap_or(0);
        let wholes = rows.map(|row| &row.as_chunks().0[..n]);
        Self { rows, wholes }
    }

    /// Returns the elements from `c * L` on of every row: vector `i` has those of column `c * L + i`.
    #[inline(always)]
    fn columns<I: Lanes<L>>(&self, isa: I, c: usize) -> [I::Floats; L] {
        let mut m = [isa.splat(0.0); L];
        for i in 0..L {
            m[i] = match self.wholes[i].get(c) {
                Some(whole) => load_elements(isa, whole),
                None => {
                    let rest = self.rows[i].get(c * L..).unwrap_or(&[]);
                    load_elements(isa, &padded(rest))
                }
            };
        }
        isa.transpose(m)
    }
}
