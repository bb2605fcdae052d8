//! Copies that change the type, and what is refused.

use llada_npu_kernels::{WeightType, registry};

use crate::numbers::*;

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
