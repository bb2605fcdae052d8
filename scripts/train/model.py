"""The LLaDA architecture (bidirectional Llama) as llama.cpp's `llada` graph computes it, in JAX.

Parameters are a flat dict keyed by GGUF tensor name; a matrix is `[rows, cols]` = `[out, in]`, as NumPy reads it from
the file. Position pairs (2i, 2i + 1) are rotated (interleaved RoPE), so nothing is permuted on export.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

RMS_EPS = 1e-5
ROPE_BASE = 10000.0
Q4_0_BLOCK = 32


@dataclass(frozen=True)
class Config:
    vocab_size: int = 512
    n_embd: int = 128
    n_layer: int = 6
    n_head: int = 4
    n_ff: int = 384
    n_ctx: int = 512

    @property
    def head_dim(self):
        return self.n_embd // self.n_head


def matrix_shapes(config):
    """Shapes of the block matrices, by tensor name."""
    embd, ff = config.n_embd, config.n_ff
    per_block = {"attn_q": (embd, embd), "attn_k": (embd, embd), "attn_v": (embd, embd), "attn_output": (embd, embd),
                 "ffn_gate": (ff, embd), "ffn_up": (ff, embd), "ffn_down": (embd, ff)}
    return {f"blk.{i}.{name}.weight": shape for i in range(config.n_layer) for name, shape in per_block.items()}


def init_params(config, seed):
    """Normal initial weights; the matrices that write to the residual stream start small."""
    rng = np.random.default_rng(seed)
    params = {}
    for name, shape in matrix_shapes(config).items():
        scale = shape[1] ** -0.5
        if "attn_output" in name or "ffn_down" in name:
            scale /= (2 * config.n_layer) ** 0.5
        params[name] = rng.normal(size=shape) * scale
    for i in range(config.n_layer):
        params[f"blk.{i}.attn_norm.weight"] = np.ones(config.n_embd)
        params[f"blk.{i}.ffn_norm.weight"] = np.ones(config.n_embd)
    params["output_norm.weight"] = np.ones(config.n_embd)
    params["token_embd.weight"] = rng.normal(size=(config.vocab_size, config.n_embd)) * 0.5
    params["output.weight"] = rng.normal(size=(config.vocab_size, config.n_embd)) * 0.02
    return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + RMS_EPS) * weight


def rope_tables(config, n_tokens):
    """Cosines and sines `[1, n_tokens, 1, head_dim / 2]`."""
    inverse = ROPE_BASE ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = np.arange(n_tokens)[:, None] * inverse
    return (jnp.asarray(f(angles), jnp.float32)[None, :, None, :] for f in (np.cos, np.sin))


def rope(x, cos, sin):
    """Rotates the pairs of `x`: `[batch, n_tokens, n_head, head_dim]`."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1).reshape(x.shape)


def product(x, weight):
    """`x @ weight.T` in F32."""
    return x @ weight.T


def bf16_dot(a, b, axes):
    """Contracts one axis of each matrix: BF16 factors, F32 sums."""
    return jax.lax.dot_general(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), ((axes[:1], axes[1:]), ((), ())),
                               preferred_element_type=jnp.float32)


@jax.custom_vjp
def fast_product(x, weight):
    """`x @ weight.T` for training: twice as fast on CPUs with BF16 dot products, and so is its gradient in `x`."""
    return bf16_dot(x, weight, (1, 1))


fast_product.defvjp(lambda x, weight: (bf16_dot(x, weight, (1, 1)), (x, weight)),
                    lambda saved, grad: (bf16_dot(grad, saved[1], (1, 0)), grad.T @ saved[0]))


@jax.custom_vjp
def swiglu(gate, up):
    return gate * jax.nn.sigmoid(gate) * up


def swiglu_forward(gate, up):
    """Keeps the sigmoid, which the compiler would recompute for each of its uses."""
    sigmoid = jax.lax.optimization_barrier(jax.nn.sigmoid(gate))
    return gate * sigmoid * up, (gate, up, sigmoid)


def swiglu_backward(saved, grad):
    gate, up, sigmoid = saved
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid


swiglu.defvjp(swiglu_forward, swiglu_backward)


def forward(params, tokens, length, config, product=product):
    """Logits `[batch, n_tokens, vocab_size]`; positions at or beyond `length` are hidden from all others."""
    batch, n_tokens = tokens.shape
    heads = (batch, n_tokens, config.n_head, config.head_dim)
    cos, sin = rope_tables(config, n_tokens)
    hidden = jnp.where(jnp.arange(n_tokens)[None, :] < length[:, None], 0.0, -1e9)[:, None, None, :]
    x = params["token_embd.weight"][tokens.reshape(-1)]
    for i in range(config.n_layer):
        def weight(name):
            return params[f"blk.{i}.{name}.weight"]

        y = rms_norm(x, weight("attn_norm"))
        q, k, v = (product(y, weight(name)).reshape(heads) for name in ("attn_q", "attn_k", "attn_v"))
        q, k = rope(q, cos, sin) * config.head_dim ** -0.5, rope(k, cos, sin)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + hidden
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        x = x + product(mixed.reshape(x.shape), weight("attn_output"))
        y = rms_norm(x, weight("ffn_norm"))
        x = x + product(swiglu(product(y, weight("ffn_gate")), product(y, weight("ffn_up"))), weight("ffn_down"))
    logits = product(rms_norm(x, params["output_norm.weight"]), params["output.weight"])
    return logits.reshape(batch, n_tokens, config.vocab_size)


def fake_q4_0(matrix):
    """`matrix` as Q4_0 stores it (without the scale's rounding to F16), with the gradient of the identity."""
    blocks = matrix.reshape(-1, Q4_0_BLOCK)
    extreme = jnp.take_along_axis(blocks, jnp.argmax(jnp.abs(blocks), axis=1, keepdims=True), axis=1)
    scale = extreme / -8
    quants = jnp.clip(jnp.floor(blocks / jnp.where(scale == 0, 1, scale) + 8.5), 0, 15) - 8
    return matrix + jax.lax.stop_gradient((quants * scale).reshape(matrix.shape) - matrix)
