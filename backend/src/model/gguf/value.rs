//! Values of the key-value section. Nothing is copied: strings and arrays stay in the file's bytes.

use super::reader::Reader;
use super::{GgufError, MAX_ARRAY_LEN, MAX_STRING_LEN};

/// Type of a value, or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the variants are the format's type names and say all there is to say"
)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; for strings and arrays the smallest possible.
    const fn min_size(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::String | Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Array => 12,
        }
    }
}

/// Value of one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer.
    Uint(u64, ValueType),
    /// Any signed integer.
    Int(i64, ValueType),
    /// Any float.
    Float(f64, ValueType),
    /// A truth value.
    Bool(bool),
    /// A string, not necessarily UTF-8.
    String(&'a [u8]),
    /// An array of anything but arrays.
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// Type of the value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::Uint(_, ty) | Self::Int(_, ty) | Self::Float(_, ty) => *ty,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// Non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint(value, _) => Some(*value),
            Self::Int(value, _) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// Float, or an integer as float.
    pub const fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(value, _) => Some(*value),
            _ => None,
        }
    }

    /// Truth value.
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// UTF-8 string.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Array.
    pub const fn as_array(&self) -> Option<Array<'a>> {
        match self {
            Self::Array(array) => Some(*array),
            _ => None,
        }
    }

    /// Reads type and value of `key`.
    pub(super) fn read(reader: &mut Reader<'a>, key: &str) -> Result<Self, GgufError> {
        let element = value_type(reader, key)?;
        if element != ValueType::Array {
            return Self::read_scalar(reader, element, key);
        }
        let element = value_type(reader, key)?;
        if element == ValueType::Array {
            return Err(GgufError::NestedArray {
                key: key.to_owned(),
            });
        }
        let len = reader.u64("an array length")?;
        if len > MAX_ARRAY_LEN {
            return Err(GgufError::ArrayLen {
                key: key.to_owned(),
                len,
            });
        }
        // `len` is capped and `min_size` is at most 12: no overflow.
        let n_bytes_min = len * element.min_size();
        let mut ahead = reader.clone();
        let mut bytes = ahead.take(n_bytes_min, "an array")?;
        if element == ValueType::String {
            let mut strings = reader.clone();
            for _ in 0..len {
                string(&mut strings, key)?;
            }
            bytes = reader.take((strings.offset() - reader.offset()) as u64, "an array")?;
        } else {
            *reader = ahead;
        }
        // INVARIANT: `bytes` holds `len` complete elements, walked just above.
        Ok(Self::Array(Array {
            element,
            len,
            bytes,
        }))
    }

    fn read_scalar(reader: &mut Reader<'a>, ty: ValueType, key: &str) -> Result<Self, GgufError> {
        if ty == ValueType::String {
            return Ok(Self::String(string(reader, key)?));
        }
        let bytes = reader.take(ty.min_size(), "a value")?;
        Ok(Self::scalar(ty, bytes))
    }

    /// Value of a fixed-size type from its bytes.
    fn scalar(ty: ValueType, bytes: &'a [u8]) -> Self {
        let mut wide = [0_u8; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let unused_bits = 64 - 8 * bytes.len();
        let signed = (unsigned << unused_bits).cast_signed() >> unused_bits;
        match ty {
            ValueType::U8 | ValueType::U16 | ValueType::U32 | ValueType::U64 => {
                Self::Uint(unsigned, ty)
            }
            ValueType::I8 | ValueType::I16 | ValueType::I32 | ValueType::I64 => {
                Self::Int(signed, ty)
            }
            ValueType::Bool => Self::Bool(unsigned != 0),
            ValueType::F32 => {
                let [a, b, c, d, ..] = wide;
                Self::Float(f64::from(f32::from_le_bytes([a, b, c, d])), ty)
            }
            ValueType::F64 => Self::Float(f64::from_le_bytes(wide), ty),
            ValueType::String | ValueType::Array => {
                unreachable!("only called for types of fixed size")
            }
        }
    }
}

/// Array value.
///
/// # Invariants
/// `bytes` holds exactly `len` elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Type of the elements; never [`ValueType::Array`].
    pub const fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no element.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let element = self.element;
        let mut rest = self.bytes;
        (0..self.len).map_while(move |_| {
            let (head, value);
            if element == ValueType::String {
                let (len, tail) = rest.split_first_chunk::<8>()?;
                (head, rest) =
                    tail.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
                value = Value::String(head);
            } else {
                (head, rest) = rest.split_at_checked(usize::try_from(element.min_size()).ok()?)?;
                value = Value::scalar(element, head);
            }
            Some(value)
        })
    }
}

fn value_type(reader: &mut Reader<'_>, key: &str) -> Result<ValueType, GgufError> {
    let id = reader.u32("a value type")?;
    ValueType::from_id(id).ok_or_else(|| GgufError::ValueType {
        key: key.to_owned(),
        id,
    })
}

fn string<'a>(reader: &mut Reader<'a>, key: &str) -> Result<&'a [u8], GgufError> {
    let len = reader.u64("a string length")?;
    if len > MAX_STRING_LEN {
        return Err(GgufError::StringLen {
            key: key.to_owned(),
            len,
        });
    }
    reader.take(len, "a string")
}
