//! Products of half floats, eight to a vector, as their bits. The intrinsics of the instructions are unstable.
//!
//! Weighted sums of lines of 32 halves: rows of a tile of weights in products, keys and values in attention.
//!
//! [`Fhm`] multiplies exactly and adds in f32. [`Fp16`] adds as half floats, twice as many at a time, 32 lines at most:
//! sums of eight products each, one by one, then those four sums pairwise. So a product is rounded at most ten times, by
//! `2^-11` of a sum that is no larger than the sum of magnitudes, or where a sum is subnormal by `2^-25`. What overflows is
//! added again in f32; no sum depends on what is beside it.

use std::arch::aarch64::*;
use std::arch::asm;
use std::fmt::Debug;

use super::mem::*;
use super::{Fhm, Fp16};
use crate::block::f16_to_f32;
use crate::tile::TILE;

/// Most rows of a call.
pub(crate) const ROWS: usize = 8;

/// Vectors of a line.
pub(crate) const VECTORS: usize = TILE / 8;

/// 32 halves.
pub(crate) type Line = [[u8; 16]; VECTORS];

/// One half of each of eight rows.
pub(crate) type Lanes = [u8; 16];

/// Eight sums in f32.
type Sums = [float32x4_t; 2];

/// Rows of f32 with sums, `stride` apart; of each the 32 from `offset` on are meant.
pub(crate) struct Rows<'a> {
    /// The floats of all rows.
    pub(super) floats: &'a mut [f32],
    /// Floats from one row to the next.
    pub(super) stride: usize,
    /// Where the sums of a row start.
    pub(super) offset: usize,
}

impl<'a> Rows<'a> {
    fn first<const N: usize>(self) -> [&'a mut [f32; TILE]; N] {
        let mut rows = self.floats.chunks_mut(self.stride);
        std::array::from_fn(|_| {
            let row = rows.next().expect("as many rows");
            let sums = row[self.offset..].first_chunk_mut();
            sums.expect("32 sums of a row")
        })
    }
}

/// A CPU with products of half floats.
pub(crate) trait Multiply: Copy + Debug + Send + Sync + 'static {
    /// Whether a sum can overflow or vanish that f32 can hold: factors keep it from that.
    const IS_SHORT: bool;

    /// Returns the proof, if this CPU has the features.
    fn detect() -> Option<Self>;

    /// Adds to the first `n` rows, 1 to 8, the sum of lines, weighted by the lanes that go with them, times its factor:
    /// `out[r][i] += factors[r] * sum over j of lines[j][i] * lanes[j][r]`. At most 32 lines if `IS_SHORT`.
    fn multiply(
        self,
        lines: &[Line],
        lanes: &[Lanes],
        factors: &[f32; ROWS],
        n: usize,
        out: Rows<'_>,
    );
}

/// Implements [`Multiply`] with a function of the number of rows and of the vectors that are taken at a time: few rows
/// leave registers for more of these.
macro_rules! multiply {
    ($cpu:ident, $is_short:literal, $function:ident) => {
        impl Multiply for $cpu {
            const IS_SHORT: bool = $is_short;

            fn detect() -> Option<Self> {
                $cpu::detect()
            }

            fn multiply(
                self,
                lines: &[Line],
                lanes: &[Lanes],
                factors: &[f32; ROWS],
                n: usize,
                out: Rows<'_>,
            ) {
                let multiply = match n {
                    1 => $function::<1, 4>,
                    2 => $function::<2, 4>,
                    3 => $function::<3, 2>,
                    4 => $function::<4, 2>,
                    5 => $function::<5, 1>,
                    6 => $function::<6, 1>,
                    7 => $function::<7, 1>,
                    _ => $function::<ROWS, 1>,
                };
                // SAFETY: `self` exists only where the features of the callee were detected.
                unsafe { multiply(lines, lanes, factors, out) }
            }
        }
    };
}

multiply!(Fhm, false, add_long_sums);
multiply!(Fp16, true, add_short_sums);

/// Declares a function of half floats: one instruction without memory, for which the CPU needs a feature.
macro_rules! instruction {
    ($(#[$doc:meta])* $name:ident, $features:literal, $text:literal, $acc:ty) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $features)]
        fn $name<const LANE: usize>(mut acc: $acc, v: uint16x8_t, lanes: uint16x8_t) -> $acc {
            // SAFETY: the instruction touches these registers alone; the CPU has it where this function may be called.
            unsafe {
                asm!(
                    $text,
                    acc = inout(vreg) acc,
                    v = in(vreg) v,
                    lanes = in(vreg_low16) lanes,
                    lane = const LANE,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            acc
        }
    };
}

instruction!(
    /// Adds the products of the first four halves with one of the lanes: exact products, each sum rounded once to f32.
    long_low, "neon,fp16,fhm", "fmlal {acc:v}.4s, {v:v}.4h, {lanes:v}.h[{lane}]", float32x4_t
);
instruction!(
    /// Adds the products of the last four halves, likewise.
    long_high, "neon,fp16,fhm", "fmlal2 {acc:v}.4s, {v:v}.4h, {lanes:v}.h[{lane}]", float32x4_t
);
instruction!(
    /// Adds the products of eight halves with one of the lanes: exact products, each sum rounded once to f16.
    short, "neon,fp16", "fmla {acc:v}.8h, {v:v}.8h, {lanes:v}.h[{lane}]", uint16x8_t
);

/// Runs a block for numbers below `$n`, at most 8, each a constant of its own: written out, so that sums stay in registers.
macro_rules! each {
    ($i:ident < $n:expr, $block:block) => {
        each!($i < $n, $block, 0 1 2 3 4 5 6 7)
    };
    ($i:ident < $n:expr, $block:block, $($number:literal)*) => {
        $(if $number < $n {
            const $i: usize = $number;
            $block
        })*
    };
}

/// Adds eight halves.
#[inline]
#[target_feature(enable = "neon,fp16")]
fn add(mut a: uint16x8_t, b: uint16x8_t) -> uint16x8_t {
    // SAFETY: the instruction touches these registers alone; the CPU has it where this function may be called.
    unsafe {
        asm!(
            "fadd {a:v}.8h, {a:v}.8h, {b:v}.8h",
            a = inout(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    a
}

/// Adds sums, times the factor of row `R`, to vector `v` of a row.
#[inline]
#[target_feature(enable = "neon")]
fn add_to<const R: usize>(out: &mut [f32; TILE], v: usize, sums: Sums, factors: Sums) {
    let out = &mut out.as_chunks_mut().0[2 * v..];
    for (out, sum) in out.iter_mut().zip(sums) {
        store_f32(out, add_scaled(load_f32(out), sum, factors[R / 4], R % 4));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_factors(factors: &[f32; ROWS]) -> Sums {
    let factors = factors.as_chunks().0;
    [load_f32(&factors[0]), load_f32(&factors[1])]
}

/// Lines at a time.
const STEP: usize = 4;

#[target_feature(enable = "neon,fp16,fhm")]
fn add_long_sums<const N: usize, const V: usize>(
    lines: &[Line],
    lanes: &[Lanes],
    factors: &[f32; ROWS],
    out: Rows<'_>,
) {
    let out: [_; N] = out.first();
    let factors = load_factors(factors);
    let (lines, last_lines) = lines.as_chunks::<STEP>();
    let (lanes, last_lanes) = lanes.as_chunks::<STEP>();
    for first in (0..VECTORS).step_by(V) {
        let mut sums = [[[vdupq_n_f32(0.0); 2]; V]; N];
        for (lines, lanes) in lines.iter().zip(lanes) {
            let ([a, b, c, d], [e, f, g, h]) = (lines, lanes);
            sums = long_line(sums, a, e, first);
            sums = long_line(sums, b, f, first);
            sums = long_line(sums, c, g, first);
            sums = long_line(sums, d, h, first);
        }
        for (line, lanes) in last_lines.iter().zip(last_lanes) {
            sums = long_line(sums, line, lanes, first);
        }
        each!(R < N, {
            for v in 0..V {
                add_to::<R>(out[R], first + v, sums[R][v], factors);
            }
        });
    }
}

/// Adds a line.
#[inline]
#[target_feature(enable = "neon,fp16,fhm")]
fn long_line<const N: usize, const V: usize>(
    mut sums: [[Sums; V]; N],
    line: &Line,
    lanes: &Lanes,
    first: usize,
) -> [[Sums; V]; N] {
    let lanes = load_u16(lanes);
    for v in 0..V {
        let line = load_u16(&line[first + v]);
        each!(R < N, {
            let [low, high] = sums[R][v];
            let low = long_low::<R>(low, line, lanes);
            sums[R][v] = [low, long_high::<R>(high, line, lanes)];
        });
    }
    sums
}

/// Lines that are added one by one, eight to a sum.
const PART: usize = 16;

/// Eight sums in f16 for each row, `V` vectors of them.
type Short<const N: usize, const V: usize> = [[uint16x8_t; V]; N];

#[target_feature(enable = "neon,fp16")]
fn add_short_sums<const N: usize, const V: usize>(
    lines: &[Line],
    lanes: &[Lanes],
    factors: &[f32; ROWS],
    out: Rows<'_>,
) {
    let out: [_; N] = out.first();
    let factors = load_factors(factors);
    let zero = vdupq_n_u16(0);
    let (whole_lines, last_lines) = lines.as_chunks::<PART>();
    let (whole_lanes, last_lanes) = lanes.as_chunks::<PART>();
    for first in (0..VECTORS).step_by(V) {
        let mut sums = [[zero; V]; N];
        for (lines, lanes) in whole_lines.iter().zip(whole_lanes) {
            sums = add_part(sums, lines, lanes, first);
        }
        if !last_lines.is_empty() {
            sums = add_part(sums, last_lines, last_lanes, first);
        }
        // Zero times a number is zero, unlike anything else.
        let mut check = zero;
        for v in sums.as_flattened() {
            check = short::<0>(check, *v, zero);
        }
        if vmaxvq_u16(check) == 0 {
            each!(R < N, {
                for v in 0..V {
                    add_to::<R>(out[R], first + v, widen_f16(sums[R][v]), factors);
                }
            });
        } else {
            each!(R < N, {
                for v in 0..V {
                    let sums = replace_overflown(sums[R][v], lines, lanes, R, first + v);
                    add_to::<R>(out[R], first + v, sums, factors);
                }
            });
        }
    }
}

/// Adds up to `PART` lines: sums of even and of odd ones, one of which waits for its last addition while the other works.
#[inline]
#[target_feature(enable = "neon,fp16")]
fn add_part<const N: usize, const V: usize>(
    mut sums: Short<N, V>,
    lines: &[Line],
    lanes: &[Lanes],
    first: usize,
) -> Short<N, V> {
    let mut parts = [[[vdupq_n_u16(0); V]; N]; 2];
    let (lines, last_lines) = lines.as_chunks::<STEP>();
    let (lanes, last_lanes) = lanes.as_chunks::<STEP>();
    for (lines, lanes) in lines.iter().zip(lanes) {
        let ([a, b, c, d], [e, f, g, h]) = (lines, lanes);
        parts[0] = short_line(parts[0], a, e, first);
        parts[1] = short_line(parts[1], b, f, first);
        parts[0] = short_line(parts[0], c, g, first);
        parts[1] = short_line(parts[1], d, h, first);
    }
    for (i, (line, lanes)) in last_lines.iter().zip(last_lanes).enumerate() {
        if i % 2 == 0 {
            parts[0] = short_line(parts[0], line, lanes, first);
        } else {
            parts[1] = short_line(parts[1], line, lanes, first);
        }
    }
    let [even, odd] = parts;
    for r in 0..N {
        for v in 0..V {
            sums[r][v] = add(sums[r][v], add(even[r][v], odd[r][v]));
        }
    }
    sums
}

/// Adds a line.
#[inline]
#[target_feature(enable = "neon,fp16")]
fn short_line<const N: usize, const V: usize>(
    mut sums: Short<N, V>,
    line: &Line,
    lanes: &Lanes,
    first: usize,
) -> Short<N, V> {
    let lanes = load_u16(lanes);
    for v in 0..V {
        let line = load_u16(&line[first + v]);
        each!(R < N, {
            sums[R][v] = short::<R>(sums[R][v], line, lanes);
        });
    }
    sums
}

/// Returns the sums of vector `v` of lines, weighted by lane `r`: those given, added again in f32 where they are not finite.
#[cold]
#[target_feature(enable = "neon")]
fn replace_overflown(
    sums: uint16x8_t,
    lines: &[Line],
    lanes: &[Lanes],
    r: usize,
    v: usize,
) -> Sums {
    let mut wide = [vdupq_n_f32(0.0); 2];
    for (line, lanes) in lines.iter().zip(lanes) {
        let factor = f16_to_f32([lanes[2 * r], lanes[2 * r + 1]]);
        for (sum, four) in wide.iter_mut().zip(widen_f16(load_u16(&line[v]))) {
            *sum = vfmaq_n_f32(*sum, four, factor);
        }
    }
    for (wide, sums) in wide.iter_mut().zip(widen_f16(sums)) {
        let are_finite = vcltq_f32(vabsq_f32(sums), vdupq_n_f32(f32::INFINITY));
        *wide = vbslq_f32(are_finite, sums, *wide);
    }
    wide
}

/// Returns the power of two that brings `max` to between `2^log` and twice that, as far as it is between `2^-126` and
/// `2^126`; 1 if `max` is infinite or NaN.
#[inline]
pub(super) fn normaliser(max: f32, log: i32) -> f32 {
    let exponent = (max.to_bits() >> 23 & 0xff).cast_signed();
    if exponent == 255 {
        return 1.0;
    }
    let inverse = (127 + 127 - exponent + log).clamp(1, 253);
    f32::from_bits(inverse.cast_unsigned() << 23)
}
