//! Context binaries on disk: names, mapping, writing.
//!
//! A file is [`ContextBinary`](llada_npu_ffi::qnn::ContextBinary) with a key that says all that it is good for: weights,
//! shapes, encodings, options, chip, versions and build of the library. Name and contents carry it; the checksum of the
//! file is looked at before the library sees a byte.

use std::io::Write;

use memmap2::Mmap;
use xxhash_rust::xxh3::Xxh3;

use crate::memory::CacheDir;
use crate::memory::cache::dir::RoomError;

/// Changes whenever the same weights become another graph.
const FORMAT: u32 = 1;

/// The directory of context binaries.
#[derive(Debug)]
pub(super) struct ContextCache {
    dir: CacheDir,
}

/// What a context is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContextKey([u8; 16]);

impl ContextKey {
    /// The key as part of a file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as a name.
    pub(super) fn hex(&self) -> String {
        use std::fmt::Write;

        self.0.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
            text
        })
    }
}

/// Makes a key from all that it has to say.
pub(super) struct KeyHasher(Xxh3);

impl KeyHasher {
    pub(super) fn new() -> Self {
        let mut hasher = Self(Xxh3::new());
        hasher.number(u64::from(FORMAT));
        hasher
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    pub(super) fn finish(&self) -> ContextKey {
        ContextKey(self.0.digest128().to_le_bytes())
    }
}

impl ContextCache {
    pub(super) fn new(dir: CacheDir) -> Self {
        Self { dir }
    }

    /// Maps the file of a key; `None` where there is none.
    pub(super) fn map(&self, key: &ContextKey) -> Option<Mmap> {
        self.dir.map(&key.hex())
    }

    /// Deletes the file of a key, which cannot be used.
    pub(super) fn discard(&self, key: &ContextKey) {
        self.dir.discard(&key.hex());
    }

    /// Writes the file of a key.
    pub(super) fn write(&self, key: &ContextKey, bytes: &[u8]) -> Result<(), RoomError> {
        let temporary = self.dir.create(&key.hex(), bytes.len() as u64)?;
        let mut file = temporary.file();
        file.write_all(bytes)?;
        Ok(temporary.finish()?)
    }
}
