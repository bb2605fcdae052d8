//! Tiles of the integer unit: bytes of activations, bytes and nibbles of weights.

use super::TILE;

/// Rows of an activation tile.
pub const ACTIVATION_ROWS: usize = 64;

/// Bytes of an activation tile: 64 rows of 32.
pub const ACTIVATION_TILE_SIZE_BYTES: usize = ACTIVATION_ROWS * TILE;

/// Bytes of a weight tile of bytes.
pub const WEIGHT_TILE_SIZE_BYTES: usize = TILE * TILE;

/// Bytes of a weight tile of nibbles.
pub const WEIGHT4_TILE_SIZE_BYTES: usize = TILE * TILE / 2;

/// Returns the byte of element `k` of row `m` in an activation tile of unsigned bytes: plain rows of 32.
pub const fn activation_index(m: usize, k: usize) -> usize {
    (m % ACTIVATION_ROWS) * TILE + k % TILE
}

/// Returns the byte of element `k` of weight row `n` in a tile of signed bytes: four consecutive `k` make the 32-bit lane
/// of a row.
pub const fn weight_index(k: usize, n: usize) -> usize {
    let (k, n) = (k % TILE, n % TILE);
    (k >> 2) * 128 + n * 4 + (k & 3)
}

/// Returns the byte of element `k` of weight row `n` in a tile of nibbles, and which nibble it is (0 low, 1 high): eight
/// consecutive `k` make the 32-bit lane of a row, the first four in the low nibbles.
pub const fn weight4_index(k: usize, n: usize) -> (usize, usize) {
    let (k, n) = (k % TILE, n % TILE);
    ((k >> 3) * 128 + n * 4 + (k & 3), k >> 2 & 1)
}

/// Returns the byte of an element in the K/V format of flat uint8 graphs: `[d_in, d_out]` in blocks of
/// `t` outputs, each of weight tiles along `d_in`.
///
/// `t`: 256 for K (`d_in` the head, `d_out` the context), 64 for V (the reverse).
pub const fn native_kv_index(i: usize, o: usize, d_in: usize, t: usize) -> usize {
    (o / t) * d_in * t
        + (i / TILE) * t * TILE
        + (o % t / TILE) * WEIGHT_TILE_SIZE_BYTES
        + weight_index(i, o)
}

/// Packs weight rows of signed bytes into tiles, strips of 32 rows along `k`, padded with zeros.
///
/// `rows`: `[k, n]`, contiguous; `tiles`: `ceil(k / 32) * ceil(n / 32)` tiles, written entirely.
///
/// # Panics
///
/// When a length does not match.
pub fn pack_weight(rows: &[i8], k: usize, n: usize, tiles: &mut [u8]) {
    each_weight(
        rows.len(),
        k,
        n,
        WEIGHT_TILE_SIZE_BYTES,
        tiles,
        |at, tile, (i, j)| {
            tile[weight_index(i, j)] = rows[at].cast_unsigned();
        },
    );
}

/// Packs weight rows of nibbles, one per byte of `rows` (its low four bits), like [`pack_weight`].
///
/// # Panics
///
/// When a length does not match.
pub fn pack_weight4(rows: &[u8], k: usize, n: usize, tiles: &mut [u8]) {
    each_weight(
        rows.len(),
        k,
        n,
        WEIGHT4_TILE_SIZE_BYTES,
        tiles,
        |at, tile, (i, j)| {
            let (byte, nibble) = weight4_index(i, j);
            tile[byte] |= (rows[at] & 15) << (4 * nibble);
        },
    );
}

/// Calls `put` for every element with its index among `len`, its tile, and `(k, n)`; tiles are cleared first.
fn each_weight(
    len: usize,
    k: usize,
    n: usize,
    tile_size_bytes: usize,
    tiles: &mut [u8],
    put: impl Fn(usize, &mut [u8], (usize, usize)),
) {
    let n_k_tiles = k.div_ceil(TILE);
    assert_eq!(len, k * n, "elements of {n} rows of {k}");
    assert_eq!(
        tiles.len(),
        n_k_tiles * n.div_ceil(TILE) * tile_size_bytes,
        "bytes of tiles"
    );
    tiles.fill(0);
    for j in 0..n {
        for i in 0..k {
            let tile = (j / TILE) * n_k_tiles + i / TILE;
            let tile = &mut tiles[tile * tile_size_bytes..][..tile_size_bytes];
            put(j * k + i, tile, (i, j));
        }
    }
}

/// Packs rows of unsigned bytes into activation tiles: 64 rows at a time along `k`, padded with zeros.
///
/// `rows`: `[k, m]`, contiguous; `tiles`: `ceil(k / 32) * ceil(m / 64)` tiles, written entirely.
///
/// # Panics
///
/// When a length does not match.
pub fn pack_activation(rows: &[u8], k: usize, m: usize, tiles: &mut [u8]) {
    let n_k_tiles = k.div_ceil(TILE);
    let n_tiles = n_k_tiles * m.div_ceil(ACTIVATION_ROWS);
    assert_eq!(rows.len(), k * m, "elements of {m} rows of {k}");
    assert_eq!(
        tiles.len(),
        n_tiles * ACTIVATION_TILE_SIZE_BYTES,
        "bytes of tiles"
    );
    tiles.fill(0);
    for i in 0..m {
        for j in 0..k {
            let tile = (i / ACTIVATION_ROWS) * n_k_tiles + j / TILE;
            tiles[tile * ACTIVATION_TILE_SIZE_BYTES + activation_index(i, j)] = rows[i * k + j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rows: usize, cols: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..rows).flat_map(move |r| (0..cols).map(move |c| (r, c)))
    }

    #[test]
    fn elements_lie_where_the_published_layout_has_them() {
        assert_eq!(weight_index(5, 3), 141);
        assert_eq!(weight_index(31, 31), 1023);
        assert_eq!(activation_index(63, 31), 2047);
        assert_eq!(activation_index(2, 5), 69);
        assert_eq!(weight4_index(4, 0), (0, 1));
        assert_eq!(weight4_index(13, 2), (128 + 8 + 1, 1));
        assert_eq!(weight4_index(31, 31), (511, 1));
        assert_eq!(native_kv_index(65, 300, 128, 256), 50225);
    }

    #[test]
    fn positions_are_bijections() {
        let mut bytes: Vec<usize> = all(32, 32).map(|(k, n)| weight_index(k, n)).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..1024).collect::<Vec<_>>());
        let mut nibbles: Vec<_> = all(32, 32).map(|(k, n)| weight4_index(k, n)).collect();
        nibbles.sort_unstable();
        assert_eq!(nibbles, all(512, 2).collect::<Vec<_>>());
        let mut rows: Vec<usize> = all(64, 32).map(|(m, k)| activation_index(m, k)).collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..2048).collect::<Vec<_>>());
        let mut kv: Vec<usize> = all(128, 512)
            .map(|(i, o)| native_kv_index(i, o, 128, 256))
            .collect();
        kv.sort_unstable();
        assert_eq!(kv, (0..128 * 512).collect::<Vec<_>>());
    }

    #[test]
    fn packed_elements_are_found_at_their_positions_and_the_rest_is_zero() {
        let (k, n) = (40, 35);
        let rows: Vec<i8> = (-125..=125).cycle().take(k * n).collect();
        let nibbles: Vec<u8> = (3..=15).cycle().take(k * n).collect();
        let bytes: Vec<u8> = (0..=254).cycle().take(k * 70).collect();
        let (mut t8, mut t4, mut ta) = (vec![9; 4096], vec![9; 2048], vec![9; 8192]);
        pack_weight(&rows, k, n, &mut t8);
        pack_weight4(&nibbles, k, n, &mut t4);
        pack_activation(&bytes, k, 70, &mut ta);
        for (j, i) in all(64, 64) {
            let tile = (j / 32) * 2 + i / 32;
            let inside = j < n && i < k;
            let want = if inside { rows[j * k + i] } else { 0 };
            assert_eq!(t8[tile * 1024 + weight_index(i, j)].cast_signed(), want);
            let (byte, nibble) = weight4_index(i, j);
            let want = if inside { nibbles[j * k + i] & 15 } else { 0 };
            assert_eq!(t4[tile * 512 + byte] >> (4 * nibble) & 15, want);
        }
        for (j, i) in all(128, 64) {
            let tile = (j / 64) * 2 + i / 32;
            let want = if j < 70 && i < k { bytes[j * k + i] } else { 0 };
            assert_eq!(ta[tile * 2048 + activation_index(j, i)], want);
        }
    }
}
