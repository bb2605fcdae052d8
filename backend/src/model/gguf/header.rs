//! Header of one file: metadata and tensors.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use super::reader::Reader;
use super::value::Value;
use super::{
    DEFAULT_ALIGNMENT, GgmlType, GgufError, MAX_ALIGNMENT, MAX_DIMS, MAX_KEY_LEN, MAX_N_KV,
    MAX_N_TENSORS, MAX_TENSOR_NAME_LEN,
};

/// Smallest encoding of a key-value pair: key length, one byte of key, type, one byte of value.
const MIN_KV_BYTES: usize = 8 + 1 + 4 + 1;
/// Smallest encoding of a tensor: name length, one byte of name, dimension count, one dimension, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// Shape of a tensor, in ggml's order (`ne[0]` is the row length); unused dimensions are 1.
///
/// # Invariants
/// Every dimension is at least 1 and the product fits 63 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    ne: [u64; MAX_DIMS],
}

impl Shape {
    /// Length of every dimension.
    pub const fn ne(&self) -> [u64; MAX_DIMS] {
        self.ne
    }

    /// Number of elements.
    pub fn n_elements(&self) -> u64 {
        self.ne.iter().product()
    }

    /// Whether the shape is `dims`, with 1 for the dimensions that `dims` does not name.
    pub fn is(&self, dims: &[u64]) -> bool {
        dims.len() <= MAX_DIMS
            && (0..MAX_DIMS).all(|i| self.ne[i] == dims.get(i).copied().unwrap_or(1))
    }
}

/// `[a, b]`, without trailing ones.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self
            .ne
            .iter()
            .rposition(|&ne| ne != 1)
            .map_or(1, |last| last + 1);
        f.debug_list().entries(&self.ne[..n]).finish()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One tensor of a file.
///
/// # Invariants
/// `range` lies inside the file that was parsed, its start is a multiple of the file's alignment, and its length is
/// the one that type and shape ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    ty: GgmlType,
    shape: Shape,
    range: Range<usize>,
}

impl TensorInfo {
    /// Name, at most [`MAX_TENSOR_NAME_LEN`] bytes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of the elements.
    pub const fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Shape.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of the data, counted from the start of the file.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// Parsed header; borrows the file's bytes.
#[derive(Clone, Debug)]
pub struct Header<'a> {
    version: u32,
    metadata: HashMap<&'a str, Value<'a>>,
    tensors: Vec<TensorInfo>,
}

impl<'a> Header<'a> {
    /// Parses the header at the start of `bytes`, which is the whole file.
    ///
    /// # Errors
    /// One [`GgufError`] for the first thing that is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        if bytes.is_empty() {
            return Err(GgufError::Empty);
        }
        let mut reader = Reader::new(bytes);
        let version = version(&mut reader)?;
        let n_tensors = reader.u64("the tensor count")?;
        let n_kv = reader.u64("the key-value count")?;
        let file_len = bytes.len();
        if n_kv > MAX_N_KV || n_kv > (reader.remaining() / MIN_KV_BYTES) as u64 {
            return Err(GgufError::KvCount { n: n_kv, file_len });
        }
        if n_tensors > MAX_N_TENSORS || n_tensors > (reader.remaining() / MIN_TENSOR_BYTES) as u64 {
            return Err(GgufError::TensorCount {
                n: n_tensors,
                file_len,
            });
        }
        let metadata = metadata(&mut reader, n_kv)?;
        let alignment = alignment(&metadata)?;
        let raw = raw_tensors(&mut reader, n_tensors)?;
        let data_start = (reader.offset() as u64).next_multiple_of(u64::from(alignment));
        let tensors = raw
            .into_iter()
            .map(|raw| raw.prove(data_start, alignment, file_len))
            .collect::<Result<Vec<_>, _>>()?;
        check_overlap(&tensors)?;
        Ok(Self {
            version,
            metadata,
            tensors,
        })
    }

    /// Version of the format: 2 or 3.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Value of `key`.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        self.metadata.get(key).copied()
    }

    /// All keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.metadata.keys().copied()
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// All tensors, taken out.
    pub fn into_tensors(self) -> Vec<TensorInfo> {
        self.tensors
    }
}

fn version(reader: &mut Reader<'_>) -> Result<u32, GgufError> {
    let magic = reader.magic()?;
    if magic != *b"GGUF" {
        return Err(GgufError::Magic { actual: magic });
    }
    let version = reader.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        _ if version != 0 && version.trailing_zeros() >= 16 => {
            Err(GgufError::BigEndian { version })
        }
        _ => Err(GgufError::Version { version }),
    }
}

fn metadata<'a>(
    reader: &mut Reader<'a>,
    n_kv: u64,
) -> Result<HashMap<&'a str, Value<'a>>, GgufError> {
    let mut metadata = HashMap::new();
    for index in 0..n_kv {
        let len = reader.u64("a key length")?;
        if len == 0 || len > MAX_KEY_LEN {
            return Err(GgufError::KeyLen { index, len });
        }
        let key = reader.take(len, "a key")?;
        let key = printable(key).ok_or(GgufError::KeyText { index })?;
        let value = Value::read(reader, key)?;
        if metadata.insert(key, value).is_some() {
            return Err(GgufError::KeyDuplicate {
                key: key.to_owned(),
            });
        }
    }
    Ok(metadata)
}

/// Text that can stand in a one-line message, and that C can read: UTF-8 without control characters.
fn printable(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains(char::is_control))
}

fn alignment(metadata: &HashMap<&str, Value<'_>>) -> Result<u32, GgufError> {
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Uint(value, super::ValueType::U32)) => {
            u32::try_from(*value).expect("a u32 value was read")
        }
        Some(other) => {
            return Err(GgufError::AlignmentType {
                actual: other.value_type().name(),
            });
        }
    };
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment)
    } else {
        Err(GgufError::Alignment { alignment })
    }
}

/// Tensor as the file says it, nothing proven.
struct RawTensor {
    name: String,
    ne: Vec<u64>,
    type_id: u32,
    offset: u64,
}

fn raw_tensors(reader: &mut Reader<'_>, n_tensors: u64) -> Result<Vec<RawTensor>, GgufError> {
    let mut raw = Vec::new();
    let mut names = HashSet::new();
    for index in 0..n_tensors {
        let tensor = RawTensor::read(reader, index)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufError::NameDuplicate { name: tensor.name });
        }
        raw.push(tensor);
    }
    Ok(raw)
}

impl RawTensor {
    fn read(reader: &mut Reader<'_>, index: u64) -> Result<Self, GgufError> {
        let len = reader.u64("a tensor name length")?;
        if len == 0 || len > MAX_TENSOR_NAME_LEN {
            return Err(GgufError::NameLen { index, len });
        }
        let name = reader.take(len, "a tensor name")?;
        let name = printable(name)
            .ok_or(GgufError::NameText { index })?
            .to_owned();
        let n_dims = reader.u32("a dimension count")?;
        if n_dims == 0 || n_dims as usize > MAX_DIMS {
            return Err(GgufError::DimCount { name, n_dims });
        }
        let ne = (0..n_dims)
            .map(|_| reader.u64("a dimension"))
            .collect::<Result<_, _>>()?;
        let type_id = reader.u32("a tensor type")?;
        let offset = reader.u64("a tensor offset")?;
        Ok(Self {
            name,
            ne,
            type_id,
            offset,
        })
    }

    /// Shape with every dimension in `1..=i64::MAX`.
    fn shape(&self) -> Result<Shape, GgufError> {
        let mut ne = [1; MAX_DIMS];
        for (dim, &len) in self.ne.iter().enumerate() {
            if len == 0 || len > i64::MAX.cast_unsigned() {
                return Err(GgufError::Dim {
                    name: self.name.clone(),
                    dim,
                    ne: len.cast_signed(),
                });
            }
            ne[dim] = len;
        }
        Ok(Shape { ne })
    }

    /// Number of bytes; `None` on overflow of 63 bits, elements included.
    fn size_bytes(shape: Shape, row_size: u64) -> Option<u64> {
        let product = |first: u64| {
            shape.ne[1..]
                .iter()
                .try_fold(first, |n, &ne| n.checked_mul(ne))
        };
        let limit = i64::MAX.cast_unsigned();
        product(shape.ne[0]).filter(|&n| n <= limit)?;
        product(row_size).filter(|&n| n <= limit)
    }

    /// Checks type, shape and place of the data against the file.
    fn prove(
        self,
        data_start: u64,
        alignment: u32,
        file_len: usize,
    ) -> Result<TensorInfo, GgufError> {
        let shape = self.shape()?;
        let Some(ty) = GgmlType::from_id(self.type_id) else {
            return Err(GgufError::TensorType {
                name: self.name,
                id: self.type_id,
            });
        };
        let (ne0, blck_size) = (shape.ne[0], ty.blck_size());
        if !ne0.is_multiple_of(blck_size) {
            return Err(GgufError::RowBlock {
                name: self.name,
                ne0,
                blck_size,
                type_name: ty.name(),
            });
        }
        let Some(size_bytes) = ty
            .row_size(ne0)
            .and_then(|row| Self::size_bytes(shape, row))
        else {
            return Err(GgufError::ShapeOverflow {
                name: self.name,
                ne: self.ne,
            });
        };
        if !self.offset.is_multiple_of(u64::from(alignment)) {
            return Err(GgufError::OffsetAlignment {
                name: self.name,
                offset: self.offset,
                alignment,
            });
        }
        let start = data_start.checked_add(self.offset);
        let end = start
            .and_then(|start| start.checked_add(size_bytes))
            .filter(|&end| end <= file_len as u64);
        let range = start.zip(end).and_then(|(start, end)| {
            Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
        });
        let Some(range) = range else {
            let offset = start.unwrap_or(u64::MAX);
            return Err(GgufError::Range {
                name: self.name,
                size_bytes,
                offset,
                file_len,
            });
        };
        // INVARIANT: `end <= file_len`; both terms of `start` are multiples of the alignment; the length is `size_bytes`.
        Ok(TensorInfo {
            name: self.name,
            ty,
            shape,
            range,
        })
    }
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| tensor.range.start);
    for pair in by_start.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(GgufError::Overlap {
                name: pair[1].name.clone(),
                other: pair[0].name.clone(),
            });
        }
    }
    Ok(())
}
