//! K and V as fp16 tiles.
//!
//! A tile is 2048 bytes, stored as 16 lines of 128 bytes; a line holds a *pair* of tile rows with
//! their columns interleaved:
//!
//! | | tile row | tile column | index of a half in the tile |
//! |---|---|---|---|
//! | K | element `d` of the head | position `kv` | `(d / 2) * 64 + kv * 2 + d % 2` |
//! | V | position `kv` | element `d` of the head | `(kv / 2) * 64 + d * 2 + kv % 2` |
//!
//! Both are weight operands of a product: K of `Q K^T`, whose sum runs over `d`; V of `P V`, whose sum runs over `kv`.
//!
//! A matrix `[n_embd, n_rows]` of all heads of a layer is cut into *blocks* of 32 positions; a block is the tiles of its
//! `n_embd / 32` strips of elements, in order. A block thus takes the bytes that its rows take in ggml's plain layout:
//! whole blocks can be moved, appended and addressed as if they were rows. Positions beyond the last are padding.

use super::TILE;
use super::half::{TILE_SIZE_BYTES, half_index};
use crate::{ShapeError, WeightRows, WeightType};

/// Bytes of a line: a pair of tile rows.
pub const LINE_SIZE_BYTES: usize = 4 * TILE;

/// A tile.
pub type Tile = [u8; TILE_SIZE_BYTES];

/// Which operand of attention a matrix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Keys.
    K,
    /// Values.
    V,
}

impl Role {
    /// Returns the index of a half in its tile, `kv` and `d` taken modulo 32.
    pub const fn half_index(self, kv: usize, d: usize) -> usize {
        match self {
            Self::K => half_index(d, kv),
            Self::V => half_index(kv, d),
        }
    }
}

/// Returns the bytes of a matrix of `n_rows` positions with `n_embd` elements: whole blocks.
///
/// # Errors
///
/// [`ShapeError::RowLength`] when `n_embd` is not whole tiles, or the size overflows.
pub fn size_bytes(n_embd: usize, n_rows: usize) -> Result<usize, ShapeError> {
    let error = ShapeError::RowLength {
        ty: WeightType::F16,
        k: n_embd,
    };
    if !n_embd.is_multiple_of(TILE) {
        return Err(error);
    }
    (n_embd / TILE)
        .checked_mul(TILE_SIZE_BYTES)
        .and_then(|block| block.checked_mul(n_rows.div_ceil(TILE)))
        .ok_or(error)
}

/// Returns the byte at which the tile of a position and a strip of elements starts.
pub const fn tile_offset_bytes(n_embd: usize, row: usize, strip: usize) -> usize {
    ((row / TILE) * (n_embd / TILE) + strip) * TILE_SIZE_BYTES
}

/// Writes one position of a tile, and no other byte of it: `kv` below 32, `x` its 32 half floats.
///
/// # Panics
///
/// When `kv` is not below 32.
pub fn write_row(role: Role, tile: &mut Tile, kv: usize, x: &[u8; 2 * TILE]) {
    assert!(kv < TILE, "position {kv} of a tile");
    match role {
        Role::K => {
            let lines = tile.as_chunks_mut::<LINE_SIZE_BYTES>().0;
            for (line, pair) in lines.iter_mut().zip(x.as_chunks::<4>().0) {
                line[4 * kv..4 * kv + 4].copy_from_slice(pair);
            }
        }
        Role::V => {
            let line = &mut tile.as_chunks_mut::<LINE_SIZE_BYTES>().0[kv / 2];
            for (pair, half) in line
                .as_chunks_mut::<4>()
                .0
                .iter_mut()
                .zip(x.as_chunks::<2>().0)
            {
                pair[2 * (kv % 2)..2 * (kv % 2) + 2].copy_from_slice(half);
            }
        }
    }
}

/// Reads one position of a tile.
///
/// # Panics
///
/// When `kv` is not below 32.
pub fn read_row(role: Role, tile: &Tile, kv: usize, x: &mut [u8; 2 * TILE]) {
    assert!(kv < TILE, "position {kv} of a tile");
    match role {
        Role::K => {
            let lines = tile.as_chunks::<LINE_SIZE_BYTES>().0;
            for (line, pair) in lines.iter().zip(x.as_chunks_mut::<4>().0) {
                pair.copy_from_slice(&line[4 * kv..4 * kv + 4]);
            }
        }
        Role::V => {
            let line = &tile.as_chunks::<LINE_SIZE_BYTES>().0[kv / 2];
            for (pair, half) in line.as_chunks::<4>().0.iter().zip(x.as_chunks_mut::<2>().0) {
                half.copy_from_slice(&pair[2 * (kv % 2)..2 * (kv % 2) + 2]);
            }
        }
    }
}

/// Writes a pair of positions `2 * pair` and `2 * pair + 1` of a tile; of V that is a whole line.
///
/// # Panics
///
/// When `pair` is not below 16.
pub fn write_pair(role: Role, tile: &mut Tile, pair: usize, x: [&[u8; 2 * TILE]; 2]) {
    assert!(pair < TILE / 2, "pair {pair} of a tile");
    match role {
        Role::K => {
            write_row(role, tile, 2 * pair, x[0]);
            write_row(role, tile, 2 * pair + 1, x[1]);
        }
        Role::V => {
            let line = &mut tile.as_chunks_mut::<LINE_SIZE_BYTES>().0[pair];
            let halves = x[0].as_chunks::<2>().0.iter().zip(x[1].as_chunks::<2>().0);
            for (out, (a, b)) in line.as_chunks_mut::<4>().0.iter_mut().zip(halves) {
                *out = [a[0], a[1], b[0], b[1]];
            }
        }
    }
}

/// Writes a whole row of a matrix: `x` is `n_embd` half floats, `tiles` whole blocks.
///
/// # Panics
///
/// When `x` is not whole tiles, or the row is not in the blocks.
pub fn write_matrix_row(role: Role, tiles: &mut [u8], row: usize, x: &[u8]) {
    let (strips, rest) = x.as_chunks::<{ 2 * TILE }>();
    assert!(rest.is_empty(), "{} bytes are not whole tiles", x.len());
    for (strip, x) in strips.iter().enumerate() {
        let start = tile_offset_bytes(x_len(strips), row, strip);
        let tile = tiles[start..].first_chunk_mut();
        write_row(role, tile.expect("the row is in the blocks"), row % TILE, x);
    }
}

/// Reads a whole row of a matrix.
///
/// # Panics
///
/// As for [`write_matrix_row`].
pub fn read_matrix_row(role: Role, tiles: &[u8], row: usize, x: &mut [u8]) {
    let (strips, rest) = x.as_chunks_mut::<{ 2 * TILE }>();
    assert!(rest.is_empty(), "{} bytes beyond whole tiles", rest.len());
    let n_embd = x_len(strips);
    for (strip, x) in strips.iter_mut().enumerate() {
        let start = tile_offset_bytes(n_embd, row, strip);
        let tile = tiles[start..].first_chunk();
        read_row(role, tile.expect("the row is in the blocks"), row % TILE, x);
    }
}

/// Elements of a row that is these strips.
fn x_len(strips: &[[u8; 2 * TILE]]) -> usize {
    strips.len() * TILE
}

/// Non-owning view of one head's K or V in tiles: `[d, n_rows]`.
///
/// # Invariants
///
/// `d`, the first element and `n_embd` are whole tiles, and every tile of the head lies inside `bytes`.
#[derive(Clone, Copy, Debug)]
pub struct HeadTiles<'a> {
    role: Role,
    n_embd: usize,
    first_strip: usize,
    d: usize,
    n_rows: usize,
    bytes: &'a [u8],
}

impl<'a> HeadTiles<'a> {
    /// Makes a view of elements `first..first + d` of the first `n_rows` positions of a matrix with `n_embd` elements
    /// per position.
    ///
    /// # Errors
    ///
    /// When a number of elements is not whole tiles, the head is not inside the matrix, or the matrix not inside
    /// `bytes`.
    pub fn new(
        role: Role,
        n_embd: usize,
        first: usize,
        d: usize,
        n_rows: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        for k in [n_embd, first, d] {
            if !k.is_multiple_of(TILE) {
                let ty = WeightType::F16;
                return Err(ShapeError::RowLength { ty, k });
            }
        }
        let needed = size_bytes(n_embd, n_rows)?;
        let inside = first.checked_add(d).is_some_and(|end| end <= n_embd);
        if needed > bytes.len() || !inside {
            return Err(ShapeError::OutOfBytes {
                needed,
                available: bytes.len(),
            });
        }
        // INVARIANT: all checked above.
        Ok(Self {
            role,
            n_embd,
            first_strip: first / TILE,
            d,
            n_rows,
            bytes,
        })
    }

    /// Returns which operand this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the elements of the head.
    pub fn d(&self) -> usize {
        self.d
    }

    /// Returns the positions.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the view of positions `start..start + n`.
    ///
    /// # Panics
    ///
    /// When they are not all in this view, or `start` is not that of a block.
    pub fn slice(&self, start: usize, n: usize) -> Self {
        assert!(
            start <= self.n_rows && n <= self.n_rows - start && start.is_multiple_of(TILE),
            "positions {start}+{n} of {}",
            self.n_rows
        );
        let bytes = &self.bytes[tile_offset_bytes(self.n_embd, start, 0)..];
        // INVARIANT: a part of positions that lie inside.
        Self {
            n_rows: n,
            bytes,
            ..*self
        }
    }

    /// Returns the tiles of the block that holds position `row`, one per 32 elements.
    ///
    /// # Panics
    ///
    /// When there is no such position.
    pub fn block(&self, row: usize) -> &'a [Tile] {
        assert!(row < self.n_rows, "position {row} of {}", self.n_rows);
        let start = tile_offset_bytes(self.n_embd, row, self.first_strip);
        let tiles = self.bytes[start..].as_chunks().0;
        &tiles[..self.d / TILE]
    }
}

/// Writes rows to positions of one tile, and no other byte of it; pairs of positions that follow each other are written
/// together.
///
/// `x`: half floats `[32, n]`, row `i` of which goes to position `rows[i]` of the matrix.
///
/// # Panics
///
/// When `x` has not 32 half floats per row, or not as many rows as `rows`, or these are not all in one block.
pub fn write_rows(role: Role, tile: &mut Tile, x: &WeightRows<'_>, rows: &[usize]) {
    assert_eq!((x.ty(), x.k()), (WeightType::F16, TILE), "a strip");
    assert_eq!(x.n_rows(), rows.len(), "rows and their positions");
    assert!(
        rows.iter().all(|row| row / TILE == rows[0] / TILE),
        "positions of several blocks"
    );
    let half = |i: usize| x.row(i).as_array().expect("the row length was checked");
    let mut i = 0;
    while i < rows.len() {
        let row = rows[i];
        if row.is_multiple_of(2) && rows.get(i + 1) == Some(&(row + 1)) {
            write_pair(role, tile, row % TILE / 2, [half(i), half(i + 1)]);
            i += 2;
        } else {
            write_row(role, tile, row % TILE, half(i));
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_indices() {
        // (tile row, tile column) → index, as the matrix unit has them.
        let golden = [
            ((0, 0), 0),
            ((0, 1), 2),
            ((1, 0), 1),
            ((1, 31), 63),
            ((2, 0), 64),
            ((17, 5), 523),
            ((30, 31), 1022),
            ((31, 0), 961),
            ((31, 31), 1023),
        ];
        for ((r, c), index) in golden {
            assert_eq!(Role::K.half_index(c, r), index, "K, d {r}, kv {c}");
            assert_eq!(Role::V.half_index(r, c), index, "V, kv {r}, d {c}");
        }
    }

    #[test]
    fn every_half_of_a_tile_has_one_place() {
        for role in [Role::K, Role::V] {
            let mut seen = [false; TILE * TILE];
            for kv in 0..TILE {
                for d in 0..TILE {
                    let index = role.half_index(kv, d);
                    assert!(!seen[index], "{role:?} {kv} {d}");
                    seen[index] = true;
                }
            }
            assert!(seen.iter().all(|&seen| seen));
        }
    }

    /// Row `row` of a matrix of numbered halves.
    fn numbered(n_embd: usize, row: usize) -> Vec<u8> {
        (0..n_embd)
            .flat_map(|e| {
                u16::try_from(row * n_embd + e)
                    .unwrap_or(u16::MAX)
                    .to_le_bytes()
            })
            .collect()
    }

    #[test]
    fn rows_are_written_where_the_formula_says_and_nothing_else_changes() {
        let (n_embd, n_rows) = (96, 70);
        for role in [Role::K, Role::V] {
            let mut tiles = vec![0xaa; size_bytes(n_embd, n_rows).unwrap()];
            assert_eq!(tiles.len(), 96 * 2 * 96, "rows rounded up to blocks");
            for row in [0, 1, 31, 32, 33, 69] {
                let before = tiles.clone();
                let x = numbered(n_embd, row);
                write_matrix_row(role, &mut tiles, row, &x);
                let mut expected = before;
                for (e, half) in x.as_chunks::<2>().0.iter().enumerate() {
                    let tile = (row / 32) * (n_embd / 32) + e / 32;
                    let at = tile * 2048 + 2 * role.half_index(row % 32, e % 32);
                    expected[at..at + 2].copy_from_slice(half);
                }
                assert!(tiles == expected, "{role:?} row {row}");
                let mut back = vec![0; 2 * n_embd];
                read_matrix_row(role, &tiles, row, &mut back);
                assert_eq!(back, x);
            }
        }
    }

    #[test]
    fn pairs_and_blocks_equal_single_rows() {
        let x: Vec<u8> = (0..40).flat_map(|row| numbered(32, row)).collect();
        for role in [Role::K, Role::V] {
            for rows in [
                vec![0, 1, 2, 3],
                vec![1, 2, 3, 4, 6, 7],
                vec![31, 30, 5, 4],
                (0..32).collect(),
                (25..64).collect(),
            ] {
                let mut single = vec![0; size_bytes(32, 64).unwrap()];
                let mut joint = single.clone();
                for (i, &row) in rows.iter().enumerate() {
                    write_matrix_row(role, &mut single, row, &x[64 * i..64 * i + 64]);
                }
                let view = WeightRows::new(WeightType::F16, 32, rows.len(), 64, &x).unwrap();
                let mut i = 0;
                for run in rows.chunk_by(|a, b| a / TILE == b / TILE) {
                    let tile = &mut joint[tile_offset_bytes(32, run[0], 0)..];
                    let part = view.slice(i, run.len());
                    write_rows(role, tile.first_chunk_mut().unwrap(), &part, run);
                    i += run.len();
                }
                assert!(single == joint, "{role:?} {rows:?}");
            }
        }
    }

    #[test]
    fn heads_are_strips_of_every_block() {
        let n_embd = 128;
        let mut tiles = vec![0; size_bytes(n_embd, 64).unwrap()];
        for row in 0..64 {
            write_matrix_row(Role::K, &mut tiles, row, &numbered(n_embd, row));
        }
        let head = HeadTiles::new(Role::K, n_embd, 64, 64, 40, &tiles).unwrap();
        let block = head.block(39);
        assert_eq!(block.len(), 2);
        let at = 2 * Role::K.half_index(7, 5);
        assert_eq!(
            block[1][at..at + 2],
            (39u16 * 128 + 64 + 32 + 5).to_le_bytes()
        );
    }

    #[test]
    fn views_outside_their_bytes_are_refused() {
        let bytes = vec![0; 2 * 2048];
        let view = |n_embd, first, d, n_rows| {
            HeadTiles::new(Role::V, n_embd, first, d, n_rows, &bytes).is_ok()
        };
        assert!(view(64, 0, 64, 32));
        assert!(view(64, 32, 32, 1));
        assert!(view(32, 0, 32, 64));
        assert!(!view(32, 0, 32, 65));
        assert!(!view(64, 32, 64, 32));
        assert!(!view(64, 0, 64, 33));
        assert!(!view(48, 0, 32, 32));
        assert!(!view(64, 16, 32, 32));
        assert!(!view(64, 0, 40, 32));
        assert!(!view(64, usize::MAX - 31, 32, 32));
        assert!(!view(1 << 40, 0, 32, usize::MAX));
    }
}
