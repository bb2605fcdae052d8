//! Row conversions against their definitions, exhaustively where the domain allows.

#![expect(clippy::cast_possible_truncation, reason = "a test")]

use llada_npu_kernels::WeightType;
use llada_npu_kernels::op::convert::{dequantize_row, f32_to_f16_row, quantize_row_q8_0};

/// The value of a half float from the definition of the format.
fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1.0 + mantissa / 1024.0) * 2f64.powi(e - 15),
    }
}

fn to_half(x: f32) -> u16 {
    let mut bytes = [0; 2];
    f32_to_f16_row(&[x], &mut bytes);
    u16::from_le_bytes(bytes)
}

#[test]
fn every_half_float_widens_to_its_value() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut floats = vec![0.0; 1 << 16];
    dequantize_row(WeightType::F16, &bytes, &mut floats);
    for (bits, got) in (0..=u16::MAX).zip(floats) {
        let want = half_value(bits);
        assert!(
            if want.is_nan() {
                got.is_nan()
            } else {
                f64::from(got) == want
            },
            "{bits:#x}: {got}"
        );
        assert_eq!(got.is_sign_negative(), bits >> 15 == 1, "{bits:#x}");
    }
}

#[test]
fn every_half_float_and_every_midpoint_rounds_to_nearest_even() {
    for bits in 0..=0x7bffu16 {
        let value = half_value(bits) as f32;
        assert_eq!((to_half(value), to_half(-value)), (bits, bits | 0x8000));
        // The next one up; above the largest finite value, where it would be, infinity.
        let next = if bits == 0x7bff {
            65536.0
        } else {
            half_value(bits + 1)
        };
        let middle = ((f64::from(value) + next) / 2.0) as f32;
        let even = if bits % 2 == 0 { bits } else { bits + 1 };
        assert_eq!(to_half(middle), even, "{bits:#x}");
        assert_eq!(to_half(middle.next_down()), bits, "{bits:#x}");
        assert_eq!(to_half(middle.next_up()), bits + 1, "{bits:#x}");
    }
    for (x, bits) in [
        (f32::INFINITY, 0x7c00),
        (f32::NEG_INFINITY, 0xfc00),
        (1e30, 0x7c00),
        (1e-30, 0),
        (-1e-30, 0x8000),
    ] {
        assert_eq!(to_half(x), bits, "{x}");
    }
    assert!(half_value(to_half(f32::NAN)).is_nan());
}

#[test]
fn every_byte_of_a_block_dequantises_to_scale_times_value() {
    let scale = 0x3e00u16; // 1.5
    for byte in 0..=u8::MAX {
        let mut q8 = scale.to_le_bytes().to_vec();
        q8.extend([byte; 32]);
        let mut out = [0.0; 32];
        dequantize_row(WeightType::Q8_0, &q8, &mut out);
        assert_eq!(out, [1.5 * f32::from(byte as i8); 32]);

        let mut q4 = scale.to_le_bytes().to_vec();
        q4.extend([byte; 16]);
        dequantize_row(WeightType::Q4_0, &q4, &mut out);
        assert_eq!(out[..16], [1.5 * (f32::from(byte % 16) - 8.0); 16]);
        assert_eq!(out[16..], [1.5 * (f32::from(byte / 16) - 8.0); 16]);
    }
}

fn quantised(x: &[f32; 32]) -> (f64, Vec<i8>) {
    let mut block = [0; 34];
    quantize_row_q8_0(x, &mut block);
    (
        half_value(u16::from_le_bytes([block[0], block[1]])),
        block[2..].iter().map(|q| *q as i8).collect(),
    )
}

#[test]
fn quantisation_rounds_halves_away_from_zero_and_keeps_the_largest() {
    let mut x: [f32; 32] = std::array::from_fn(|i| i as f32 / 2.0 - 8.0);
    x[31] = -127.0;
    let (d, q) = quantised(&x);
    assert_eq!(d, 1.0);
    for (x, q) in x.iter().zip(&q) {
        assert_eq!(f32::from(*q), x.abs().add_half_floor() * x.signum(), "{x}");
    }
}

trait AddHalfFloor {
    fn add_half_floor(self) -> f32;
}

impl AddHalfFloor for f32 {
    /// Rounds a non-negative multiple of one half, halves up.
    fn add_half_floor(self) -> f32 {
        (self + 0.5).floor()
    }
}

#[test]
fn quantisation_errs_by_half_a_step_and_the_rounding_of_the_scale() {
    for seed in 0..200u32 {
        let x: [f32; 32] = std::array::from_fn(|i| {
            let v = (seed * 32 + i as u32).wrapping_mul(2654435761) >> 8;
            (v as f32 / (1 << 23) as f32 - 1.0) * 10f32.powi(seed as i32 % 9 - 4)
        });
        let amax = f64::from(x.iter().fold(0f32, |m, v| m.max(v.abs())));
        let (d, q) = quantised(&x);
        // Subnormal halves have a fixed spacing.
        assert!(
            (d - amax / 127.0).abs() <= (amax / 127.0 * 2f64.powi(-11)).max(2f64.powi(-25)),
            "{d} for {amax}"
        );
        for (x, q) in x.iter().zip(&q) {
            let step = amax / 127.0;
            assert!(
                (f64::from(*x) - step * f64::from(*q)).abs() <= step * 0.50001,
                "{x} as {q} steps of {step}"
            );
        }
    }
}

#[test]
fn blocks_that_cannot_be_quantised_say_so_in_their_scale() {
    for (value, check) in [
        (f32::NAN, f64::is_nan as fn(f64) -> bool),
        (f32::INFINITY, f64::is_infinite),
        (f32::NEG_INFINITY, f64::is_infinite),
        (1e-7, |d| d == 0.0),
        (0.0, |d| d == 0.0),
    ] {
        let mut x = [0.0; 32];
        x[7] = value;
        let (d, q) = quantised(&x);
        assert!(check(d), "{value}: {d}");
        assert_eq!(q, [0; 32], "{value}");
    }
    assert!(quantised(&[f32::MAX; 32]).0.is_infinite());
}

#[test]
#[should_panic(expected = "33 elements are not whole blocks")]
fn part_of_a_block_is_refused() {
    quantize_row_q8_0(&[0.0; 33], &mut [0; 34]);
}
