//! Names of repacked weights: what a weight is, in 128 bits.
//!
//! The engine knows which file its weights lie in, so that it need not read them: their key is made of the file's
//! identity, the start of its contents and the place in it. A host that hands bytes over gets a key made of these.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::cache::FORMAT;
use super::parallel::{Panicked, Parallel};
use super::shape::TileShape;

/// Bytes that one thread hashes at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Names a repacked weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) [u8; 16]);

impl Key {
    /// Returns the name as hexadecimal digits.
    pub(super) fn hex(self) -> String {
        use std::fmt::Write;

        self.0.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
            text
        })
    }

    /// Names the weight that lies at `offset_bytes` of a file.
    pub(super) fn of_file(file: &FileIdentity, offset_bytes: usize, shape: &TileShape) -> Self {
        let mut hash = Self::hash("file", shape);
        for number in file.numbers {
            hash.update(&number.to_le_bytes());
        }
        hash.update(&(offset_bytes as u64).to_le_bytes());
        Self(hash.digest128().to_le_bytes())
    }

    /// Names the weight with these bytes, read by all threads.
    pub(super) fn of_content(
        plain: &[u8],
        shape: &TileShape,
        parallel: &mut dyn Parallel,
    ) -> Result<Self, Panicked> {
        let n_chunks = plain.len().div_ceil(CHUNK_BYTES);
        let sums: Vec<_> = (0..n_chunks)
            .map(|_| std::sync::atomic::AtomicU64::new(0))
            .collect();
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        parallel.for_each_item(n_chunks, &|i| {
            let chunk = &plain[i * CHUNK_BYTES..plain.len().min((i + 1) * CHUNK_BYTES)];
            sums[i].store(xxh3_64(chunk), relaxed);
        })?;
        let mut hash = Self::hash("content", shape);
        for sum in sums {
            hash.update(&sum.into_inner().to_le_bytes());
        }
        Ok(Self(hash.digest128().to_le_bytes()))
    }

    fn hash(kind: &str, shape: &TileShape) -> Xxh3 {
        let mut hash = Xxh3::new();
        hash.update(kind.as_bytes());
        hash.update(&FORMAT.to_le_bytes());
        hash.update(&shape.ggml_type().to_le_bytes());
        for number in [shape.k(), shape.n(), shape.n_planes()] {
            hash.update(&(number as u64).to_le_bytes());
        }
        hash
    }
}

/// What tells a file from all others, and from itself after a change: device, inode, length, times of change, and a
/// hash of how it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    numbers: [u64; 8],
}

impl FileIdentity {
    /// Takes the identity of a file whose contents start with `start`.
    #[must_use]
    pub fn new(metadata: &std::fs::Metadata, start: &[u8]) -> Self {
        use std::os::unix::fs::MetadataExt;

        Self {
            numbers: [
                metadata.dev(),
                metadata.ino(),
                metadata.len(),
                metadata.mtime().cast_unsigned(),
                metadata.mtime_nsec().cast_unsigned(),
                metadata.ctime().cast_unsigned(),
                metadata.ctime_nsec().cast_unsigned(),
                xxh3_64(start),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::parallel::Caller;

    #[test]
    fn keys_tell_contents_shapes_and_places_apart() {
        let shape = TileShape::for_tests(64, 64, 1);
        let bytes = vec![1; 3 << 20];
        let key =
            |bytes: &[u8], shape: &TileShape| Key::of_content(bytes, shape, &mut Caller).unwrap();
        let first = key(&bytes, &shape);
        assert_eq!(first, key(&bytes.clone(), &shape));
        assert_ne!(first, key(&bytes, &TileShape::for_tests(128, 32, 1)));
        for at in [0, 1 << 20, (3 << 20) - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(first, key(&other, &shape), "{at}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let identity = FileIdentity::new(&metadata, b"GGUF");
        let place = Key::of_file(&identity, 64, &shape);
        assert_eq!(place, Key::of_file(&identity, 64, &shape));
        assert_ne!(place, Key::of_file(&identity, 96, &shape));
        let changed = FileIdentity::new(&metadata, b"GGUE");
        assert_ne!(place, Key::of_file(&changed, 64, &shape));
        std::fs::write(file.path(), b"x").unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let longer = FileIdentity::new(&metadata, b"GGUF");
        assert_ne!(place, Key::of_file(&longer, 64, &shape));
        assert_eq!(first.hex().len(), 32);
    }
}
