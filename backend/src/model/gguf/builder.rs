//! Writes small GGUF files for tests. Knows the format on its own: nothing here is shared with the parser.

use std::path::Path;

/// Bytes of a GGUF file under construction; every part can be made wrong.
#[derive(Clone, Debug)]
pub(crate) struct Builder {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) kv: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) tensors: Vec<RawTensor>,
    pub(crate) n_kv: Option<u64>,
    pub(crate) n_tensors: Option<u64>,
    pub(crate) alignment: usize,
}

/// Tensor entry; `offset: None` means "after the previous one".
#[derive(Clone, Debug)]
pub(crate) struct RawTensor {
    pub(crate) name: Vec<u8>,
    pub(crate) ne: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) offset: Option<u64>,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn string(s: &[u8]) -> Vec<u8> {
    let mut out = (s.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(s);
    out
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            kv: Vec::new(),
            tensors: Vec::new(),
            n_kv: None,
            n_tensors: None,
            alignment: 32,
        }
    }

    /// A key with type id and encoded value.
    pub(crate) fn raw(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        let mut bytes = type_id.to_le_bytes().to_vec();
        bytes.extend_from_slice(value);
        self.kv.retain(|(k, _)| k != key.as_bytes());
        self.kv.push((key.as_bytes().to_vec(), bytes));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        self.kv.retain(|(k, _)| k != key.as_bytes());
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn u16(self, key: &str, value: u16) -> Self {
        self.raw(key, 2, &value.to_le_bytes())
    }

    pub(crate) fn i32(self, key: &str, value: i32) -> Self {
        self.raw(key, 5, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub(crate) fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value.as_bytes()))
    }

    pub(crate) fn strings(self, key: &str, values: &[&str]) -> Self {
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values
            .iter()
            .for_each(|value| bytes.extend(string(value.as_bytes())));
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn u32s(self, key: &str, values: &[u32]) -> Self {
        let mut bytes = 4_u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values
            .iter()
            .for_each(|value| bytes.extend(value.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn tensor(mut self, name: &str, type_id: u32, ne: &[u64], data: Vec<u8>) -> Self {
        let (name, ne) = (name.as_bytes().to_vec(), ne.to_vec());
        self.tensors.push(RawTensor {
            name,
            ne,
            type_id,
            offset: None,
            data,
        });
        self
    }

    /// An F32 tensor of zeros.
    pub(crate) fn f32_tensor(self, name: &str, ne: &[u64]) -> Self {
        let n = usize::try_from(4 * ne.iter().product::<u64>()).unwrap();
        self.tensor(name, 0, ne, vec![0; n])
    }

    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.n_tensors
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(self.n_kv.unwrap_or(self.kv.len() as u64).to_le_bytes());
        for (key, value) in &self.kv {
            out.extend(string(key));
            out.extend(value);
        }
        let mut next = 0;
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend(u32::try_from(tensor.ne.len()).unwrap().to_le_bytes());
            tensor.ne.iter().for_each(|ne| out.extend(ne.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(next).to_le_bytes());
            next += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        out
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.build()).unwrap();
    }
}
