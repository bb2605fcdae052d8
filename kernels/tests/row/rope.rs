//! Rotary positions.

use llada_npu_kernels::op::rope::{MAX_F16_ROW, Pairing, RopeParams};
use llada_npu_kernels::{WeightType, op, registry};

use crate::numbers::*;

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
#[should_panic(expected = "table of 12 floats for a row of 4")]
fn tables_of_longer_rows_are_refused() {
    let (_, kernel) = registry::best(registry::rope());
    kernel.rotate(Pairing::Normal, &[0.0; 12], None, &mut [0.0; 4]);
}
