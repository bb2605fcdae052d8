//! Files of the repository, and changed copies of model files.

use std::path::{Path, PathBuf};

/// Returns the root of the repository.
///
/// # Panics
/// Never: this crate lies in it.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the repository")
}

/// Returns where the trained model with weights of this type is: `f16`, `q8_0` or `q4_0`.
///
/// # Panics
/// When it is missing: it is part of the repository.
#[must_use]
pub fn trained(weights: &str) -> PathBuf {
    let path = repository()
        .join("tests/models")
        .join(format!("llada-tiny-{weights}.gguf"));
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// Returns the prompts of a task file of `tests/tasks`, in its order.
///
/// # Panics
/// When the file cannot be read.
#[must_use]
pub fn prompts(name: &str) -> Vec<String> {
    let path = repository().join("tests/tasks").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| {
            let task: serde_json::Value = serde_json::from_str(line).expect("a JSON line");
            task["prompt"].as_str().expect("a prompt").to_owned()
        })
        .collect()
}

/// Copies a model, with another value of a u32 key.
///
/// # Panics
/// When the source cannot be read, has no such key of that type, or the copy cannot be written.
pub fn copy_with_u32(source: &Path, target: &Path, key: &str, value: u32) {
    const GGUF_TYPE_UINT32: u32 = 4;
    let mut bytes = std::fs::read(source).expect("the model can be read");
    let mut pattern = (key.len() as u64).to_le_bytes().to_vec();
    pattern.extend_from_slice(key.as_bytes());
    pattern.extend_from_slice(&GGUF_TYPE_UINT32.to_le_bytes());
    let start = bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
        .unwrap_or_else(|| panic!("{}: no u32 key {key}", source.display()));
    bytes[start + pattern.len()..][..4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(target, bytes).expect("the copy can be written");
}
