"""Relabels a diffusion GGUF as the autoregressive architecture of the same arithmetic, in place of its bytes.

`llada` and `llama`, `dream` and `qwen2` have names of equal length, so nothing moves: the architecture's value and the prefix
of every key are overwritten. Stock libllama then loads the file with a K/V cache; attention stays bidirectional where the caller
says `llama_set_causal_attn(ctx, false)` (and `attention.causal = false` stays in the file).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from gguf import GGUFReader

TWINS = {"llada": "llama", "dream": "qwen2"}


def twin(source: Path, target: Path) -> str:
    """Copies `source` to `target` relabelled; returns the new architecture."""
    shutil.copyfile(source, target)
    reader = GGUFReader(target, "r+")
    architecture = reader.fields["general.architecture"]
    old = architecture.contents()
    if old not in TWINS:
        raise ValueError(f"{source}: architecture {old} has no autoregressive twin")
    new = np.frombuffer(TWINS[old].encode(), dtype=np.uint8)
    architecture.parts[architecture.data[0]][:] = new
    for name, entry in reader.fields.items():
        if name.startswith(f"{old}."):
            key = entry.parts[1]  # parts of a field: length of its key, the key, type, value
            key[: len(new)] = new
    reader.data.flush()
    return TWINS[old]
