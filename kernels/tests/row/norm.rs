//! Norms and softmax.

use llada_npu_kernels::op::soft_max::{Mask, SoftMaxRow};
use llada_npu_kernels::{op, registry};

use crate::numbers::*;

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
