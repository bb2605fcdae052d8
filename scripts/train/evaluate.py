"""Exact match of a GGUF model under the reference LLaDA decoding, computed in JAX on the dequantised weights.

The decoding: `gen` masks behind the prompt; block by block, one token per forward pass of the whole canvas, the masked
position of the block with the highest probability of its argmax; temperature 0. A batch ends early only when every row
has an EOS in a finished block, which cannot change any answer. An answer longer than `gen` counts as wrong.

usage: evaluate.py MODEL.gguf TASKS.jsonl [--gen 96] [--limit N] [--show-errors N]
"""

import argparse
import json
from functools import partial
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Tokenizer, models

from model import Config, forward
from vocabulary import CONTROL_TOKENS, EOS, MASK, chat_prompt, set_byte_level

BLOCK = 32
BATCH = 64


def load_model(path):
    """Parameters (F32), configuration and tokeniser of a GGUF file."""
    reader = gguf.GGUFReader(path)
    params = {tensor.name: jnp.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), jnp.float32)
              for tensor in reader.tensors}

    def field(key):
        return reader.fields[key].contents()

    config = Config(field("llada.vocab_size"), field("llada.embedding_length"), field("llada.block_count"),
                    field("llada.attention.head_count"), field("llada.feed_forward_length"),
                    field("llada.context_length"))
    vocab = {token: i for i, token in enumerate(field("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = set_byte_level(Tokenizer(models.BPE(vocab, merges)))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    return params, config, tokenizer


@partial(jax.jit, static_argnames=("config",))
def decode_block(params, tokens, length, start, config):
    """Reveals the BLOCK positions from `start` (per row) on, one per row and step."""
    position = jnp.arange(tokens.shape[1])[None, :]
    rows = jnp.arange(tokens.shape[0])

    def step(_, tokens):
        probs = jax.nn.softmax(forward(params, tokens, length, config))
        open_here = (tokens == MASK) & (position >= start[:, None]) & (position < start[:, None] + BLOCK)
        best = jnp.argmax(jnp.where(open_here, probs.max(-1), -1.0), axis=1)
        return tokens.at[rows, best].set(probs[rows, best].argmax(-1))

    return jax.lax.fori_loop(0, BLOCK, step, tokens)


def decode(params, config, prompts, n_gen):
    """Generated ids `[len(prompts), n_gen]`."""
    n_prompt = np.array([len(prompt) for prompt in prompts], np.int32)
    width = -(-(n_prompt.max() + n_gen) // 32) * 32
    tokens = np.full((len(prompts), width), EOS, np.int32)
    for row, prompt in zip(tokens, prompts):
        row[:len(prompt)] = prompt
        row[len(prompt):len(prompt) + n_gen] = MASK
    for start in range(0, n_gen, BLOCK):
        tokens = decode_block(params, jnp.asarray(tokens), n_prompt + n_gen, n_prompt + start, config)
        generated = np.stack([row[n:n + n_gen] for row, n in zip(np.asarray(tokens), n_prompt)])
        if (generated[:, :start + BLOCK] == EOS).any(1).all():
            break
    return generated


def answer_text(tokenizer, ids):
    ids = list(ids)
    return tokenizer.decode(ids[:ids.index(EOS)] if EOS in ids else ids, skip_special_tokens=False).strip()


def evaluate(path, examples, n_gen):
    """Predicted answers, in the order of `examples`."""
    params, config, tokenizer = load_model(path)
    order = sorted(range(len(examples)), key=lambda i: len(examples[i]["answer"]))
    answers = [""] * len(examples)
    for first in range(0, len(order), BATCH):
        batch = order[first:first + BATCH]
        prompts = [tokenizer.encode(chat_prompt(examples[i]["prompt"])).ids for i in batch]
        padding = [prompts[0]] * (BATCH - len(batch))
        for i, ids in zip(batch, decode(params, config, prompts + padding, n_gen)):
            answers[i] = answer_text(tokenizer, ids)
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--gen", type=int, default=96)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--show-errors", type=int, default=0)
    args = parser.parse_args()
    examples = [json.loads(line) for line in args.tasks.read_text().splitlines()][:args.limit]
    answers = evaluate(args.model, examples, args.gen)
    right = {}
    for example, answer in zip(examples, answers):
        right.setdefault(example["task"], []).append(answer == example["answer"])
        if answer != example["answer"] and args.show_errors > 0:
            args.show_errors -= 1
            print(f"{example['prompt']!r}\n  expected {example['answer']!r}\n  answered {answer!r}")
    for task, hits in sorted(right.items()):
        print(f"{task:8} {np.mean(hits):.4f} of {len(hits)}")
    shares = " ".join(f"{task}={np.mean(hits):.4f}" for task, hits in sorted(right.items()))
    print(f"RESULT model={Path(args.model).stem} gen={args.gen} prompts={len(examples)} "
          f"exact={np.mean([hit for hits in right.values() for hit in hits]):.4f} {shares}")


if __name__ == "__main__":
    main()
