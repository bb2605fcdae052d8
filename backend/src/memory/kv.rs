//! K and V in tiles, as a host reads and writes them.

use llada_npu_ffi::ggml::plugin::{Arrangement, Mark};
use llada_npu_kernels::tile::TILE;
use llada_npu_kernels::tile::kv::{Role, read_matrix_row, write_matrix_row};

/// The layout of K or V in tiles: f16 tensors `[n_embd, n_rows]`, both whole tiles. Transfers are in ggml's plain layout,
/// of any range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTiles(Role);

impl KvTiles {
    /// Of K.
    pub const K: Self = Self(Role::K);
    /// Of V.
    pub const V: Self = Self(Role::V);

    /// Returns the layout that a mark names.
    #[must_use]
    pub fn of_mark(mark: Mark) -> Option<Self> {
        [Self::K, Self::V]
            .into_iter()
            .find(|tiles| tiles.mark() == mark)
    }

    /// Returns which operand of attention lies so.
    #[must_use]
    pub const fn role(self) -> Role {
        self.0
    }

    /// Calls `body` for every row that a range of bytes touches, with its number and the parts of row and range that meet.
    fn for_each_row(
        row_size: usize,
        offset: usize,
        len: usize,
        mut body: impl FnMut(usize, std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let (row, start) = ((offset + done) / row_size, (offset + done) % row_size);
            let n = (row_size - start).min(len - done);
            body(row, start..start + n, done..done + n);
            done += n;
        }
    }
}

/// Tells whether rows of so many bytes, in so much memory, are whole tiles.
fn are_tiles(memory: usize, row_size: usize) -> bool {
    row_size > 0 && row_size.is_multiple_of(2 * TILE) && memory.is_multiple_of(TILE * row_size)
}

impl Arrangement for KvTiles {
    fn mark(&self) -> Mark {
        match self.0 {
            Role::K => Mark::new(0),
            Role::V => Mark::new(1),
        }
    }

    fn write(
        &self,
        tensor: &mut [u8],
        row_size_bytes: usize,
        offset_bytes: usize,
        data: &[u8],
    ) -> bool {
        if !are_tiles(tensor.len(), row_size_bytes) {
            return false;
        }
        let mut x = vec![0; row_size_bytes];
        Self::for_each_row(
            row_size_bytes,
            offset_bytes,
            data.len(),
            |row, part, from| {
                if part.len() < row_size_bytes {
                    read_matrix_row(self.0, tensor, row, &mut x);
                }
                x[part].copy_from_slice(&data[from]);
                write_matrix_row(self.0, tensor, row, &x);
            },
        );
        true
    }

    fn read(
        &self,
        tensor: &[u8],
        row_size_bytes: usize,
        offset_bytes: usize,
        data: &mut [u8],
    ) -> bool {
        if !are_tiles(tensor.len(), row_size_bytes) {
            return false;
        }
        let mut x = vec![0; row_size_bytes];
        Self::for_each_row(row_size_bytes, offset_bytes, data.len(), |row, part, to| {
            read_matrix_row(self.0, tensor, row, &mut x);
            data[to].copy_from_slice(&x[part]);
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_range_reads_and_writes_as_plain_memory(
            n_strips in 1usize..4,
            n_blocks in 1usize..4,
            ranges in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..700), 1..8),
        ) {
            let row_size = 64 * n_strips;
            let size = row_size * 32 * n_blocks;
            for tiles in [KvTiles::K, KvTiles::V] {
                let (mut plain, mut tiled) = (vec![0u8; size], vec![0u8; size]);
                for (i, (start, len)) in ranges.iter().enumerate() {
                    let start = start.index(size);
                    let len = (*len).min(size - start);
                    let data: Vec<u8> = (0..len).map(|j| (31 * i + j + 1).to_le_bytes()[0]).collect();
                    plain[start..start + len].copy_from_slice(&data);
                    prop_assert!(tiles.write(&mut tiled, row_size, start, &data));
                }
                let mut whole = vec![0xff; size];
                prop_assert!(tiles.read(&tiled, row_size, 0, &mut whole));
                prop_assert!(whole == plain);
                let part = size / 3..size / 2;
                let mut some = vec![0xff; part.len()];
                prop_assert!(tiles.read(&tiled, row_size, part.start, &mut some));
                prop_assert!(some == plain[part]);
            }
        }
    }

    #[test]
    fn what_is_not_whole_tiles_is_refused() {
        let mut memory = vec![0; 64 * 32];
        for (len, row_size) in [(64 * 32, 62), (64 * 31, 64), (64 * 32, 0), (96 * 32, 96)] {
            memory.resize(len, 0);
            assert!(
                !KvTiles::K.write(&mut memory, row_size, 0, &[1]),
                "{len} {row_size}"
            );
            assert!(
                !KvTiles::V.read(&memory, row_size, 0, &mut [1]),
                "{len} {row_size}"
            );
        }
    }

    #[test]
    fn marks_name_their_layout() {
        for tiles in [KvTiles::K, KvTiles::V] {
            assert_eq!(KvTiles::of_mark(tiles.mark()), Some(tiles));
        }
        assert_eq!(KvTiles::of_mark(Mark::new(7)), None);
    }
}
