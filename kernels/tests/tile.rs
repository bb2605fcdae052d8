//! Weight tiles against the published layout, against ggml's blocks as defined here again, and there and back.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

mod common;

use common::{Element, Rng};
use llada_npu_kernels::tile::{TileError, TileMatrix, TileType};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};

/// A byte that depends on its position alone.
fn noise(i: usize, seed: usize) -> u8 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (seed as u64).wrapping_mul(0xd134_2543_de82_ef95);
    ((x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as u8
}

/// Rows of arbitrary bytes, `nb1` apart.
fn rows(n: usize, nb1: usize, seed: usize) -> Vec<u8> {
    (0..n * nb1).map(|i| noise(i, seed)).collect()
}

fn pack(matrix: &TileMatrix, rows: &[u8], nb1: usize) -> Vec<u8> {
    let mut tiles = vec![0xee; matrix.size_bytes()];
    for (strip, tiles) in tiles
        .chunks_exact_mut(matrix.strip_size_bytes())
        .enumerate()
    {
        matrix
            .pack_strip(strip, &rows[32 * strip * nb1..], nb1, tiles)
            .unwrap();
    }
    tiles
}

#[test]
fn the_parts_of_a_tile_lie_where_the_published_layout_has_them() {
    for ty in TileType::ALL {
        let (k, n) = (512, 64);
        let row_size = ty.row_size(k).unwrap();
        let rows = rows(n, row_size, 3);
        let matrix = TileMatrix::new(ty, k, n).unwrap();
        let tiles = pack(&matrix, &rows, row_size);
        for j in 0..n {
            for i in 0..k {
                let strip = &tiles[j / 32 * matrix.strip_size_bytes()..];
                let tile = &strip[i / 32 * ty.tile_size_bytes()..];
                let (row, kk, cp) = (j % 32, i % 32, i % 32 / 2);
                let q = Element::of(ty, &rows[j * row_size..], i).q;
                let nibble = i32::from(tile[cp * 32 + row] >> (kk % 2 * 4)) % 16;
                let scale = |at: usize| [tile[at], tile[at + 1]];
                match ty {
                    TileType::F16 => {
                        let at = (kk / 2) * 128 + row * 4 + (kk % 2) * 2;
                        assert_eq!(scale(at), rows[j * row_size + 2 * i..][..2]);
                    }
                    TileType::Q4_0 => {
                        assert_eq!(nibble, q);
                        assert_eq!(
                            scale(512 + 2 * row),
                            rows[j * row_size + i / 32 * 18..][..2]
                        );
                    }
                    TileType::Q4_1 => {
                        assert_eq!(nibble, q);
                        assert_eq!(
                            tile[512 + 4 * row..][..4],
                            rows[j * row_size + i / 32 * 20..][..4]
                        );
                    }
                    TileType::Q4K => assert_eq!(nibble, q),
                    TileType::Q8_0 => {
                        assert_eq!(i32::from(tile[cp * 64 + 2 * row + kk % 2] as i8), q);
                        assert_eq!(
                            scale(1024 + 2 * row),
                            rows[j * row_size + i / 32 * 34..][..2]
                        );
                    }
                    TileType::Q6K => {
                        let (group, lane) = (kk / 4, 4 * row + kk % 4);
                        let low = tile[128 * (group / 2) + lane] >> (4 * (group % 2)) & 15;
                        let high = tile[128 * (4 + group / 4) + lane] >> (2 * (group % 4)) & 3;
                        assert_eq!(i32::from(low) + 16 * i32::from(high), q);
                    }
                }
            }
        }
    }
}

#[test]
fn a_q4_0_tile_from_front_to_back_is_the_fp16_tile() {
    // Vector v of the fp16 tile is byte row v of the nibbles.
    let rows = rows(32, 18, 1);
    let matrix = TileMatrix::new(TileType::Q4_0, 32, 32).unwrap();
    let tile = pack(&matrix, &rows, 18);
    for cp in 0..16 {
        for row in 0..32 {
            for p in 0..2 {
                let half = cp * 64 + row * 2 + p;
                let (k, n) = (half / 64 * 2 + half % 2, half % 64 / 2);
                let q = Element::of(TileType::Q4_0, &rows[n * 18..], k).q;
                assert_eq!(i32::from(tile[cp * 32 + row] >> (4 * p) & 15), q);
            }
        }
    }
}

#[test]
fn values_are_those_of_the_blocks() {
    for ty in TileType::ALL {
        let (k, n) = (512, 40);
        let row_size = ty.row_size(k).unwrap();
        let mut rng = Rng(9);
        let rows: Vec<u8> = (0..n).flat_map(|_| rng.ggml_row(ty, k)).collect();
        let matrix = TileMatrix::new(ty, k, n).unwrap();
        let tiles = pack(&matrix, &rows, row_size);
        let mut worst: f64 = 0.0;
        for j in 0..n {
            let mut out = vec![0.0; k];
            let strip = &tiles[j / 32 * matrix.strip_size_bytes()..][..matrix.strip_size_bytes()];
            matrix.dequantize_row(strip, j % 32, &mut out);
            for (i, out) in out.iter().enumerate() {
                let e = Element::of(ty, &rows[j * row_size..], i);
                let want = e.value();
                let error = (f64::from(*out) - want).abs();
                // Only the operations in f32 round.
                let q = f64::from(e.q - e.offset).abs();
                let bound = 2f64.powi(-23) * ((e.d * q).abs() + e.m.abs());
                assert!(error <= bound, "{ty:?} {j} {i}: {out}, want {want}");
                if bound > 0.0 {
                    worst = worst.max(error / bound);
                }
            }
        }
        println!("{ty:?}: worst error {worst:.3} of the bound");
    }
}

#[test]
fn padding_is_zero() {
    for ty in TileType::ALL {
        let k = if ty == TileType::F16 { 40 } else { 256 };
        let row_size = ty.row_size(k).unwrap();
        let rows = rows(33, row_size, 2);
        let matrix = TileMatrix::new(ty, k, 33).unwrap();
        let tiles = pack(&matrix, &rows, row_size);
        let last = &tiles[matrix.strip_size_bytes()..];
        for row in 1..32 {
            let mut out = vec![7.0; k];
            matrix.dequantize_row(last, row, &mut out);
            assert!(
                out.iter().all(|v| v.to_bits() & 0x7fff_ffff == 0),
                "{ty:?} {row}"
            );
        }
        if ty == TileType::Q4_0 {
            // Also where no element is: nibbles are the zero of the type.
            assert!((0..512).all(|i| i % 32 == 0 || last[i] == 0x88));
        }
        if ty == TileType::F16 {
            // Elements 8.. of the second tile of each strip.
            for strip in tiles.chunks(4096) {
                assert!(strip[2048 + 4 * 128..].iter().all(|b| *b == 0));
            }
        }
    }
}

#[test]
fn strips_say_what_is_wrong() {
    let shape = |ty, k, n| TileMatrix::new(ty, k, n);
    for (ty, k, n) in [
        (TileType::Q4_0, 33, 1),
        (TileType::Q4K, 128, 1),
        (TileType::F16, usize::MAX, 1),
        (TileType::F16, 1 << 40, 1 << 40),
    ] {
        assert_eq!(shape(ty, k, n), Err(TileError::Shape { ty, k, n }));
    }
    let matrix = shape(TileType::Q8_0, 64, 33).unwrap();
    assert_eq!(
        (
            matrix.n_strips(),
            matrix.strip_rows(0),
            matrix.strip_rows(1)
        ),
        (2, 32, 1)
    );
    assert_eq!(matrix.size_bytes(), 4 * 1088);
    let mut tiles = vec![0; matrix.strip_size_bytes()];
    let short = TileError::OutOfBytes {
        needed: 32 * 68,
        available: 32 * 68 - 1,
    };
    let rows = vec![0; 32 * 68 - 1];
    assert_eq!(matrix.pack_strip(0, &rows, 68, &mut tiles), Err(short));
    assert_eq!(matrix.pack_strip(1, &rows, usize::MAX, &mut tiles), Ok(()));
    assert!(
        matrix
            .pack_strip(0, &rows, usize::MAX / 2, &mut tiles)
            .is_err()
    );
    let matrix = shape(TileType::Q6K, 256, 1).unwrap();
    let tiles = vec![0; matrix.strip_size_bytes()];
    assert_eq!(
        matrix.unpack_strip(0, &tiles, &mut [0; 210], 210),
        Err(TileError::NotRestorable(TileType::Q6K))
    );
    // A matrix without rows or without elements has no tiles.
    assert_eq!(shape(TileType::Q4_0, 32, 0).unwrap().size_bytes(), 0);
    assert_eq!(shape(TileType::Q4_0, 0, 5).unwrap().size_bytes(), 0);
}

fn regressions() -> Option<Box<dyn FailurePersistence>> {
    Some(Box::new(FileFailurePersistence::WithSource("regressions")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: regressions(), ..ProptestConfig::default() })]

    /// Any bytes at all, NaN scales included, come back.
    #[test]
    fn blocks_come_back_bit_for_bit(
        ty in prop::sample::select(TileType::ALL.to_vec()).prop_filter("restores", |ty| ty.restores_blocks()),
        blocks in 1usize..5,
        n in 1usize..70,
        gap in 0usize..5,
        seed in 0usize..1000,
    ) {
        let k = if ty == TileType::F16 { 17 * blocks } else { 32 * blocks };
        let row_size = ty.row_size(k).unwrap();
        let nb1 = row_size + gap;
        let rows = rows(n, nb1, seed);
        let matrix = TileMatrix::new(ty, k, n).unwrap();
        let tiles = pack(&matrix, &rows, nb1);
        let mut back = vec![0x55; rows.len()];
        for (strip, tiles) in tiles.chunks_exact(matrix.strip_size_bytes()).enumerate() {
            matrix.unpack_strip(strip, tiles, &mut back[32 * strip * nb1..], nb1).unwrap();
        }
        for (back, row) in back.chunks(nb1).zip(rows.chunks(nb1)) {
            prop_assert_eq!(&back[..row_size], &row[..row_size]);
            prop_assert!(back[row_size..].iter().all(|b| *b == 0x55));
        }
    }

    /// Every bit of a tile of a restorable type belongs to a block: packing what was unpacked gives the tile.
    #[test]
    fn tiles_come_back_bit_for_bit(
        ty in prop::sample::select(TileType::ALL.to_vec()).prop_filter("restores", |ty| ty.restores_blocks()),
        n_k_tiles in 1usize..4,
        seed in 0usize..1000,
    ) {
        let matrix = TileMatrix::new(ty, 32 * n_k_tiles, 32).unwrap();
        let tiles: Vec<u8> = (0..matrix.size_bytes()).map(|i| noise(i, seed)).collect();
        let nb1 = ty.row_size(32 * n_k_tiles).unwrap();
        let mut rows = vec![0; 32 * nb1];
        matrix.unpack_strip(0, &tiles, &mut rows, nb1).unwrap();
        prop_assert_eq!(pack(&matrix, &rows, nb1), tiles);
    }
}
