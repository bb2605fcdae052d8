"""LoRA adapters: GGUF files with random factors for a model's matrices, and what they do to a model.

An adapter has for some matrices `W` `[out, in]` the factors `A` `[rank, in]` and `B` `[out, rank]`; used with a scale `s` it makes
them `W + s · alpha / rank · B A` (`s · B A` where alpha is 0), which is how the models of this package take it. llama.cpp computes
`W x` and `B (A x)` apart.
"""

from __future__ import annotations

import copy
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from .model import Model

# Matrices that get factors where none are named.
ALL = r"attn_(q|k|v|output)|ffn_(gate|up|down)"


def make(model: Path, out: Path, rank: int, alpha: float, type_name: str, only: str, seed: int, gain: float) -> int:
    """Writes an adapter whose part of a product is about `gain` times the product at scale 1; returns how many matrices it has."""
    reader = GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    chosen = [t for t in reader.tensors if len(t.shape) == 2 and re.search(rf"^blk\.\d+\.({only})\.weight$", t.name)]
    qtype = GGMLQuantizationType[type_name]
    for t in chosen:
        n_in, n_out = (int(n) for n in t.shape)
        rng = np.random.default_rng([seed, zlib.crc32(t.name.encode())])
        w_std = float(dequantize(t.data, t.tensor_type).std())
        factor = gain * w_std / (alpha / rank if alpha else 1.0) / rank**0.5
        a = rng.standard_normal((rank, n_in), dtype=np.float32)
        b = np.float32(factor) * rng.standard_normal((n_out, rank), dtype=np.float32)
        for name, values in (("a", a), ("b", b)):
            data = np.ascontiguousarray(quantize(values, qtype))
            writer.add_tensor(f"{t.name}.lora_{name}", data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return len(chosen)


def add(model: Model, path: Path, scale: float) -> Model:
    """A model with an adapter."""
    reader = GGUFReader(path)
    alpha = float(reader.fields["adapter.lora.alpha"].contents())
    factors = {t.name: np.array(dequantize(t.data, t.tensor_type), dtype=model.dtype) for t in reader.tensors}
    c = model.config
    n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim
    n_ff = model.layers[0].ffn_down.shape[1]
    places = {
        "attn_q": ("qkv", 0, n_q),
        "attn_k": ("qkv", n_q, n_kv),
        "attn_v": ("qkv", n_q + n_kv, n_kv),
        "attn_output": ("attn_output", 0, c.n_embd),
        "ffn_gate": ("gate_up", 0, n_ff),
        "ffn_up": ("gate_up", n_ff, n_ff),
        "ffn_down": ("ffn_down", 0, c.n_embd),
    }
    names = ("qkv", "attn_output", "gate_up", "ffn_down")
    model = copy.copy(model)
    model.layers = [replace(layer, **{name: getattr(layer, name).copy() for name in names}) for layer in model.layers]
    for name, a in factors.items():
        if not name.endswith(".lora_a"):
            continue
        _, layer, part, *_ = name.split(".")
        b = factors[name.removesuffix("a") + "b"]
        whole, first, n_rows = places[part]
        matrix = getattr(model.layers[int(layer)], whole)
        matrix[first : first + n_rows] += model.dtype.type(scale * (alpha / len(a) if alpha else 1.0)) * (b @ a)
    return model
