//! What the tiles of a weight are: planes of one matrix shape, each a sequence of strips of 32 rows.

use std::ops::Range;

use llada_npu_kernels::tile::{TileMatrix, TileType};

/// Bytes of a chunk, about: what one thread packs, writes or checks at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Type and shape of a contiguous weight, and the sizes of its tiles.
///
/// # Invariants
/// The bytes of all planes, plain and as tiles, fit a `usize`; there is at least one row and one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileShape {
    ggml_type: u32,
    matrix: TileMatrix,
    n_planes: usize,
    row_size: usize,
}

impl TileShape {
    /// Makes the shape of `n_planes` matrices `[k, n]` that follow each other without gaps; `None` where the type has no
    /// tiles, a row is not whole blocks or tiles, or there is nothing in it.
    #[must_use]
    pub fn new(ggml_type: u32, k: usize, n: usize, n_planes: usize) -> Option<Self> {
        let ty = TileType::from_ggml_type(ggml_type)?;
        let matrix = TileMatrix::new(ty, k, n).ok()?;
        if k == 0 || n == 0 || n_planes == 0 || !k.is_multiple_of(llada_npu_kernels::tile::TILE) {
            return None;
        }
        let row_size = ty.row_size(k)?;
        matrix.size_bytes().checked_mul(n_planes)?;
        row_size.checked_mul(n)?.checked_mul(n_planes)?;
        // INVARIANT: just checked.
        Some(Self {
            ggml_type,
            matrix,
            n_planes,
            row_size,
        })
    }

    /// A matrix of `Q8_0`.
    #[cfg(test)]
    pub(in crate::memory) fn for_tests(k: usize, n: usize, n_planes: usize) -> Self {
        Self::new(8, k, n, n_planes).unwrap()
    }

    /// Returns ggml's number of the type.
    #[must_use]
    pub fn ggml_type(&self) -> u32 {
        self.ggml_type
    }

    /// Returns type and shape of a plane.
    #[must_use]
    pub fn matrix(&self) -> &TileMatrix {
        &self.matrix
    }

    /// Returns the elements of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.matrix.k()
    }

    /// Returns the rows of a plane.
    #[must_use]
    pub fn n(&self) -> usize {
        self.matrix.n()
    }

    /// Returns the number of planes.
    #[must_use]
    pub fn n_planes(&self) -> usize {
        self.n_planes
    }

    /// Returns the bytes of a strip.
    #[must_use]
    pub fn strip_size_bytes(&self) -> usize {
        self.matrix.strip_size_bytes()
    }

    /// Returns the bytes of a plane of tiles.
    #[must_use]
    pub fn plane_size_bytes(&self) -> usize {
        self.matrix.size_bytes()
    }

    /// Returns the bytes of all tiles.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.n_planes * self.plane_size_bytes()
    }

    /// Returns the bytes of the weight in ggml's layout.
    #[must_use]
    pub fn plain_size_bytes(&self) -> usize {
        self.n_planes * self.n() * self.row_size
    }

    /// Tells whether tiles hold all that the plain bytes do.
    #[must_use]
    pub fn restores_plain(&self) -> bool {
        self.matrix.ty().restores_blocks()
    }

    fn n_strips(&self) -> usize {
        self.n_planes * self.matrix.n_strips()
    }

    fn strips_per_chunk(&self) -> usize {
        (CHUNK_BYTES / self.strip_size_bytes()).max(1)
    }

    /// Returns the number of chunks: whole strips, which threads work on one at a time.
    #[must_use]
    pub fn n_chunks(&self) -> usize {
        self.n_strips().div_ceil(self.strips_per_chunk())
    }

    fn chunk_strips(&self, chunk: usize) -> Range<usize> {
        let start = chunk * self.strips_per_chunk();
        start..self.n_strips().min(start + self.strips_per_chunk())
    }

    /// Returns where the tiles of a chunk lie among all tiles.
    #[must_use]
    pub fn chunk_bytes(&self, chunk: usize) -> Range<usize> {
        let strips = self.chunk_strips(chunk);
        strips.start * self.strip_size_bytes()..strips.end * self.strip_size_bytes()
    }

    /// Returns where the rows of a chunk lie among the plain bytes.
    #[must_use]
    pub fn chunk_plain_bytes(&self, chunk: usize) -> Range<usize> {
        let strips = self.chunk_strips(chunk);
        let (first, last) = (strips.start, strips.end - 1);
        self.strip_plain_bytes(first).start..self.strip_plain_bytes(last).end
    }

    fn strip_plain_bytes(&self, strip: usize) -> Range<usize> {
        let (plane, strip) = (
            strip / self.matrix.n_strips(),
            strip % self.matrix.n_strips(),
        );
        let rows = self.matrix.strip_rows(strip);
        let row = plane * self.n() + strip * llada_npu_kernels::tile::TILE;
        row * self.row_size..(row + rows) * self.row_size
    }

    /// Packs a chunk: `plain` is the whole weight in ggml's layout, `tiles` those of the chunk, written entirely.
    pub(super) fn pack_chunk(&self, chunk: usize, plain: &[u8], tiles: &mut [u8]) {
        let strips = self.chunk_strips(chunk);
        for (strip, tiles) in strips.zip(tiles.chunks_exact_mut(self.strip_size_bytes())) {
            let rows = &plain[self.strip_plain_bytes(strip)];
            self.matrix
                .pack_strip(strip % self.matrix.n_strips(), rows, self.row_size, tiles)
                .expect("the rows of a strip are as long as its shape says");
        }
    }

    /// Restores a chunk: `tiles` are all of the weight's, `plain` the rows of the chunk.
    ///
    /// # Panics
    /// When [`Self::restores_plain`] is false.
    pub(super) fn unpack_chunk(&self, chunk: usize, tiles: &[u8], plain: &mut [u8]) {
        let start = self.chunk_plain_bytes(chunk).start;
        for strip in self.chunk_strips(chunk) {
            let bytes = self.strip_plain_bytes(strip);
            let rows = &mut plain[bytes.start - start..bytes.end - start];
            let tiles = &tiles[strip * self.strip_size_bytes()..][..self.strip_size_bytes()];
            self.matrix
                .unpack_strip(strip % self.matrix.n_strips(), tiles, rows, self.row_size)
                .expect("asked for types whose tiles hold the plain bytes");
        }
    }
}

/// The low byte of a number, for contents that tests can tell apart.
#[cfg(test)]
pub(in crate::memory) fn byte(i: usize) -> u8 {
    i.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_tiles_and_rows_without_gaps() {
        for (k, n, n_planes) in [(32, 1, 1), (64, 33, 3), (4096, 1000, 1), (32, 5000, 2)] {
            let shape = TileShape::for_tests(k, n, n_planes);
            let (mut tiles, mut rows) = (0, 0);
            for chunk in 0..shape.n_chunks() {
                assert_eq!(shape.chunk_bytes(chunk).start, tiles);
                assert_eq!(shape.chunk_plain_bytes(chunk).start, rows);
                tiles = shape.chunk_bytes(chunk).end;
                rows = shape.chunk_plain_bytes(chunk).end;
            }
            assert_eq!(tiles, shape.size_bytes(), "{k} {n} {n_planes}");
            assert_eq!(rows, shape.plain_size_bytes(), "{k} {n} {n_planes}");
        }
    }

    #[test]
    fn what_is_packed_is_restored() {
        for (ty, n_planes) in [(1, 2), (2, 1), (8, 3)] {
            let shape = TileShape::new(ty, 64, 45, n_planes).unwrap();
            let plain: Vec<u8> = (0..shape.plain_size_bytes())
                .map(|i| byte(i * 37 + i / 251))
                .collect();
            let mut tiles = vec![0; shape.size_bytes()];
            let mut back = vec![0; plain.len()];
            for chunk in 0..shape.n_chunks() {
                shape.pack_chunk(chunk, &plain, &mut tiles[shape.chunk_bytes(chunk)]);
            }
            for chunk in 0..shape.n_chunks() {
                let rows = &mut back[shape.chunk_plain_bytes(chunk)];
                shape.unpack_chunk(chunk, &tiles, rows);
            }
            assert_eq!(back, plain, "{ty}");
        }
    }

    #[test]
    fn what_has_no_tiles_has_no_shape() {
        assert!(TileShape::new(0, 64, 64, 1).is_none(), "f32");
        assert!(TileShape::new(8, 48, 64, 1).is_none(), "half a block");
        assert!(TileShape::new(1, 48, 64, 1).is_none(), "half a tile");
        assert!(TileShape::new(8, 64, 0, 1).is_none(), "no rows");
        assert!(TileShape::new(8, 64, 64, 0).is_none(), "no planes");
        assert!(TileShape::new(8, 64, usize::MAX / 64, 1).is_none());
        assert!(TileShape::new(12, 256, 7, 1).is_some_and(|shape| !shape.restores_plain()));
    }
}
