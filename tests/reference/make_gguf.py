"""Makes GGUF files with random weights that stock llama.cpp loads: `llada`, `dream`, and `llama`, `qwen2` for its other tools.

Weights are scaled so that every part shows in the logits: attention is not flat (so positions and keys matter), Q/K/V biases are
large, and the softmax of the output is neither flat nor saturated. The same arguments give the same bytes.
"""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from .vocab import make_vocab, write_vocab

DIFFUSION = ("llada", "dream")
BIASED = ("dream", "qwen2")

# Types whose values are drawn and then quantised. The others, and all with `quick`, are drawn as blocks of random bits.
VALUE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0")


@dataclass(frozen=True)
class BlockScale:
    """Where a block keeps its f16 scale, and its f16 minimum if it has one, with minimum / scale that centres random bits."""

    scale_at: int
    min_at: int | None = None
    min_ratio: float = 0.0


BLOCK_TYPES = {
    "Q4_0": BlockScale(0),
    "Q4_1": BlockScale(0, 2, -7.5),
    "Q5_0": BlockScale(0),
    "Q5_1": BlockScale(0, 2, -15.5),
    "Q8_0": BlockScale(0),
    "Q2_K": BlockScale(80, 82, 1.5),
    "Q3_K": BlockScale(108),
    "Q4_K": BlockScale(0, 2, 7.5),
    "Q5_K": BlockScale(0, 2, 15.5),
    "Q6_K": BlockScale(208),
    "IQ1_S": BlockScale(0),
    "IQ2_XXS": BlockScale(0),
    "IQ2_XS": BlockScale(0),
    "IQ2_S": BlockScale(0),
    "IQ3_XXS": BlockScale(0),
    "IQ3_S": BlockScale(0),
    "IQ4_NL": BlockScale(0),
    "IQ4_XS": BlockScale(0),
}
TYPES = sorted({*VALUE_TYPES, *BLOCK_TYPES})


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int


SHAPES = {
    "tiny": Shape(n_embd=64, n_layer=2, n_head=4, n_head_kv=4, n_ff=128, n_vocab=320),
    "small": Shape(n_embd=128, n_layer=4, n_head=4, n_head_kv=1, n_ff=384, n_vocab=512),
    "256": Shape(n_embd=256, n_layer=2, n_head=8, n_head_kv=2, n_ff=512, n_vocab=512),
    "1b": Shape(n_embd=2048, n_layer=16, n_head=32, n_head_kv=8, n_ff=8192, n_vocab=32000),
    "8b": Shape(n_embd=4096, n_layer=32, n_head=32, n_head_kv=32, n_ff=12288, n_vocab=126464),
}


@dataclass(frozen=True)
class Spec:
    """What to make.

    `gain` is the standard deviation of the logits, `bias` that of the Q/K/V biases (None: 3 where the architecture has them).
    Attention scores have the standard deviation `attention_gain`² (more with biases): the larger, the more a row's text depends
    on single other rows, and the more rounding errors grow on their way. At 1.5 F16 arithmetic stays near an NMSE of 1e-6; 3 is
    for F32 files whose decoded text shall vary. `tensor_types` are (regular expression over tensor names, type) pairs, the
    first match counts; `shift` None leaves the key out; `zero_mask_row` clears MASK's row of an untied output, which keeps it
    far from the top. What attention and the feed-forward part add to a row is multiplied by `branch_gain`: 1/sqrt(2 n_layer) is
    usual where training begins. `quick` draws uniform values or random blocks instead of quantising normal ones.
    """

    arch: str
    shape: Shape
    type: str = "F16"
    tensor_types: tuple[tuple[str, str], ...] = ()
    tied: bool = False
    fused_qkv: bool = False
    bias: float | None = None
    gain: float = 4.0
    attention_gain: float = 1.5
    branch_gain: float = 1.0
    shift: bool | None = None
    mask_key: bool = True
    zero_mask_row: bool = False
    context: int = 4096
    freq_base: float = 1000.0
    seed: int = 1
    quick: bool = False


@dataclass(frozen=True)
class Tensor:
    """A tensor to draw: shape in NumPy order `[out, in]`, mean and standard deviation of its values."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0


def tensors(spec: Spec) -> Iterator[Tensor]:
    """All tensors of a model, in the order of the file."""
    s = spec.shape
    head_dim = s.n_embd // s.n_head
    n_kv = s.n_head_kv * head_dim
    bias = (3.0 if spec.arch in BIASED else 0.0) if spec.bias is None else spec.bias
    logit_std = spec.gain / s.n_embd**0.5

    def matrix(name: str, n_out: int, n_in: int, gain: float = 1.0) -> Tensor:
        return Tensor(f"{name}.weight", (n_out, n_in), gain / n_in**0.5)

    yield Tensor("token_embd.weight", (s.n_vocab, s.n_embd), logit_std if spec.tied else max(1.0, bias))
    for i in range(s.n_layer):
        name = f"blk.{i}"
        yield Tensor(f"{name}.attn_norm.weight", (s.n_embd,), 0.1, 1.0)
        # V is as large as its bias, or every row would get the same vector from attention.
        qk = spec.attention_gain
        if spec.fused_qkv:
            projections = [("attn_qkv", s.n_embd + 2 * n_kv, qk)]
        else:
            projections = [("attn_q", s.n_embd, qk), ("attn_k", n_kv, qk), ("attn_v", n_kv, max(1.0, bias))]
        for part, n_out, gain in projections:
            yield matrix(f"{name}.{part}", n_out, s.n_embd, gain)
            if bias:
                yield Tensor(f"{name}.{part}.bias", (n_out,), bias)
        yield matrix(f"{name}.attn_output", s.n_embd, s.n_embd, spec.branch_gain)
        yield Tensor(f"{name}.ffn_norm.weight", (s.n_embd,), 0.1, 1.0)
        yield matrix(f"{name}.ffn_gate", s.n_ff, s.n_embd, 1.5)
        yield matrix(f"{name}.ffn_up", s.n_ff, s.n_embd, 1.5)
        yield matrix(f"{name}.ffn_down", s.n_embd, s.n_ff, spec.branch_gain)
    yield Tensor("output_norm.weight", (s.n_embd,), 0.1, 1.0)
    if not spec.tied:
        yield Tensor("output.weight", (s.n_vocab, s.n_embd), logit_std)


def tensor_type(spec: Spec, tensor: Tensor) -> GGMLQuantizationType:
    """F32 for vectors, else what the spec says."""
    if len(tensor.shape) == 1:
        return GGMLQuantizationType.F32
    chosen = next((t for pattern, t in spec.tensor_types if re.search(pattern, tensor.name)), spec.type)
    return GGMLQuantizationType[chosen]


def byte_shape(tensor: Tensor, qtype: GGMLQuantizationType) -> tuple[int, ...]:
    """Shape of the tensor as bytes."""
    block, size = GGML_QUANT_SIZES[qtype]
    *outer, n_in = tensor.shape
    if n_in % block:
        raise ValueError(f"{tensor.name}: rows of {n_in} are no multiple of the {block} of {qtype.name}")
    return (*outer, n_in // block * size)


def draw(spec: Spec, tensor: Tensor, qtype: GGMLQuantizationType) -> np.ndarray:
    """The bytes of a tensor; every tensor has its own random stream."""
    rng = np.random.default_rng([spec.seed, zlib.crc32(tensor.name.encode())])
    random_bits = qtype.name in BLOCK_TYPES and (spec.quick or qtype.name not in VALUE_TYPES)
    if random_bits:
        data = draw_blocks(rng, tensor, qtype)
    elif spec.quick and len(tensor.shape) > 1:
        data = quantize(draw_uniform(rng, tensor), qtype)
    else:
        values = tensor.mean + tensor.std * rng.standard_normal(tensor.shape, dtype=np.float32)
        if spec.zero_mask_row and tensor.name == "output.weight":
            values[make_vocab(spec.shape.n_vocab).mask_id] = 0
        data = quantize(values, qtype)
    return np.ascontiguousarray(data).view(np.uint8).reshape(byte_shape(tensor, qtype))


def draw_blocks(rng: np.random.Generator, tensor: Tensor, qtype: GGMLQuantizationType) -> np.ndarray:
    """Blocks of random bits, all with the scale that gives the values the wanted standard deviation."""
    block, size = GGML_QUANT_SIZES[qtype]
    n_blocks = int(np.prod(tensor.shape)) // block
    blocks = np.frombuffer(rng.bytes(n_blocks * size), dtype=np.uint8).reshape(n_blocks, size).copy()
    set_scale(blocks, BLOCK_TYPES[qtype.name], 1.0)
    set_scale(blocks, BLOCK_TYPES[qtype.name], tensor.std / float(dequantize(blocks[:4096], qtype).std()))
    return blocks


def set_scale(blocks: np.ndarray, where: BlockScale, scale: float) -> None:
    """Writes the scale, and the minimum that goes with it, into all blocks `[n_blocks, bytes]`."""
    fields = [(where.scale_at, scale)]
    if where.min_at is not None:
        fields.append((where.min_at, scale * where.min_ratio))
    for at, value in fields:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


def draw_uniform(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    """Uniform values of the wanted standard deviation, which cost much less than normal ones."""
    values = rng.random(tensor.shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(tensor.std * 12**0.5)
    return values


def make(path: Path, spec: Spec) -> None:
    """Writes the file."""
    writer = GGUFWriter(path, spec.arch)
    write_keys(writer, spec)
    every = [(t, tensor_type(spec, t)) for t in tensors(spec)]
    for tensor, qtype in every:
        shape = byte_shape(tensor, qtype)
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, qtype in every:
        writer.write_tensor_data(draw(spec, tensor, qtype))
    writer.close()


def write_keys(writer: GGUFWriter, spec: Spec) -> None:
    """Adds the hyper-parameters and the tokenizer."""
    s = spec.shape
    writer.add_name(f"random {spec.arch}")
    writer.add_file_type(file_type(spec.type))
    writer.add_block_count(s.n_layer)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(s.n_embd)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(spec.freq_base)
    writer.add_rope_dimension_count(s.n_embd // s.n_head)
    writer.add_vocab_size(s.n_vocab)
    if spec.arch in DIFFUSION:
        writer.add_causal_attention(False)
        if spec.shift is not None:
            writer.add_bool("diffusion.shift_logits", spec.shift)
    write_vocab(writer, make_vocab(s.n_vocab), with_mask=spec.mask_key)


def file_type(name: str) -> LlamaFileType:
    """What a file of matrices of this type calls itself."""
    for candidate in (f"ALL_{name}", f"MOSTLY_{name}", f"MOSTLY_{name}_M"):
        if candidate in LlamaFileType.__members__:
            return LlamaFileType[candidate]
    return LlamaFileType.GUESSED


def split(path: Path, max_tensors: int, splitter: str) -> list[Path]:
    """Splits a file with llama.cpp's tool; returns the parts and removes the whole."""
    run([splitter, "--split", "--split-max-tensors", str(max_tensors), str(path), str(path.with_suffix(""))])
    path.unlink()
    return sorted(path.parent.glob(f"{path.stem}-?????-of-?????.gguf"))


def run(command: list[str]) -> None:
    """Runs a tool, showing what it printed only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}")
