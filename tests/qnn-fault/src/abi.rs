//! Structures of C, read by the offsets of their fields.

use std::ffi::{CStr, c_char};
use std::slice;

use serde::{Deserialize, Serialize};

/// An address of C, with all that can be reached from it.
#[derive(Clone, Copy)]
pub(crate) struct At(*const u8);

impl At {
    /// Trusts an address.
    ///
    /// # Safety
    /// NULL, or the address of a structure of QNN's ABI that, with all that it points to, lives while this is used.
    pub(crate) unsafe fn new(address: *const u8) -> Self {
        Self(address)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    fn read<T: Copy>(self, offset: usize) -> T {
        let at = self.0.wrapping_add(offset);
        // SAFETY: a field of a living structure, by the promise to `new`; callers name its offset and type.
        unsafe { at.cast::<T>().read() }
    }

    pub(crate) fn u32(self, offset: usize) -> u32 {
        self.read(offset)
    }

    fn i32(self, offset: usize) -> i32 {
        self.read(offset)
    }

    fn u64(self, offset: usize) -> u64 {
        self.read(offset)
    }

    fn f32(self, offset: usize) -> f32 {
        self.read(offset)
    }

    /// The structure that a field points to.
    pub(crate) fn follow(self, offset: usize) -> Self {
        Self(self.read(offset))
    }

    /// A structure inside this one, or an element of an array here.
    pub(crate) fn inside(self, offset: usize) -> Self {
        Self(self.0.wrapping_add(offset))
    }

    pub(crate) fn string(self) -> String {
        if self.is_null() {
            return String::new();
        }
        // SAFETY: a NUL-terminated string, by the promise to `new`.
        unsafe { CStr::from_ptr(self.0.cast::<c_char>()) }
            .to_string_lossy()
            .into_owned()
    }

    fn array<T: Copy>(self, n: usize) -> Vec<T> {
        if n == 0 || self.is_null() {
            return Vec::new();
        }
        // SAFETY: an array of so many elements, by the promise to `new`.
        unsafe { slice::from_raw_parts(self.0.cast::<T>(), n) }.to_vec()
    }

    pub(crate) fn numbers(self, n: usize) -> Vec<u32> {
        self.array(n)
    }

    pub(crate) fn bytes(self, n: usize) -> Vec<u8> {
        self.array(n)
    }

    /// Writes bytes.
    ///
    /// # Safety
    /// So many bytes can be written here.
    pub(crate) unsafe fn write(self, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.0
                .cast_mut()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

/// What fixed-point numbers stand for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) enum Encoding {
    #[default]
    None,
    /// Scale and offset of the tensor.
    Tensor(f32, i32),
    /// Axis, and scale and offset of each channel.
    Axis(usize, Vec<(f32, i32)>),
    /// Bits, elements of a block along each dimension, scale and offset of each block.
    Blocks(u32, Vec<u32>, Vec<(f32, f32)>),
    /// One that this library does not know.
    Other(u32),
}

pub(crate) const APP_WRITE: u32 = 0;
pub(crate) const APP_READ: u32 = 1;
pub(crate) const STATIC: u32 = 4;

/// A tensor as the caller described it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tensor {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) data_type: u32,
    pub(crate) encoding: Encoding,
    pub(crate) dims: Vec<u32>,
    /// Of static tensors.
    pub(crate) data: Vec<u8>,
}

impl Tensor {
    pub(crate) fn n_elements(&self) -> usize {
        self.dims.iter().map(|&dim| dim as usize).product()
    }
}

/// Reads a tensor (version 1); `None` for another version.
pub(crate) fn tensor(at: At) -> Option<Tensor> {
    if at.u32(0) != 1 {
        return None;
    }
    let v1 = at.inside(8);
    let rank = v1.u32(72) as usize;
    let dims: Vec<u32> = v1.follow(80).array(rank);
    let kind = v1.u32(16);
    let data = if kind == STATIC {
        buffer(at)?.0.bytes(v1.u32(104) as usize)
    } else {
        Vec::new()
    };
    Some(Tensor {
        id: v1.u32(0),
        name: v1.follow(8).string(),
        kind,
        data_type: v1.u32(24),
        encoding: encoding(v1.inside(32), rank, &dims),
        dims,
        data,
    })
}

/// The plain memory of a tensor and its size in bytes; `None` where there is none.
pub(crate) fn buffer(tensor: At) -> Option<(At, usize)> {
    let v1 = tensor.inside(8);
    let (memory_type, data) = (v1.u32(88), v1.follow(96));
    (memory_type == 0 && !data.is_null()).then(|| (data, v1.u32(104) as usize))
}

/// The handle of the registered memory of a tensor; `None` where it has none.
pub(crate) fn handle(tensor: At) -> Option<usize> {
    let v1 = tensor.inside(8);
    (v1.u32(88) == 1).then(|| v1.read(96))
}

fn encoding(at: At, rank: usize, dims: &[u32]) -> Encoding {
    const UNDEFINED: u32 = 0x7fff_ffff;
    let (definition, encoding, value) = (at.u32(0), at.u32(4), at.inside(8));
    match encoding {
        UNDEFINED if definition == UNDEFINED => Encoding::None,
        0 => Encoding::Tensor(value.f32(0), value.i32(4)),
        1 => {
            let (list, n) = (value.follow(8), value.u32(4) as usize);
            let values = (0..n)
                .map(|i| (list.f32(8 * i), list.i32(8 * i + 4)))
                .collect();
            Encoding::Axis(value.u32(0) as usize, values)
        }
        2 => Encoding::Tensor(value.f32(4), value.i32(8)),
        3 => {
            let n = value.u32(8) as usize;
            let scales: Vec<f32> = value.follow(16).array(n);
            let mut offsets: Vec<i32> = value.follow(24).array(n);
            offsets.resize(n, 0);
            Encoding::Axis(
                value.u32(4) as usize,
                scales.into_iter().zip(offsets).collect(),
            )
        }
        11 => {
            let block: Vec<u32> = value.follow(8).array(rank);
            let n = dims
                .iter()
                .zip(&block)
                .map(|(dim, size)| (dim / size.max(&1)) as usize)
                .product();
            let list = value.follow(16);
            let values = (0..n)
                .map(|i| (list.f32(8 * i), list.f32(8 * i + 4)))
                .collect();
            Encoding::Blocks(value.u32(0), block, values)
        }
        other => Encoding::Other(other),
    }
}

/// A parameter that is a number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scalar {
    pub(crate) name: String,
    pub(crate) value: u32,
}

/// A node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) op: String,
    pub(crate) scalars: Vec<Scalar>,
    /// Parameters that are tensors.
    pub(crate) tensors: Vec<(String, Tensor)>,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<Tensor>,
}

impl Node {
    pub(crate) fn scalar(&self, name: &str) -> Option<u32> {
        self.scalars
            .iter()
            .find(|scalar| scalar.name == name)
            .map(|scalar| scalar.value)
    }
}

/// Reads a node (version 1, of QNN's own package); `None` for anything else.
pub(crate) fn node(at: At) -> Option<Node> {
    let v1 = at.inside(8);
    if at.u32(0) != 1 || v1.follow(8).string() != "qti.aisw" {
        return None;
    }
    let tensors = |list: At, n: u32| {
        (0..n as usize)
            .map(|i| tensor(list.inside(144 * i)))
            .collect::<Option<Vec<_>>>()
    };
    let mut node = Node {
        name: v1.follow(0).string(),
        op: v1.follow(16).string(),
        scalars: Vec::new(),
        tensors: Vec::new(),
        inputs: tensors(v1.follow(48), v1.u32(40))?,
        outputs: tensors(v1.follow(64), v1.u32(56))?,
    };
    for i in 0..v1.u32(24) as usize {
        let param = v1.follow(32).inside(160 * i);
        let name = param.follow(8).string();
        if param.u32(0) == 0 {
            let value = u32::try_from(param.u64(24) & 0xffff_ffff).ok()?;
            node.scalars.push(Scalar { name, value });
        } else {
            node.tensors.push((name, tensor(param.inside(16))?));
        }
    }
    Some(node)
}
