//! The file of one repacked weight: a page that describes it, then its tiles.
//!
//! ```text
//! byte    0  magic "LLNPUTIL"                     8 bytes
//!         8  format                               u32
//!        12  ggml's number of the weight's type   u32
//!        16  k, n, planes                         3 × u64
//!        40  bytes of tiles, bytes of a strip     2 × u64
//!        56  key                                  16 bytes
//!        72  checksum of the tiles                u64
//!        80  checksum of bytes 0 to 79            u64
//!      4096  tiles
//! ```
//!
//! Numbers are little-endian. The checksum of the tiles is that of the list of the checksums of their chunks, so that
//! threads can share the work.

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::key::Key;
use crate::memory::shape::TileShape;

/// Changes whenever the bytes of tiles, or the way their keys are made, do.
pub(in crate::memory) const FORMAT: u32 = 2;

/// Where tiles start in a file.
pub(super) const HEADER_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"LLNPUTIL";

/// Bytes of the header that say something.
const USED_BYTES: usize = 88;

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryError {
    #[error("is not a file of tiles")]
    Magic,
    #[error("has format {0}, expected {FORMAT}")]
    Format(u32),
    #[error("has a damaged header")]
    Header,
    #[error("describes another weight")]
    Other,
    #[error("has {actual} bytes, expected {expected}")]
    Length { actual: usize, expected: usize },
    #[error("has damaged tiles")]
    Tiles,
}

/// Writes the header of a file.
pub(super) fn header(key: Key, shape: &TileShape, checksum: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..72].copy_from_slice(&description(key, shape));
    bytes[72..80].copy_from_slice(&checksum.to_le_bytes());
    let sum = xxh3_64(&bytes[..80]);
    bytes[80..USED_BYTES].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn description(key: Key, shape: &TileShape) -> [u8; 72] {
    let mut bytes = [0; 72];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[12..16].copy_from_slice(&shape.ggml_type().to_le_bytes());
    let numbers = [
        shape.k(),
        shape.n(),
        shape.n_planes(),
        shape.size_bytes(),
        shape.strip_size_bytes(),
    ];
    for (slot, number) in bytes[16..56].chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&(number as u64).to_le_bytes());
    }
    bytes[56..].copy_from_slice(&key.0);
    bytes
}

/// Checks that `file` is that of the weight, tiles aside, and returns their checksum.
pub(super) fn parse(file: &[u8], key: Key, shape: &TileShape) -> Result<u64, EntryError> {
    if file.len() < HEADER_BYTES || file[..8] != MAGIC {
        return Err(EntryError::Magic);
    }
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&file[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    if number(80) != xxh3_64(&file[..80]) {
        return Err(EntryError::Header);
    }
    let format = u32::from_le_bytes([file[8], file[9], file[10], file[11]]);
    if format != FORMAT {
        return Err(EntryError::Format(format));
    }
    if file[..72] != description(key, shape) {
        return Err(EntryError::Other);
    }
    let expected = HEADER_BYTES + shape.size_bytes();
    if file.len() != expected {
        let actual = file.len();
        return Err(EntryError::Length { actual, expected });
    }
    Ok(number(72))
}

/// Returns the checksum of tiles from those of their chunks.
pub(super) fn checksum(chunks: &[u64]) -> u64 {
    let bytes: Vec<u8> = chunks.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// Returns the checksum of one chunk.
pub(super) fn chunk_checksum(chunk: &[u8]) -> u64 {
    xxh3_64(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key([7; 16]);

    fn file(shape: &TileShape) -> Vec<u8> {
        let mut file = header(KEY, shape, 42).to_vec();
        file.resize(HEADER_BYTES + shape.size_bytes(), 1);
        file
    }

    #[test]
    fn a_file_is_read_back_and_nothing_else_is() {
        let shape = TileShape::for_tests(64, 40, 1);
        let good = file(&shape);
        assert_eq!(parse(&good, KEY, &shape), Ok(42));
        assert_eq!(parse(&good, Key([8; 16]), &shape), Err(EntryError::Other));
        let other = TileShape::for_tests(64, 41, 1);
        assert_eq!(parse(&good, KEY, &other), Err(EntryError::Other));
        // Truncation at every byte of the header, and of the tiles.
        for len in (0..HEADER_BYTES).step_by(8) {
            assert_eq!(parse(&good[..len], KEY, &shape), Err(EntryError::Magic));
        }
        let length = parse(&good[..good.len() - 1], KEY, &shape);
        assert!(matches!(length, Err(EntryError::Length { .. })));
        // Any flipped bit of what the header says.
        for bit in 0..USED_BYTES * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad, KEY, &shape).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn files_of_another_format_are_told_apart() {
        let shape = TileShape::for_tests(64, 40, 1);
        let mut bad = file(&shape);
        bad[8] += 1;
        let sum = xxh3_64(&bad[..80]);
        bad[80..88].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(
            parse(&bad, KEY, &shape),
            Err(EntryError::Format(FORMAT + 1))
        );
    }
}
