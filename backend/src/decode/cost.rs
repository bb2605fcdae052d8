//! What a forward costs by its number of rows: for the choice of how far to look ahead.
//!
//! Tables are data. Text must not depend on a measurement unless the user asks for it, so the built-in ones are fixed:
//!
//! * `host`: linear, `t(r) = r`. Only ratios count, so the unit is free;
//! * `npu`: `t(r) = 50 + 27.3 ceil(r / 32)` ms. Rows come in buckets of 32, the height of a tile of the matrix unit, and a
//!   forward costs something before its first row.

/// Rows of a bucket: row counts are rounded up to it on an accelerator, and lookahead grows to it.
pub const BUCKET: u32 = 32;
/// Most points of a table.
const MAX_N_POINTS: usize = 24;

/// Milliseconds of a forward by its number of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable(Inner);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Inner {
    Host,
    Npu,
    Points {
        points: [(u32, f32); MAX_N_POINTS],
        n: usize,
    },
}

/// Where a cost table comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "few of them are made, and they are plain values"
)]
pub enum CostSource {
    /// It is known.
    Table(CostTable),
    /// The engine measures its device before the first forward.
    Measured,
}

impl CostTable {
    /// Linear in rows.
    pub const HOST: Self = Self(Inner::Host);
    /// Buckets of 32 rows.
    pub const NPU: Self = Self(Inner::Npu);

    /// Returns the table through points of rows and milliseconds, linear between them and beyond the last; `None` unless
    /// there are 1 to 24, rows ascend from at least 1, and times do not descend.
    pub fn from_points(points: &[(u32, f32)]) -> Option<Self> {
        let (first, n) = (points.first()?, points.len());
        let ascend = |pair: &[(u32, f32)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        let fine = first.0 > 0 && points.iter().all(|&(_, ms)| ms >= 0.0 && ms.is_finite());
        if n > MAX_N_POINTS || !fine || !points.windows(2).all(ascend) {
            return None;
        }
        let mut table = [(0, 0.0); MAX_N_POINTS];
        table[..n].copy_from_slice(points);
        Some(Self(Inner::Points { points: table, n }))
    }

    /// Returns the time of a forward of `n_rows` rows.
    #[expect(clippy::cast_precision_loss, reason = "row counts are far below 2^24")]
    pub fn ms(&self, n_rows: u32) -> f32 {
        match &self.0 {
            Inner::Host => n_rows as f32,
            Inner::Npu => 50.0 + 27.3 * n_rows.div_ceil(BUCKET) as f32,
            Inner::Points { points, n } => {
                let points = &points[..*n];
                let next = points.iter().position(|&(rows, _)| rows >= n_rows);
                let (from, to) = match (next, points) {
                    (Some(0), _) | (None, [_]) | (_, []) => return points[0].1,
                    (Some(next), _) => (points[next - 1], points[next]),
                    (None, [.., from, to]) => (*from, *to),
                };
                let slope = (to.1 - from.1) / (to.0 - from.0) as f32;
                from.1 + slope * (n_rows - from.0) as f32
            }
        }
    }

    /// Returns the number of rows up to which an accelerator rounds `n_rows`; the number itself on a host.
    pub const fn padded(&self, n_rows: u32) -> u32 {
        match self.0 {
            Inner::Npu => n_rows.next_multiple_of(BUCKET),
            Inner::Host | Inner::Points { .. } => n_rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_tables_say_what_they_are_documented_to() {
        assert_eq!(
            [1, 32, 100].map(|n| CostTable::HOST.ms(n)),
            [1.0, 32.0, 100.0]
        );
        let npu = [1, 32, 33, 64, 96, 128].map(|n| CostTable::NPU.ms(n));
        assert_eq!(npu, [77.3, 77.3, 104.6, 104.6, 131.9, 159.2]);
        assert_eq!(
            [0, 1, 32, 33].map(|n| CostTable::NPU.padded(n)),
            [0, 32, 32, 64]
        );
        assert_eq!([1, 33].map(|n| CostTable::HOST.padded(n)), [1, 33]);
    }

    #[test]
    fn points_are_joined_by_lines() {
        let table = CostTable::from_points(&[(4, 2.0), (8, 2.0), (16, 4.0)]).unwrap();
        assert_eq!(
            [1, 4, 6, 8, 12, 16, 24].map(|n| table.ms(n)),
            [2.0, 2.0, 2.0, 2.0, 3.0, 4.0, 6.0]
        );
        assert_eq!(CostTable::from_points(&[(4, 2.0)]).unwrap().ms(100), 2.0);
    }

    #[test]
    fn points_that_are_no_table_are_refused() {
        for points in [
            &[][..],
            &[(0, 1.0)],
            &[(4, 1.0), (4, 2.0)],
            &[(4, 2.0), (5, 1.0)],
            &[(1, f32::NAN)],
            &[(1, f32::INFINITY)],
            &[(1, -1.0)],
            &[(1, 1.0); 25],
        ] {
            assert_eq!(CostTable::from_points(points), None, "{points:?}");
        }
    }
}
