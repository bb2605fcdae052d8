//! How many rows a graph takes: graphs have fixed shapes, so that rows are padded to the next of a few counts.

/// Row counts that graphs are built for, ascending, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowCounts(Vec<usize>);

/// Rows that one graph computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first row.
    pub start: usize,
    /// How many there are.
    pub n_rows: usize,
    /// How many the graph has room for.
    pub room: usize,
}

impl RowCounts {
    /// Takes counts in any order; graphs of one row, where there are none.
    #[must_use]
    pub fn new(counts: &[usize]) -> Self {
        let mut counts = counts.to_vec();
        counts.sort_unstable();
        counts.dedup();
        Self(counts)
    }

    /// Cuts `n_rows` rows into pieces: as many of the largest count as are full, then one that takes the rest.
    pub fn cut(&self, n_rows: usize) -> impl Iterator<Item = Piece> {
        let largest = self.0.last().copied().unwrap_or(1);
        (0..n_rows).step_by(largest).map(move |start| {
            let n_rows = largest.min(n_rows - start);
            let fits = self.0.iter().copied().find(|&room| room >= n_rows);
            Piece {
                start,
                n_rows,
                room: fits.unwrap_or(largest),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_pieces_that_cover_them() {
        let counts = RowCounts::new(&[64, 8, 32, 8]);
        let rooms = |n| counts.cut(n).map(|piece| piece.room).collect::<Vec<_>>();
        assert_eq!(rooms(0), []);
        assert_eq!(rooms(1), [8]);
        assert_eq!(rooms(8), [8]);
        assert_eq!(rooms(9), [32]);
        assert_eq!(rooms(64), [64]);
        assert_eq!(rooms(130), [64, 64, 8]);
        for n in 0..400 {
            let mut next = 0;
            for piece in counts.cut(n) {
                assert_eq!(piece.start, next);
                assert!(piece.n_rows > 0 && piece.n_rows <= piece.room);
                next += piece.n_rows;
            }
            assert_eq!(next, n);
        }
    }
}
