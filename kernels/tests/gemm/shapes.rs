//! Shapes of every type, chosen and at random.

use llada_npu_kernels::tile::TileType;
use llada_npu_kernels::{F32Rows, registry};
use proptest::prelude::*;

use crate::case::{Case, check, each_kernel};
use crate::common::product::regressions;

fn lengths(ty: TileType) -> &'static [usize] {
    match ty {
        TileType::F16 => &[0, 1, 2, 31, 32, 33, 63, 64, 100, 257],
        TileType::Q4K | TileType::Q6K => &[0, 256, 512],
        _ => &[0, 32, 64, 96, 544],
    }
}

#[test]
fn every_kernel_keeps_the_tolerance_at_every_edge_of_its_tiles() {
    for ty in TileType::ALL {
        let mut worst = vec![(0.0f64, ""); registry::gemm(ty).len()];
        for &k in lengths(ty) {
            for n_rows in [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 32, 33, 130] {
                for n_weights in [0, 1, 31, 32, 33, 70] {
                    let seed = k * 1000 + n_rows * 20 + n_weights;
                    let case = Case::random(ty, k, n_weights, n_rows, seed as u64);
                    let (exact, tiles) = (case.exact(), case.tiles());
                    let mut i = 0;
                    each_kernel(ty, |name, kernel| {
                        let share = check(name, kernel, &case, &tiles, &exact);
                        worst[i] = (worst[i].0.max(share), name);
                        i += 1;
                    });
                }
            }
        }
        println!("largest share of the tolerance used: {worst:?}");
    }
}

#[test]
fn a_panel_prepared_in_pieces_is_the_panel() {
    for ty in TileType::ALL {
        let case = Case::random(ty, 1024, 1, 150, 3);
        let bytes: Vec<u8> = case
            .x
            .concat()
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        let x = F32Rows::new(1024, 150, 4 * 1024, &bytes).unwrap();
        each_kernel(ty, |name, kernel| {
            let layout = kernel.layout(1024, 150);
            let n = layout.n_units();
            let mut whole = vec![0xaa; layout.panel_size_bytes()];
            kernel.prepare(&layout, &x, 0..n, &mut whole);
            let mut pieces = vec![0x55; whole.len()];
            let mut start = 0;
            for len in [1, 5, 20, 0, 30].into_iter().cycle() {
                let units = start..n.min(start + len);
                let bytes = layout.unit_bytes(units.clone());
                kernel.prepare(&layout, &x, units.clone(), &mut pieces[bytes]);
                start = units.end;
                if start == n {
                    break;
                }
            }
            assert!(whole == pieces, "{name}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: regressions(), ..ProptestConfig::default() })]

    #[test]
    fn any_shape_keeps_the_tolerance(ty in 0..6usize, k in 0..400usize, n_weights in 1..70usize, n_rows in 1..60usize, seed: u64) {
        let ty = TileType::ALL[ty];
        let k = k / ty.blck_size() * ty.blck_size();
        let case = Case::random(ty, k, n_weights, n_rows, seed);
        let (exact, tiles) = (case.exact(), case.tiles());
        each_kernel(ty, |name, kernel| {
            check(name, kernel, &case, &tiles, &exact);
        });
    }
}
