//! Operations on elements: `op::binary`, `op::unary`, `op::glu`.

use llada_npu_kernels::op::binary::BinaryOp;
use llada_npu_kernels::op::glu::GluOp;
use llada_npu_kernels::op::unary::UnaryOp;
use llada_npu_kernels::registry;

use crate::numbers::*;

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
