//! Row operations: every kernel that this CPU runs against the reference, on lengths around the vectors', unaligned, in
//! place, and with every kind of number. The worst difference of each kernel is printed.

#![expect(clippy::cast_possible_truncation, reason = "a test")]

mod common;

use common::each_kernel;
use llada_npu_kernels::op::binary::BinaryOp;
use llada_npu_kernels::op::glu::GluOp;
use llada_npu_kernels::op::rope::{MAX_F16_ROW, Pairing, RopeParams};
use llada_npu_kernels::op::soft_max::{Mask, SoftMaxRow};
use llada_npu_kernels::op::unary::UnaryOp;
use llada_npu_kernels::registry::{self, Kernel};
use llada_npu_kernels::{WeightType, op};

const LENGTHS: [usize; 15] = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 255, 1000];

/// Runs a check with every kernel of a list but the reference, which is given too.
fn for_each_kernel<F>(list: &'static [Kernel<F>], mut check: impl FnMut(&str, &F, &F)) {
    let (reference, others) = list.split_last().expect("lists have the reference");
    let reference = reference.select().expect("the reference runs everywhere");
    each_kernel(others, |name, kernel| check(name, kernel, &reference));
}

/// Two operands; one that is not given is the result itself.
type Operands<'a> = (Option<&'a [f32]>, Option<&'a [f32]>);

/// A stream of numbers of all magnitudes below `10^max`.
struct Numbers(u32);

impl Numbers {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1 << 23) as f32 - 1.0
    }

    fn row(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}

const SPECIAL: [f32; 14] = [
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
fn unaligned(x: &[f32], shift: usize) -> Vec<f32> {
    [vec![0.0; shift], x.to_vec()].concat()
}

/// Worst difference so far, in units that the check chooses.
struct Worst(f64);

impl Worst {
    fn see(&mut self, error: f64, limit: f64, what: impl FnOnce() -> String) {
        assert!(
            error <= limit,
            "{}: off by {error:e}, allowed {limit:e}",
            what()
        );
        self.0 = self.0.max(error);
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn binary_is_exact() {
    for_each_kernel(registry::binary(), |name, kernel, reference| {
        let mut numbers = Numbers(1);
        for (n, op) in LENGTHS
            .into_iter()
            .flat_map(|n| BinaryOp::ALL.map(|op| (n, op)))
        {
            let (mut a, mut b) = (numbers.row(n, 9.0), numbers.row(n, 9.0));
            if n >= 100 {
                a[..14].copy_from_slice(&SPECIAL);
                b[7..21].copy_from_slice(&SPECIAL);
            }
            let c = b.first().copied().unwrap_or(2.0);
            for shift in 0..3 {
                let (a, b) = (unaligned(&a, shift), unaligned(&b, 3 - shift));
                let (a, b) = (&a[shift..], &b[3 - shift..]);
                let cases: [Operands<'_>; 4] = [
                    (Some(a), Some(b)),
                    (None, Some(b)),
                    (Some(a), None),
                    (None, None),
                ];
                for (x, y) in cases {
                    let (mut got, mut want) = (b.to_vec(), b.to_vec());
                    kernel.binary(op, x, y, &mut got);
                    reference.binary(op, x, y, &mut want);
                    assert!(
                        got.iter().zip(&want).all(|(a, b)| same(*a, *b)),
                        "{name} {op:?} {n}"
                    );
                }
                for x in [Some(a), None] {
                    let (mut got, mut want) = (b.to_vec(), b.to_vec());
                    kernel.binary_scalar(op, x, c, &mut got);
                    reference.binary_scalar(op, x, c, &mut want);
                    assert!(
                        got.iter().zip(&want).all(|(a, b)| same(*a, *b)),
                        "{name} {op:?} {n}"
                    );
                }
            }
        }
        println!("{name}: exact");
    });
}

/// Returns the values that functions are tried on: a grid of exponents and digits, and the special ones.
fn every_kind() -> Vec<f32> {
    let mut values = SPECIAL.to_vec();
    for bits in (0..=u32::MAX).step_by(65_521) {
        values.push(f32::from_bits(bits));
    }
    values.extend((-1200..1200).map(|i| i as f32 / 10.0));
    values
}

/// Returns the argument of e^ in a function.
fn exponent(op: UnaryOp, x: f32) -> f64 {
    let x = f64::from(x);
    match op {
        UnaryOp::Gelu => 1.595_769 * x * (1.0 + 0.044_715 * x * x),
        UnaryOp::GeluQuick => 1.702 * x,
        _ => x,
    }
}

/// Returns the relative error that a function may have.
fn limit(exponent: f64) -> f64 {
    (16.0 + 4.0 * exponent.abs().min(128.0)) * 2f64.powi(-24)
}

#[test]
fn unary_is_within_its_tolerance() {
    let x = every_kind();
    for_each_kernel(registry::unary(), |name, kernel, reference| {
        for op in UnaryOp::ALL {
            let (mut got, mut want) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            kernel.unary(op, Some(&x), &mut got);
            reference.unary(op, Some(&x), &mut want);
            let mut in_place = x.clone();
            kernel.unary(op, None, &mut in_place);
            let mut worst = Worst(0.0);
            for i in 0..x.len() {
                assert!(same(got[i], in_place[i]), "{name} {op:?} {}", x[i]);
                let (got, want) = (got[i], want[i]);
                // Where the formula is infinity by infinity, and where the argument of e^ overflows before the result does.
                let undefined = x[i] == f32::NEG_INFINITY || x[i] < -1e30;
                // The maximum that compilers take for it on aarch64 is NaN of a signalling NaN.
                let is_signalling = x[i].is_nan() && x[i].to_bits() & 1 << 22 == 0;
                let undefined = undefined || op == UnaryOp::Relu && is_signalling;
                if same(got, want) || undefined && (got.is_nan() || got == 0.0) {
                    continue;
                }
                let scale = match op {
                    UnaryOp::Tanh | UnaryOp::Elu => want.abs().max(1.0),
                    _ => want.abs().max(2f32.powi(-100)),
                };
                let error = f64::from((got - want).abs()) / f64::from(scale);
                worst.see(error, limit(exponent(op, x[i])), || {
                    format!("{name} {op:?}({}): {got}, not {want}", x[i])
                });
            }
            println!("{name} {op:?}: {:.2} * 2^-24", worst.0 * 2f64.powi(24));
        }
    });
}

#[test]
fn unary_takes_every_length_and_place() {
    for_each_kernel(registry::unary(), |name, kernel, _| {
        let mut numbers = Numbers(2);
        for n in LENGTHS {
            let x = numbers.row(n, 5.0);
            let mut alone = vec![0.0; n];
            for i in 0..n {
                kernel.unary(UnaryOp::Silu, Some(&x[i..=i]), &mut alone[i..=i]);
            }
            for shift in 0..4 {
                let (x, mut out) = (unaligned(&x, shift), vec![0.0; n + 4 - shift]);
                kernel.unary(UnaryOp::Silu, Some(&x[shift..]), &mut out[4 - shift..]);
                for (got, want) in out[4 - shift..].iter().zip(&alone) {
                    assert!((got - want).abs() <= want.abs() * 1e-6, "{name} {n}");
                }
            }
        }
    });
}

#[test]
fn scale_rounds_once_or_twice() {
    for_each_kernel(registry::unary(), |name, kernel, reference| {
        let mut numbers = Numbers(3);
        for n in LENGTHS {
            let mut x = numbers.row(n, 5.0);
            if n >= 100 {
                x[..14].copy_from_slice(&SPECIAL);
            }
            for (scale, bias) in [(0.5, 0.0), (-1.7, 0.0), (0.3, 1.25), (0.0, 2.0)] {
                let (mut got, mut want) = (vec![0.0; n], x.clone());
                kernel.scale(scale, bias, Some(&x), &mut got);
                reference.scale(scale, bias, None, &mut want);
                let mut in_place = x.clone();
                kernel.scale(scale, bias, None, &mut in_place);
                for i in 0..n {
                    assert!(same(got[i], in_place[i]), "{name}");
                    let limit = ((x[i] * scale).abs() + bias.abs()) * 2f32.powi(-23);
                    let close = (got[i] - want[i]).abs() <= limit;
                    assert!(
                        same(got[i], want[i]) || close,
                        "{name} {} {scale} {bias}",
                        x[i]
                    );
                }
            }
        }
    });
}

#[test]
fn glu_is_within_its_tolerance() {
    let x = every_kind();
    let ops = [
        GluOp::Reglu,
        GluOp::Geglu,
        GluOp::Swiglu,
        GluOp::GegluQuick,
        GluOp::SwigluOai {
            alpha: 1.7,
            limit: 7.0,
        },
    ];
    for_each_kernel(registry::glu(), |name, kernel, reference| {
        for op in ops {
            let mut worst = Worst(0.0);
            for b in [1.0, -3.5, 1e-3] {
                let b = vec![b; x.len()];
                let (mut got, mut want) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                kernel.glu(op, &x, &b, &mut got);
                reference.glu(op, &x, &b, &mut want);
                for i in 0..x.len() {
                    let (got, want) = (got[i], want[i]);
                    if same(got, want) || x[i] < -1e30 && (got.is_nan() || got == 0.0) {
                        continue;
                    }
                    let scale = want.abs().max(2f32.powi(-100));
                    let error = f64::from((got - want).abs()) / f64::from(scale);
                    let exponent = match op {
                        GluOp::Geglu => exponent(UnaryOp::Gelu, x[i]),
                        _ => 1.702 * f64::from(x[i]),
                    };
                    worst.see(error, limit(exponent), || {
                        format!("{name} {op:?}({}, {}): {got}, not {want}", x[i], b[i])
                    });
                }
            }
            println!("{name} {op:?}: {:.2} * 2^-24", worst.0 * 2f64.powi(24));
        }
        let mut numbers = Numbers(4);
        for n in LENGTHS {
            let (a, b) = (numbers.row(n, 5.0), numbers.row(n, 5.0));
            let (mut got, mut want) = (vec![0.0; n], vec![0.0; n]);
            kernel.glu(GluOp::Swiglu, &a, &b, &mut got);
            reference.glu(GluOp::Swiglu, &a, &b, &mut want);
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() <= want.abs() * 2e-6, "{name} {n}");
            }
        }
    });
}

#[test]
fn norms_are_within_their_tolerance() {
    for_each_kernel(registry::norm(), |name, kernel, reference| {
        let mut numbers = Numbers(5);
        let mut worst = Worst(0.0);
        for (n, scale) in LENGTHS
            .into_iter()
            .chain([4096, 20_000])
            .flat_map(|n| [(n, 1e-3), (n, 30.0)])
        {
            let x = numbers.row(n, scale);
            for (eps, shift) in [(1e-6, 0), (1e-5, 1), (0.0, 3)] {
                let x = unaligned(&x, shift);
                let x = &x[shift..];
                let (mut got, mut want, mut in_place) = (vec![0.0; n], vec![0.0; n], x.to_vec());
                kernel.rms_norm(Some(x), eps, &mut got);
                kernel.rms_norm(None, eps, &mut in_place);
                reference.rms_norm(Some(x), eps, &mut want);
                assert_eq!(got, in_place, "{name} {n}");
                let limit = ((n / 32 + 6) as f64 + 4.0) * 2f64.powi(-24);
                for (got, want) in got.iter().zip(&want) {
                    let error = f64::from((got - want).abs()) / f64::from(want.abs().max(1e-30));
                    worst.see(error, limit, || format!("{name} rms_norm {n}"));
                }
                // Few elements may be all but equal: what is left of them after the mean is their rounding.
                if n < 7 || eps == 0.0 {
                    continue;
                }
                let mut in_place = x.to_vec();
                kernel.norm(Some(x), eps, &mut got);
                kernel.norm(None, eps, &mut in_place);
                reference.norm(Some(x), eps, &mut want);
                assert_eq!(got, in_place, "{name} {n}");
                for (got, want) in got.iter().zip(&want) {
                    let error = f64::from((got - want).abs());
                    worst.see(error, 8.0 * limit, || format!("{name} norm {n}"));
                }
            }
        }
        println!("{name}: {:.2} * 2^-24", worst.0 * 2f64.powi(24));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0; 40];
            x[39] = bad;
            kernel.rms_norm(None, 0.0, &mut x);
            assert!(
                x[39].is_nan() && x[0].is_nan() == bad.is_nan(),
                "{name} {x:?}"
            );
        }
        let mut zeros = [0.0; 33];
        kernel.rms_norm(None, 1e-6, &mut zeros);
        assert_eq!(zeros, [0.0; 33]);
    });
}

#[test]
fn soft_max_is_within_its_tolerance() {
    for_each_kernel(registry::soft_max(), |name, kernel, reference| {
        let mut numbers = Numbers(6);
        let mut worst = Worst(0.0);
        for n in LENGTHS.into_iter().chain([5000]) {
            let x = numbers.row(n, 20.0);
            let mut mask = numbers.row(n, 4.0);
            for i in (0..n).step_by(3) {
                mask[i] = f32::NEG_INFINITY;
            }
            let mut half = vec![0; 2 * n];
            op::convert::f32_to_f16_row(&mask, &mut half);
            let masks = [Mask::None, Mask::F32(&mask), Mask::F16(&half)];
            for (mask, (scale, slope, sink)) in masks.into_iter().flat_map(|mask| {
                [
                    (1.0, 1.0, None),
                    (0.125, 0.25, Some(1.5)),
                    (-0.5, 1.0, None),
                ]
                .map(|p| (mask, p))
            }) {
                let row = SoftMaxRow {
                    scale,
                    mask,
                    slope,
                    sink,
                };
                let (mut got, mut want, mut in_place) = (vec![0.0; n], vec![0.0; n], x.clone());
                kernel.soft_max(row, Some(&x), &mut got);
                kernel.soft_max(row, None, &mut in_place);
                reference.soft_max(row, Some(&x), &mut want);
                let limit = ((n / 32 + 16) as f64 + 4.0 * 24.0) * 2f64.powi(-24);
                for i in 0..n {
                    assert!(same(got[i], in_place[i]), "{name} {n}");
                    if same(got[i], want[i]) {
                        continue;
                    }
                    let error =
                        f64::from((got[i] - want[i]).abs()) / f64::from(want[i].abs().max(1e-36));
                    worst.see(error, limit, || {
                        format!("{name} {n}: {} not {}", got[i], want[i])
                    });
                }
            }
        }
        println!("{name}: {:.2} * 2^-24", worst.0 * 2f64.powi(24));
        let row = SoftMaxRow {
            scale: 1.0,
            mask: Mask::None,
            slope: 1.0,
            sink: None,
        };
        for bad in [
            [1.0, f32::NAN],
            [1.0, f32::INFINITY],
            [f32::NEG_INFINITY, f32::NEG_INFINITY],
        ] {
            let mut out = bad;
            kernel.soft_max(row, None, &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{name} {bad:?}: {out:?}");
        }
    });
}

fn rope_params(pairing: Pairing, n_dims: usize) -> RopeParams {
    RopeParams {
        pairing,
        n_dims,
        n_ctx_orig: 512,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    }
}

#[test]
fn rope_turns_pairs() {
    for_each_kernel(registry::rope(), |name, kernel, reference| {
        let mut numbers = Numbers(7);
        let mut worst = Worst(0.0);
        for n in [2, 8, 30, 64, 80, 128, 130, 1024] {
            for (pairing, rotated) in [
                (Pairing::Normal, n),
                (Pairing::Neox, n),
                (Pairing::Neox, n / 4 * 2),
            ] {
                let params = rope_params(pairing, rotated);
                let mut table = vec![0.0; params.table_len()];
                params.fill_table(1234, None, &mut table);
                let x = numbers.row(n, 3.0);
                let (mut got, mut want, mut in_place) = (vec![0.0; n], vec![0.0; n], x.clone());
                kernel.rotate(pairing, &table, Some(&x), &mut got);
                kernel.rotate(pairing, &table, None, &mut in_place);
                reference.rotate(pairing, &table, Some(&x), &mut want);
                assert_eq!(got, in_place, "{name} {n}");
                assert_eq!(got[rotated..], x[rotated..], "{name} {n}");
                for (got, want) in got.iter().zip(&want) {
                    let limit = 2f64.powi(-22) * 6.0;
                    worst.see(f64::from((got - want).abs()), limit, || {
                        format!("{name} {n}")
                    });
                }
                let mut half = vec![0; 2 * n];
                op::convert::f32_to_f16_row(&x, &mut half);
                let (mut got, mut want) = (half.clone(), vec![0; 2 * n]);
                kernel.rotate_f16(pairing, &table, None, &mut got);
                reference.rotate_f16(pairing, &table, Some(&half), &mut want);
                let value = |b: &[u8; 2]| {
                    let mut out = [0.0];
                    op::convert::dequantize_row(WeightType::F16, b, &mut out);
                    out[0]
                };
                for (got, want) in got.as_chunks().0.iter().zip(want.as_chunks().0) {
                    assert!((value(got) - value(want)).abs() <= 4e-3, "{name} {n}");
                }
            }
        }
        println!("{name}: {:.2} * 2^-22", worst.0 * 2f64.powi(22));
    });
    assert_eq!(MAX_F16_ROW, 1024, "the longest row above");
}

#[test]
fn rope_tables_are_cosines_and_sines() {
    let params = rope_params(Pairing::Neox, 8);
    let mut table = [0.0; 16];
    params.fill_table(3, None, &mut table);
    for j in 0..4 {
        let theta = 3.0 * 10_000f64.powf(-2.0 * j as f64 / 8.0);
        for (i, want) in [
            (j, theta.cos()),
            (j + 4, theta.cos()),
            (8 + j, -theta.sin()),
            (12 + j, theta.sin()),
        ] {
            assert!(
                (f64::from(table[i]) - want).abs() < 1e-6,
                "{i}: {} {want}",
                table[i]
            );
        }
    }
    // Factors divide the frequencies.
    let (mut slow, mut by_two) = ([0.0; 16], [0.0; 16]);
    params.fill_table(6, Some(&[2.0; 4]), &mut by_two);
    params.fill_table(3, None, &mut slow);
    assert_eq!(slow, by_two);
    // YaRN without interpolation only lengthens: fast pairs keep their angle, slow ones are stretched.
    let yarn = RopeParams {
        freq_scale: 0.25,
        ext_factor: 1.0,
        ..rope_params(Pairing::Normal, 64)
    };
    let mut stretched = vec![0.0; 128];
    yarn.fill_table(10, None, &mut stretched);
    let magnitude = 1.0 + 0.1 * 4f64.ln();
    let angle =
        |pair: usize| f64::from(stretched[64 + 2 * pair + 1]).atan2(f64::from(stretched[2 * pair]));
    let theta = |pair: usize| 10.0 * 10_000f64.powf(-2.0 * pair as f64 / 64.0);
    assert!(
        (angle(1) - (theta(1) - std::f64::consts::TAU)).abs() < 1e-5,
        "{}",
        angle(1)
    );
    assert!((angle(31) - theta(31) / 4.0).abs() < 1e-6);
    assert!((f64::from(stretched[0].hypot(stretched[65])) - magnitude).abs() < 1e-6);
}

#[test]
fn copies_are_exact() {
    for_each_kernel(registry::copy(), |name, kernel, reference| {
        // Every half float.
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let (mut got, mut want) = (vec![0.0; 1 << 16], vec![0.0; 1 << 16]);
        kernel.widen(&halves, &mut got);
        reference.widen(&halves, &mut want);
        assert!(got.iter().zip(&want).all(|(a, b)| same(*a, *b)), "{name}");
        // Every half float, the middles between them and their neighbours.
        let mut floats = SPECIAL.to_vec();
        for x in want
            .windows(2)
            .filter(|x| x[0].is_finite() && x[1].is_finite())
        {
            let middle = x[0] / 2.0 + x[1] / 2.0;
            floats.extend([x[0], middle, middle.next_up(), middle.next_down()]);
        }
        floats.extend([65_519.0, 65_520.0, -65_520.0, 1e30]);
        let (mut got, mut want) = (vec![0; 2 * floats.len()], vec![0; 2 * floats.len()]);
        kernel.narrow(&floats, &mut got);
        reference.narrow(&floats, &mut want);
        for ((got, want), x) in got
            .as_chunks::<2>()
            .0
            .iter()
            .zip(want.as_chunks::<2>().0)
            .zip(&floats)
        {
            assert!(got == want || x.is_nan(), "{name} {x}");
        }
        let mut numbers = Numbers(8);
        for n in LENGTHS {
            let x = numbers.row(n, 9.0);
            let mut half = vec![0; 2 * n + 1];
            kernel.narrow(&x, &mut half[1..]);
            let mut back = vec![0.0; n];
            kernel.widen(&half[1..], &mut back);
            for (x, back) in x.iter().zip(&back) {
                assert!(
                    (x - back).abs() <= x.abs() * 2f32.powi(-11) + 1e-7,
                    "{name} {n}"
                );
            }
        }
        for (ty, n) in WeightType::ALL
            .into_iter()
            .flat_map(|ty| [0, 1, 2, 5].map(|n| (ty, n)))
        {
            let n = n * ty.blck_size();
            let row: Vec<u8> = (0..ty.row_size(n).unwrap())
                .map(|_| numbers.bits() as u8)
                .collect();
            let (mut got, mut want) = (vec![0.0; n], vec![0.0; n]);
            kernel.dequantize(ty, &row, &mut got);
            reference.dequantize(ty, &row, &mut want);
            assert!(
                got.iter().zip(&want).all(|(a, b)| same(*a, *b)),
                "{name} {ty:?}"
            );
        }
        println!("{name}: exact");
    });
}

#[test]
#[should_panic(expected = "elements of an operand and the result")]
fn rows_of_other_lengths_are_refused() {
    let (_, kernel) = registry::best(registry::norm());
    kernel.rms_norm(Some(&[1.0; 3]), 0.0, &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "table of 12 floats for a row of 4")]
fn tables_of_longer_rows_are_refused() {
    let (_, kernel) = registry::best(registry::rope());
    kernel.rotate(Pairing::Normal, &[0.0; 12], None, &mut [0.0; 4]);
}
