use super::*;

#[test]
fn elements_lie_where_the_published_layout_has_them() {
    for ((r, c), index) in [
        ((0, 0), 0),
        ((0, 1), 2),
        ((1, 0), 1),
        ((1, 31), 63),
        ((2, 0), 64),
        ((17, 5), 523),
        ((30, 31), 1022),
        ((31, 0), 961),
        ((31, 31), 1023),
    ] {
        assert_eq!(half_index(r, c), index, "({r}, {c})");
        // The same as a byte offset.
        assert_eq!(2 * half_index(r, c), (r >> 1) * 128 + c * 4 + (r & 1) * 2);
    }
}

#[test]
fn the_diagonal_is_at_multiples_of_136_bytes() {
    for i in 0..16 {
        assert_eq!(2 * half_index(2 * i, 2 * i), 136 * i);
        assert_eq!(2 * half_index(2 * i + 1, 2 * i + 1), 136 * i + 6);
    }
}

/// Checks that indices are every number below `len` once.
fn assert_bijective(indices: impl Iterator<Item = usize>, len: usize) {
    let mut seen = vec![false; len];
    for i in indices {
        assert!(!std::mem::replace(&mut seen[i], true), "{i} twice");
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn positions_are_a_bijection() {
    let all =
        |rows: usize, cols: usize| (0..rows).flat_map(move |r| (0..cols).map(move |c| (r, c)));
    assert_bijective(all(32, 32).map(|(r, c)| half_index(r, c)), 1024);
    assert_bijective(
        all(64, 96).map(|(m, k)| activation_index(m, k, 96)),
        64 * 96,
    );
    assert_bijective(all(64, 96).map(|(n, k)| weight_index(n, k, 96)), 64 * 96);
}

#[test]
fn a_whole_weight_has_a_closed_form() {
    for n in 0..64 {
        for k in 0..96 {
            let closed = (n / 32) * (96 * 32) + (k >> 1) * 64 + (n % 32) * 2 + (k & 1);
            assert_eq!(weight_index(n, k, 96), closed, "n {n}, k {k}");
        }
    }
}

#[test]
fn an_output_is_the_next_activation() {
    // Row 33, column 70 of [96, 64]: third tile of the second row of tiles.
    assert_eq!(activation_index(33, 70, 96), 5 * 1024 + half_index(1, 6));
}

#[test]
fn activations_come_back_and_padding_is_zero() {
    let (k, m) = (50, 35);
    let x: Vec<f32> = (0..k * m).map(|i| i as f32 * 0.5 - 300.0).collect();
    let mut tiles = vec![0xee; activation_size_bytes(m, k)];
    assert_eq!(tiles.len(), 2 * 2 * TILE_SIZE_BYTES);
    pack_activation(&x, k, m, &mut tiles);
    let mut back = vec![f32::NAN; k * m];
    unpack_activation(&tiles, k, m, &mut back);
    assert_eq!(back, x);
    let halves: &[[u8; 2]] = tiles.as_chunks().0;
    for i in 0..64 {
        for j in 0..64 {
            if i >= m || j >= k {
                assert_eq!(halves[activation_index(i, j, k)], [0, 0], "({i}, {j})");
            }
        }
    }
}
