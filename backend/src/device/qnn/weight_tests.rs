use llada_npu_kernels::op::convert;
use llada_npu_kernels::tile::TileMatrix;

use super::*;

/// What QNN makes of a lowered weight: the inverse of lowering, in f64.
fn values(weight: &Weight) -> Vec<f64> {
    match &weight.data {
        WeightData::Half(bytes) => bytes
            .as_chunks()
            .0
            .iter()
            .map(|&half| f16::from_le_bytes(half).to_f64())
            .collect(),
        WeightData::Blocks {
            bits,
            group,
            integers,
            scales,
        } => {
            assert_eq!(integers.len(), weight.n * weight.k);
            assert_eq!(scales.len() * group, integers.len());
            let limit = 1_i16 << (bits - 1);
            assert!(
                integers
                    .iter()
                    .all(|&s| (-limit..limit).contains(&i16::from(s)))
            );
            assert!(scales.iter().all(|block| block.scale > 0.0));
            let value = |(i, &s): (usize, &i8)| {
                let block = scales[i / group];
                (f64::from(s) + f64::from(block.offset)) * f64::from(block.scale)
            };
            integers.iter().enumerate().map(value).collect()
        }
        WeightData::Channels { integers, scales } => integers
            .iter()
            .enumerate()
            .map(|(i, &s)| f64::from(s) * f64::from(scales[i / weight.k]))
            .collect(),
    }
}

fn dequantized(ty: QnnType, k: usize, rows: &[u8]) -> Vec<f32> {
    let mut all = Vec::new();
    for row in rows.chunks_exact(ty.row_size(k).unwrap()) {
        let mut out = vec![0.0; k];
        ty.dequantize_row(row, &mut out);
        all.extend(out);
    }
    all
}

fn nmse(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>) -> f64 {
    let (mut error, mut power) = (0.0, 0.0);
    for (a, b) in a.into_iter().zip(b) {
        error += (a - b) * (a - b);
        power += b * b;
    }
    error / power
}

#[test]
fn blocks_become_integers_with_the_same_values() {
    for ty in QnnType::ALL.into_iter().filter(|ty| ty.quants().is_some()) {
        let (k, n) = (512, 24);
        let rows = example_rows(ty, k, n);
        let weight = Weight::lower(ty, Tier::Block, k, n, &rows).unwrap();
        let expected = dequantized(ty, k, &rows);
        for (i, (value, expected)) in values(&weight).into_iter().zip(&expected).enumerate() {
            let expected = f64::from(*expected);
            // Offsets are rounded to f32.
            let bound = 1e-6 * expected.abs().max(1.0);
            assert!(
                (value - expected).abs() <= bound,
                "{} {i}: {value} {expected}",
                ty.name()
            );
        }
    }
}

#[test]
fn floats_become_half_floats() {
    for ty in [QnnType::F32, QnnType::Tiled(TileType::F16)] {
        let (k, n) = (48, 5);
        let rows = example_rows(ty, k, n);
        for tier in [Tier::Block, Tier::Half] {
            let weight = Weight::lower(ty, tier, k, n, &rows).unwrap();
            let expected = dequantized(ty, k, &rows);
            let halves = expected.iter().map(|&x| f16::from_f32(x).to_f64());
            assert!(values(&weight).into_iter().eq(halves), "{}", ty.name());
        }
    }
}

#[test]
fn rows_become_bytes_with_one_scale() {
    for ty in [TileType::F16, TileType::Q8_0, TileType::Q6K].map(QnnType::Tiled) {
        let (k, n) = (256, 6);
        let rows = example_rows(ty, k, n);
        let weight = Weight::lower(ty, Tier::Int8, k, n, &rows).unwrap();
        let expected = dequantized(ty, k, &rows);
        let error = nmse(values(&weight), expected.iter().map(|&x| f64::from(x)));
        assert!(error > 0.0 && error < 2e-4, "{}: {error}", ty.name());
    }
}

#[test]
fn values_are_those_of_the_kernels() {
    let cases = [
        (QnnType::F32, WeightType::F32),
        (QnnType::Tiled(TileType::F16), WeightType::F16),
        (QnnType::Tiled(TileType::Q8_0), WeightType::Q8_0),
        (QnnType::Tiled(TileType::Q4_0), WeightType::Q4_0),
    ];
    for (ty, weight_type) in cases {
        let row = example_rows(ty, 256, 1);
        let mut expected = vec![0.0; 256];
        convert::dequantize_row(weight_type, &row, &mut expected);
        assert_eq!(dequantized(ty, 256, &row), expected, "{}", ty.name());
    }
    // Tiles round factors to half floats; 32 rows of the identity are 32 columns of the weight.
    for tile_type in [TileType::Q4_1, TileType::Q4K, TileType::Q6K] {
        let ty = QnnType::Tiled(tile_type);
        let row = example_rows(ty, 256, 1);
        let matrix = TileMatrix::new(tile_type, 256, 1).unwrap();
        let mut tiles = vec![0; matrix.size_bytes()];
        matrix.pack_strip(0, &row, row.len(), &mut tiles).unwrap();
        let mut expected = vec![0.0; 256];
        matrix.dequantize_row(&tiles, 0, &mut expected);
        let wide = |values: Vec<f32>| values.into_iter().map(f64::from);
        let error = nmse(wide(dequantized(ty, 256, &row)), wide(expected));
        assert!(error < 1e-6, "{}: {error}", ty.name());
    }
}

#[test]
fn what_half_floats_do_not_hold_is_refused() {
    let mut rows = example_rows(QnnType::Tiled(TileType::Q8_0), 64, 3);
    rows[2 * 68..2 * 68 + 2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let error = Weight::lower(QnnType::Tiled(TileType::Q8_0), Tier::Block, 64, 3, &rows);
    assert_eq!(error, Err(LowerError::Value { row: 2 }));
    let large = 1e6_f32.to_le_bytes();
    let error = Weight::lower(QnnType::F32, Tier::Half, 1, 1, &large);
    assert_eq!(error, Err(LowerError::Value { row: 0 }));
    let error = Weight::lower(QnnType::F32, Tier::Half, 2, 1, &large);
    assert!(matches!(error, Err(LowerError::Length { .. })));
    assert_eq!(QnnType::Tiled(TileType::Q4K).row_size(128), None);
}

#[test]
fn transposing_swaps_rows_and_elements() {
    let halves: Vec<u8> = (0..12).collect();
    let weight = |data| Weight { n: 2, k: 3, data };
    let half = weight(WeightData::Half(halves)).transposed();
    assert_eq!(
        half.data,
        WeightData::Half(vec![0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])
    );
    let integers = vec![1, 2, 3, -4, 5, 6];
    let scales = vec![0.5, 2.0];
    let bytes = weight(WeightData::Channels { integers, scales });
    assert_eq!(bytes.largest_sum(), Some(30.0));
    let WeightData::Channels { integers, scales } = bytes.transposed().data else {
        unreachable!("the kind of numbers stays")
    };
    assert_eq!(
        (integers, scales),
        (vec![1, -4, 2, 5, 3, 6], vec![0.5, 2.0])
    );
}
