//! Operands of rows, and what results are compared by.

use llada_npu_kernels::registry::Kernel;

use crate::common::each_kernel;

pub(crate) const LENGTHS: [usize; 15] = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 255, 1000];

/// Runs a check with every kernel of a list but the reference, which is given too.
pub(crate) fn for_each_kernel<F>(list: &'static [Kernel<F>], mut check: impl FnMut(&str, &F, &F)) {
    let (reference, others) = list.split_last().expect("lists have the reference");
    let reference = reference.select().expect("the reference runs everywhere");
    each_kernel(others, |name, kernel| check(name, kernel, &reference));
}

/// Two operands; one that is not given is the result itself.
pub(crate) type Operands<'a> = (Option<&'a [f32]>, Option<&'a [f32]>);

/// A stream of numbers of all magnitudes below `10^max`.
pub(crate) struct Numbers(pub(crate) u32);

impl Numbers {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    pub(crate) fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn row(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}

pub(crate) const SPECIAL: [f32; 14] = [
    0.0,
    -0.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-40,
    -1e-40,
    88.0,
    -88.0,
    -104.0,
    1.0,
];

/// A row whose first element is 8 bytes past the alignment of vectors, more or less.
pub(crate) fn unaligned(x: &[f32], shift: usize) -> Vec<f32> {
    [vec![0.0; shift], x.to_vec()].concat()
}

/// Worst difference so far, in units that the check chooses.
pub(crate) struct Worst(pub(crate) f64);

impl Worst {
    pub(crate) fn see(&mut self, error: f64, limit: f64, what: impl FnOnce() -> String) {
        assert!(
            error <= limit,
            "{}: off by {error:e}, allowed {limit:e}",
            what()
        );
        self.0 = self.0.max(error);
    }
}

pub(crate) fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}
