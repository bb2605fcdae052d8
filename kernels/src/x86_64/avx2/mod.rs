//! AVX2: groups of 8 rows of x.

pub(crate) mod float;
pub(crate) mod quant;

/// Rows of x in a group: 32-bit lanes of a vector.
const LANES: usize = 8;

/// Bytes of a vector.
const LINE: usize = 32;

/// Returns the sum of the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn reduce_add(v: std::arch::x86_64::__m256) -> f32 {
    let mut lanes = [0.0; LANES];
    super::mem::store_f32x8(&mut lanes, v);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}
