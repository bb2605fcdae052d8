"""Forward pass of the `llada` and `dream` architectures in NumPy, straight from a GGUF file.

Weights of any type are dequantised by the `gguf` package when the file is read; arithmetic is float32 (default) or float64
throughout. Attention is bidirectional: what a row sees is said by the caller, never by an order of positions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderField
from gguf.quants import dequantize

# Architecture -> (rope pairs are (i, i + half) instead of (2i, 2i + 1), logits are shifted when the file does not say).
# `llama` and `qwen2` are the autoregressive twins: same arithmetic, so their files can be read here as well.
ARCHITECTURES = {"llada": (False, False), "dream": (True, True), "llama": (False, False), "qwen2": (True, False)}

MASK_TEXTS = ("<|mdm_mask|>", "<|mask|>")


@dataclass(frozen=True)
class Config:
    """Hyper-parameters and token ids of a file. Ids are -1 where the file has none."""

    arch: str
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    rms_eps: float
    freq_base: float
    neox: bool
    shift_logits: bool
    mask_id: int
    eos_id: int
    eot_id: int


@dataclass
class Layer:
    """Weights of one block; matrices are `[out, in]`, Q, K and V stacked in `qkv`, gate and up in `gate_up`."""

    attn_norm: np.ndarray
    qkv: np.ndarray
    qkv_bias: np.ndarray | None
    attn_output: np.ndarray
    ffn_norm: np.ndarray
    gate_up: np.ndarray
    ffn_down: np.ndarray


# Keys and values of one layer, each `[n_rows, n_head_kv, head_dim]`; keys are already rotated to their position.
KeyValue = tuple[np.ndarray, np.ndarray]


@dataclass
class Forward:
    """Result of one forward: logits `[n_logit_rows, n_vocab]`, and K/V of all its rows, per layer."""

    logits: np.ndarray
    kv: list[KeyValue]


class Model:
    """A model in memory; see `load`."""

    def __init__(self, config: Config, token_embd: np.ndarray, layers: list[Layer], output_norm: np.ndarray, output: np.ndarray):
        self.config = config
        self.token_embd = token_embd
        self.layers = layers
        self.output_norm = output_norm
        self.output = output
        self.dtype = token_embd.dtype

    @classmethod
    def load(cls, path: str | Path, dtype: type = np.float32) -> Model:
        """Reads a GGUF (the first part of a split one) and dequantises its weights to `dtype`."""
        readers = [GGUFReader(part) for part in split_parts(Path(path))]
        tensors = {t.name: t for reader in readers for t in reader.tensors}
        unknown = [name for name in tensors if not KNOWN_TENSOR.fullmatch(name)]
        if unknown:
            raise ValueError(f"{path}: tensors without a meaning here: {unknown}")

        def weight(name: str) -> np.ndarray:
            t = tensors[name]
            return np.array(dequantize(t.data, t.tensor_type), dtype=dtype)  # a copy: the file is only mapped

        def qkv(layer: str, suffix: str) -> np.ndarray | None:
            """The fused tensor, or Q, K and V one below the other; none if neither is there."""
            if f"{layer}.attn_qkv.{suffix}" in tensors:
                return weight(f"{layer}.attn_qkv.{suffix}")
            if f"{layer}.attn_q.{suffix}" not in tensors:
                return None
            return np.concatenate([weight(f"{layer}.attn_{part}.{suffix}") for part in "qkv"])

        n_vocab = int(tensors["token_embd.weight"].shape[1])
        config = read_config(readers[0], n_vocab)
        layers = [
            Layer(
                attn_norm=weight(f"{name}.attn_norm.weight"),
                qkv=qkv(name, "weight"),
                qkv_bias=qkv(name, "bias"),
                attn_output=weight(f"{name}.attn_output.weight"),
                ffn_norm=weight(f"{name}.ffn_norm.weight"),
                gate_up=np.concatenate([weight(f"{name}.ffn_gate.weight"), weight(f"{name}.ffn_up.weight")]),
                ffn_down=weight(f"{name}.ffn_down.weight"),
            )
            for name in (f"blk.{i}" for i in range(config.n_layer))
        ]
        token_embd = weight("token_embd.weight")
        output = weight("output.weight") if "output.weight" in tensors else token_embd
        return cls(config, token_embd, layers, weight("output_norm.weight"), output)

    def logits(self, tokens, positions=None, attend=None) -> np.ndarray:
        """Logits `[n_tokens, n_vocab]` of one forward over `tokens`; `attend` is a boolean `[row, key]`, default all."""
        return self.forward(tokens, positions, visible=attend).logits

    def forward(self, tokens, positions=None, past: list[KeyValue] | None = None, visible=None, logit_rows=None) -> Forward:
        """Runs the rows `tokens`, standing at `positions` (default 0, 1, …), against themselves and earlier K/V.

        `past` holds per layer K and V of rows of earlier forwards, which every row sees before the rows of this forward.
        `visible` is a boolean matrix `[n_rows, n_past + n_rows]`: which row sees which key (default: all see all).
        `logit_rows` are the rows whose logits are computed, in that order (default: all).
        """
        c = self.config
        tokens = np.asarray(tokens, dtype=np.int64)
        positions = np.arange(len(tokens)) if positions is None else np.asarray(positions)
        if len(positions) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens but {len(positions)} positions")
        rotation = self._rotation(positions)
        n_q, n_kv = c.n_head * c.head_dim, c.n_head_kv * c.head_dim

        x = self.token_embd[tokens]
        kv = []
        for il, layer in enumerate(self.layers):
            h = self._rms_norm(x, layer.attn_norm) @ layer.qkv.T
            if layer.qkv_bias is not None:
                h = h + layer.qkv_bias
            q = self._rope(h[:, :n_q].reshape(-1, c.n_head, c.head_dim), rotation)
            k = self._rope(h[:, n_q : n_q + n_kv].reshape(-1, c.n_head_kv, c.head_dim), rotation)
            v = h[:, n_q + n_kv :].reshape(-1, c.n_head_kv, c.head_dim)
            kv.append((k, v))
            if past is not None:
                k, v = np.concatenate([past[il][0], k]), np.concatenate([past[il][1], v])
            x = x + self._attention(q, k, v, visible) @ layer.attn_output.T

            gate, up = np.split(self._rms_norm(x, layer.ffn_norm) @ layer.gate_up.T, 2, axis=1)
            x = x + (silu(gate) * up) @ layer.ffn_down.T

        if logit_rows is not None:
            x = x[np.asarray(logit_rows, dtype=np.int64)]
        return Forward(self._rms_norm(x, self.output_norm) @ self.output.T, kv)

    def _rms_norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.dtype.type(self.config.rms_eps)) * weight

    def _rotation(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of `position · freq_base^(-2i / head_dim)`, each `[n_rows, 1, head_dim / 2]`."""
        half = self.config.head_dim // 2
        frequency = self.config.freq_base ** (-np.arange(half) / half)
        angle = positions[:, None, None] * frequency
        return np.cos(angle).astype(self.dtype), np.sin(angle).astype(self.dtype)

    def _rope(self, x: np.ndarray, rotation: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        cos, sin = rotation
        half = x.shape[-1] // 2
        first, second = (np.s_[..., :half], np.s_[..., half:]) if self.config.neox else (np.s_[..., 0::2], np.s_[..., 1::2])
        out = np.empty_like(x)
        out[first] = x[first] * cos - x[second] * sin
        out[second] = x[first] * sin + x[second] * cos
        return out

    def _attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, visible) -> np.ndarray:
        """softmax(q·k / √head_dim)·v; query head h reads K/V head h // (n_head / n_head_kv)."""
        n_rows, n_head, head_dim = q.shape
        n_group = n_head // k.shape[1]
        q = q.transpose(1, 0, 2).reshape(k.shape[1], n_group * n_rows, head_dim)
        scores = q @ k.transpose(1, 2, 0) * self.dtype.type(head_dim**-0.5)
        scores = scores.reshape(n_head, n_rows, -1)
        if visible is not None:
            visible = np.asarray(visible, dtype=bool)
            if visible.shape != scores.shape[1:]:
                raise ValueError(f"visible is {visible.shape}, expected {scores.shape[1:]}")
            if not visible.any(axis=1).all():
                raise ValueError("a row sees nothing")
            scores = np.where(visible, scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = p.reshape(k.shape[1], n_group * n_rows, -1) @ v.transpose(1, 0, 2)
        return out.reshape(n_head, n_rows, head_dim).transpose(1, 0, 2).reshape(n_rows, -1)


KNOWN_TENSOR = re.compile(
    r"(token_embd|output_norm|output)\.weight"
    r"|blk\.\d+\.(attn_norm|attn_output|ffn_norm|ffn_gate|ffn_up|ffn_down)\.weight"
    r"|blk\.\d+\.attn_(q|k|v|qkv)\.(weight|bias)"
)


def silu(x: np.ndarray) -> np.ndarray:
    """x · sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp overflows to infinity for very negative x, where the result is -0
        return x / (1 + np.exp(-x))


def split_parts(path: Path) -> list[Path]:
    """All files of the split GGUF whose part is `path`, in order; `path` alone when its name is not that of a part."""
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    stem, _, n = match.groups()
    return [path.with_name(f"{stem}-{i:05d}-of-{n}.gguf") for i in range(1, int(n) + 1)]


def read_config(reader: GGUFReader, n_vocab: int) -> Config:
    """The hyper-parameters of a file, with the project's defaults for missing keys."""

    def value(key: str, default=None):
        field: ReaderField | None = reader.fields.get(key)
        if field is None:
            if default is None:
                raise ValueError(f"missing key {key}")
            return default
        return field.contents()

    arch = value("general.architecture")
    if arch not in ARCHITECTURES:
        raise ValueError(f"architecture {arch} is not one of {', '.join(ARCHITECTURES)}")
    neox, shift_default = ARCHITECTURES[arch]
    n_embd, n_head = value(f"{arch}.embedding_length"), value(f"{arch}.attention.head_count")
    head_dim = n_embd // n_head
    if value(f"{arch}.rope.dimension_count", head_dim) != head_dim:
        raise ValueError("partial rope is not supported")
    mask_id = value("tokenizer.ggml.mask_token_id", -1)
    if mask_id < 0 and "tokenizer.ggml.tokens" in reader.fields:
        texts = value("tokenizer.ggml.tokens")
        mask_id = next((texts.index(text) for text in MASK_TEXTS if text in texts), -1)
    return Config(
        arch=arch,
        n_embd=n_embd,
        n_layer=value(f"{arch}.block_count"),
        n_head=n_head,
        n_head_kv=value(f"{arch}.attention.head_count_kv", n_head),
        head_dim=head_dim,
        n_vocab=n_vocab,
        rms_eps=value(f"{arch}.attention.layer_norm_rms_epsilon"),
        freq_base=value(f"{arch}.rope.freq_base", 10000.0),
        neox=neox,
        shift_logits=value("diffusion.shift_logits", shift_default),
        mask_id=mask_id,
        eos_id=value("tokenizer.ggml.eos_token_id", -1),
        eot_id=value("tokenizer.ggml.eot_token_id", -1),
    )
