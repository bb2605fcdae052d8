//! A context binary as it is kept on disk: the library's bytes, the interfaces of its graphs, a key, a checksum.

use std::borrow::Cow;

use xxhash_rust::xxh3::Xxh3;

use super::Error;
use super::graph::{GraphInterface, TensorInfo};
use super::tensor::{DataType, Quantization, TensorType};

/// First bytes of the form below; the number is that of the form.
const MAGIC: &[u8; 8] = b"LNQNNCB1";
/// Bytes of the checksum, which come last.
const CHECKSUM: usize = 16;
/// Most dimensions of a tensor.
const RANK_MAX: u32 = 8;

/// A context binary and what is needed to use its graphs. Only [`Context::binary`](super::Context::binary) and [`Self::from_bytes`] make
/// one, so that what reaches the library is what it wrote, as far as the bytes of the latter can be trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextBinary<'a> {
    blob: Cow<'a, [u8]>,
    graphs: Vec<GraphInterface>,
}

impl<'a> ContextBinary<'a> {
    pub(super) fn new(blob: Cow<'a, [u8]>, graphs: Vec<GraphInterface>) -> Self {
        Self { blob, graphs }
    }

    /// What the library wrote.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Its graphs, in the order they were built.
    pub fn graphs(&self) -> &[GraphInterface] {
        &self.graphs
    }

    /// Writes it with a key, which has to say everything that it is good for: weights, shapes, encodings, chip, build of the library.
    pub fn to_bytes(&self, key: &[u8]) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        put_bytes(&mut to, key);
        put_u32(&mut to, self.graphs.len());
        for graph in &self.graphs {
            put_bytes(&mut to, graph.name().as_bytes());
            for tensors in [graph.inputs(), graph.outputs()] {
                put_u32(&mut to, tensors.len());
                for tensor in tensors {
                    put_tensor(&mut to, tensor);
                }
            }
        }
        to.extend((self.blob.len() as u64).to_le_bytes());
        to.extend(&*self.blob);
        let checksum = checksum(&to);
        to.extend(checksum);
        to
    }

    /// Reads what [`Self::to_bytes`] wrote with the same key; the blob is borrowed.
    ///
    /// The checksum shows damage, not intent: anybody can compute it, and the library believes the blob as it believes its own
    /// code. The bytes have to come from where nobody but the user, or the system, writes.
    ///
    /// # Errors
    /// [`Error::Binary`] for bytes that are truncated, changed, of another form, or of another key.
    pub fn from_bytes(bytes: &'a [u8], key: &[u8]) -> Result<Self, Error> {
        let damaged = Error::Binary("damaged, or no context binary");
        let Some((body, sum)) = bytes.split_last_chunk::<CHECKSUM>() else {
            return Err(damaged);
        };
        if !body.starts_with(MAGIC) || checksum(body) != *sum {
            return Err(damaged);
        }
        let mut from = Reader(&body[MAGIC.len()..]);
        if from.bytes().ok_or(Error::Binary("damaged key"))? != key {
            return Err(Error::Binary("made for something else"));
        }
        let (graphs, blob) = read_rest(&mut from).ok_or(Error::Binary("damaged description"))?;
        Ok(Self::new(Cow::Borrowed(blob), graphs))
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut hash = Xxh3::new();
    hash.update(bytes);
    hash.digest128().to_le_bytes()
}

fn put_u32(to: &mut Vec<u8>, value: usize) {
    to.extend(super::tensor::length(value).to_le_bytes());
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(to, bytes.len());
    to.extend(bytes);
}

fn put_tensor(to: &mut Vec<u8>, tensor: &TensorInfo) {
    put_bytes(to, tensor.name().as_bytes());
    to.extend(tensor.id().to_le_bytes());
    to.extend(tensor.ty().data_type.to_raw().to_le_bytes());
    put_u32(to, tensor.ty().dims.len());
    for dim in &tensor.ty().dims {
        to.extend(dim.to_le_bytes());
    }
    // A scale of zero, which no tensor has, says that there is none.
    let (scale, offset) = match tensor.ty().quantization {
        Quantization::PerTensor { scale, offset } => (scale, offset),
        _ => (0.0, 0),
    };
    to.extend(scale.to_le_bytes());
    to.extend(offset.to_le_bytes());
}

/// Reads from the front of bytes; `None` at their end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()?;
        self.take(usize::try_from(n).ok()?)
    }

    fn name(&mut self) -> Option<&'a str> {
        let name = std::str::from_utf8(self.bytes()?).ok()?;
        (!name.is_empty() && !name.contains('\0')).then_some(name)
    }

    fn tensors(&mut self) -> Option<Vec<TensorInfo>> {
        let n = self.u32()?;
        (0..n).map(|_| self.tensor()).collect()
    }

    fn tensor(&mut self) -> Option<TensorInfo> {
        let name = self.name()?;
        let id = self.u32()?;
        let data_type = DataType::from_raw(self.u32()?)?;
        let rank = self.u32().filter(|&rank| rank <= RANK_MAX)?;
        let dims: Vec<u32> = (0..rank).map(|_| self.u32()).collect::<Option<_>>()?;
        let scale = f32::from_le_bytes(self.array()?);
        let offset = i32::from_le_bytes(self.array()?);
        let quantization = if scale == 0.0 {
            Quantization::None
        } else {
            Quantization::PerTensor { scale, offset }
        };
        let ty = TensorType::quantized(data_type, &dims, quantization);
        ty.check(name).ok()?;
        Some(TensorInfo::new(name, id, ty))
    }
}

fn read_rest<'a>(from: &mut Reader<'a>) -> Option<(Vec<GraphInterface>, &'a [u8])> {
    let n = from.u32()?;
    let mut graphs = Vec::new();
    for _ in 0..n {
        let name = from.name()?;
        let (inputs, outputs) = (from.tensors()?, from.tensors()?);
        graphs.push(GraphInterface::new(name, inputs, outputs));
    }
    let length = u64::from_le_bytes(from.array()?);
    let blob = from.take(usize::try_from(length).ok()?)?;
    from.0.is_empty().then_some((graphs, blob))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> ContextBinary<'static> {
        let half = TensorType::new(DataType::Float16, &[2, 3]);
        let quantization = Quantization::PerTensor {
            scale: 0.5,
            offset: -3,
        };
        let fixed = TensorType::quantized(DataType::Ufixed16, &[1, 1, 2, 4], quantization);
        let inputs = vec![TensorInfo::new("x", 7, half)];
        let outputs = vec![TensorInfo::new("y", 9, fixed)];
        let graph = GraphInterface::new("g", inputs, outputs);
        ContextBinary::new(Cow::Owned(vec![1, 2, 3, 4, 5]), vec![graph])
    }

    #[test]
    fn it_reads_what_it_wrote() {
        let binary = example();
        let bytes = binary.to_bytes(b"key");
        assert_eq!(ContextBinary::from_bytes(&bytes, b"key").unwrap(), binary);
        assert_eq!(
            ContextBinary::from_bytes(&bytes, b"other"),
            Err(Error::Binary("made for something else"))
        );
    }

    #[test]
    fn every_truncation_and_every_changed_bit_is_noticed() {
        let bytes = example().to_bytes(b"key");
        for n in 0..bytes.len() {
            assert!(
                ContextBinary::from_bytes(&bytes[..n], b"key").is_err(),
                "{n} bytes"
            );
        }
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(
                ContextBinary::from_bytes(&changed, b"key").is_err(),
                "bit {bit}"
            );
        }
    }
}
