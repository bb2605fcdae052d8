//! A weight matrix as tiles: its sizes, and strips of it from and to ggml's rows.

use std::error::Error;
use std::fmt;

use super::{TILE, TileType, quant};

/// Why a matrix has no tiles, or bytes are not those of a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TileError {
    /// A row is not whole blocks, or the size overflows.
    Shape {
        /// Type of the weights.
        ty: TileType,
        /// Elements of a row.
        k: usize,
        /// Rows.
        n: usize,
    },
    /// Plain rows reach past the bytes given.
    OutOfBytes {
        /// Bytes the rows span (`usize::MAX` on overflow).
        needed: usize,
        /// Bytes given.
        available: usize,
    },
    /// Tiles of this type do not hold what blocks are made of.
    NotRestorable(TileType),
}

impl fmt::Display for TileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { ty, k, n } => {
                let (name, blck_size) = (ty.name(), ty.blck_size());
                write!(
                    f,
                    "no tiles for {n} rows of {k} {name} (blocks of {blck_size})"
                )
            }
            Self::OutOfBytes { needed, available } => {
                write!(f, "rows span {needed} bytes of {available}")
            }
            Self::NotRestorable(ty) => write!(f, "{} tiles do not hold blocks", ty.name()),
        }
    }
}

impl Error for TileError {}

/// Type and shape of a tiled weight matrix; the bytes are the caller's.
///
/// # Invariants
///
/// `k` is whole blocks of the type, and the size of all tiles fits a `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileMatrix {
    ty: TileType,
    k: usize,
    n: usize,
    strip_size_bytes: usize,
}

impl TileMatrix {
    /// Makes the shape of `n` rows of `k` elements.
    ///
    /// # Errors
    ///
    /// When `k` is not whole blocks or the size overflows.
    pub fn new(ty: TileType, k: usize, n: usize) -> Result<Self, TileError> {
        let strip_size_bytes = ty.row_size(k).and_then(|_| {
            let size = ty.strip_size_bytes(k)?;
            size.checked_mul(n.div_ceil(TILE)).map(|_| size)
        });
        match strip_size_bytes {
            // INVARIANT: both parts just checked.
            Some(strip_size_bytes) => Ok(Self {
                ty,
                k,
                n,
                strip_size_bytes,
            }),
            None => Err(TileError::Shape { ty, k, n }),
        }
    }

    /// Returns the type.
    pub fn ty(&self) -> TileType {
        self.ty
    }

    /// Returns the elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the tiles of a strip.
    pub fn n_k_tiles(&self) -> usize {
        self.k.div_ceil(TILE)
    }

    /// Returns the strips: 32 rows each, the last filled up with zeros.
    pub fn n_strips(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    /// Returns the rows of a strip that the matrix has: 32, fewer in the last.
    ///
    /// # Panics
    ///
    /// When there is no such strip.
    pub fn strip_rows(&self, strip: usize) -> usize {
        assert!(
            strip < self.n_strips(),
            "strip {strip} of {}",
            self.n_strips()
        );
        TILE.min(self.n - strip * TILE)
    }

    /// Returns the bytes of a strip: the tiles of 32 rows, one after another along k, then their
    /// [bases](TileType::bases_size_bytes).
    pub fn strip_size_bytes(&self) -> usize {
        self.strip_size_bytes
    }

    /// Returns the bytes of the tiles of a strip.
    fn tiles_size_bytes(&self) -> usize {
        self.n_k_tiles() * self.ty.tile_size_bytes()
    }

    /// Returns the bytes of all tiles.
    pub fn size_bytes(&self) -> usize {
        self.n_strips() * self.strip_size_bytes()
    }

    /// Checks that the rows of a strip, `nb1` bytes apart, and its tiles have their sizes; returns rows and row size.
    fn check_strip(
        &self,
        strip: usize,
        nb1: usize,
        available: usize,
        tiles: usize,
    ) -> Result<(usize, usize), TileError> {
        assert_eq!(tiles, self.strip_size_bytes(), "bytes of a strip");
        let (n_rows, row_size) = (
            self.strip_rows(strip),
            self.ty.row_size(self.k).expect("k is whole blocks"),
        );
        let needed = (n_rows - 1)
            .checked_mul(nb1)
            .and_then(|start| start.checked_add(row_size))
            .unwrap_or(usize::MAX);
        if needed > available {
            Err(TileError::OutOfBytes { needed, available })
        } else {
            Ok((n_rows, row_size))
        }
    }

    /// Packs the rows of one strip; threads may pack different strips of one matrix.
    ///
    /// `rows`: ggml's blocks of the strip's rows, its first row first, `nb1` bytes apart; `tiles`:
    /// [`Self::strip_size_bytes`], written entirely.
    ///
    /// # Errors
    ///
    /// When the rows reach past their bytes.
    ///
    /// # Panics
    ///
    /// When there is no such strip or `tiles` has another length.
    pub fn pack_strip(
        &self,
        strip: usize,
        rows: &[u8],
        nb1: usize,
        tiles: &mut [u8],
    ) -> Result<(), TileError> {
        let (n_rows, row_size) = self.check_strip(strip, nb1, rows.len(), tiles.len())?;
        let (tiles, bases) = tiles.split_at_mut(self.tiles_size_bytes());
        bases.fill(0);
        for row in 0..n_rows {
            quant::pack_bases(self.ty, &rows[row * nb1..][..row_size], row, bases);
        }
        for (kt, tile) in tiles
            .chunks_exact_mut(self.ty.tile_size_bytes())
            .enumerate()
        {
            quant::clear(self.ty, tile);
            for row in 0..n_rows {
                quant::pack_row(self.ty, &rows[row * nb1..][..row_size], kt, row, tile);
            }
        }
        Ok(())
    }

    /// Restores the rows of one strip to the bytes they were packed from; bytes between rows are left alone.
    ///
    /// # Errors
    ///
    /// When the type's tiles do not hold them ([`TileType::restores_blocks`]), or the rows reach past their bytes.
    ///
    /// # Panics
    ///
    /// When there is no such strip or `tiles` has another length.
    pub fn unpack_strip(
        &self,
        strip: usize,
        tiles: &[u8],
        rows: &mut [u8],
        nb1: usize,
    ) -> Result<(), TileError> {
        if !self.ty.restores_blocks() {
            return Err(TileError::NotRestorable(self.ty));
        }
        let (n_rows, row_size) = self.check_strip(strip, nb1, rows.len(), tiles.len())?;
        for (kt, tile) in tiles.chunks_exact(self.ty.tile_size_bytes()).enumerate() {
            for row in 0..n_rows {
                let blocks = &mut rows[row * nb1..][..row_size];
                quant::unpack_row(self.ty, tile, kt, row, blocks);
            }
        }
        Ok(())
    }

    /// Writes the values of row `row` of a strip (as f32) to `out`, `k` of them.
    ///
    /// # Panics
    ///
    /// When `row` is not below 32, or a length does not match.
    pub fn dequantize_row(&self, tiles: &[u8], row: usize, out: &mut [f32]) {
        assert!(row < TILE, "row {row} of a strip");
        assert_eq!(tiles.len(), self.strip_size_bytes(), "bytes of a strip");
        assert_eq!(out.len(), self.k, "elements of a row");
        let (tiles, bases) = tiles.split_at(self.tiles_size_bytes());
        let tiles = tiles.chunks_exact(self.ty.tile_size_bytes());
        for (kt, (tile, out)) in tiles.zip(out.chunks_mut(TILE)).enumerate() {
            let bases = quant::bases_of(self.ty, bases, kt);
            for (kk, out) in out.iter_mut().enumerate() {
                *out = quant::value(self.ty, tile, bases, row, kk);
            }
        }
    }
}
