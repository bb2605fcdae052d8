"""The GGUF container as bytes, for writing files that a sane writer refuses to write.

A `Container` holds keys and tensor descriptions as they stand in the file, nothing interpreted: every field can be set to
nonsense and `encode` puts it down as it is.
"""

from __future__ import annotations

import math
import struct
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

# Value types of the format with a fixed size: bytes each.
SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9


@dataclass
class Key:
    """One key: name, type code, value as it stands in the file."""

    name: bytes
    type: int
    value: bytes


@dataclass
class TensorInfo:
    """Description of one tensor; `n_dims` None means `len(dims)`."""

    name: bytes
    dims: list[int]
    type: int
    offset: int
    n_dims: int | None = None

    def size_bytes(self) -> int:
        """Bytes of the tensor's data, without padding."""
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(self.type)]
        return math.prod(self.dims) // block * size


@dataclass
class Container:
    """A file taken apart; counts None mean the true ones. `data` is the data section."""

    keys: list[Key] = field(default_factory=list)
    tensors: list[TensorInfo] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    @classmethod
    def read(cls, path: Path) -> Container:
        """Takes a well-formed little-endian file apart."""
        return Reader(path.read_bytes()).container()

    def copy(self) -> Container:
        """A deep copy to spoil."""
        return deepcopy(self)

    def key(self, name: str) -> Key:
        """The key of that name."""
        return next(k for k in self.keys if k.name == name.encode())

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name."""
        return next(t for t in self.tensors if t.name == name.encode())

    def set_uint32(self, name: str, value: int) -> None:
        """Sets or adds an unsigned key."""
        self.remove_key(name)
        self.keys.append(Key(name.encode(), UINT32, struct.pack("<I", value)))

    def remove_key(self, name: str) -> None:
        """Removes a key if it is there."""
        self.keys = [k for k in self.keys if k.name != name.encode()]

    def remove_tensor(self, name: str) -> None:
        """Removes a tensor and its data; what follows moves up."""
        gone = self.tensor(name)
        self.tensors.remove(gone)
        end = min((t.offset for t in self.tensors if t.offset > gone.offset), default=len(self.data))
        self.data = self.data[: gone.offset] + self.data[end:]
        for t in self.tensors:
            if t.offset > gone.offset:
                t.offset -= end - gone.offset

    def data_start(self) -> int:
        """Offset of the data section in the file."""
        n_head = len(self.head())
        return n_head + -n_head % self.alignment

    def head(self) -> bytes:
        """Everything before the tensor data, without padding."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        out = [self.magic, struct.pack("<IQQ", self.version, n_tensors & MAX_U64, n_keys & MAX_U64)]
        for key in self.keys:
            out += [struct.pack("<Q", len(key.name)), key.name, struct.pack("<I", key.type), key.value]
        for t in self.tensors:
            n_dims = len(t.dims) if t.n_dims is None else t.n_dims
            out += [struct.pack("<Q", len(t.name)), t.name, struct.pack("<I", n_dims)]
            out += [struct.pack("<Q", d & MAX_U64) for d in t.dims]
            out.append(struct.pack("<IQ", t.type, t.offset & MAX_U64))
        return b"".join(out)

    def encode(self) -> bytes:
        """The whole file."""
        return self.head().ljust(self.data_start(), b"\0") + self.data


MAX_U64 = 2**64 - 1


def string(text: bytes, length: int | None = None) -> bytes:
    """A string value; `length` overrides the true one."""
    return struct.pack("<Q", len(text) if length is None else length) + text


class Reader:
    """Walks the bytes of a file."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    def unpack(self, layout: str) -> tuple:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def string(self) -> bytes:
        (length,) = self.unpack("Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def skip_value(self, kind: int) -> None:
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            element, n = self.unpack("IQ")
            if element in SCALAR_SIZES:
                self.at += SCALAR_SIZES[element] * n
            else:
                for _ in range(n):
                    self.skip_value(element)
        else:
            self.at += SCALAR_SIZES[kind]

    def container(self) -> Container:
        magic = self.data[:4]
        self.at = 4
        version, n_tensors, n_keys = self.unpack("IQQ")
        out = Container(magic=magic, version=version)
        for _ in range(n_keys):
            name = self.string()
            (kind,) = self.unpack("I")
            start = self.at
            self.skip_value(kind)
            out.keys.append(Key(name, kind, self.data[start : self.at]))
            if name == b"general.alignment":
                (out.alignment,) = struct.unpack("<I", out.keys[-1].value)
        for _ in range(n_tensors):
            name = self.string()
            (n_dims,) = self.unpack("I")
            dims = list(self.unpack(f"{n_dims}Q"))
            out.tensors.append(TensorInfo(name, dims, *self.unpack("IQ")))
        out.data = self.data[out.data_start() :]
        return out
