//! Byte edits of a good GGUF file that keep its layout.

use std::path::{Path, PathBuf};

/// The bytes of a model file.
#[derive(Clone, Debug)]
pub struct Gguf(pub Vec<u8>);

impl Gguf {
    /// Reads a file.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        Self(std::fs::read(path).expect("a readable model"))
    }

    /// Writes the bytes to `name` in a directory and returns the path.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, &self.0).expect("a writable directory");
        path
    }

    /// Puts `new` in the place of every `old` of the same length.
    ///
    /// # Panics
    /// When the lengths differ or `old` does not occur.
    #[must_use]
    pub fn replace(mut self, old: &str, new: &str) -> Self {
        assert_eq!(old.len(), new.len(), "the layout stays");
        let places = self.places(old);
        assert!(!places.is_empty(), "no {old:?} in the file");
        for at in places {
            self.0[at..at + new.len()].copy_from_slice(new.as_bytes());
        }
        self
    }

    /// Puts `new` in the place of every `old` inside the string value of a key.
    ///
    /// # Panics
    /// As [`Gguf::replace`]; when the key does not occur exactly once.
    #[must_use]
    pub fn replace_in_value(mut self, key: &str, old: &str, new: &str) -> Self {
        let places = self.places(key);
        let [at] = places[..] else {
            panic!("{key} occurs at {places:?}")
        };
        // Key, type of the value (u32), length (u64), text.
        let length_at = at + key.len() + 4;
        let length = u64::from_le_bytes(
            self.0[length_at..length_at + 8]
                .try_into()
                .expect("8 bytes"),
        );
        let start = length_at + 8;
        let end = start + usize::try_from(length).expect("a length that fits");
        let value = Self(self.0[start..end].to_vec()).replace(old, new);
        self.0[start..end].copy_from_slice(&value.0);
        self
    }

    fn places(&self, text: &str) -> Vec<usize> {
        let starts = self.0.windows(text.len()).enumerate();
        starts
            .filter(|(_, bytes)| *bytes == text.as_bytes())
            .map(|(at, _)| at)
            .collect()
    }
}
