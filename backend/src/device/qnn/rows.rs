//! How many rows a graph takes: graphs have fixed shapes, so that rows are padded to the next of a few counts.

use std::borrow::Cow;

/// Row counts that graphs are built for, ascending, each once; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowCounts(Cow<'static, [usize]>);

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

/// Most rows of a graph.
const MAX_ROWS: usize = 4096;

impl RowCounts {
    /// Multiples of the height of the NPU's tiles.
    pub const DEFAULT: Self = Self(Cow::Borrowed(&[32, 64, 96, 128, 256, 512]));

    /// Reads counts separated by commas; `None` where that is not what they are.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let counts: Option<Vec<usize>> = text
            .split(',')
            .map(|count| {
                count
                    .trim()
                    .parse()
                    .ok()
                    .filter(|n| (1..=MAX_ROWS).contains(n))
            })
            .collect();
        let mut counts = counts?;
        counts.sort_unstable();
        counts.dedup();
        Some(Self(counts.into()))
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
        let counts = RowCounts::parse("64, 8,32,8").unwrap();
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

    #[test]
    fn what_is_no_list_of_counts_is_refused() {
        for text in ["", "0", "x", "32,", "-1", "5000"] {
            assert_eq!(RowCounts::parse(text), None, "{text:?}");
        }
    }
}
