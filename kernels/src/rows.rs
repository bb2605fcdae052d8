//! Strided views of matrix rows, proven inside their bytes when made.

use std::error::Error;
use std::fmt;

use crate::WeightType;

/// Why a view of rows cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// The row length is not whole blocks of the type, or its size overflows.
    RowLength {
        /// Type of the row.
        ty: WeightType,
        /// Elements asked for.
        k: usize,
    },
    /// The rows reach past the bytes given.
    OutOfBytes {
        /// Bytes the rows span (`usize::MAX` on overflow).
        needed: usize,
        /// Bytes given.
        available: usize,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RowLength { ty, k } => {
                write!(
                    f,
                    "row of {k} elements is not whole blocks of {} ({})",
                    ty.name(),
                    ty.blck_size()
                )
            }
            Self::OutOfBytes { needed, available } => {
                write!(f, "rows span {needed} bytes of {available}")
            }
        }
    }
}

impl Error for ShapeError {}

/// Checks that `n_rows` rows of `row_size` bytes, `nb1` bytes apart, lie inside `available` bytes.
fn check_extent(
    n_rows: usize,
    nb1: usize,
    row_size: usize,
    available: usize,
) -> Result<(), ShapeError> {
    let needed = match n_rows.checked_sub(1) {
        None => 0,
        Some(last) => last
            .checked_mul(nb1)
            .and_then(|start| start.checked_add(row_size))
            .unwrap_or(usize::MAX),
    };
    if needed > available {
        Err(ShapeError::OutOfBytes { needed, available })
    } else {
        Ok(())
    }
}

/// Non-owning view of weight rows: `[k, n_rows]` of one type, each row contiguous blocks, rows `nb1` bytes apart.
///
/// # Invariants
///
/// Every row lies inside `bytes`; `k` is whole blocks.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    ty: WeightType,
    k: usize,
    n_rows: usize,
    nb1: usize,
    row_size: usize,
    bytes: &'a [u8],
}

impl<'a> WeightRows<'a> {
    /// Makes a view of `n_rows` rows of `k` elements, `nb1` bytes apart (rows may overlap).
    ///
    /// # Errors
    ///
    /// When `k` is not whole blocks or a row is not inside `bytes`.
    pub fn new(
        ty: WeightType,
        k: usize,
        n_rows: usize,
        nb1: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let row_size = ty.row_size(k).ok_or(ShapeError::RowLength { ty, k })?;
        check_extent(n_rows, nb1, row_size, bytes.len())?;
        // INVARIANT: both parts just checked.
        Ok(Self {
            ty,
            k,
            n_rows,
            nb1,
            row_size,
            bytes,
        })
    }

    /// Returns the type.
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Returns the elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the bytes of row `i`.
    ///
    /// # Panics
    ///
    /// When there is no row `i`.
    pub fn row(&self, i: usize) -> &'a [u8] {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        &self.bytes[i * self.nb1..][..self.row_size]
    }

    /// Returns the view of rows `start..start + n`.
    ///
    /// # Panics
    ///
    /// When the rows are not all in this view.
    pub fn slice(&self, start: usize, n: usize) -> Self {
        assert!(
            start <= self.n_rows && n <= self.n_rows - start,
            "rows {start}+{n} of {}",
            self.n_rows
        );
        let bytes = if n == 0 {
            &[]
        } else {
            &self.bytes[start * self.nb1..]
        };
        // INVARIANT: a part of rows that lie inside.
        Self {
            n_rows: n,
            bytes,
            ..*self
        }
    }
}

impl fmt::Debug for WeightRows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightRows")
            .field("ty", &self.ty)
            .field("k", &self.k)
            .field("n_rows", &self.n_rows)
            .field("nb1", &self.nb1)
            .finish_non_exhaustive()
    }
}

/// Non-owning view of f32 rows as bytes: `[k, n_rows]`, each row contiguous, rows `nb1` bytes apart.
///
/// # Invariants
///
/// Every row lies inside the bytes.
#[derive(Clone, Copy, Debug)]
pub struct F32Rows<'a>(WeightRows<'a>);

impl<'a> F32Rows<'a> {
    /// No rows.
    pub const EMPTY: Self = Self(WeightRows {
        ty: WeightType::F32,
        k: 0,
        n_rows: 0,
        nb1: 0,
        row_size: 0,
        bytes: &[],
    });

    /// Makes a view of `n_rows` rows of `k` floats, `nb1` bytes apart (rows may overlap).
    ///
    /// # Errors
    ///
    /// When a row is not inside `bytes`.
    pub fn new(k: usize, n_rows: usize, nb1: usize, bytes: &'a [u8]) -> Result<Self, ShapeError> {
        WeightRows::new(WeightType::F32, k, n_rows, nb1, bytes).map(Self)
    }

    /// Returns the elements of a row.
    pub fn k(&self) -> usize {
        self.0.k
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.0.n_rows
    }

    /// Returns the bytes of row `i`.
    ///
    /// # Panics
    ///
    /// When there is no row `i`.
    pub fn row(&self, i: usize) -> &'a [u8] {
        self.0.row(i)
    }

    /// Returns the view of rows `start..start + n`.
    ///
    /// # Panics
    ///
    /// When the rows are not all in this view.
    pub fn slice(&self, start: usize, n: usize) -> Self {
        Self(self.0.slice(start, n))
    }
}

/// Yields the floats of a row.
pub(crate) fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_outside_their_bytes_are_refused() {
        let bytes = [0u8; 100];
        for (ty, k, n, nb1, ok) in [
            (WeightType::F32, 5, 5, 20, true),
            (WeightType::F32, 5, 5, 21, false),
            (WeightType::F32, 5, 6, 20, false),
            (WeightType::F32, 25, 3, 0, true),
            (WeightType::F32, 26, 1, 0, false),
            (WeightType::F16, 50, 1, usize::MAX, true),
            (WeightType::F16, 50, 2, usize::MAX, false),
            (WeightType::F16, 0, 0, 7, true),
            (WeightType::F16, 1 << 40, 0, 7, true),
            (WeightType::Q4_0, 32, 5, 20, true),
            (WeightType::Q4_0, 31, 1, 20, false),
            (WeightType::Q8_0, 64, 2, 32, true),
        ] {
            let view = WeightRows::new(ty, k, n, nb1, &bytes);
            assert_eq!(view.is_ok(), ok, "{ty:?} {k} {n} {nb1}");
        }
    }

    #[test]
    fn a_slice_has_the_rows_it_names() {
        let bytes: Vec<u8> = (0..40).collect();
        let rows = WeightRows::new(WeightType::F16, 2, 4, 10, &bytes).unwrap();
        assert_eq!(rows.slice(2, 2).row(1), &[30, 31, 32, 33]);
        assert_eq!(rows.slice(4, 0).n_rows(), 0);
    }

    #[test]
    #[should_panic(expected = "rows 3+2 of 4")]
    fn a_slice_past_the_end_panics() {
        WeightRows::new(WeightType::F16, 2, 4, 10, &[0; 40])
            .unwrap()
            .slice(3, 2);
    }
}
