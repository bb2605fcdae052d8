"""Makes broken variants of a good GGUF, each with what a loader's one error message must name.

`write_all` writes the files and `manifest.json`: a list of `{"file", "what", "loads", "expect"}`. Each entry of `expect` must
be in the error, whatever the case; `a|b` means a or b. `loads` is false for files that must be refused, true for odd ones that
are right, null where either will do as long as the process lives.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .container import ARRAY, BOOL, STRING, UINT32, Container, Key, string


@dataclass(frozen=True)
class Case:
    """One variant: file name without suffix, its bytes, and what the error says."""

    name: str
    data: bytes
    what: str
    expect: tuple[str, ...] = ()
    loads: bool | None = False


def cases(source: Path) -> Iterator[Case]:
    """All variants of the `llada` or `dream` file `source`, which has at least two blocks, Q/K/V apart, and an untied output."""
    good = Container.read(source)
    whole = good.encode()
    yield from truncated(good, whole)
    yield from headers(good)
    yield from strings_and_arrays(good)
    yield from tensor_infos(good)
    yield from hyper_parameters(good)
    yield from architectures(good)


def spoiled(good: Container, change: Callable[[Container], None]) -> bytes:
    """The file after `change`."""
    bad = good.copy()
    change(bad)
    return bad.encode()


def truncated(good: Container, whole: bytes) -> Iterator[Case]:
    """Ends early, in every part of the file."""
    n_head = len(good.head())
    last = max(good.tensors, key=lambda t: t.offset)
    n_keys_end = whole.index(good.tensors[0].name) - 8
    yield Case("empty", b"", "no bytes at all")
    yield Case("truncated-magic", whole[:3], "ends within the magic")
    yield Case("truncated-counts", whole[:17], "ends within the counts")
    yield Case("truncated-keys", whole[: n_keys_end // 2], "ends within the keys")
    yield Case("truncated-infos", whole[: (n_keys_end + n_head) // 2], "ends within the tensor descriptions")
    yield Case("truncated-no-data", whole[:n_head], "ends before the tensor data")
    end = good.data_start() + last.offset + last.size_bytes()
    yield Case("truncated-data", whole[: end - last.size_bytes() // 2], "ends within the last tensor", (last.name.decode(),))
    yield Case("truncated-last-byte", whole[: end - 1], "the last tensor lacks its last byte", (last.name.decode(),))


def headers(good: Container) -> Iterator[Case]:
    """Wrong magic, version, counts."""

    def with_field(**fields) -> bytes:
        return spoiled(good, lambda c: c.__dict__.update(fields))

    yield Case("magic", with_field(magic=b"GGML"), "another magic", ("magic",))
    yield Case("text-file", b"<!DOCTYPE html>\n<html>not a model</html>\n" * 20, "a web page", ("magic",))
    yield Case("version-0", with_field(version=0), "version 0", ("version",))
    yield Case("version-1", with_field(version=1), "the obsolete version 1", ("version", "1"))
    yield Case("version-99", with_field(version=99), "a version to come", ("version", "99"))
    yield Case("version-big-endian", with_field(version=3 << 24), "version 3 in the other byte order", ("version",))
    yield Case("n-kv-huge", with_field(n_keys=2**62), "2^62 keys")
    yield Case("n-kv-more", with_field(n_keys=len(good.keys) + 1), "one key more than there are")
    yield Case("n-tensors-huge", with_field(n_tensors=2**62), "2^62 tensors")
    yield Case("n-tensors-negative", with_field(n_tensors=-1), "-1 tensors")
    yield Case("n-tensors-zero", spoiled(good, lambda c: c.tensors.clear()), "no tensors", ("token_embd.weight",))


def strings_and_arrays(good: Container) -> Iterator[Case]:
    """Keys whose name or value does not hold."""

    def with_key(*key) -> bytes:
        return spoiled(good, lambda c: c.keys.insert(1, Key(*key)))

    nested = struct.pack("<IQ", ARRAY, 1) * 2000 + struct.pack("<IQ", UINT32, 0)
    for name, kind, value, what in (
        ("string-length-huge", STRING, string(b"x", 2**63), "a string of 2^63 bytes"),
        ("string-length-past-end", STRING, string(b"x", 2**31), "a string longer than the file"),
        ("array-length-huge", ARRAY, struct.pack("<IQ", UINT32, 2**62), "an array of 2^62 elements"),
        ("array-nested", ARRAY, nested, "arrays within arrays, 2000 deep"),
        ("value-type-unknown", 77, b"\0" * 8, "an unknown value type"),
    ):
        yield Case(name, with_key(b"general.note", kind, value), what, ("general.note",))
    not_utf8 = with_key(b"general.\xff\xfe", UINT32, b"\0" * 4)
    yield Case("key-not-utf8", not_utf8, "a name that is not UTF-8", loads=None)
    yield Case("key-duplicate", spoiled(good, lambda c: c.keys.append(c.keys[0])), "a key twice", (good.keys[0].name.decode(),))
    for value in (0, 24, 33):
        data = spoiled(good, lambda c, v=value: c.set_uint32("general.alignment", v))
        yield Case(f"alignment-{value}", data, f"alignment {value}", ("alignment",))


def tensor_infos(good: Container) -> Iterator[Case]:
    """Tensors that are not there, not where they should be, or not what they should be."""
    name = "blk.1.ffn_up.weight"

    def with_tensor(change) -> bytes:
        return spoiled(good, lambda c: change(c.tensor(name)))

    def with_fields(**fields) -> bytes:
        return with_tensor(lambda t: t.__dict__.update(fields))

    n_in, n_out = good.tensor(name).dims
    yield Case("offset-past-end", with_fields(offset=1 << 40), "data behind the end of the file", (name,))
    yield Case("offset-overflow", with_fields(offset=2**64 - 32), "offset plus size overflows", (name,))
    yield Case("offset-unaligned", with_fields(offset=good.tensor(name).offset + 1), "an offset that is not aligned", (name,))
    yield Case("dims-negative", with_fields(dims=[-n_in, n_out]), "a negative dimension", (name,))
    yield Case("dims-zero", with_fields(dims=[n_in, 0]), "a dimension of zero", (name,))
    yield Case("dims-overflow", with_fields(dims=[2**32, 2**32]), "2^64 elements", (name,))
    yield Case("dims-overflow-bytes", with_fields(dims=[2**31, 2**31]), "2^62 elements, more bytes than 64 bits hold", (name,))
    yield Case("dims-five", with_fields(n_dims=5, dims=[n_in, n_out, 1, 1, 1]), "five dimensions", (name,))
    yield Case("dims-count-huge", with_fields(n_dims=2**31), "2^31 dimensions", (name,))
    yield Case("type-unknown", with_fields(type=4242), "an unknown tensor type", (name, "4242"))
    yield Case("type-removed", with_fields(type=4), "a type id that ggml has removed (Q4_2)", (name,))
    yield Case("type-integer", with_fields(type=26), "I32 as the type of a matrix", (name,))
    yield Case("shape-transposed", with_fields(dims=[n_out, n_in]), "rows and columns exchanged", (name,))
    yield Case("shape-short", with_fields(dims=[n_in, n_out - 1]), "one row less", (name,))
    yield Case("name-long", with_fields(name=b"blk.1." + b"x" * 200), "a name longer than ggml's 63 bytes")

    for missing in ("token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_k.weight", name):
        data = spoiled(good, lambda c, m=missing: c.remove_tensor(m))
        yield Case(f"missing-{missing}", data, f"no {missing}", (missing,))
    for wrong, dims in (("output_norm.weight", [16]), ("blk.1.attn_v.weight", [n_in, 16]), ("token_embd.weight", [32, 32])):
        data = spoiled(good, lambda c, w=wrong, d=dims: c.tensor(w).__dict__.update(dims=d))
        yield Case(f"shape-{wrong}", data, f"{wrong} is {dims}", (wrong,))
    yield Case("duplicate-tensor", spoiled(good, lambda c: c.tensors.append(c.tensor(name))), "a tensor twice", (name,))


def hyper_parameters(good: Container) -> Iterator[Case]:
    """Keys that are absent or cannot be."""
    arch = architecture(good)

    def with_value(key: str, value: int) -> bytes:
        return spoiled(good, lambda c: c.set_uint32(key, value))

    for key, value, names in (
        ("block_count", 0, "block_count"),
        ("block_count", 2**32 - 1, "block_count|blk.2."),
        ("embedding_length", 0, "embedding_length|token_embd.weight"),
        ("embedding_length", 2**31, "embedding_length|token_embd.weight"),
        ("attention.head_count", 0, "head_count"),
        ("attention.head_count", 7, "head_count"),
        ("attention.head_count_kv", 3, "head_count_kv|attn_k.weight"),
        ("rope.dimension_count", 2**20, "rope.dimension_count"),
    ):
        yield Case(f"{key}-{value}", with_value(f"{arch}.{key}", value), f"{key} is {value}", (names,))
    for key in ("block_count", "embedding_length", "attention.head_count", "attention.layer_norm_rms_epsilon"):
        data = spoiled(good, lambda c, k=key: c.remove_key(f"{arch}.{k}"))
        yield Case(f"missing-{key}", data, f"no {key}", (f"{arch}.{key}",))
    text = spoiled(good, lambda c: c.key(f"{arch}.block_count").__dict__.update(type=STRING, value=string(b"two")))
    yield Case("block_count-text", text, "block_count is a text", ("block_count",))
    more = spoiled(good, lambda c: c.set_uint32(f"{arch}.block_count", 3))
    yield Case("block_count-more", more, "one block more than there are tensors for", ("blk.2.",))
    mask, eos = "tokenizer.ggml.mask_token_id", "tokenizer.ggml.eos_token_id"
    yield Case("mask-id-outside", with_value(mask, 10**6), "a mask id outside the vocabulary", ("mask",))
    yield Case("eos-id-outside", with_value(eos, 10**6), "an EOS id outside the vocabulary", ("eos",), loads=None)
    yield Case("no-mask", spoiled(good, remove_mask), "neither a mask key nor a token of such a text", ("mask",))
    without = spoiled(good, lambda c: c.remove_key(mask))
    yield Case("no-mask-key", without, "only the token's text says mask", loads=True)

    shift = "diffusion.shift_logits"
    without = spoiled(good, lambda c: c.remove_key(shift))
    yield Case("no-shift-key", without, "shift follows the architecture", loads=True)
    text = Key(shift.encode(), STRING, string(b"maybe"))
    wrong = spoiled(good, lambda c: (c.remove_key(shift), c.keys.append(text)))
    yield Case("shift-key-text", wrong, "shift_logits is a text", ("shift_logits",))


def remove_mask(c: Container) -> None:
    """Removes the mask key and renames tokens of its usual texts, keeping their length."""
    c.remove_key("tokenizer.ggml.mask_token_id")
    tokens = c.key("tokenizer.ggml.tokens")
    tokens.value = tokens.value.replace(b"<|mask|>", b"<|task|>").replace(b"<|mdm_mask|>", b"<|mdm_task|>")


def architecture(c: Container) -> str:
    """The value of `general.architecture`."""
    return c.key("general.architecture").value[8:].decode()


def architectures(good: Container) -> Iterator[Case]:
    """Files of architectures that cannot be decoded here, the message says which and what can."""
    old = architecture(good)

    def renamed(new: str) -> bytes:
        def change(c: Container) -> None:
            c.key("general.architecture").value = string(new.encode())
            for key in c.keys:
                if key.name.startswith(f"{old}.".encode()):
                    key.name = new.encode() + key.name[len(old) :]

        return spoiled(good, change)

    for new in ("llama", "qwen2"):
        yield Case(f"architecture-{new}", renamed(new), "an autoregressive architecture", (new,))
    for new in ("llada2", "diffusion-gemma", "diffuse"):
        yield Case(f"architecture-{new}", renamed(new), "a diffusion architecture without support", (new, "llada", "dream"))
    yield Case("architecture-unknown", renamed("nonsense"), "an unheard-of architecture", ("nonsense",))
    missing = spoiled(good, lambda c: c.remove_key("general.architecture"))
    yield Case("architecture-missing", missing, "no architecture", ("general.architecture",))
    number = spoiled(good, lambda c: c.key("general.architecture").__dict__.update(type=BOOL, value=b"\1"))
    yield Case("architecture-bool", number, "an architecture that is no text", ("general.architecture",))


def write_all(source: Path, directory: Path) -> list[dict]:
    """Writes every variant and the manifest; returns the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    manifest = []
    for case in cases(source):
        name = f"{case.name}.gguf"
        (directory / name).write_bytes(case.data)
        manifest.append({"file": name, "what": case.what, "loads": case.loads, "expect": list(case.expect)})
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest
